"""Object code that LLVM made runs as LLVM runs it; what cannot be loaded is refused."""

from __future__ import annotations

import ctypes
import math
import platform

import llvmlite.binding as llvm
import pytest

from imp import object_code

TRIPLE = "x86_64-unknown-linux-gnu"
SOURCE = """
@table = private constant [4 x double] [double 0.5, double 1.5, double 2.5, double 3.5]
@calls = common global i64 0
@kept = global i64 40

declare double @pow(double, double)
declare double @NRT_Free(double)

define i64 @counted() {
  %before = load i64, ptr @calls
  %after = add i64 %before, 1
  store i64 %after, ptr @calls
  %kept = load i64, ptr @kept
  %sum = add i64 %after, %kept
  ret i64 %sum
}

define double @power(i64 %i, double %x) {
entry:
  %at = getelementptr [4 x double], ptr @table, i64 0, i64 %i
  %base = load double, ptr %at
  %never = fcmp olt double %x, -1.0e300
  br i1 %never, label %frees, label %computes
frees:
  %got = call double @NRT_Free(double %x)
  ret double %got
computes:
  %found = call double @pow(double %base, double %x)
  ret double %found
}
"""

on_x86 = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64", reason="object code of another machine"
)


def made(source: str = SOURCE, model: str = "large", triple: str = TRIPLE) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="static", codemodel=model, jit=True)
    return machine.emit_object(llvm.parse_assembly(source))


@on_x86
def test_loaded_code_computes_calls_the_process_and_keeps_variables():
    first, second = (object_code.load(made()) for _ in range(2))
    power = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64, ctypes.c_double)(first.symbols["power"])
    for i, base in enumerate((0.5, 1.5, 2.5, 3.5)):
        assert power(i, 2.7) == math.pow(base, 2.7)
    counts = [ctypes.CFUNCTYPE(ctypes.c_int64)(each.symbols["counted"]) for each in (first, second)]
    assert [counts[0](), counts[0](), counts[1]()] == [41, 42, 41]  # variables belong to one load


@on_x86
def test_loaded_code_may_be_run_but_not_written():
    loaded = object_code.load(made())
    rights = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, right = line.split()[:2]
            rights[tuple(int(end, 16) for end in span.split("-"))] = right

    def of(symbol: str) -> str:
        return next(right for (start, end), right in rights.items() if start <= loaded.symbols[symbol] < end)

    assert of("power").startswith("r-x") and of("kept").startswith("rw-") and of("calls").startswith("rw-")


@on_x86
@pytest.mark.parametrize(
    "code, why",
    [
        (b"", "ELF"),
        (b"\x7fELF\x01\x01" + bytes(100), "ELF"),
        (made(model="small"), "relocation"),
        (made(triple="aarch64-unknown-linux-gnu"), "x86-64"),
        (made(SOURCE.replace("@pow", "@nobody_has_this")), "nobody_has_this"),
        (made(SOURCE.replace("NRT_Free", "NRT_Allocate")), "NRT_Allocate"),
    ],
    ids=["nothing", "32 bit", "another model of code", "another machine", "an unknown name", "it takes memory"],
)
def test_what_cannot_be_loaded_is_refused(code, why):
    with pytest.raises(object_code.Unknown, match=why):
        object_code.load(code)
