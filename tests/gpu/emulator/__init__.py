"""PTX on the CPU: text -> C -> a shared library that runs kernels and refuses what a GPU would do silently wrong."""

from tests.gpu.emulator.module import EmulatorError, Module, frozen, poisoned, tensor_map

__all__ = ["EmulatorError", "Module", "frozen", "poisoned", "tensor_map"]
