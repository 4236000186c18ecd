"""The instructions of a compiled kernel, as NVIDIA's disassembler shows them."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile

from imp.cuda.compile import Compiler, Source
from tests.gpu.emulator.module import build_folder

INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)")


def disassembler() -> Path | None:
    spec = find_spec("nvidia")
    found = (
        [p for root in (spec.submodule_search_locations or ()) for p in Path(root).glob("*/bin/cuobjdump")]
        if spec
        else []
    )
    return found[0] if found else None


def instructions(architecture: str, source: Source) -> dict[str, Counter[str]]:
    """Of each kernel of a file, how often each instruction stands in it."""
    tool = disassembler()
    assert tool
    cubin = Compiler(build_folder().parent, architecture).compile(source).cubin
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "--dump-sass", file.name], capture_output=True, text=True, check=True).stdout
    found = {}
    for part in re.split(r"(?=Function : )", text)[1:]:
        found[part.split()[2]] = Counter(m[1] for m in map(INSTRUCTION.match, part.splitlines()) if m)
    return found


def has(count: Counter[str], pattern: str) -> bool:
    return any(re.match(pattern, name) for name in count)


# what the loops that time is spent in are to be made of
WANTED = {
    "linear": (r"LDG\.E\.NA\.128", r"HMMA\.16816\.F32"),
    "linear_tiled": (r"LDG\.E\.NA\.128", r"HMMA\.16816\.F32"),
    "linear_wgmma": (r"LDG\.E\.NA\.128", r"HGMMA\.64x64x16\.F32", r"UTMALDG\.2D", "USETMAXREG"),
    "attend": (r"HMMA\.16816\.F32", r"LDSM\.16\.M88\.4", r"LDSM\.16\.MT88\.4"),
    "rms_norm": (r"LDG\.E\.128", r"STG\.E\.(64|128)"),
    "glu": (r"LDG\.E\.128", r"STG\.E\.(64|128)"),
    "embed": (r"LDG\.E\.NA\.128",),
}


def check(architecture: str, source: Source) -> None:
    """No local memory; wide loads and matrix instructions where a kernel is made for them."""
    defines = dict(source.defines)
    exact = not defines.get("FMT", 1) or not defines.get("KV", 1)  # plain float32 arithmetic
    for kernel, count in instructions(architecture, source).items():
        assert count["EXIT"], f"{source} {kernel}: nothing was read"
        assert not has(count, "LDL|STL"), f"{source} {kernel}: local memory"
        wanted = () if exact else WANTED.get(kernel, ())
        if kernel == "attend" and defines["KV"] in (1, 2):
            wanted = (*wanted, r"LDGSTS\.E\.BYPASS\.128")
        for pattern in wanted:
            assert has(count, pattern), f"{source} {kernel} for {architecture} has no {pattern}"
