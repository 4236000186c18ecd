"""Group 6 of the scenarios over the real HTTP layer, the script's model and templates as they are found."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imp.chat.formats.detect import detect
from imp.facts import template

from ..http.spoken import Spoken, speaking
from ..text.toys import BEGIN, byte_tokenizer

TEMPLATES = Path(__file__).resolve().parents[3] / "shared/data/templates"
ROLES = (
    "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant', 'tool') %}"
    "{{ raise_exception('Unexpected message role') }}{% endif %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be first') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
)
DEVELOPER = "{% for m in messages %}{% if m.role == 'developer' %}<DEV>{% endif %}{{ m.content }}{% endfor %}"


def told(template: str, *conversations: list[dict[str, Any]], path: str = "/v1/chat/completions") -> list[Any]:
    """The prompts of conversations, or (status, error) where one is refused."""

    async def tell() -> list[Any]:
        async with speaking(*["ok"] * len(conversations), voice=None, template=template) as server:
            return [await _one(server, messages) for messages in conversations]

    async def _one(server: Spoken, messages: list[dict[str, Any]]) -> Any:
        answer = await server.post(path, messages=messages)
        if answer.status_code != 200:
            return answer.status_code, answer.json()["error"]
        return server.prompts()[-1]

    return asyncio.run(tell())


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_g06_01_the_ids_of_tokenize_are_those_that_are_used():
    async def count() -> None:
        async with speaking("ok", voice=None, template="<BOS>" + ROLES, control_tokens=["<BOS>"]) as server:
            used = (await server.post("/v1/chat/completions", messages=[user("hi")])).json()["usage"]["prompt_tokens"]
            tokens = (await server.post("/tokenize", messages=[user("hi")])).json()["tokens"]
            text = (await server.post("/detokenize", tokens=tokens)).json()["prompt"]
            assert used == len(tokens) and text.count("<BOS>") == 1

    asyncio.run(count())


@pytest.mark.parametrize("template", [BEGIN + ROLES, ROLES], ids=["the template has it", "the tokenizer adds it"])
def test_g06_01_every_endpoint_has_exactly_one_bos(template: str):
    hi = {"messages": [user("hi")]}
    wanted = [256, *b"<user>hi"]

    async def ask() -> None:
        async with speaking(*["ok"] * 5, voice=None, template=template) as server:
            tokenizer = byte_tokenizer(add_bos_token=True)
            facts = replace(server.bundle.facts, tokenizer=tokenizer, control_spellings=(BEGIN,))
            server.services.loaded = replace(server.bundle, tokenizer=tokenizer, facts=facts)
            assert (await server.post("/tokenize", **hi)).json()["tokens"] == wanted
            for path, body in (("chat/completions", hi), ("messages", hi), ("responses", {"input": "hi"})):
                usage = (await server.post(f"/v1/{path}", **body)).json()["usage"]
                assert usage.get("prompt_tokens", usage.get("input_tokens")) == len(wanted), path
            for more, count in (({}, 3), ({"add_special_tokens": False}, 2)):
                usage = (await server.post("/v1/completions", prompt="hi", **more)).json()["usage"]
                assert usage["prompt_tokens"] == count
                assert len((await server.post("/tokenize", prompt="hi", **more)).json()["tokens"]) == count

    asyncio.run(ask())


def test_g06_03_a_template_that_raises_is_the_clients_400():
    if not TEMPLATES.is_dir():
        pytest.skip("the public templates are not here (shared/data/templates)")
    gemma = (TEMPLATES / "google-gemma-2-2b-it.jinja").read_text()
    system = [{"role": "system", "content": "s"}, user("a")]
    (status, error), (twice_status, twice), (none_status, none) = told(gemma, system, [user("a"), user("b")], [])
    assert (status, error["type"]) == (400, "invalid_request_error") and "System role not supported" in error["message"]
    assert twice_status == 400 and "must alternate" in twice["message"] and "Traceback" not in twice["message"]
    assert none_status == 400 and "messages" in none["message"]


def test_g06_03_what_a_template_refuses_is_no_failure_of_the_server():
    template = (
        "{% if messages|length > 1 %}{{ raise_exception('one message') }}{% endif %}{{ messages[0].content.x.y }}"
    )

    async def failed(server: Spoken) -> str:
        lines = (await server.client.get("/metrics")).text.splitlines()
        return next(line.split()[1] for line in lines if line.startswith("imp_requests_failed_total "))

    async def ask() -> None:
        async with speaking("ok", voice=None, template=template) as server:
            refused = await server.post("/v1/chat/completions", messages=[user("a"), user("b")])
            assert refused.status_code == 400 and "one message" in refused.json()["error"]["message"]
            assert await failed(server) == "0"
            assert (await server.post("/v1/chat/completions", messages=[user("a")])).status_code == 500
            assert await failed(server) == "1"

    asyncio.run(ask())


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "bug", [LOOPS, "{{ messages.nothing.more }}", "{{ 'x' * 10 ** 9 }}", "{{ ''.__class__.__mro__ }}"]
)
def test_g06_03_a_broken_template_is_the_models_500_and_others_go_on(bug: str):
    template = "{% if messages[0].content == 'bad' %}" + bug + "{% endif %}" + ROLES
    (status, error), prompt = told(template, [user("bad")], [user("good")])
    assert status == 500 and error["code"] == "template_failed" and len(error["message"]) < 400
    assert "good" in prompt


def test_g06_04_the_developer_is_heard_by_templates_that_know_none():
    developer, system = {"role": "developer", "content": "D"}, {"role": "system", "content": "S"}
    first, merged, late, (status, error) = told(
        ROLES,
        [developer, user("u")],
        [system, developer, user("u")],
        [user("u"), developer, user("v")],
        [{"role": "banana", "content": "b"}],
    )
    assert first == "<system>D<user>u"
    assert merged == "<system>S\n\nD<user>u"
    assert late == "<system>D<user>u<user>v"
    assert status == 400 and "messages[0].role" in error["message"]
    assert told(DEVELOPER, [developer, user("u")]) == ["<DEV>Du"]


def test_g06_05_content_parts_of_every_role_come_in_their_order():
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    prompt, (status, error) = told(
        ROLES,
        [
            {"role": "system", "content": parts},
            user(parts),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": parts, "tool_call_id": "c"},
            {"role": "assistant", "content": parts},
            user(""),
        ],
        [user([{"type": "smell", "text": "A"}])],
    )
    assert "[{" not in prompt and "None" not in prompt
    assert [turn.replace("\n", "") for turn in prompt.split("<")[1:]][:2] == ["system>AB", "user>AB"]
    assert prompt.count("A") == 4 and prompt.replace("\n", "").count("AB") == 4
    assert status == 400 and "messages[0].content[0].type" in error["message"]


def test_g06_05_templates_that_iterate_parts_get_parts():
    template = (
        "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}"
        "{% if part.type == 'text' %}({{ part.text }}){% endif %}{% endfor %}{% endfor %}"
    )
    either = template.replace("{% for part", "{% if m.content is string %}{{ m.content }}{% else %}{% for part", 1)
    either = either.replace("{% endfor %}{% endfor %}", "{% endfor %}{% endif %}{% endfor %}")
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [
        {"role": "system", "content": "S"},
        user(parts),
        {"role": "assistant", "content": "said"},
        user("again"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": parts, "tool_call_id": "c"},
    ]
    [shown] = told(template, talk)
    assert shown.startswith("<system>(S)<user>(A\nB)<assistant>(said)<user>(again)<assistant>")
    assert shown.count("A\nB") == 2 and "None" not in shown
    nothing, refused, text = told(
        either,
        [user([])],
        [user([{"type": "input_text", "text": "A"}])],
        [user(parts), {"role": "assistant", "content": []}],
    )
    assert nothing == "<user>" and text.startswith("<user>A\nB<assistant>")
    assert refused[0] == 400 and refused[1]["param"] == "messages[0].content[0].type"


def test_g06_06_tojson_is_as_in_transformers():
    template = (
        "{{ {'t': \"it's <b> & ü/\"} | tojson }}|{{ [1] | tojson(indent=2) }}|{% generation %}g{% endgeneration %}"
    )
    assert told(template, [user("x")]) == ['{"t": "it\'s <b> & ü/"}|[\n  1\n]|g']


@pytest.mark.parametrize("own", ["{{ messages[0].content }} plainly", None])
def test_g06_09_the_template_for_tools_is_used_with_tools_and_shown(own: str | None):
    tool_use = "{{ messages[0].content }} with{% for tool in tools %} {{ tool.function.name }}{% endfor %}"
    tool = {"type": "function", "function": {"name": "f"}}

    async def ask() -> None:
        async with speaking("ok", "ok", voice=None) as server:
            found = template(own, server.bundle.tokenizer, "auto", {"tool_use": tool_use, "rag": "R"})
            object.__setattr__(server.bundle.facts, "template", found)
            object.__setattr__(server.bundle.facts, "voice", detect(found))
            for tools in ([], [tool]):
                answer = await server.post("/v1/chat/completions", messages=[user("x")], tools=tools)
                assert answer.status_code == 200, answer.text
            assert server.prompts() == ["x plainly" if own else "x with", "x with f"]
            shown = (await server.client.get("/props")).json()
            assert shown["chat_template"] == (own or tool_use) and shown["chat_template_tool_use"] == tool_use

    asyncio.run(ask())


def test_g06_09_without_a_template_chat_is_refused_and_completions_work():
    async def ask() -> None:
        async with speaking("ok", voice=None) as server:
            object.__setattr__(server.bundle.facts, "template", None)
            refused = await server.post("/v1/chat/completions", messages=[user("x")])
            assert refused.status_code == 400 and "--chat-template" in refused.json()["error"]["message"]
            assert (await server.post("/v1/completions", prompt="x")).json()["choices"][0]["text"] == "ok"

    asyncio.run(ask())
