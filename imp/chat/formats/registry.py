"""Every format, and how one is chosen: by what a template says, by what it writes, or by name."""

from __future__ import annotations

from types import ModuleType

from . import (
    apertus,
    apriel,
    command,
    command_plus,
    deepseek,
    deepseek_v31,
    dsml,
    dsml_v4,
    firefunction,
    functionary,
    functionary_v31,
    gemma4,
    gigachat,
    gigachat31,
    glm,
    glm_compact,
    granite,
    harmony,
    hermes,
    hy3,
    kimi,
    kimi_k3,
    lfm2,
    llama,
    minicpm,
    minimax,
    minimax_m1,
    minimax_m3,
    mistral,
    mistral_args,
    mistral_call_id,
    muse,
    nemotron,
    phi4,
    plain,
    pythonic,
    qwen_xml,
    seed,
    solar,
)
from .base import Format

# the most specific first: a template is of the first whose marks it has
MODULES: tuple[ModuleType, ...] = (
    harmony,
    muse,
    gemma4,
    kimi_k3,
    minimax_m3,
    hy3,
    seed,
    minimax,
    minicpm,
    dsml_v4,
    dsml,
    apertus,
    gigachat31,
    gigachat,
    solar,
    kimi,
    command,
    deepseek_v31,
    deepseek,
    functionary,
    functionary_v31,
    firefunction,
    mistral_call_id,
    mistral_args,
    mistral,
    minimax_m1,
    apriel,
    nemotron,
    lfm2,
    phi4,
    qwen_xml,
    glm_compact,
    glm,
    hermes,
    granite,
    pythonic,
    llama,
    command_plus,
    plain,
)
UNKNOWN = plain.FORMAT  # of a template that knows tools and shows no calls
FORMATS: dict[str, Format] = {module.FORMAT.name.replace("_", "-"): module.FORMAT for module in MODULES}


def by_marks(source: str) -> Format | None:
    """The format whose marks, all of them, are in the template."""
    for module in MODULES:
        marks: tuple[str, ...] = module.TEMPLATE_MARKS
        if marks and all(mark in source for mark in marks):
            return module.FORMAT
    return None


def named(name: str) -> Format:
    """The format of this name. Raises KeyError."""
    return FORMATS[name.replace("_", "-")]
