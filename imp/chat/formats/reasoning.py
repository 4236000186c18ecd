"""What families of models put around their reasoning, and how a template tells which it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .base import Thinking


@dataclass(frozen=True, slots=True)
class Kind:
    """thinking: the markers.  models: whose.  marks: texts that a template with these markers has; all of them.
    tokens: the markers are control tokens of vocabularies, whose being there says enough."""

    thinking: Thinking
    models: str
    marks: tuple[str, ...]
    tokens: bool = False


def _pair(open: str, close: str, models: str, *marks: str, tokens: bool = False) -> Kind:
    return Kind(Thinking(open, close), models, marks or (close,), tokens)


# the most telling marks first: many templates name `</think>` beside what they really write
KINDS: tuple[Kind, ...] = (
    Kind(
        Thinking("<|channel|>analysis<|message|>", "<|end|>", ("<|channel|>final<|message|>",)),
        "gpt-oss (Harmony)",
        ("<|channel|>analysis<|message|>",),
    ),
    Kind(Thinking("to=self<|message|>", "<|eom|>", (" to=user<|message|>",)), "Muse", ("to=self<|message|>",)),
    Kind(
        Thinking(
            "<|open|>think<|sep|>",
            "<|close|>think<|sep|>",
            ("<|close|>think<|sep|>", "<|open|>response<|sep|>"),
        ),
        "Kimi K3",
        ("<|open|>", "<|close|>", "<|sep|>", "think"),
    ),
    Kind(
        Thinking(
            "<|think|>",
            "<|end|><|begin|>assistant",
            skipped=("<|think|><|end|><|begin|>assistant",),
            around=("<|content|>", "<|end|>"),
        ),
        "Solar Open",
        ("<|think|>", "<|begin|>assistant"),
    ),
    _pair("<|channel>thought", "<channel|>", "Gemma 4", "<|channel>thought"),
    _pair("[THINK]", "[/THINK]", "Magistral, Ministral 3", tokens=True),
    _pair("<|START_THINKING|>", "<|END_THINKING|>", "Command A and R7B", tokens=True),
    _pair("<seed:think>", "</seed:think>", "Seed-OSS", tokens=True),
    _pair("<mm:think>", "</mm:think>", "MiniMax M3", tokens=True),
    _pair("<|inner_prefix|>", "<|inner_suffix|>", "Apertus", tokens=True),
    _pair("◁think▷", "◁/think▷", "Kimi VL", tokens=True),
    _pair("<|begin_of_thought|>", "<|end_of_thought|>", "OpenThinker", tokens=True),
    Kind(
        Thinking("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", around=("[END FINAL RESPONSE]", "<|end|>")),
        "Apriel",
        ("[BEGIN FINAL RESPONSE]",),
    ),
    _pair("<thought>", "</thought>", "EXAONE Deep"),
    _pair("<thinking>", "</thinking>", "fine-tunes with long tags"),
    _pair("<reasoning>", "</reasoning>", "fine-tunes of reasoning data"),
    Kind(
        Thinking("<think>", "</think>", around=("<response>", "</response>")),
        "Granite 3.2 and 3.3",
        ("<think></think>", "<response></response>"),
    ),
    Kind(
        Thinking("<think>", "</think>", around=("<answer>", "</answer>")),
        "Hunyuan",
        ("</think>", "</answer>"),
    ),
    _pair("<think>", "</think>", "DeepSeek, Qwen, GLM, Kimi K2 and most others", "think>", tokens=True),
)


def by_marks(source: str) -> Thinking | None:
    """The markers of the first kind whose marks are all in the template."""
    return next((kind.thinking for kind in KINDS if all(mark in source for mark in kind.marks)), None)


def by_tokens(spellings: Sequence[str]) -> Thinking | None:
    """Markers that are both control tokens of the vocabulary."""
    pairs = (kind.thinking for kind in KINDS if kind.tokens)
    return next((pair for pair in pairs if pair.open in spellings and pair.close in spellings), None)
