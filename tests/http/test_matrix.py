"""Every field of every generating route against every kind of wrong value, judged by the page that people read.

The judge parses the rows of docs/FIELDS.md ("an integer between 0 and 20") and knows nothing of the parser under test.
Most cases call the dialect's own `read`; a share of them goes through a server.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from imp.http.dialects import anthropic, embeddings, infill, openai_chat, openai_completions, rerank, responses
from imp.http.errors import ApiError
from tests.http.scripted import serving
from tests.http.wire import run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "FIELDS.md").read_text()
MESSAGES = [{"role": "user", "content": "x"}]


@dataclass(frozen=True)
class Dialect:
    """A route: its least body, and how it reads one."""

    path: str
    base: Mapping[str, Any]
    read: Callable[[Mapping[str, Any]], object]


DIALECTS = [
    Dialect("/v1/chat/completions", {"messages": MESSAGES}, openai_chat.read),
    Dialect("/v1/completions", {"prompt": "x"}, lambda body: openai_completions.read(body, 512)),
    Dialect("/infill", {"input_prefix": "x", "input_suffix": "y"}, infill.read),
    Dialect("/v1/responses", {"input": "x"}, responses.read),
    Dialect("/v1/messages", {"messages": MESSAGES}, anthropic.read),
    Dialect("/v1/embeddings", {"input": "x"}, lambda body: embeddings.read(body, 512)),
    Dialect("/v1/rerank", {"query": "x", "documents": ["x"]}, lambda body: rerank.read_rerank(body, "/v1/rerank", 512)),
    Dialect("/v1/score", {"text_1": "x", "text_2": "x"}, lambda body: rerank.read_score(body, "/v1/score", 512)),
]

# What a field needs beside itself, by the name of its outermost field; and values its table cannot say enough of.
COMPANY: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "logprob_token_ids": {"logprobs": True},
    "stream_options": {"stream": True},
    "continue_final_message": {"add_generation_prompt": None},  # null is absent, so they do not exclude each other
    "texts": {"documents": None},
    "queries": {"text_1": None},
}
COMPANY_BY_ROUTE: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/completions", "logprob_token_ids"): {"logprobs": 1},
    ("/v1/completions", "max_tokens"): {"echo": True},
    ("/v1/score", "documents"): {"text_2": None},
    ("/v1/messages", "tool_choice"): {"tools": [{"name": "x", "input_schema": {}}]},
}
SAMPLES: dict[str, Any] = {
    "messages": MESSAGES,
    "prompt": "text",
    "input": "text",
    "response_format": {"type": "text"},
    "response_format.type": "text",
    **dict.fromkeys(("tools", "tool_choice", "functions", "function_call")),  # say more than their tables
    "text.format": {"type": "text"},
    "text.format.type": "text",
    "structured_outputs": {"json_object": True},
    "thinking": {"type": "disabled"},
    "tool_choice.name": "x",
    "logit_bias": {"5": 1.5},
    "truncate": False,
    "guided_json": {},
    "json_schema": {},
    "structured_outputs.json": {},
    "output_format": {"type": "json_schema", "schema": {}},
    "output_config.format": {"type": "json_schema", "schema": {}},
}
# What an object needs beside the field of it that is tried, where that is not its sample.
AROUND: dict[str, dict[str, Any]] = {
    "tool_choice": {"type": "auto", "name": "x"},
    "prediction": {"type": "content", "content": "x"},
}
# One of each of these pairs is needed, so null is not the same as absent; `tools: []` asks for nothing.
PAIRED = {"documents", "texts", "text_1", "text_2", "queries"}
ALONE = {f"structured_outputs.{kind}" for kind in ("json", "json_object", "regex", "choice", "grammar")}
TAKEN = [("/v1/messages", "tools", [])]


# -- the judge --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A line of the page."""

    path: str
    value: str
    default: str
    status: str

    @property
    def required(self) -> bool:
        return self.default == "required"


