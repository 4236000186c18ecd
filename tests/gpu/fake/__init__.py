"""A libcuda.so.1 for tests: unmodified cuda.bindings runs on it, and kernels in the emulator.

In this process `install()` before cuda.bindings is first used; for another one `environment()`. The driver's rules it
checks, and what it is deliberately late with, are in streams.h and libcuda.cpp.
"""

from tests.gpu.fake.driver import (
                                   Counters,
                                   counters,
                                   environment,
                                   fault_after,
                                   has_compiler,
                                   install,
                                   reset,
                                   set_runs_kernels,
                                   set_seed,
                                   set_total,
                                   watch,
)

__all__ = ["Counters", "counters", "environment", "fault_after", "has_compiler", "install", "reset", "set_runs_kernels", "set_seed",
           "set_total", "watch"]
