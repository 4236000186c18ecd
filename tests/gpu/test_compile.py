"""Kernels become machine code without a GPU, are kept on disk, and what the compiler says of them is read."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")
pytest.importorskip("numba.cuda", reason="needs the cuda packages")

from numba import cuda, types

from imp.cuda import compile as compiling
from imp.cuda.compile import CompileError, Compiler, PythonKernel, Resources, Source, resources

SCALE = """#include "factor.cuh"
extern "C" __global__ void scale(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= FACTOR + MORE;
}
extern "C" __global__ void spill(float* x) {
    float kept[64];
    for (int i = 0; i < 64; i++) kept[(int)x[i] & 63] = x[i * 7];
    for (int i = 0; i < 64; i++) x[i] = kept[(int)x[i + 64] & 63];
}
"""


@pytest.fixture
def kernels(tmp_path, monkeypatch) -> Path:
    """A folder of kernels in the place of ours."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "scale.cu").write_text(SCALE)
    (folder / "factor.cuh").write_text("#define MORE 1\n")
    monkeypatch.setattr(compiling, "KERNELS", folder)
    compiling._headers.cache_clear()
    yield folder
    compiling._headers.cache_clear()


def scale(factor: int = 2) -> Source:
    return Source("scale.cu", (("FACTOR", factor),))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90a", "sm_120a"])
def test_a_source_becomes_machine_code_of_an_architecture(kernels, tmp_path, architecture):
    made = Compiler(tmp_path, architecture).compile(scale())
    assert made.cubin.startswith(b"\x7fELF") and set(made.entries) == {"scale", "spill"}
    assert f".target {architecture}" in made.ptx
    by_name = {each.kernel: each for each in resources(made.report)}
    assert by_name["scale"].stack_bytes == by_name["scale"].spill_bytes == 0 < by_name["scale"].registers
    assert by_name["spill"].stack_bytes == 256


def test_what_is_compiled_is_kept_until_something_of_it_changes(kernels, tmp_path):
    first = Compiler(tmp_path, "sm_90a")
    made = first.compile(scale())
    assert first.compiled == 1
    again = Compiler(tmp_path, "sm_90a")
    assert again.compile(scale()) == made and again.compiled == 0
    again.compile(scale(3))
    assert again.compiled == 1, "another macro is another kernel"
    (kernels / "factor.cuh").write_text("#define MORE 2\n")
    compiling._headers.cache_clear()
    again.compile(scale())
    assert again.compiled == 2, "and so is another header"
    (kernels / "scale.cu").write_text(SCALE + "\n")
    again.compile(scale())
    assert again.compiled == 3
    other = Compiler(tmp_path, "sm_80")
    other.compile(scale())
    assert other.compiled == 1


def test_a_half_written_entry_is_made_anew(kernels, tmp_path):
    """The machine code is written last, so an entry without it was cut off."""
    made = Compiler(tmp_path, "sm_90a").compile(scale())
    (cubin,) = tmp_path.rglob("*.cubin")
    cubin.unlink()
    again = Compiler(tmp_path, "sm_90a")
    assert again.compile(scale()).cubin == made.cubin and again.compiled == 1


def test_errors_say_what_the_compiler_said(kernels, tmp_path):
    (kernels / "scale.cu").write_text('extern "C" __global__ void f(int* x) { *x = unknown_name; }')
    with pytest.raises(CompileError, match="unknown_name"):
        Compiler(tmp_path, "sm_90a").compile(scale())
    assert not list(tmp_path.rglob("*.cubin"))


def test_compiling_leaves_the_process_as_it_was(kernels, tmp_path):
    """A program without warnings has an empty log, which must not be written into a shared bytes object."""
    (kernels / "scale.cu").write_text('extern "C" __global__ void f(int* x) { *x = 1; }')
    Compiler(tmp_path, "sm_90a").compile(Source("scale.cu"))
    assert b"GET / HTTP/1.1".split(bytes([32])) == [b"GET", b"/", b"HTTP/1.1"] and b" "[0] == 32


def add(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] += 3


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_120a"])
def test_a_function_becomes_machine_code(tmp_path, architecture):
    kernel = PythonKernel("add", add, (types.CPointer(types.int32), types.int32), 128)
    compiler = Compiler(tmp_path, architecture)
    made = compiler.compile(kernel)
    assert made.cubin.startswith(b"\x7fELF") and len(made.entries) == 1
    (found,) = resources(made.report)
    assert found.kernel == made.entries[0] and found.spill_bytes == 0
    assert compiler.compile(kernel) == made and compiler.compiled == 1


def test_reports_of_several_kernels_are_told_apart():
    report = (
        "ptxas info    : Compiling entry function 'a' for 'sm_90a'\n"
        "ptxas info    : Function properties for a\n"
        "    704 bytes stack frame, 1336 bytes spill stores, 64 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 1 barriers, 1024 bytes smem\n"
        "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n"
        "ptxas info    : Used 8 registers, used 0 barriers\n"
    )
    assert resources(report) == [Resources("a", 168, 1024, 704, 1400), Resources("b", 8, 0, 0, 0)]
