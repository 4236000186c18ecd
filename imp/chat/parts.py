"""What an answer is made of: reasoning, text and tool calls, as they come. Dialects write these in their own words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Channel(Enum):
    """What a part is for."""

    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Opened:
    """A part begins. Parts follow each other and never overlap."""

    index: int  # 0, 1, ... within the answer
    channel: Channel
    name: str = ""  # of the function, for a call
    id: str = ""  # of the call, where the model gave one


@dataclass(frozen=True, slots=True)
class Grown:
    """More of a part: its text, or for a call a fragment of its arguments, which join to a JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A part ends. Of a call that the end of the output cut off, `unfinished` is the text as the model wrote it."""

    index: int
    unfinished: str = ""


Event = Opened | Grown | Closed
