"""Heads on their way to attention: norms, rope, and keys and values as imp/model/kv.py keeps them."""

from __future__ import annotations

import numpy as np
import pytest

from imp.model.kv import FORMATS, bf16_bits, turned
from tests.gpu.kernels import TOLERANCE, Result, counts, error, module, padded, rows, run, values

KINDS = ("fp32", "fp16", "bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4")
QUERIES = {"fp32": "f32", "bf16": "bf16"}  # of all others f16
HEADS, KV_HEADS = 3, 2


def record_of(kind: str, x: np.ndarray) -> np.ndarray:
    """uint8 [..., bytes]: codes, then scales, of turned vectors; of floats their bytes."""
    form = FORMATS[kind]
    if form.encode is None:
        kept = {"fp32": x.astype(np.float32), "fp16": x.astype(np.float16), "bf16": bf16_bits(x)}[kind]
        return np.ascontiguousarray(kept).view(np.uint8)
    codes, scales = form.encode(x)
    if form.bits == 4:
        halves = codes.reshape(*codes.shape[:-1], -1, 2, 8)
        codes = (halves[..., 0, :] | halves[..., 1, :] << 4).reshape(*codes.shape[:-1], -1)
    return np.concatenate([codes, scales], -1)


def plane_parts(plane: np.ndarray, kind: str, d: int) -> np.ndarray:
    """[blocks, heads, 2, 16 positions, bytes]: the records of a plane [blocks, bytes]."""
    codes, scales = d * FORMATS[kind].bits // 8, FORMATS[kind].scale_bytes(d)
    halves = plane.reshape(len(plane), -1, 2, 16 * (codes + scales))
    a = halves[..., : 16 * codes].reshape(*halves.shape[:-1], 16, codes)
    b = halves[..., 16 * codes :].reshape(*halves.shape[:-1], 16, scales)
    return np.concatenate([a, b], -1)


def rotated(
    kind: str,
    d: int,
    qkv: np.ndarray,
    slots: np.ndarray,
    positions: np.ndarray,
    cos: object,
    sin: object,
    q_norm: object,
    k_norm: object,
    centre: object,
    half: int,
) -> tuple[np.ndarray, np.ndarray]:
    """q float32 [tokens, ldq], and the plane's records [blocks, heads, 2, 16, bytes]."""
    tokens, blocks, form = len(qkv), 4, QUERIES.get(kind, "f16")
    record, ldq = FORMATS[kind].record_bytes(d), padded(HEADS * d)
    plane = Result((blocks, KV_HEADS * 2 * 16 * record), np.uint8)
    q = Result((tokens, ldq), np.float32 if form == "f32" else np.uint16)
    stride = padded(qkv.shape[1])
    args = [
        rows(qkv, stride),
        positions,
        slots,
        counts(tokens),
        cos,
        sin,
        q_norm,
        k_norm,
        centre,
        q,
        plane,
        plane.before.shape[1],
        stride,
        ldq,
        HEADS,
        KV_HEADS,
        half,
        1e-6,
        1e-5,
    ]
    found, kept = run(
        module("rotate.cu", KV=KINDS.index(kind), D=d), "rotate_store", (tokens + 1, HEADS + 2 * KV_HEADS), 32, args
    )
    return values(found, form), plane_parts(kept, kind, d)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("d", [16, 64, 80, 256])
def test_what_is_kept_is_what_the_format_says(kind: str, d: int) -> None:
    """Without norm and rope the records are NumPy's, bit for bit."""
    rng = np.random.default_rng(d)
    tokens, form = 3, FORMATS[kind]
    qkv = (
        rng.normal(size=(tokens, (HEADS + 2 * KV_HEADS) * d)) * rng.lognormal(size=(HEADS + 2 * KV_HEADS) * d)
    ).astype(np.float32)
    qkv[1, HEADS * d : (HEADS + 1) * d] = 0  # a key of nothing
    slots, positions = np.array([17, 30, 35], np.int32), np.array([1, 2, 3], np.int32)
    centre = rng.normal(size=(KV_HEADS, d)).astype(np.float32) if form.turns else np.zeros((KV_HEADS, d), np.float32)
    q, kept = rotated(kind, d, qkv, slots, positions, 0, 0, 0, 0, centre if form.turns else 0, 0)
    heads = qkv.reshape(tokens, -1, d)
    expected_q = turned(heads[:, :HEADS]) if form.turns else heads[:, :HEADS]
    assert error(q[:, : HEADS * d], expected_q.reshape(tokens, -1)) < TOLERANCE[QUERIES.get(kind, "f16")]
    assert not q[:, HEADS * d :].any()
    k, v = heads[:, HEADS : HEADS + KV_HEADS], heads[:, HEADS + KV_HEADS :]
    if form.turns:
        k, v = turned(k) - centre, turned(v)
    for t, slot in enumerate(slots):
        np.testing.assert_array_equal(kept[slot // 16, :, 0, slot % 16], record_of(kind, k[t]))
        np.testing.assert_array_equal(kept[slot // 16, :, 1, slot % 16], record_of(kind, v[t]))
        kept[slot // 16, :, :, slot % 16] = 255
    assert (kept == 255).all()  # nothing else was touched


@pytest.mark.parametrize("kind", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize(("d", "half"), [(16, 8), (64, 32), (80, 20), (256, 128)])
def test_norms_and_rope(kind: str, d: int, half: int) -> None:
    rng = np.random.default_rng(d + half)
    tokens, form = 3, FORMATS[kind]
    qkv = rng.normal(size=(tokens, (HEADS + 2 * KV_HEADS) * d)).astype(np.float32)
    angles = rng.uniform(0, 6, (9, half))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    q_norm, k_norm = (rng.normal(size=d).astype(np.float32) for _ in range(2))
    slots, positions = np.array([5, 6, 48], np.int32), np.array([8, 0, 3], np.int32)
    q, kept = rotated(kind, d, qkv, slots, positions, cos, sin, q_norm, k_norm, 0, half)

    def expected(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
        x = x.astype(np.float64)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w
        c, s = (np.cos(angles), np.sin(angles))
        c, s, a, b = c[positions][:, None], s[positions][:, None], x[..., :half], x[..., half : 2 * half]
        return np.concatenate([a * c - b * s, b * c + a * s, x[..., 2 * half :]], -1)

    heads = qkv.reshape(tokens, -1, d)
    wanted = expected(heads[:, :HEADS], q_norm, 1e-6)
    wanted = turned(wanted) if form.turns else wanted
    assert error(q[:, : HEADS * d], wanted.reshape(tokens, -1)) < TOLERANCE[QUERIES.get(kind, "f16")]
    k = expected(heads[:, HEADS : HEADS + KV_HEADS], k_norm, 1e-5)
    stored = kept[slots // 16, :, 0, slots % 16]  # [tokens, heads, bytes]
    if form.encode is None:
        found = np.ascontiguousarray(stored).view(np.float32 if kind == "fp32" else np.float16)
        assert error(found, k) < TOLERANCE["f32" if kind == "fp32" else "f16"]
    else:
        assert error(form.unpacked(stored, d), turned(k)) < 0.01  # a step of 8 bits
