"""Every way in which a client says what the output must be comes to one spec, and the engine gets its grammar."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from imp.constrain.errors import Code, ConstraintError
from imp.http.dialects import anthropic, openai_chat, openai_completions
from imp.http.errors import ApiError
from imp.types import ConstraintKind, ConstraintSpec
from tests.http.scripted import serving

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
TEXT = '{"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}'
ANY_OBJECT = '{"type": "object"}'
S, R, C, G = ConstraintKind.JSON_SCHEMA, ConstraintKind.REGEX, ConstraintKind.CHOICE, ConstraintKind.GRAMMAR

FORMS: list[tuple[dict[str, Any], ConstraintKind, str, str, bool | None]] = [
    ({"response_format": {"type": "json_object"}}, S, ANY_OBJECT, "response_format.schema", None),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, S, TEXT, "response_format.schema", None),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        *(S, TEXT, "response_format.json_schema.schema", None),
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": True}}},
        *(S, "true", "response_format.json_schema.schema", None),
    ),
    ({"response_format": {"type": "regex", "regex": "a+"}}, R, "a+", "response_format.regex", None),
    (
        {"response_format": {"type": "grammar", "grammar": 'root ::= "a"'}},
        G,
        'root ::= "a"',
        "response_format.grammar",
        None,
    ),
    ({"guided_json": SCHEMA}, S, TEXT, "guided_json", None),
    ({"guided_json": TEXT}, S, TEXT, "guided_json", None),
    ({"guided_regex": r"\d+"}, R, r"\d+", "guided_regex", None),
    ({"guided_choice": ["ja", "né"]}, C, '["ja", "né"]', "guided_choice", None),
    ({"guided_grammar": "start: A"}, G, "start: A", "guided_grammar", None),
    ({"structured_outputs": {"json": SCHEMA}}, S, TEXT, "structured_outputs.json", None),
    ({"structured_outputs": {"json": TEXT, "disable_any_whitespace": True}}, S, TEXT, "structured_outputs.json", True),
    ({"structured_outputs": {"json_object": True}}, S, ANY_OBJECT, "structured_outputs.json_object", None),
    ({"structured_outputs": {"regex": "x"}}, R, "x", "structured_outputs.regex", None),
    ({"structured_outputs": {"choice": ["x"]}}, C, '["x"]', "structured_outputs.choice", None),
    ({"structured_outputs": {"grammar": "root ::= [a-z]"}}, G, "root ::= [a-z]", "structured_outputs.grammar", None),
    ({"grammar": 'root ::= "x"'}, G, 'root ::= "x"', "grammar", None),
    ({"json_schema": SCHEMA}, S, TEXT, "json_schema", None),
]


@pytest.mark.parametrize(("body", "kind", "text", "param", "compact"), FORMS, ids=lambda value: None)
def test_every_form_comes_to_one_spec(body, kind, text, param, compact):
    chat = openai_chat.read(CHAT | body).constraint
    plain = openai_completions.read({"prompt": "x"} | body, 1).constraint
    assert chat == plain == ConstraintSpec(kind, text, compact=compact)
    assert chat is not None and chat.param == param


def test_anthropics_forms_come_to_the_same_spec():
    wanted = {"type": "json_schema", "schema": SCHEMA}
    for body, param in (
        ({"output_config": {"format": wanted, "effort": "low"}}, "output_config.format.schema"),
        ({"output_format": wanted}, "output_format.schema"),
    ):
        spec = anthropic.read(CHAT | body).constraint
        assert spec == ConstraintSpec(S, TEXT) and spec is not None and spec.param == param


NOTHING: list[dict[str, Any]] = [
    {},
    {"response_format": None},
    {"response_format": {"type": "text"}},
    {"grammar": ""},
    {"guided_json": None, "structured_outputs": None, "grammar": None},
]


@pytest.mark.parametrize("body", NOTHING)
def test_nothing_said_is_no_constraint(body):
    assert openai_chat.read(CHAT | body).constraint is None


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", '"json_schema"'),
    ({"response_format": {}}, "response_format.type", "required"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema", "required"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": []}}},
        "response_format.json_schema.schema",
        "an object",
    ),
    ({"response_format": {"type": "regex"}}, "response_format.regex", "required"),
    ({"response_format": {"type": "regex", "regex": ""}}, "response_format.regex", "at least 1 character"),
    ({"guided_json": "{"}, "guided_json", "JSON"),
    ({"guided_json": "[1]"}, "guided_json", "object"),
    ({"guided_json": '{"a": NaN}'}, "guided_json", "NaN"),
    ({"guided_json": "[" * 100_000}, "guided_json", "deep"),
    ({"guided_choice": []}, "guided_choice", "1 to"),
    ({"guided_choice": [1]}, "guided_choice[0]", "a string"),
    ({"structured_outputs": {}}, "structured_outputs", "one of"),
    ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag", "grammar"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", "both"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "both"),
    ({"guided_regex": "a", "grammar": 'root ::= "a"'}, "guided_regex", "both"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "bounded"),
]


@pytest.mark.parametrize(("body", "param", "says"), WRONG, ids=lambda value: None)
def test_what_is_wrong_is_named(body, param, says):
    with pytest.raises(ApiError) as caught:
        openai_chat.read(CHAT | body)
    assert caught.value.status == 400 and caught.value.param == param
    assert says in caught.value.message and f'"{param}' in caught.value.message


FORMED = {
    "/v1/chat/completions": CHAT | {"guided_json": SCHEMA},
    "/v1/completions": {"prompt": "x", "guided_json": SCHEMA},
    "/v1/messages": CHAT | {"output_format": {"type": "json_schema", "schema": SCHEMA}},
}


class Anything:
    """A grammar that allows what the script says, and counts its sequences."""

    error = None

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.done = False

    def start(self) -> Anything:
        return self

    def ready(self) -> bool:
        return True

    def accept(self, token: int) -> bool:
        self.accepted.append(token)
        return True

    def rollback(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]

    def forced(self) -> list[int]:
        return []


class Stuck(Anything):
    """Nothing can follow the first token, for a reason of its own."""

    def accept(self, token: int) -> bool:
        if self.accepted:
            self.error = "too ambiguous"
        return self.error is None and super().accept(token)


class Compiler:
    """Remembers what it was asked; `work` may raise, or take its time."""

    def __init__(self, work: Callable[[Callable[[], bool]], None] = lambda stop: None) -> None:
        self.work, self.asked, self.known = work, [], {}

    def cached(self, spec: ConstraintSpec) -> Any:
        return self.known.get(spec)

    def compile(self, spec: ConstraintSpec, stop: Callable[[], bool], rest: Callable[[float], None]) -> Any:
        self.asked.append(spec)
        self.work(stop)
        self.known[spec] = Anything()
        return self.known[spec]


@pytest.mark.parametrize("path", FORMED)
def test_the_engine_gets_the_grammar_and_the_second_request_compiles_nothing(path):
    compiler = Compiler()

    async def test() -> None:
        async with serving(["He", "y"], constraints=compiler) as harness:
            for _ in range(2):
                assert (await harness.post(path, **FORMED[path])).status_code == 200
            await harness.post(path, **{key: value for key, value in FORMED[path].items() if key in ("prompt", *CHAT)})

    asyncio.run(test())
    assert compiler.asked == [ConstraintSpec(S, TEXT)]
    accepted = compiler.known[ConstraintSpec(S, TEXT)].accepted
    assert len(accepted) == 6  # two tokens and the end, twice; the third request is free


@pytest.mark.parametrize("path", FORMED)
def test_a_constraint_that_cannot_be_followed_to_its_end_is_the_clients_error(path):
    compiler = Compiler()

    async def test() -> None:
        async with serving(["He", "y"], constraints=compiler) as harness:
            for stream in (False, True):
                compiler.known = {ConstraintSpec(S, TEXT): Stuck()}
                answer = await harness.post(path, **FORMED[path], stream=stream)
                assert "constraint_too_large" in answer.text or path == "/v1/messages"
                assert "invalid_request_error" in answer.text and "too ambiguous" in answer.text
                assert answer.status_code == (200 if stream else 400)

    asyncio.run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_a_constraint_that_does_not_compile_is_a_400_before_the_first_token(stream):
    def refuse(stop: Callable[[], bool]) -> None:
        raise ConstraintError(Code.UNSUPPORTED, "#/a", "'pattern' uses lookahead", "rewrite it without")

    async def test() -> None:
        async with serving(constraints=Compiler(refuse)) as harness:
            answer = await harness.post("/v1/chat/completions", **CHAT, json_schema=SCHEMA, stream=stream)
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["param"] == "json_schema"
            assert error["code"] == "unsupported_constraint" and error["type"] == "invalid_request_error"
            assert error["message"] == "\"json_schema\": #/a: 'pattern' uses lookahead; rewrite it without"
            answer = await harness.post("/v1/messages", **CHAT, output_format={"type": "json_schema", "schema": SCHEMA})
            assert answer.json()["type"] == "error" and "#/a" in answer.json()["error"]["message"]

    asyncio.run(test())


def test_without_a_compiler_a_constraint_is_refused():
    async def test() -> None:
        async with serving() as harness:
            answer = await harness.post("/v1/completions", prompt="x", guided_regex="a")
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "guided_regex"

    asyncio.run(test())


def test_a_client_that_leaves_stops_the_compilation_and_others_go_on_meanwhile():
    begun, stopped = threading.Event(), threading.Event()

    def take_long(stop: Callable[[], bool]) -> None:
        begun.set()
        deadline = time.monotonic() + 20
        while not stop() and time.monotonic() < deadline:
            time.sleep(0.005)
        if stop():
            stopped.set()
        raise ConstraintError(Code.TOO_LARGE, "", "stopped")

    async def test() -> None:
        async with serving(constraints=Compiler(take_long)) as harness:
            slow = asyncio.create_task(harness.post("/v1/completions", prompt="x", guided_regex="a"))
            await harness.until(begun.is_set)
            assert (await harness.post("/v1/completions", prompt="x")).status_code == 200
            slow.cancel()
            await harness.until(stopped.is_set)

    asyncio.run(test())
