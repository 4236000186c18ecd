"""One micro-test: a kernel in PTX, its inputs, and the output it must give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# PTX, kernel, threads of the one block, arguments (arrays and numbers), bytes of dynamic shared memory
Launcher = Callable[[str, str, int, Sequence[object], int], None]


@dataclass(frozen=True)
class Case:
    """`expected` is compared bit by bit, or as float32 within `relative` where that is not 0."""

    name: str
    ptx: str
    inputs: tuple[np.ndarray, ...]
    expected: np.ndarray
    threads: int = 32
    shared: int = 0
    relative: float = 0.0
    arch: str = "sm_80"


def check(case: Case, launch: Launcher) -> None:
    """Runs the case and raises AssertionError with the first difference."""
    out = np.empty_like(case.expected)
    out.view(np.uint8).fill(0xFF)
    launch(case.ptx, "micro", case.threads, [*case.inputs, out], case.shared)
    if case.relative:
        error = np.abs(out.astype(np.float64) - case.expected)
        wrong = ~(error <= case.relative * np.abs(case.expected))
    else:
        wrong = out != case.expected
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        given = [hex(x[at[0]]) if x.dtype.kind == "u" and x.ndim == 1 and at[0] < len(x) else "" for x in case.inputs]
        shown = (hex(out[at]), hex(case.expected[at])) if out.dtype.kind == "u" else (out[at], case.expected[at])
        raise AssertionError(f"{case.name}: {wrong.sum()} of {wrong.size} differ, first at {at}: {shown[0]} for {shown[1]}, inputs {given}")


def module(parameters: Sequence[str], body: str, arch: str = "sm_80", shared: str = "") -> str:
    """A module with one kernel `micro`. parameters: PTX types; parameter k is in register %arg{k}, pointers already global."""
    names = [f"    .param .{type_} p{k}" for k, type_ in enumerate(parameters)]
    loads = "\n".join(f"    ld.param.{type_} %arg{k}, [p{k}];" + (f"\n    cvta.to.global.u64 %arg{k}, %arg{k};" if type_ == "u64" else "")
                      for k, type_ in enumerate(parameters))
    declared = "\n".join(f"    .reg .{type_.replace('u', 'b')} %arg{k};" for k, type_ in enumerate(parameters))
    version = "8.0" if arch in ("sm_80", "sm_90a") else "8.6"
    return (f".version {version}\n.target {arch}\n.address_size 64\n{shared}\n.visible .entry micro(\n" + ",\n".join(names)
            + f"\n)\n{{\n{declared}\n    .reg .b32 %thread;\n    .reg .b64 %wide;\n{loads}\n    mov.u32 %thread, %tid.x;\n"
            f"    cvt.u64.u32 %wide, %thread;\n{body}\n    ret;\n}}\n")


_REGISTER = {8: "b16", 16: "b16", 32: "b32", 64: "b64"}


def elementwise(instruction: str, sources: Sequence[str], result: str, arch: str = "sm_80") -> str:
    """A kernel that does `instruction` on elements of arrays: %x, %y, %z are the sources, %d the result.

    sources, result: PTX types of the arrays' elements (b8 is held in 16-bit registers).
    """
    bits = [int(t[1:]) for t in (*sources, result)]
    names = [*["x", "y", "z", "w"][:len(sources)], "d"]
    lines = []
    for k, (name, width) in enumerate(zip(names, bits, strict=True)):
        lines += [f"    .reg .{_REGISTER[width]} %{name};", f"    .reg .b64 %at_{name};",
                  f"    mad.lo.u64 %at_{name}, %wide, {width // 8}, %arg{k};"]
        if name != "d":
            lines.append(f"    ld.global.{'u8' if width == 8 else f'b{width}'} %{name}, [%at_{name}];")
    lines += [f"    {line}" for line in instruction.splitlines()]
    lines.append(f"    st.global.{'u8' if bits[-1] == 8 else f'b{bits[-1]}'} [%at_d], %d;")
    return module(["u64"] * len(bits), "\n".join(lines), arch)
