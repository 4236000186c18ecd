"""Where a request stands in its caller's trace: W3C Trace Context (https://www.w3.org/TR/trace-context-1/)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

MAX_STATE_MEMBERS = 32
MAX_STATE_LENGTH = 512  # what the specification asks everybody to pass on at least

_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEY = r"[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13}"
_MEMBER = re.compile(rf"(?:{_KEY})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{{0,255}}[\x21-\x2b\x2d-\x3c\x3e-\x7e]")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The span of one request. Ids are lower-case hexadecimal digits, as on the wire."""

    trace_id: str  # 32 digits
    span_id: str  # 16 digits; of this server's own span
    parent_id: str | None = None  # the caller's span
    sampled: bool = True
    state: str = ""  # the caller's tracestate, passed on as it came

    @property
    def traceparent(self) -> str:
        """The header that names this server's span."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def begin() -> TraceContext:
    """A trace of its own, for a request whose caller has none."""
    return TraceContext(secrets.token_hex(16), secrets.token_hex(8))


def join(parents: Sequence[str], states: Sequence[str]) -> TraceContext | None:
    """A span in the caller's trace, from the values of its `traceparent` and `tracestate` headers.

    None where there is not exactly one valid `traceparent`. A `tracestate` that is invalid is left out, and only it.
    """
    if len(parents) != 1 or (match := _PARENT.fullmatch(parents[0].strip(" \t"))) is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == "00" and more is not None:  # only later versions may add fields
        return None
    sampled = bool(int(flags, 16) & 1)
    return TraceContext(trace_id, secrets.token_hex(8), parent_id, sampled, _state(states))


def _state(states: Sequence[str]) -> str:
    members = [member.strip(" \t") for value in states for member in value.split(",")]
    members = [member for member in members if member]
    keys = {member.partition("=")[0] for member in members}
    joined = ",".join(members)
    if len(members) > MAX_STATE_MEMBERS or len(joined) > MAX_STATE_LENGTH or len(keys) < len(members):
        return ""
    return joined if all(_MEMBER.fullmatch(member) for member in members) else ""