def rows_of(route: str) -> list[Row]:
    sections = re.split(r"^## POST ", PAGE, flags=re.MULTILINE)[1:]
    section = next(text for text in sections if route in text.partition("\n")[0].split(", "))
    found = re.findall(r"^\| `(.+?)` \| (.*?) \| (.*?) \| (\S+) \|", section.replace("\\|", "/"), flags=re.MULTILINE)
    return [Row(*groups) for groups in found]


NOUNS = {"boolean": "booleans", "integer": "integers", "number": "numbers", "string": "strings", "object": "objects"}
NUMBER = r"(-?[\d.]+)"


@dataclass(frozen=True)
class Promise:
    """One of the kinds of values that a row names."""

    kind: str
    low: float = float("-inf")
    high: float = float("inf")
    above: float = float("-inf")  # exclusive
    shortest: int = 0
    longest: float = float("inf")
    choices: tuple[str, ...] = ()

    def takes(self, value: Any) -> bool:
        if self.kind == "any":
            return True
        if self.kind == "choice":
            return any(type(value) is type(choice) and value == choice for choice in self.choices)
        if self.kind != kind_of(value) and not (self.kind == "number" and kind_of(value) == "integer"):
            return False
        if self.kind in ("integer", "number"):
            whole_fits = type(value) is not int or abs(value) <= max(2**63 - 1, self.high if self.high < 1e300 else 0)
            return self.low <= value <= self.high and value > self.above and whole_fits
        return self.shortest <= len(value) <= self.longest if self.kind in ("string", "array") else True


