"""A script file is read exactly, and every mistake in it is told by its path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.chat.template import BUILTIN
from imp.script.file import Reply, Script, ScriptError, parse, read


def test_every_key_is_read(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}")
    script = {
        "model": "m",
        "context": 100,
        "template": "own.jinja",
        "control_tokens": ["<think>"],
        "loop": False,
        "replies": [
            {
                "pieces": ["é", {"base64": "/w=="}],
                "delay_ms": 20,
                "first_delay_ms": 1.5,
                "logprob": -2,
                "endless": True,
            },
            {"error": "engine_step_failed"},
        ],
    }
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    assert read(path) == Script(
        model="m",
        context=100,
        template="{{ messages[0].content }}",
        control=("<think>",),
        replies=(
            Reply((b"\xc3\xa9", b"\xff"), 0.02, 0.0015, -2.0, True),
            Reply(error="engine_step_failed"),
        ),
        loop=False,
    )


def test_only_replies_are_needed():
    assert parse({"replies": [{"pieces": ["a"]}]}, Path()) == Script(
        "script", 32768, BUILTIN["chatml"], (), (Reply((b"a",)),), True
    )


def reply(**keys):
    return {"replies": [{"pieces": ["a"]}, keys]}


MISTAKES = [
    ([], "the script: must be an object, not []"),
    ({}, "replies: must be a list, not null"),
    ({"replies": []}, "replies: at least one reply is needed"),
    ({"replies": [7]}, "replies[0]: must be an object, not 7"),
    ({"replies": [{}], "contex": 5}, "contex: unknown key; did you mean 'context'?"),
    (
        {"replies": [{}], "zzz": 5},
        "zzz: unknown key; known are model, context, template, control_tokens, replies, loop",
    ),
    ({"replies": [{}], "context": "5"}, 'context: must be a whole number between 16 and 16777216, not "5"'),
    ({"replies": [{}], "context": True}, "context: must be a whole number between 16 and 16777216, not true"),
    ({"replies": [{}], "context": 15}, "context: must be a whole number between 16 and 16777216, not 15"),
    ({"replies": [{}], "loop": 1}, "loop: must be true or false, not 1"),
    ({"replies": [{}], "model": ""}, 'model: must be a text that is not empty, not ""'),
    ({"replies": [{}], "control_tokens": ["a", None]}, "control_tokens[1]: must be a text that is not empty, not null"),
    ({"replies": [{}], "template": "no.jinja"}, "template: no.jinja cannot be read: No such file or directory"),
    (
        {"replies": [{}], "template": "nonsense"},
        'template: must be a .jinja file or one of chatml, llama2, llama3, nemotron, gemma, none, not "nonsense"',
    ),
    (reply(pieces="abc"), 'replies[1].pieces: must be a list, not "abc"'),
    (reply(pieces=["a", 7]), 'replies[1].pieces[1]: must be a text or {"base64": "..."}, not 7'),
    (reply(pieces=[""]), 'replies[1].pieces[0]: must be a text that is not empty, not ""'),
    (reply(pieces=[{"base64": "!"}]), 'replies[1].pieces[0].base64: must be base64, not "!"'),
    (reply(pieces=[{"base64": 1}]), "replies[1].pieces[0].base64: must be a text that is not empty, not 1"),
    (reply(pieces=[{"text": "a"}]), "replies[1].pieces[0].text: unknown key; known are base64"),
    (reply(pieces=["\ud83e"]), 'replies[1].pieces[0]: holds half of a surrogate pair: "\\ud83e"'),
    (reply(delay_ms=-1), "replies[1].delay_ms: must be between 0 and 86400000 milliseconds, not -1"),
    (reply(first_delay_ms="5"), 'replies[1].first_delay_ms: must be a number, not "5"'),
    (reply(first_delay_ms=False), "replies[1].first_delay_ms: must be a number, not false"),
    (reply(delay_ms=10**400), "replies[1].delay_ms: must be a number of usual size, not 1" + "0" * 56 + "..."),
    (reply(logprob=0.1), "replies[1].logprob: must be between -1000 and 0, not 0.1"),
    (reply(error="boom"), 'replies[1].error: must be one of engine_step_failed, not "boom"'),
    (reply(endless=True), "replies[1].endless: an endless reply needs pieces to repeat"),
    (
        reply(pieces=["a"], endless=True, error="engine_step_failed"),
        "replies[1].error: an endless reply never comes to its error; leave one of the two out",
    ),
    (reply(delay=5), "replies[1].delay: unknown key; did you mean 'delay_ms'?"),
]


@pytest.mark.parametrize(("script", "message"), MISTAKES, ids=lambda value: None)
def test_a_mistake_is_named_by_its_path(script, message):
    with pytest.raises(ScriptError) as caught:
        parse(script, Path("/nowhere"))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON: line 1, column 2: Expecting property name enclosed in double quotes"),
        (b'{"replies": [\xff]}', "byte 13 is not UTF-8"),
        (b'{"loop": true, "loop": false}', "loop: occurs twice in one object"),
        (b'{"context": NaN}', "NaN is not a JSON number"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_json_is_said_with_the_file(tmp_path, content, message):
    path = tmp_path / "s.json"
    path.write_bytes(content)
    with pytest.raises(ScriptError) as caught:
        read(path)
    assert str(caught.value) == f"script {path}: {message}"


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"script .*none\.json does not exist"):
        read(tmp_path / "none.json")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["replies", "pieces", "base64", "delay_ms", "logprob", "endless", "error", "context", "loop", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(json_values)
def test_any_json_is_a_script_or_a_script_error(value):
    try:
        assert isinstance(parse(value, Path("/nowhere")), Script)
    except ScriptError as error:
        assert str(error) and "\n" not in str(error)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_script_or_a_script_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "s.json"
    path.write_bytes(content)
    with pytest.raises(ScriptError):  # no bytes this short and random are a script
        read(path)
