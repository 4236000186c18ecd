"""What requests say of speculation (SURFACE.md section 3): whether their output is guessed at, and what it may be."""

from __future__ import annotations

from typing import Any

from imp.http.errors import bad_request
from imp.http.fields import Field, Kind, Parsed, wrong

DRAFTING = (
    Field(
        "prediction",
        Kind.OBJECT,
        fields=(
            Field("type", Kind.STRING, required=True, choices=("content",)),
            Field("content", (Kind.STRING, Kind.ARRAY), required=True, doc="Text, or parts of type text."),
        ),
        doc="What the output may be: it comes faster as far as it is right, and is the same whatever stands here.",
    ),
    Field(
        "speculative",
        (Kind.BOOLEAN, Kind.OBJECT),
        doc='false: nothing is guessed; the output is the same. {"mtp_k": 0} is the default: there are no such heads.',
    ),
)


def drafting(parsed: Parsed) -> dict[str, Any]:
    """The part of Options. ApiError for what the table cannot say."""
    return {"speculates": _speculates(parsed["speculative"]), "prediction": _prediction(parsed["prediction"])}


def _speculates(value: Any) -> bool | None:
    if not isinstance(value, dict):
        return value
    for name in value:
        if name != "mtp_k":
            raise bad_request(f"speculative.{name}", f'"speculative" has only "mtp_k", not "{name[:60]}".')
    depth = value.get("mtp_k")
    if depth is not None and (type(depth) is not int or depth):
        why = "this model has no heads that predict several tokens"
        raise bad_request("speculative.mtp_k", f'"speculative.mtp_k" must be 0: {why}.')
    return None


def _prediction(value: dict[str, Any] | None) -> str | None:
    """The text; parts are joined as they are."""
    if value is None or isinstance(value["content"], str):
        return None if value is None else value["content"]
    texts = []
    for i, part in enumerate(value["content"]):
        path = f"prediction.content[{i}]"
        if not isinstance(part, dict) or part.get("type") != "text":
            raise wrong(f"{path}.type", '"text"', part.get("type") if isinstance(part, dict) else part)
        if not isinstance(part.get("text"), str):
            raise wrong(f"{path}.text", "a string", part.get("text"))
        texts.append(part["text"])
    return "".join(texts)
