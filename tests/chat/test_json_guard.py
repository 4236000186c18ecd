"""What comes out is what came in as long as that is JSON, and a JSON object in the end in any case."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from imp.chat.json_guard import JsonGuard

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]), st.integers(1, 7))
def test_json_passes_unchanged_in_any_pieces(value, ascii, indent, size):
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    guard = JsonGuard()
    assert "".join(guard.push(text[i : i + size]) for i in range(0, len(text), size)) == text
    assert guard.done and not guard.broken
    assert guard.push("more") == "" and guard.finish() == ""


@settings(max_examples=250, deadline=None, derandomize=True)
@given(OBJECTS, st.data())
def test_whatever_comes_an_object_comes_out(value, data):
    text = json.dumps(value, ensure_ascii=False)
    at = data.draw(st.integers(0, len(text)))
    inserted = data.draw(st.text(max_size=4) | st.sampled_from(["}", "]", ",", '"', ":", "\\", "{", "[", "e", "-", "tru"]))
    source = text[:at] + inserted + data.draw(st.sampled_from(["", text[at:]]))
    guard = JsonGuard()
    passed = guard.push(source)
    assert source.startswith(passed)
    assert isinstance(json.loads(passed + guard.finish()), dict)


@pytest.mark.parametrize(
    ("source", "passed", "finished"),
    [
        ('{"a": nope}', '{"a": n', "ull}"),
        ('{"a": 1.}', '{"a": 1.', "0}"),
        ('{"a', '{"a', '":null}'),
        ('{"a": "x\\u00', '{"a": "x\\u00', '00"}'),
        ('{"a": [1,', '{"a": [1,', "null]}"),
        ('{"a": 1,}', '{"a": 1,', '"":null}'),
        ("[1]", "", "{}"),
        ("", "", "{}"),
        ('{"a": 01}', '{"a": 0', "}"),
        ("{'a': 1}", "{", "}"),
        ('{"a": "line\nbreak"}', '{"a": "line', '"}'),
    ],
)
def test_where_it_breaks_it_is_finished(source, passed, finished):
    guard = JsonGuard()
    assert (guard.push(source), guard.finish()) == (passed, finished)
