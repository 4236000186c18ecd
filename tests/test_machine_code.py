"""Code that several processes compiled comes together in one, and each kernel calls what it was compiled with."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

from imp.cpu.emit import int64, integer, micro
from imp.jit import njit
from imp.machine_code import MachineCode

ROOT = Path(__file__).resolve().parents[1]
PROCESS = """
import ctypes, sys
from contextlib import nullcontext
from pathlib import Path
from imp import machine_code, object_code
from imp.jit import njit
from imp.machine_code import MachineCode

def made(factor):
    @njit
    def helper(x, times):
        found = x
        for i in range(times):
            found = found * factor + i % 7 if found % 3 else found // 2 + i
        for i in range(times):
            found = found ^ (found >> 3) if found % 5 else found + factor * i
        for i in range(times):
            found = found * factor - i % 11 if found % 7 else found // 3 - i
        return found

    def body(x, times):
        return helper(x, times) + helper(x + 1, times) + helper(x + 2, times)

    return body

signature = "int64(int64, int64)"
machine_code.PREBUILT = Path(sys.argv[2])
if refuses := sys.argv[3] == "refused":
    def refuse(code):
        raise object_code.Unknown

    object_code.load = refuse
code = MachineCode(Path(sys.argv[1]), [], "test", nullcontext)
for factor in map(int, sys.argv[4:]):
    address = code.address(f"kernel{factor}", made(factor), signature)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(address)
    judge = made(factor).__closure__[0].cell_contents.py_func
    for x in range(20):
        assert call(x, 4) == judge(x, 4) + judge(x + 1, 4) + judge(x + 2, 4), factor
assert ("numba" in sys.modules) == (code.compiled > 0 or refuses), "who needs no compiler imports none"
print(code.compiled)
"""


def compiled(folder: Path, *factors: int, prebuilt: Path = Path("none"), loading: str = "as it is") -> int:
    """A process uses these kernels; how many of them were not on disk. loading "refused": its loader takes none."""
    command = [sys.executable, "-c", PROCESS, str(folder), str(prebuilt), loading, *map(str, factors)]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def test_functions_of_one_name_that_different_processes_compiled_are_told_apart(tmp_path):
    assert compiled(tmp_path, 3) == compiled(tmp_path, 5) == 1
    files = [path.read_bytes() for path in tmp_path.glob("kernels/*/*")]
    assert len(files) == 2 and all(b"helper" in code for code in files)
    assert compiled(tmp_path, 3, 5) == 0
    assert compiled(tmp_path, 5, 3) == 0


def test_llvm_loads_what_our_loader_refuses(tmp_path):
    assert compiled(tmp_path, 3, 5) == 2
    assert compiled(tmp_path, 5, 3, loading="refused") == 0


def test_what_serves_is_imported_without_the_compiler():
    program = "import sys, imp.app, imp.cpu.backend; assert not {'numba', 'llvmlite.binding'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_functions_that_a_kernel_calls_are_of_its_variant(tmp_path):
    """Numba keeps what it compiled of a function, whoever asked."""
    value = SimpleNamespace()

    @micro(returns=int64)
    def made_for():
        return integer(value.now)

    @njit
    def deeper():
        return made_for()

    @njit
    def helper():
        return deeper() + 1

    def body(x):
        return helper() + x

    found = []
    for value.now in (10, 20, 10):
        code = MachineCode(tmp_path, [], f"variant{value.now}", nullcontext)
        address = code.address("same", body, "int64(int64)")
        found.append(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(100))
    assert found == [111, 121, 111]


def test_what_came_with_the_package_is_not_compiled_nor_copied(tmp_path):
    package, own = tmp_path / "package", tmp_path / "own"
    assert compiled(package, 3, 5) == 2
    prebuilt = package / "kernels"
    assert compiled(own, 3, 5, prebuilt=prebuilt) == 0 and not own.exists()
    assert compiled(own, 3, 7, prebuilt=prebuilt) == 1
    assert [file.name for file in own.glob("kernels/*/*")] == ["kernel7"]
    for file in prebuilt.glob("*/kernel5"):
        file.write_bytes(b"damaged")
    assert compiled(own, 5, prebuilt=prebuilt) == 1 and compiled(own, 5, prebuilt=prebuilt) == 0
