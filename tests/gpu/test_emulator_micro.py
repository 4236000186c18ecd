"""The emulator does each instruction as its definition says; the same cases run on a GPU (`python -m bench.gpu`)."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.gpu.emulator import Module
from tests.gpu.emulator.module import has_compiler
from tests.gpu.micro import CASES, Case, check

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs gcc")


def _merged(cases: Sequence[Case]) -> tuple[str, dict[str, str]]:
    """One module of many kernels, so that gcc is asked once: the texts with the kernel named by its case."""
    names = {case.name: f"micro_{k}" for k, case in enumerate(cases)}
    head = ".version 8.6\n.target sm_90a\n.address_size 64\n"
    parts = []
    for case in cases:
        text = case.ptx.split(".address_size 64\n", 1)[1]
        name = names[case.name]
        for word in ("micro", "tile", "word"):
            text = text.replace(f"entry {word}(", f"entry {name}(").replace(f" {word}[", f" {word}_{name}[").replace(f", {word};", f", {word}_{name};")
        parts.append(text)
    return head + "\n".join(parts), names


@pytest.fixture(scope="module")
def built() -> tuple[Module, dict[str, str]]:
    text, names = _merged(CASES)
    return Module(text), names


def test_no_instruction_of_the_cases_is_unknown(built: tuple[Module, dict[str, str]]):
    assert built[0].unsupported == []


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_an_instruction_gives_what_its_definition_says(case: Case, built: tuple[Module, dict[str, str]]):
    module, names = built

    def launch(ptx: str, name: str, threads: int, args: Sequence[object], shared: int) -> None:
        module.launch(names[case.name], (1,), (threads,), args, shared=shared, race_check=True)

    check(case, launch)


def test_a_wrong_result_is_told_with_its_inputs():
    case = next(c for c in CASES if c.name == "popc.b32")

    def launch(ptx: str, name: str, threads: int, args: Sequence[object], shared: int) -> None:
        module = Module(ptx)
        module.launch(name, (1,), (threads,), args)
        out = args[-1]
        assert isinstance(out, np.ndarray)
        out[3] += 1

    with pytest.raises(AssertionError, match=r"popc\.b32: 1 of 512 differ, first at"):
        check(case, launch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_the_cases_are_ptx_that_the_real_assembler_takes(arch: str):
    """nvJitLink holds ptxas; it needs no GPU."""
    nvjitlink = pytest.importorskip("cuda.bindings.nvjitlink", reason="needs the cuda packages")
    for case in CASES:
        if case.arch != arch:
            continue
        link = nvjitlink.create(2, [f"-arch={arch}", "-O3"])
        text = case.ptx.encode()
        try:
            nvjitlink.add_data(link, nvjitlink.InputType.PTX, text, len(text), case.name)
            nvjitlink.complete(link)
        except nvjitlink.nvJitLinkError as error:
            log = bytearray(nvjitlink.get_error_log_size(link))
            nvjitlink.get_error_log(link, log)
            raise AssertionError(f"{case.name}: {log.decode()}") from error
        finally:
            nvjitlink.destroy(link)
