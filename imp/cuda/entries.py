"""The kernels of kernels/*.cu by name: the file and macros of each variant, its parameters and its block of threads.

Signatures are `kernel.Kernel`'s letters, in the order the files declare. What a grid covers is said in record.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..model.kv import FORMATS
from .compile import Source
from .layouts import LAYOUTS, NESTED, Layout

KV_NUMBERS = {name: number for number, name in enumerate(FORMATS)}  # macro KV
F32, F16, BF16 = 0, 1, 2  # forms of activations
TOKEN_TILES = (1, 2, 4, 8)  # macro NT: eights of tokens that a block of `linear` does; 0: `linear_tiled`
TILED_FROM = 33  # tokens from which on `linear_tiled` is used
TILED_ROWS, TILED_TOKENS = 32, 64  # what a block of it does
WGMMA_ARCHITECTURE = "sm_90a"  # that has these instructions
WGMMA_FROM = 256  # tokens from which on `linear_wgmma` is used where its sums are the others'
WGMMA_ROWS, WGMMA_TOKENS, WGMMA_COLUMNS = 128, 64, 64  # what a block of it does, and how many columns at a time
WGMMA_STAGES, WGMMA_ALIGNMENT = 4, 1024  # boxes on their way; bytes
F16_LAYOUT = LAYOUTS["f16"].number
ATTEND_ROWS = (16, 32, 64)  # macro ROWS: (token, head) pairs that a block of `attend` does


@dataclass(frozen=True, slots=True)
class Entry:
    source: Source
    name: str
    signature: str
    threads: int
    shared_bytes: int = 0  # dynamic


def _source(file: str, **defines: int) -> Source:
    return Source(file, tuple(defines.items()))


def embed(layout: int) -> Entry:
    return Entry(_source("embed.cu", FMT=layout), "embed", "PPPPPPiiif", 128)


def linear(layout: int, token_tiles: int) -> Entry:
    return Entry(_source("linear.cu", FMT=layout, NT=token_tiles), "linear", "PPPPPPPPiiiiii", 128)


def linear_tiled(layout: int) -> Entry:
    return Entry(_source("linear.cu", FMT=layout, NT=0), "linear_tiled", "PPPPPPPPiiiiii", 128)


def linear_experts(layout: int, token_tiles: int) -> Entry:
    return Entry(_source("linear_experts.cu", FMT=layout, NT=token_tiles), "linear_experts", "PPPPPPPPPiiiiiqqq", 128)


FILES = {  # macro SRC, by format of a file
    **{"F32": 0, "F16": 1, "BF16": 1, "Q8_0": 2, "Q4_0": 3, "Q4_1": 4},
    **{"Q5_0": 5, "Q5_1": 6, "Q4_K": 7, "Q5_K": 8, "Q6_K": 9},
}
REPACKED_RECORDS = 8  # that a block does


def repack(file: int) -> Entry:
    return Entry(_source("repack.cu", SRC=file), "repack", "PPPqiii", 256)


IN_ORDER = Entry(_source("linear_wgmma.cu", FMT=F16_LAYOUT), "in_order", "PPPii", 128)


def in_warp_groups(layout: Layout) -> bool:
    """Whether there is a product by warp groups for it."""
    return layout.bits < 32 and layout is not NESTED


def linear_wgmma(layout: int) -> Entry:
    shared = WGMMA_STAGES * 2 * WGMMA_TOKENS * WGMMA_COLUMNS + WGMMA_ALIGNMENT
    return Entry(_source("linear_wgmma.cu", FMT=layout), "linear_wgmma", "PPPMPPPPiiiii", 384, shared)


def rotate_store(kv: int, head_dim: int) -> Entry:
    return Entry(_source("rotate.cu", KV=kv, D=head_dim), "rotate_store", "PPPPPPPPPPPqiiiiiff", 32)


def _attention(kv: int, head_dim: int, group: int, rows: int) -> Source:
    return _source("attend.cu", KV=kv, D=head_dim, GROUP=group, ROWS=rows)


def attend(kv: int, head_dim: int, group: int, rows: int) -> Entry:
    shared = 4 * (81 * head_dim + 1088) if kv == KV_NUMBERS["fp32"] else 256 * (head_dim + 8)
    return Entry(_attention(kv, head_dim, group, rows), "attend", "PPPPPPPPPPqiiiiffii", 128, shared)


def combine(kv: int, head_dim: int, group: int, rows: int) -> Entry:
    return Entry(_attention(kv, head_dim, group, rows), "combine", "PPPiiii", 32)


SHRINK = Entry(_source("lora.cu", WIDE=1), "shrink", "PiPPPPPii", 128)
EXPAND = Entry(_source("lora.cu", WIDE=1), "expand", "PPPPPiiii", 128)
EXPAND_COLUMNS = 256  # that a block does


def draw(vocab: int) -> Entry:
    return Entry(_source("sample.cu"), "draw", "PPPPPPPPiii", 512, 8 * -(-vocab // 32))


def report(vocab: int) -> Entry:
    return Entry(_source("sample.cu"), "report", "PPPPPPPiiii", 512, 4 * -(-vocab // 32))


RMS_NORM = Entry(_source("norm.cu"), "rms_norm", "PPPPiPiiiif", 256)
RMS_NORM_ADD = Entry(_source("norm.cu"), "rms_norm_add", "PPPPiiif", 256)
GLU = Entry(_source("glu.cu"), "glu", "PPPiPiiii", 256)
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
ROUTE = Entry(_source("experts.cu"), "route", "PPPPPiiiiif", 32)
COUNT_ENTRIES = Entry(_source("experts.cu"), "count_entries", "PPPi", 32)
PLACE = Entry(_source("experts.cu"), "place", "PPPPPPPiiii", 32)
GATHER = Entry(_source("experts.cu"), "gather", "PPPPPiiii", 256)
CONVERT = Entry(_source("convert.cu"), "convert", "PPiPiii", 256)
SOFTCAP = Entry(_source("convert.cu"), "softcap", "PPiiif", 256)
SOFTCAP_COLUMNS = 1024  # that a block does


def tile_rows(head_dim: int, group: int, tokens: int) -> int:
    """ROWS of a program whose steps have up to `tokens` tokens: few for decoding, many for prompts."""
    most = ATTEND_ROWS[-1] if head_dim <= 128 else ATTEND_ROWS[-2]
    return min(most, next(rows for rows in ATTEND_ROWS if rows >= group)) if tokens < TILED_FROM else most


def common(architecture: str) -> Iterator[Entry]:
    """What most models take of such a device: `imp.cuda.build` compiles these ahead."""
    yield from (RMS_NORM, RMS_NORM_ADD, GLU, CONVERT, SOFTCAP, SHRINK, EXPAND, draw(1 << 17), report(1 << 17))
    yield from (ROUTE, COUNT_ENTRIES, PLACE, GATHER)
    for kind in ("bf16", "fp8", "int4_nested"):
        yield from (linear_experts(LAYOUTS[kind].number, tiles) for tiles in TOKEN_TILES)
    yield from map(repack, sorted(set(FILES.values())))
    for layout in LAYOUTS.values():
        yield embed(layout.number)
        yield from (linear(layout.number, tiles) for tiles in TOKEN_TILES)
        yield linear_tiled(layout.number)
    if architecture == WGMMA_ARCHITECTURE:
        yield IN_ORDER
        yield from (linear_wgmma(layout.number) for layout in LAYOUTS.values() if in_warp_groups(layout))
    for kv in (KV_NUMBERS[name] for name in ("fp16", "fp8", "int8")):
        for head_dim, groups in ((64, (1, 3, 4, 8)), (128, (1, 2, 4, 8)), (256, (1, 2, 4))):
            yield rotate_store(kv, head_dim)
            for group in groups:
                for rows in {tile_rows(head_dim, group, tokens) for tokens in (1, 1 << 20)}:
                    yield attend(kv, head_dim, group, rows)
                    yield combine(kv, head_dim, group, rows)
