"""The kinds of code kernels are compiled as, and which of them this machine runs.

Every kind has the instructions of the ones behind it in KINDS:
  portable  what LLVM makes of generic code
  avx2      256 bits, with FMA and F16C
  vnni      byte products that add up (VNNI) on 256 bits
  avx512    512 bits, with VNNI
  amx       tiles of bytes and bfloat16 (AMX), which Linux grants to a process that asks, and arithmetic on halves
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

from ..processor import features, machine

KINDS = ("amx", "avx512", "vnni", "avx2", "portable")
WIDE, NARROW = 16, 8  # lanes of a vector of floats

# asm/prctl.h, asm/unistd_64.h, and the number of the tiles' registers among the parts of a thread's state
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18


def variants() -> tuple[str, ...]:
    """The kinds that this machine runs, the fastest first."""
    found = features()

    def has(*names: str) -> bool:
        return found.issuperset(names)

    avx2 = has("avx2", "fma", "f16c")
    vnni = avx2 and (has("avx_vnni") or has("avx512_vnni", "avx512vl"))
    avx512 = vnni and has("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
    amx = avx512 and has("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16") and tiles_are_granted()
    known = (amx, avx512, vnni, avx2, True)
    return tuple(kind for kind, runs in zip(KINDS, known, strict=True) if runs)


def detect() -> str:
    """The fastest of them."""
    return variants()[0]


def lanes(kind: str) -> int:
    """Floats in a vector of this kind of code."""
    return WIDE if kind in ("amx", "avx512") else NARROW


def sums_bytes(kind: str) -> bool:
    """Whether this kind of code has byte products that add up in 32 bits. Others add up in 16."""
    return KINDS.index(kind) <= KINDS.index("vnni")


@cache
def tiles_are_granted() -> bool:
    """Whether this process may use the tiles' registers, which hold for all its threads from the first call on."""
    if sys.platform != "linux" or machine() != "x86_64":
        return False
    return ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0
