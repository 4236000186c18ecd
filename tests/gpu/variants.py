"""The variants of kernels that are looked at, and what they may take of a multiprocessor."""

from __future__ import annotations

from imp.cuda.compile import Compiler, Source, resources
from tests.gpu.emulator.module import build_folder

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_120a")
REGISTERS = 65536  # of a multiprocessor, of each of these
SHARED = 99 << 10  # bytes that a block may have, on the architecture with the least
# blocks of a kernel that a multiprocessor's registers are to hold; threads of one
ROOM = {
    "linear": (3, 128), "linear_tiled": (2, 128), "attend": (2, 128), "combine": (16, 32), "rotate_store": (16, 32), "embed": (8, 128),
    "rms_norm": (4, 256), "rms_norm_add": (4, 256), "glu": (4, 256), "convert": (4, 256), "softcap": (4, 256),
    "linear_wgmma": (1, 384), "in_order": (8, 128),
    "linear_experts": (2, 128), "route": (16, 32), "count_entries": (16, 32), "place": (16, 32), "gather": (4, 256),
    "repack": (4, 256), "shrink": (8, 128), "expand": (8, 128),
    "draw": (1, 512), "report": (1, 512),
}  # fmt: skip


def variant(file: str, **defines: int) -> Source:
    return Source(file, tuple(sorted(defines.items())))


PLAIN = [variant(f"{name}.cu") for name in ("norm", "glu", "convert", "sample", "experts")]
LINEAR = [variant("linear.cu", FMT=format, NT=tiles) for format in range(13) for tiles in (0, 1, 8)]
WGMMA = [variant("linear_wgmma.cu", FMT=format) for format in (*range(1, 11), 12)]  # for sm_90a alone
EXPERTS = [variant("linear_experts.cu", FMT=format, NT=tiles) for format in (0, 1, 6, 10) for tiles in (1, 8)]
# the widths between; nested sums of Q4_K take most registers
OTHER_TILES = [
    variant(f"{name}.cu", FMT=format, NT=tiles) for name in ("linear", "linear_experts") for format in range(13) for tiles in (2, 4)
]
LORA = [variant("lora.cu", WIDE=wide) for wide in (0, 1)]
REPACK = [variant("repack.cu", SRC=file) for file in range(10)]
EMBED = [variant("embed.cu", FMT=format) for format in range(13)]
ROTATE = [variant("rotate.cu", KV=kv, D=d) for kv in range(8) for d in (64, 128, 256)]
ATTEND = [
    variant("attend.cu", KV=kv, D=d, GROUP=4, ROWS=rows)
    for kv in range(8)
    for d in (64, 128, 256)
    for rows in (16, 32 if d > 128 else 64)
]
ALL = [*PLAIN, *LORA, *REPACK, *EXPERTS, *OTHER_TILES, *LINEAR, *EMBED, *ROTATE, *ATTEND]
# what `make test` looks at: every format, of heads one size, of sizes one format
USUAL = [
    *(source for source in ALL if source not in (*ROTATE, *ATTEND, *OTHER_TILES)),
    *(source for source in OTHER_TILES if dict(source.defines) == {"FMT": 11, "NT": 4}),
    *(source for source in (*ROTATE, *ATTEND) if dict(source.defines)["D"] == 128 or dict(source.defines)["KV"] == 1),
]
EVERYWHERE = [
    *PLAIN,
    *LORA,
    *REPACK[::9],
    *LINEAR[:2],
    *LINEAR[5::9],
    EMBED[7],
    ROTATE[1],
    ROTATE[-1],
    *ATTEND[6:12:2],
    *ATTEND[9:11],
]


def check(architecture: str, source: Source) -> None:
    """Nothing is spilled, and registers and shared memory leave room for as many blocks as the kernel is made for."""
    report = Compiler(build_folder().parent, architecture).compile(source).report
    found = resources(report)
    assert found
    assert "C75" not in report, f"{source}: wgmma is made to wait, says ptxas"
    d = dict(source.defines).get("D", 0)
    for each in found:
        blocks, threads = ROOM[each.kernel]
        blocks -= each.kernel == "linear" and dict(source.defines)["FMT"] == 11  # for nested sums
        assert each.spill_bytes == each.stack_bytes == 0, f"{source}: {each}"
        assert -(-each.registers // 8) * 8 * threads * blocks <= REGISTERS, f"{source}: {each}"
        dynamic = (
            33792
            if each.kernel == "linear_wgmma"
            else 0
            if each.kernel != "attend"
            else 256 * (d + 8)
            if dict(source.defines)["KV"]
            else 4 * (81 * d + 1088)
        )
        assert each.shared_bytes <= 48 << 10 and each.shared_bytes + dynamic <= SHARED, f"{source}: {each}"
