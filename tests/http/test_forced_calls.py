"""Calls of a model that babbles, in every format, for every public template: what must be a call is one, and is valid.

Nothing but the grammar keeps this model from nonsense, so what comes out is what the grammar lets through, read by the
format's parser. Many more seeds: `make acceptance-formats`.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from imp.chat.formats.registry import FORMATS
from imp.chat.template import BUILTIN

from ..chat.formats.test_round_trip import WITH_TOOLS
from .babbling import babbling
from .forced import NAMES, Ask, chat, judge, messages, responses
from .spoken import Spoken

TEMPLATES = Path(__file__).resolve().parents[3] / "shared/data/templates"
PUBLIC = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
HOSTS = {case.format: name for name, case in WITH_TOOLS.items() if name in PUBLIC}  # of each format one
CONTROL = {"upstage-Solar-Open-100B": ("<|flush|>",)}  # tokens of the vocabulary that the template does not name


def asks(number: int) -> list[Ask]:
    """What is asked of the template or format of this number: of all kinds, with tools that change."""
    few = [NAMES[at : at + 3] for at in range(0, len(NAMES), 2)]
    tools = [few[(number + at) % len(few)] for at in range(4)]
    return [
        Ask(tools[0], "required", seed=number),
        Ask(tools[1], "required", strict=True, parallel=False, thinks=True, seed=number),
        Ask(tools[2], "named", thinks=True, seed=number),
        Ask(tools[3], "auto", strict=True, thinks=True, seed=number),
        Ask(tools[3], "named", parallel=False, seed=number),
        Ask(tools[0], "auto", seed=number),
        Ask(tools[2], "auto", strict=True, parallel=False, seed=number),
    ]


async def put(server: Spoken, wanted: list[Ask]) -> None:
    """Each of them, every second one streamed as well."""
    for at, ask in enumerate(wanted):
        told = await chat(server, ask)
        judge(ask, told)
        if at % 2 == 0:
            assert await chat(server, ask, stream=True) == told


def server_of(template: str | None, parser: str = "auto") -> AbstractAsyncContextManager[Spoken]:
    """A server with a public template, or with ChatML and a format by name."""
    if template is None:
        return babbling(BUILTIN["chatml"], parser=parser)
    return babbling((TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8"), control=CONTROL.get(template, ()))


@pytest.mark.parametrize("parser", sorted(FORMATS))
def test_g02_08_g02_13_calls_of_every_format_are_valid(parser: str):
    """In chats, streamed and not; and one kind of call in each of the other dialects."""
    number = sorted(FORMATS).index(parser)

    async def main() -> None:
        async with server_of(HOSTS.get(parser), parser) as server:
            wanted = asks(number)
            await put(server, wanted)
            for say in (responses, messages):
                for stream in (False, True):
                    judge(wanted[number % 3], await say(server, wanted[number % 3], stream))

    asyncio.run(main())


@pytest.mark.skipif("openai-gpt-oss-120b" not in PUBLIC, reason="the public templates are not here (shared/data)")
def test_a_header_within_reasoning_is_complete_before_the_budget_ends_it():
    """Here the model begins a header in its second reasoning just where the budget is used up."""

    async def main() -> None:
        async with server_of("openai-gpt-oss-120b") as server:
            ask = Ask(("shared", "names", "free"), "auto", strict=True, thinks=True, seed=6059)
            judge(ask, await chat(server, ask))

    asyncio.run(main())


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - set(HOSTS.values())))
def test_g02_08_g02_13_calls_of_every_other_template_are_valid(name: str):
    async def main() -> None:
        async with server_of(name) as server:
            await put(server, asks(PUBLIC.index(name))[2:4])

    asyncio.run(main())
