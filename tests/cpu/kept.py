"""Keys and values in memory as model/kv.py describes it, packed here by hand: what the kernels read and write."""

from __future__ import annotations

import numpy as np

from imp.model.kv import KVFormat, turned

BLOCK = 16
FLOATS = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16)}


def raw_floats(form: KVFormat, x: np.ndarray) -> np.ndarray:
    """x [..., d] as the format's own floats, one unsigned integer each."""
    if form.name == "bf16":
        return (form.kept(x).view(np.uint32) >> 16).astype(np.uint16)
    dtype = FLOATS[form.name]
    return x.astype(dtype).view(f"u{dtype.itemsize}")


def records(form: KVFormat, x: np.ndarray, centre: np.ndarray | float = 0.0) -> np.ndarray:
    """uint8 [..., record bytes] of vectors x [..., d], not turned yet, in a format of codes."""
    codes, scales = form.encode(turned(x.astype(np.float32)) - np.float32(centre))
    if form.bits == 4:
        pairs = codes.reshape(*codes.shape[:-1], -1, 2, 8)
        codes = (pairs[..., 0, :] | pairs[..., 1, :] << 4).reshape(*codes.shape[:-1], -1)
    return np.concatenate([codes, scales], axis=-1)


def head_of_block(
    form: KVFormat, keys: np.ndarray, values: np.ndarray, first: int = 0, centre: np.ndarray | float = 0.0
) -> np.ndarray:
    """uint8 [bytes]: one head's part of a block, from keys and values [n, d] of its positions from `first` on. All bits
    of the others are set."""
    k = records(form, keys, centre) if form.turns else raw_floats(form, keys)
    v = records(form, values) if form.turns else raw_floats(form, values)
    kept = np.full((2, BLOCK * k.shape[1] * k.itemsize), 255, np.uint8).view(k.dtype)
    kept[0].reshape(-1, BLOCK)[:, first : first + len(k)] = k.T
    kept[1].reshape(BLOCK, -1)[first : first + len(v)] = v
    return kept.reshape(-1).view(np.uint8)
