"""Micro-tests of PTX instructions: inputs as PTX text and arrays, and what must come out by a definition of its own.

They run in the emulator (tests/gpu/test_emulator_micro.py) and, unchanged, on a GPU (`python -m bench.gpu`).
"""

from tests.gpu.micro.case import Case, check
from tests.gpu.micro.elements import ELEMENT_CASES
from tests.gpu.micro.matrices import MATRIX_CASES
from tests.gpu.micro.warps import WARP_CASES

CASES: tuple[Case, ...] = (*ELEMENT_CASES, *WARP_CASES, *MATRIX_CASES)

__all__ = ["CASES", "Case", "check"]
