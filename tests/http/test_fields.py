"""The table-driven body parser: what is taken, what is refused and in which words, what is let through."""

from __future__ import annotations

from typing import Any

import pytest

from imp.http.errors import ApiError
from imp.http.fields import Field, Kind, Status, markdown, named, number, parse

TABLE = (
    Field("model", Kind.STRING, doc="Which model."),
    Field("temperature", Kind.NUMBER, 0, 2, doc="0 is greedy."),
    Field("top_p", Kind.NUMBER, above=0, high=1, default=0.95),
    Field("n", Kind.INTEGER, 1, 8, default=1),
    Field("seed", Kind.INTEGER),
    Field("stream", Kind.BOOLEAN, default=False, nullable=False),
    Field("stop", (Kind.STRING, Kind.ARRAY), max_items=16, items=Field("", Kind.STRING)),
    Field("prompt", (Kind.STRING, Kind.ARRAY), items=Field("", Kind.INTEGER, 0, 1_000_000)),
    Field("effort", Kind.STRING, choices=("low", "high")),
    Field("suffix", Kind.STRING, status=Status.REFUSED, doc="the model has no fill-in-the-middle tokens."),
    Field("user", Kind.STRING, status=Status.NO_OP),
    Field("stream_options", Kind.OBJECT, fields=(Field("include_usage", Kind.BOOLEAN, default=False),)),
    Field(
        "messages",
        Kind.ARRAY,
        required=True,
        min_items=1,
        max_items=10_000,
        items=Field("", Kind.OBJECT, fields=(Field("role", Kind.STRING, required=True), Field("content"))),
    ),
)
MESSAGES = [{"role": "user", "content": "hi"}]


def refused(**body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse({"messages": MESSAGES} | body, TABLE)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("name", "value", "param", "message"),
    [
        ("temperature", "hot", "temperature", '"temperature" must be a number between 0 and 2, not "hot".'),
        ("temperature", 2.1, "temperature", '"temperature" must be a number between 0 and 2, not 2.1.'),
        ("temperature", True, "temperature", '"temperature" must be a number between 0 and 2, not true.'),
        ("top_p", 0, "top_p", '"top_p" must be a number greater than 0 and at most 1, not 0.'),
        ("n", 1.5, "n", '"n" must be an integer between 1 and 8, not 1.5.'),
        ("n", False, "n", '"n" must be an integer between 1 and 8, not false.'),
        ("n", 10**30, "n", None),
        ("seed", 2**64, "seed", None),
        ("stream", "yes", "stream", '"stream" must be true or false, not "yes".'),
        ("stream", 1, "stream", '"stream" must be true or false, not 1.'),
        ("stream", None, "stream", '"stream" must be true or false, not null.'),
        ("model", 3, "model", '"model" must be a string, not 3.'),
        ("model", {"a": 1}, "model", '"model" must be a string, not an object.'),
        ("stop", ["a", 1], "stop[1]", '"stop[1]" must be a string, not 1.'),
        ("stop", ["a", None], "stop[1]", '"stop[1]" must be a string, not null.'),
        (
            "stop",
            ["a"] * 17,
            "stop",
            '"stop" must be a string of at most 16 characters or an array of at most 16 strings, not one of 17 entries.',
        ),
        ("stop", 1, "stop", '"stop" must be a string of at most 16 characters or an array of at most 16 strings, not 1.'),
        ("prompt", [1, 2, -1], "prompt[2]", '"prompt[2]" must be an integer between 0 and 1000000, not -1.'),
        ("prompt", [1, True], "prompt[1]", '"prompt[1]" must be an integer between 0 and 1000000, not true.'),
        ("effort", "medium", "effort", '"effort" must be one of "low", "high", not "medium".'),
        ("suffix", "x", "suffix", None),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage", None),
        ("stream_options", [], "stream_options", '"stream_options" must be an object, not an empty array.'),
        ("messages", [], "messages", None),
        ("messages", None, "messages", None),
        ("messages", [{"content": "x"}], "messages[0].role", '"messages[0].role" is required.'),
        ("messages", [MESSAGES[0], "x"], "messages[1]", '"messages[1]" must be an object, not "x".'),
    ],
)
def test_refused(name: str, value: Any, param: str, message: str | None) -> None:
    error = refused(**{name: value})
    assert error.param == param and f'"{param}"' in error.message
    if message is not None:
        assert error.message == message


def test_values_and_defaults() -> None:
    body = {
        "messages": MESSAGES,
        "temperature": 0,
        "n": 2.0,
        "stop": "x",
        "seed": None,
        "stream_options": {},
        "user": 5,
    }
    values = parse(body, TABLE).values
    assert values["temperature"] == 0 and values["top_p"] == 0.95 and values["stop"] == "x"
    assert values["n"] == 2 and type(values["n"]) is int
    assert values["seed"] is None and values["model"] is None and values["stream"] is False
    assert values["stream_options"] == {"include_usage": False}
    assert values["messages"] == MESSAGES
    assert set(values) == {field.name for field in TABLE}


def test_null_is_absent_for_every_optional_field() -> None:
    absent = parse({"messages": MESSAGES}, TABLE).values
    nulls = {field.name: None for field in TABLE if field.nullable and not field.required}
    assert parse({"messages": MESSAGES} | nulls, TABLE).values == absent


def test_unknown_fields_are_let_through_and_named() -> None:
    body = {"messages": [{"role": "user", "cache": 1}], "foo": 1, "stream_options": {"bar": 2}}
    assert parse(body, TABLE).ignored == ("stream_options.bar", "messages[0].cache", "foo")


def test_too_many_fields_are_refused() -> None:
    # G10-05: 10^6 keys
    assert refused(**{f"k{i}": i for i in range(2000)}).param is None


def test_shown_values_are_short() -> None:
    assert len(refused(effort="x" * 10_000).message) < 200


def test_a_million_token_ids_are_quick() -> None:
    ids = list(range(1_000_000))
    assert parse({"messages": MESSAGES, "prompt": ids}, TABLE)["prompt"] == ids
    assert refused(prompt=[*ids, 1_000_001]).param == "prompt[1000000]"


def test_a_header_of_ignored_names_is_always_a_valid_field_value() -> None:
    assert named(["foo", "messages[0].x"]) == "foo, messages[0].x"
    odd = named(["a\r\nSet-Cookie: x", "é", "a,b", "x" * 5000])
    assert odd.isascii() and odd.isprintable() and len(odd) == 1000
    assert odd.startswith("a%0D%0ASet-Cookie: x, %C3%A9, a%2Cb, x")


def test_one_number() -> None:
    assert number({"x": 0}, "x", default=1.0, low=0) == 0
    assert number({}, "x", default=1.0) == 1.0


def test_the_documentation_has_a_row_a_field() -> None:
    text = markdown(TABLE)
    assert "| `temperature` | a number between 0 and 2 |  | enforced | 0 is greedy. |" in text
    assert "| `n` | an integer between 1 and 8 | `1` | enforced |" in text
    assert "`messages[].role`" in text and "`stream_options.include_usage`" in text
    assert "| `messages` | an array of 1 to 10000 objects | required |" in text
    assert {line.count("|") for line in text.splitlines()} == {6}