def kind_of(value: Any) -> str:
    """JSON's kind of a value; 16.0 is an integer."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    return {float: "number", str: "string", list: "array", dict: "object", type(None): "null"}[type(value)]


def promises(text: str) -> list[Promise]:
    """What the words of a row promise. Fails for words it does not know."""
    import json

    if text.startswith(("one of ", '"')) or text in ("true", "false"):
        return [Promise("choice", choices=tuple(json.loads(f"[{text.removeprefix('one of ')}]")))]
    text = text.replace("true or false", "a boolean")
    return [promise(part) for part in re.split(r" or (?=an? )", text)]


def promise(text: str) -> Promise:
    if text in ("a value", "any value"):
        return Promise("any")
    found = re.fullmatch(r"an? (boolean|integer|number|string|array|object)(.*)", text)
    assert found, f"the page says {text!r}, which this judge cannot read"
    kind, rest = found[1], found[2].strip()
    forms = {
        rf"between {NUMBER} and {NUMBER}": lambda a, b: {"low": float(a), "high": float(b)},
        rf"of at least {NUMBER}": lambda a: {"low": float(a)},
        rf"of at most {NUMBER}": lambda a: {"high": float(a)},
        rf"greater than {NUMBER}": lambda a: {"above": float(a)},
        rf"greater than {NUMBER} and at most {NUMBER}": lambda a, b: {"above": float(a), "high": float(b)},
        r"": dict,
    }
    lengths = {
        r"of (\d+) to (\d+) [\w ]+": lambda a, b: {"shortest": int(a), "longest": int(b)},
        r"of at least (\d+) [\w ]+": lambda a: {"shortest": int(a)},
        r"of at most (\d+) [\w ]+": lambda a: {"longest": int(a)},
        r"of [a-z][\w ]+": dict,
        r"": dict,
    }
    for form, bounds in (forms if kind in ("integer", "number") else lengths).items():
        if match := re.fullmatch(form, rest):
            return Promise(kind, **bounds(*match.groups()))
    raise AssertionError(f"the page says {text!r}, which this judge cannot read")


# -- the cases --------------------------------------------------------------------------------------------------------

WRONG: list[Any] = [True, 7, 1.5, "x", [], ["x"], {}, {"x": 1}]


@dataclass(frozen=True)
class Case:
    dialect: Dialect
    path: str
    body: dict[str, Any]
    good: bool
    why: str


def values_of(row: Row, kinds: list[Promise]) -> Iterator[tuple[str, Any]]:
    """Values at and beyond every edge of what is promised, and of every other kind."""
    yield from (("of another kind", value) for value in WRONG)
    yield "null", None
    for one in kinds:
        if one.kind in ("integer", "number"):
            step = 1 if one.kind == "integer" else 0.001
            for edge in {one.low, one.high, one.above} - {float("-inf"), float("inf")}:
                at = int(edge) if edge == int(edge) else edge
                yield from (("at an edge", at), ("beside an edge", at - step), ("beside an edge", at + step))
            yield from (("huge", 2**63), ("huge", -(2**63)), ("huge", 10**30), ("a whole float", 1.0), ("a part", 0.5))
        if one.kind == "string":
            yield from (("a length", "x" * n) for n in lengths_of(one))
        if one.kind == "array" and (sample := item_of(row)) is not None:
            yield from (("a length", [sample] * n) for n in lengths_of(one))
        if one.kind == "choice":
            yield from (("a choice", choice) for choice in one.choices)
            yield from (("no choice", value) for value in ("", "X", -1, 99))


def lengths_of(one: Promise) -> set[int]:
    edges = {one.shortest, one.longest} - {float("inf")}
    return {n for edge in edges for n in (int(edge) - 1, int(edge), int(edge) + 1) if 0 <= n <= 20_000}


def item_of(row: Row) -> Any:
    """An item for an array of this row, where any will do."""
    words = row.value.split()
    for noun, sample in (("strings", "x"), ("integers", 1), ("objects", MESSAGES[0])):
        if noun in words:
            return sample
    return None


def cases_of(dialect: Dialect) -> Iterator[Case]:
    yield Case(dialect, "", dict(dialect.base), True, "nothing else is given")
    for row in rows_of(dialect.path):
        kinds = promises(row.value)
        assert row.status in ("enforced", "no-op", "refused")
        if row.required and "." not in row.path:
            absent = {name: value for name, value in dialect.base.items() if name != row.path}
            yield Case(dialect, row.path, absent, False, "absent")
        if row.path in SAMPLES:
            yield case_of(dialect, row, SAMPLES[row.path], row.status != "refused" or SAMPLES[row.path] is None, "good")
        for why, value in values_of(row, kinds):
            good = True if (dialect.path, row.path, value) in TAKEN else verdict(row, kinds, value)
            if good is not None:
                yield case_of(dialect, row, value, good, why)


def verdict(row: Row, kinds: list[Promise], value: Any) -> bool | None:
    """Must this value be taken? None where the page does not say it all: what an object or an array must hold."""
    if value is None:
        return None if row.path in PAIRED | ALONE else not row.required
    if row.status == "refused":
        return False
    if row.status == "no-op":
        return True
    if not any(one.takes(value) for one in kinds):
        return False
    open_ended = isinstance(value, dict | list) or row.path in SAMPLES
    return None if open_ended else True


def case_of(dialect: Dialect, row: Row, value: Any, good: bool, why: str) -> Case:
    outer, *inner = row.path.split(".")
    company = COMPANY.get(outer, {}) | COMPANY_BY_ROUTE.get((dialect.path, outer), {})
    body = dict(dialect.base) | company
    place = body
    at = ""
    for name in [outer, *inner][:-1]:
        at = f"{at}.{name}".removeprefix(".")
        place[name] = {} if row.path in ALONE else dict(AROUND.get(at) or SAMPLES.get(at) or {})
        place = place[name]
    place[[outer, *inner][-1]] = value
    return Case(dialect, row.path, body, good, why)


CASES = [case for dialect in DIALECTS for case in cases_of(dialect) if "[]" not in case.path]


def refusal(case: Case) -> ApiError | None:
    try:
        case.dialect.read(case.body)
    except ApiError as error:
        return error
    return None


def complaint(case: Case, status: int, param: str | None, message: str) -> str | None:
    """What is wrong with an answer to a case."""
    where = f"{case.dialect.path} {case.path} ({case.why}): {str(case.body)[:200]}"
    if case.good:
        return None if status == 200 else f"{where} was refused: {message}"
    if status != 400:
        return f"{where} got {status}"
    if param is None or not re.match(rf"{re.escape(case.path)}(\[|\.|$)", param) or f'"{param}"' not in message:
        return f"{where} was refused as {param}: {message}"
    return None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
def test_every_field_keeps_the_promise_of_the_page(dialect: Dialect) -> None:
    wrong = []
    for case in (each for each in CASES if each.dialect is dialect):
        error = refusal(case)
        found = complaint(case, error.status, error.param, error.message) if error else complaint(case, 200, None, "")
        wrong += [found] if found else []
    assert not wrong, "\n".join(wrong[:40])


def test_the_matrix_is_as_large_as_it_says() -> None:
    assert len(CASES) >= 1500
    assert sum(case.good for case in CASES) >= 300 and sum(not case.good for case in CASES) >= 1000
    for dialect in DIALECTS:
        covered = {case.path for case in CASES if case.dialect is dialect}
        assert {row.path for row in rows_of(dialect.path) if "[]" not in row.path} <= covered


def test_a_share_of_the_matrix_through_a_server() -> None:
    """Refusals in the envelope of the route, before the head of any stream."""
    chosen = random.Random(11).sample([case for case in CASES if not case.good], 150)

    async def main() -> None:
        async with serving() as site:
            for case in chosen:
                answer = await site.client.post(case.dialect.path, json=case.body)
                error = answer.json()["error"]
                if case.dialect.path == "/v1/messages":
                    assert answer.json()["type"] == "error" and error["type"] == "invalid_request_error"
                    error = error | {"param": case.path}  # this envelope has no place for it
                    assert answer.status_code == 400 and case.path.split(".")[0] in error["message"]
                    continue
                assert error.keys() == {"message", "type", "param", "code"}
                found = complaint(case, answer.status_code, error["param"], error["message"])
                assert found is None, found
            assert site.runner.steps == 0

    run(main)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"model":NaN}', b'{"model":"\\ud800"}', b'{"a":1,"a":1}', b"\xff", b'{"a":' + b"[" * 200, b"{}x"],
)
def test_a_body_that_is_no_json_object_is_a_400_on_every_route(body: bytes) -> None:
    async def main() -> None:
        async with serving() as site:
            for path in [*(dialect.path for dialect in DIALECTS), "/v1/responses", "/tokenize", "/v2/rerank"]:
                answer = await site.client.post(path, content=body, headers={"Content-Type": "application/json"})
                assert answer.status_code == 400, (path, answer.text)
                assert answer.json()["error"]["type"] == "invalid_request_error"
                assert (answer.json().get("type") == "error") == (path == "/v1/messages")
            assert (await site.post("/v1/completions", prompt="x")).status_code == 200

    run(main)


@pytest.mark.parametrize(
    "words, good, bad",
    [
        ("an integer between 0 and 20", [0, 20, 5.0], [-1, 21, 0.5, "1", True, None]),
        ("a number greater than 0 and at most 1", [1, 0.5], [0, 1.5, "1", False]),
        ("a number greater than 0", [1e300], [0, -1]),
        ("an integer", [2**63 - 1, -(2**63) + 1], [2**63, 1.5]),
        ("true or false", [True, False], [0, 1, "true"]),
        ("true or false or an array", [True, []], [0, {}]),
        ("a string of 1 to 3 characters", ["a", "abc"], ["", "abcd", ["a"]]),
        ("a string or an array of at least 1 string", ["", ["a"]], [[], 1]),
        ("an array of 1 to 2 objects", [[{}]], [[], [{}] * 3]),
        ('one of "a", "b"', ["a"], ["c", 1, ["a"]]),
        ("one of 0, 1, 2", [0, 2], [3, True, "0"]),
        ("an object or a string", [{}, "x"], [[]]),
        ("a value", [None, 1, {}], []),
    ],
)
def test_the_judge_reads_the_page(words: str, good: list[Any], bad: list[Any]) -> None:
    kinds = promises(words)
    assert all(any(one.takes(value) for one in kinds) for value in good)
    assert not any(one.takes(value) for one in kinds for value in bad)
