"""What families of models put around their reasoning, and how a template tells which it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...constrain.framing import Frame
from ...constrain.tools import Pattern
from ...types import Headers
from .base import Thinking

_LINE = Pattern("\\n?")
# Muse's recipients but `self`
_NOT_SELF = Pattern(
    "[^s\\s<>=][^\\s<>=]*|s|se|sel|s[^e\\s<>=][^\\s<>=]*|se[^l\\s<>=][^\\s<>=]*|sel[^f\\s<>=][^\\s<>=]*|self[^\\s<>=]+"
)


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
        Thinking(
            "<|channel|>analysis<|message|>",
            "<|end|>",
            skipped=("<|channel|>final<|message|>",),
            frames=(Frame("<|channel|>final<|message|>"),),
            headers=Headers(("<|start|>", "<|channel|>"), ("<|message|>",), "to="),
            turn="<|start|>assistant",
            again="<|channel|>",
        ),
        "gpt-oss (Harmony)",
        ("<|channel|>analysis<|message|>",),
    ),
    Kind(
        Thinking(
            "to=self<|message|>",
            "<|eom|>",
            skipped=(" to=user<|message|>",),
            frames=(Frame(" to=user<|message|>", calls=(" to=", _NOT_SELF, "<|message|>")),),
            headers=Headers(("<|start|>",), ("<|message|>",), "to="),
            turn="<|start|>assistant",
            again="to=",
        ),
        "Muse",
        ("to=self<|message|>",),
    ),
    Kind(
        Thinking(
            "<|open|>think<|sep|>",
            "<|close|>think<|sep|>",
            skipped=("<|close|>think<|sep|>", "<|open|>response<|sep|>"),
            frames=(
                Frame(
                    "<|open|>response<|sep|>",
                    "<|close|>response<|sep|><|close|>message<|sep|>",
                    calls="<|open|>response<|sep|><|close|>response<|sep|>",
                    left="<|close|>response<|sep|>",
                ),
            ),
            headers=Headers(("<|open|>", "<|close|>"), ("<|sep|>",)),
            again="<|open|>t",
        ),
        "Kimi K3",
        ("<|open|>", "<|close|>", "<|sep|>", "think"),
    ),
    Kind(
        Thinking(
            "<|think|>",
            "<|end|>",
            skipped=("<|think|><|end|><|begin|>assistant",),
            frames=(Frame("<|content|>", "<|end|>"),),
            headers=Headers(("<|begin|>",), ("<|content|>", "<|think|>", "<|tool_calls|>")),
            turn="<|begin|>assistant",
            again="",
        ),
        "Solar Open",
        ("<|think|>", "<|begin|>assistant"),
    ),
    _pair("<|channel>thought", "<channel|>", "Gemma 4", "<|channel>thought"),
    _pair("[THINK]", "[/THINK]", "Magistral, Ministral 3", tokens=True),
    Kind(
        Thinking(
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            frames=(Frame("<|START_TEXT|>", "<|END_TEXT|>"), Frame("<|START_RESPONSE|>", "<|END_RESPONSE|>")),
        ),
        "Command A and R7B",
        ("<|END_THINKING|>",),
        tokens=True,
    ),
    _pair("<seed:think>", "</seed:think>", "Seed-OSS", tokens=True),
    _pair("<mm:think>", "</mm:think>", "MiniMax M3", tokens=True),
    _pair("<|inner_prefix|>", "<|inner_suffix|>", "Apertus", tokens=True),
    _pair("◁think▷", "◁/think▷", "Kimi VL", tokens=True),
    _pair("<|begin_of_thought|>", "<|end_of_thought|>", "OpenThinker", tokens=True),
    Kind(
        Thinking(
            "Here are my reasoning steps:",
            "[BEGIN FINAL RESPONSE]",
            around=("[END FINAL RESPONSE]", "<|end|>"),
            frames=(Frame("", (_LINE, "[END FINAL RESPONSE]"), thought=True),),
        ),
        "Apriel",
        ("[BEGIN FINAL RESPONSE]",),
    ),
    _pair("<thought>", "</thought>", "EXAONE Deep"),
    _pair("<thinking>", "</thinking>", "fine-tunes with long tags"),
    _pair("<reasoning>", "</reasoning>", "fine-tunes of reasoning data"),
    Kind(
        Thinking(
            "<think>",
            "</think>",
            around=("<response>", "</response>"),
            frames=(Frame(("<response>", _LINE), (_LINE, "</response>"), thought=True),),
        ),
        "Granite 3.2 and 3.3",
        ("<think></think>", "<response></response>"),
    ),
    Kind(
        Thinking(
            "<think>",
            "</think>",
            around=("<answer>", "</answer>"),
            frames=(Frame(("<answer>", _LINE), (_LINE, "</answer>"), thought=True),),
        ),
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
