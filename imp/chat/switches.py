"""How a template is told whether the model is to think, and how hard: found by asking the template.

Of the variables that families of templates read, those are taken that change what this one renders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Switch:
    """The variable that turns thinking on and off, and its values for the two; without a name, words for the system
    message."""

    name: str
    on: Any
    off: Any

    def word(self, thinking: bool | None) -> str:
        """What the system message has to say; "": nothing."""
        return "" if self.name or thinking is None else self.on if thinking else self.off


@dataclass(frozen=True, slots=True)
class Effort:
    """The variable that says how hard to think, and the words it may be, the least first."""

    name: str
    words: tuple[str, ...]

    def nearest(self, wanted: str) -> str:
        """The word itself where the template knows it, else the closest of those it knows."""
        if wanted in self.words or wanted not in ORDER:
            return wanted
        at = ORDER.index(wanted)
        return min(self.words, key=lambda word: (abs(ORDER.index(word) - at), -ORDER.index(word)))


# in this order: a template that reads several means the first
SWITCHES = (
    Switch("enable_thinking", True, False),
    Switch("thinking", True, False),
    Switch("reasoning", True, False),
    Switch("thinking_mode", "enabled", "disabled"),
    Switch("thinking_option", "on", "off"),
    Switch("reasoning_effort", "high", "no_think"),
    Switch("reasoning_effort", "high", "none"),
    Switch("reasoning_effort", "high", "minimal"),
    Switch("thinking_budget", -1, 0),
)
WORDS = Switch("", "/think", "/no_think")
EFFORTS = ("reasoning_effort", "thinking_effort", "reasoning_strength")
ORDER = ("none", "no_think", "minimal", "low", "medium", "high", "xhigh", "max")
_EVERYBODYS = ("low", "medium", "high")  # what a template that takes any word is sure to mean
SPELLINGS = tuple(dict.fromkeys(switch.name for switch in SWITCHES if switch.on is True))  # variables clients set

Ask = Callable[..., str | None]  # renders a question with these variables; None: the template refuses them


def switch(template: ChatTemplate, ask: Ask, thinks: Callable[[str], bool | None]) -> Switch | None:
    """thinks(prompt): does the end of a prompt say that the model thinks; None: neither yes nor no."""
    by_variable = {"enable_thinking", "thinking"} & template.reads
    if not by_variable and WORDS.off in template.text and thinks(ask(system=WORDS.off) or "") is False:
        return WORDS
    for each in SWITCHES:
        if each.name not in template.reads:
            continue
        on, off = ask(**{each.name: each.on}), ask(**{each.name: each.off})
        if on is None or off is None or on == off:
            continue
        if each.name not in EFFORTS or thinks(off) is False:
            return each
    return None


def effort(template: ChatTemplate, ask: Ask) -> Effort | None:
    for name in EFFORTS:
        if name not in template.reads:
            continue
        known = {word: text for word in ORDER if (text := ask(**{name: word})) is not None}
        if len(known) == len(ORDER):
            quoted = [word for word in ORDER if f"'{word}'" in template.text or f'"{word}"' in template.text]
            known = {word: text for word, text in known.items() if word in _EVERYBODYS or word in quoted}
        if len(set(known.values())) > 1:
            return Effort(name, tuple(known))
    return None


def template_kwargs(
    switch: Switch | None, effort: Effort | None, thinking: bool | None, wanted: str | None, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The variables that tell a template what is wanted. given: those of the client, which win.

    thinking: None: nobody decided.  wanted: a word for the effort; None: the template's own."""
    out: dict[str, Any] = {}
    if effort is not None and wanted is not None and thinking is not False:
        out[effort.name] = effort.nearest(wanted)
    if switch is not None and switch.name and thinking is not None:
        tells_effort = effort is not None and switch.name == effort.name
        if not (thinking and tells_effort and switch.name in out):
            out[switch.name] = switch.on if thinking else switch.off
    return {**out, **given}
