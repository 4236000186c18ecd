"""What requests say of thinking, in the dialects that OpenAI's clients speak (SURFACE.md section 4)."""

from __future__ import annotations

from typing import Any

from imp.http.fields import Field, Kind, Parsed

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

BUDGETS = (
    Field("enable_thinking", Kind.BOOLEAN, doc="Absent: yes in plain chat, no with tools or a form of the output."),
    Field("think_budget", Kind.NUMBER, 0, 1, doc="Share of max_tokens that thinking may take; default --think-budget."),
    Field(
        "thinking_token_budget", Kind.INTEGER, -1, doc="Tokens that thinking may take; wins. -1: as many as there are."
    ),
    Field("include_reasoning", Kind.BOOLEAN, default=True, doc="false: what is thought is not told."),
)
CHAT = (
    Field("reasoning_effort", Kind.STRING, choices=EFFORTS, doc='For templates that know it; "none": no thinking.'),
    *BUDGETS,
)


def wanted(parsed: Parsed, effort: str | None) -> dict[str, Any]:
    """The part of ChatRequest."""
    tokens = parsed["thinking_token_budget"]
    return {
        "thinking": parsed["enable_thinking"],
        "reasoning_effort": effort,
        "think_share": 1.0 if tokens == -1 else parsed["think_budget"],
        "think_tokens": None if tokens == -1 else tokens,
        "shows_thinking": parsed["include_reasoning"],
    }
