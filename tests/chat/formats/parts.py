"""Expected parts, as the tests of formats write them."""

from __future__ import annotations

from tests.chat.formats.harness import Part


def text(value: str) -> Part:
    return ("text", "", value, "")


def thought(value: str) -> Part:
    return ("reasoning", "", value, "")


def call(name: str, arguments: str, cut: str = "") -> Part:
    return ("tool", name, arguments, cut)
