"""Every variant of every kernel for every architecture: what it takes of a multiprocessor, and what machine code it is.
Prints the table."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from imp.cuda.compile import Compiler, resources
from tests.gpu import sass, variants
from tests.gpu.emulator.module import build_folder


@pytest.mark.parametrize("architecture", variants.ARCHITECTURES)
def test_kernels(architecture: str) -> None:
    compiler = Compiler(build_folder().parent, architecture)
    print(f"\n{architecture:44} kernel        registers  shared  spilled")
    for source in [*variants.ALL, *(variants.WGMMA if architecture == "sm_90a" else ())]:
        for each in resources(compiler.compile(source).report):
            print(f"{source!s:44} {each.kernel:13} {each.registers:9} {each.shared_bytes:7} {each.spill_bytes:8}")
        variants.check(architecture, source)
        if sass.disassembler():
            sass.check(architecture, source)
