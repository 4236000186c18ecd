"""Compiled kernels, and threads to run them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from imp.cpu.cache import CompiledKernels
from imp.cpu.simd import detect
from imp.cpu.threads import Threads
from tests.cpu.harness import Workbench


@pytest.fixture(scope="session", params=sorted({detect(), "portable"}))
def features(request: pytest.FixtureRequest) -> str:
    """Both ways to lower the vocabulary, where the machine has both."""
    return request.param


@pytest.fixture(scope="session")
def bench(features: str, kernel_folder: Path) -> Iterator[Workbench]:
    kernels = CompiledKernels(kernel_folder, features)
    threads = Threads(2, kernels)
    yield Workbench(kernels, threads)
    threads.close()
