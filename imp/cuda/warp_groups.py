"""Whether Hopper's products by warp groups give the bits of the other products on this device. A token's numbers must
not depend on what else is in a step, and how an instruction rounds its sums is not documented: so it is tried when a
model is loaded, and where the bits differ these kernels are not used."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..model.buffers import Buffer
from ..model.ops import StepLimits
from ..weights.quant import FORMATS
from ..weights.weight import Weight
from .compile import Compiler
from .driver import Device, Stream
from .entries import WGMMA_ARCHITECTURE, WGMMA_FROM
from .layouts import Packed
from .memory import Uploader
from .modules import Modules
from .products import Operand, Ordered, Target, product
from .program import Place
from .step import COUNTS, TOKENS, Sections, Shape

ROWS, COLUMNS, STEP_TOKENS = 128, 512, 64  # of what is tried
EXPONENTS = 12  # powers of two by which numbers differ in size
ALIGNMENT = 256


def possible(device: Device, limits: StepLimits) -> bool:
    """Whether this device has them, and steps that are large enough."""
    return device.architecture == WGMMA_ARCHITECTURE and limits.tokens >= WGMMA_FROM


def same_bits(device: Device, stream: Stream, compiler: Compiler, kinds: Iterable[str]) -> bool:
    """kinds: "f16" or "bf16", of what is multiplied. Raises compile.CompileError."""
    return all(_tried(device, stream, compiler, kind) for kind in sorted(kinds))


def _tried(device: Device, stream: Stream, compiler: Compiler, kind: str) -> bool:
    rng = np.random.default_rng(0)
    weight = Weight("tried", _numbers(rng, ROWS, kind), FORMATS[kind.upper()], (ROWS, COLUMNS))
    packed, given = Packed(weight), _numbers(rng, STEP_TOKENS, kind)
    x, sums = Buffer(given.nbytes, "tried"), Buffer(STEP_TOKENS * ROWS * 4, "sums")
    ordered, counts = Ordered(x, STEP_TOKENS, COLUMNS), np.full(COUNTS, STEP_TOKENS, np.int32)
    memory = device.alloc(sum(packed.sizes) + x.size + ordered.buffer.size + sums.size + 8 * ALIGNMENT)
    try:
        at = packed.place(memory.address, ALIGNMENT)
        for buffer in (x, ordered.buffer, sums):
            buffer.address, at = at, at + -(-buffer.size // ALIGNMENT) * ALIGNMENT
        with Uploader(device, stream) as uploader:
            uploader.weight(packed)
            uploader.array(x.address, given)
            uploader.array(at, counts)
        launch = product(packed, Operand(x, COLUMNS, None, ordered), None, Target(sums, ROWS, 0, False), TOKENS)
        places = [_place(at, warp_groups) for warp_groups in (False, True)]
        programs = [[launch(places[0])], [ordered.op(TOKENS).launch(places[1]), launch(places[1])]]
        modules = Modules(compiler, device, {each.entry: None for program in programs for each in program})
        found = []
        for program in programs:
            for each in program:
                modules.kernels[each.entry].launch(stream, each.grid, *each.arguments)
            found.append(np.empty((STEP_TOKENS, ROWS), np.uint32))
            stream.download(found[-1].ctypes.data, sums.address, sums.size)
            stream.synchronize()
        modules.unload()
        return bool((found[0] == found[1]).all())
    finally:
        memory.free()


def _place(counts_address: int, warp_groups: bool) -> Place:
    shape = Shape(STEP_TOKENS, 1, 0, 1, 1, 1, 16, 1, warp_groups=warp_groups)
    return Place(counts_address, Sections.of(shape), shape)


def _numbers(rng: np.random.Generator, rows: int, kind: str) -> np.ndarray:
    """Numbers of many sizes, as bits: uint8 [rows, 2 * COLUMNS]."""
    sizes = np.exp2(rng.integers(-EXPONENTS // 2, EXPONENTS // 2, (rows, COLUMNS)))
    values = (rng.standard_normal((rows, COLUMNS)) * sizes).astype(np.float32)
    if kind == "f16":
        return values.astype(np.float16).view(np.uint8)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
