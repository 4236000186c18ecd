"""Bodies and envelopes: the strict JSON parser against the standard library's, and the two error shapes."""

from __future__ import annotations

import json
import math
import random
import time
from typing import Any

import pytest

from imp.http.errors import ApiError, Envelope, bad_request, envelope, envelope_of
from imp.http.message import Headers, HttpRequest, error_response, parse_json_object, parse_query


def refused(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_json_object(body)
    assert caught.value.status == 400
    return caught.value


def nested(depth: int, inner: bytes = b"") -> bytes:
    """An object whose nesting, itself included, is `depth`."""
    return b'{"a":' + b"[" * (depth - 1) + inner + b"]" * (depth - 1) + b"}"


BAD = {  # G10-05
    "empty": b"",
    "blank": b" \r\n",
    "list": b"[1]",
    "string": b'"x"',
    "number": b"1",
    "null": b"null",
    "1,000 deep": nested(1000),
    "100,000 deep": nested(100_000),
    "100,000 deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "100,000 opened": b"[" * 100_000,
    "101 deep": nested(101),
    "deep behind an open bracket": b'{"b":[' + b"[" * 90 + nested(60) + b"]" * 90 + b"}",
    "integer of 50,000 digits": b'{"a":' + b"9" * 50_000 + b"}",
    "float past 64 bits": b'{"a":1e400}',
    "negative float past 64 bits": b'{"a":-1e400}',
    "NaN": b'{"a":NaN}',
    "Infinity": b'{"a":Infinity}',
    "-Infinity": b'{"a":-Infinity}',
    "lone high surrogate": rb'{"a":"\ud800"}',
    "lone low surrogate": rb'{"a":"x\uDfFFy"}',
    "lone surrogate in a name": rb'{"\ud800":1}',
    "raw surrogate": b'{"a":"\xed\xa0\x80"}',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "utf-8 mark": b'\xef\xbb\xbf{"a":1}',
    "latin-1": b'{"a":"\xe9"}',
    "overlong": b'{"a":"\xc0\xaf"}',
    "trailing bytes": b'{"a":1}x',
    "two values": b'{"a":1}{"b":2}',
    "name twice": b'{"model":"a","model":"b"}',
    "name twice inside": b'{"a":[{"b":1,"c":2,"b":1}]}',
    "name twice, escaped": rb'{"a":1,"\u0061":2}',
    "comment": b'{"a":1}// x',
    "trailing comma": b'{"a":1,}',
    "single quotes": b"{'a':1}",
    "raw newline in a string": b'{"a":"\n"}',
    "unterminated string": b'{"a":"',
    "unterminated escape": b'{"a":"\\',
    "many escaped quotes": b'{"a":"' + b'\\"' * 200_000,
    "mismatched": b'{"a":[}]',
    "three million values": b'{"a":[' + b"1," * 3_000_000 + b"1]}",
    "a million empty lists of lists": b'{"a":[' + b"[],[]," * 1_000_000 + b"1]}",
}


@pytest.mark.parametrize("name", BAD)
def test_odd_json_is_a_400_at_once(name: str) -> None:
    began = time.process_time()
    error = refused(BAD[name])
    assert time.process_time() - began < 1
    assert "Error" not in error.message and "Expecting" not in error.message  # never a parser's own text
    error_response(error, "/v1/messages", "req_1")


def test_good_json_is_taken() -> None:
    good: dict[str, Any] = {
        "deep": json.loads(nested(99)),
        "pair": "\U0001f600",
        "brackets in strings": '[[[{"]}]\\"[',
        "number": [0, -0.0, 1e-300, 2**63, 0.1],
        "escapes": '\u2028\x00\\"',
        "same name in two objects": [{"a": 1}, {"a": 2}],
    }
    for ascii_ in (True, False):
        assert parse_json_object(json.dumps(good, ensure_ascii=ascii_).encode()) == good
    assert parse_json_object(b'{"a":"' + b"[" * 10_000 + b'"}')["a"] == "[" * 10_000


def judge(body: bytes) -> Any:
    """The standard library, told to be strict where it can be; raises ValueError."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in items}) != len(items):
            raise ValueError
        return dict(items)

    def finite(text: str) -> float:
        if not math.isfinite(float(text)):
            raise ValueError
        return float(text)

    def constant(text: str) -> float:
        raise ValueError

    value = json.loads(body.decode(), object_pairs_hook=pairs, parse_float=finite, parse_constant=constant)
    json.dumps(value, ensure_ascii=False).encode()
    if not isinstance(value, dict):
        raise ValueError
    return value


def test_mutated_json_agrees_with_the_standard_library_seed_3() -> None:
    random_ = random.Random(3)
    seeds = [body for body in BAD.values() if len(body) < 200] + [
        rb'{"a":[1,2.5e3,true,null,{"b":"x\n\ud83d\ude00"}],"c":{}}',
        rb'{"messages":[{"role":"user","content":"[{\"}]"}],"stream":false}',
    ]
    tokens = [b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b"1", b"\\u", b"d8", b"e9", b"\xff", b" ", b'"a":']
    for _ in range(20_000):
        body = bytearray(random_.choice(seeds))
        for _ in range(random_.randint(1, 3)):
            at = random_.randrange(len(body) + 1)
            if random_.random() < 0.5:
                body[at:at] = random_.choice(tokens)
            else:
                del body[at : at + random_.randint(1, 3)]
        try:
            expected = judge(bytes(body))
        except ValueError:
            refused(bytes(body))
        else:
            assert parse_json_object(bytes(body)) == expected


def request(content_type: str | None, body: bytes = b'{"a":1}') -> HttpRequest:
    headers = Headers([] if content_type is None else [("Content-Type", content_type)])
    return HttpRequest("POST", "/", headers=headers, body=body)


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=UTF-8", "application/problem+json"])
def test_json_types_are_read(kind: str) -> None:
    assert request(kind).json() == {"a": 1}


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-16"]
)
def test_other_types_are_a_415(kind: str | None) -> None:
    # G10-03: POST text/plain from a web page
    with pytest.raises(ApiError) as caught:
        request(kind).json()
    assert caught.value.status == 415


def test_headers_ignore_case_and_keep_repeats() -> None:
    headers = Headers([("X-A", "1"), ("x-a", "2")])
    assert headers.get("X-a") == "1" and headers.all("x-A") == ["1", "2"] and "x-A" in headers
    assert headers.get("b") is None and headers.get("b", "d") == "d"


def test_queries() -> None:
    assert parse_query("a=1&b=%C3%A9&a=2&c=&d+e=f+g") == {"a": "2", "b": "é", "c": "", "d e": "f g"}
    for bad in ("a=%ff", "&".join(f"a{i}=1" for i in range(101))):
        with pytest.raises(ApiError):
            parse_query(bad)


def test_the_path_decides_the_envelope() -> None:
    assert envelope_of("/v1/messages") is Envelope.ANTHROPIC
    assert envelope_of("/v1/messages/count_tokens") is Envelope.ANTHROPIC
    for path in ("/v1/messagesx", "/v1/chat/completions", "/", ""):
        assert envelope_of(path) is Envelope.OPENAI


def test_the_openai_envelope_has_all_four_keys() -> None:
    error = bad_request("messages[0].content", "wrong")
    assert envelope(error, Envelope.OPENAI, "req_1") == {
        "error": {
            "message": "wrong",
            "type": "invalid_request_error",
            "param": "messages[0].content",
            "code": "invalid_value",
        }
    }
    assert envelope(ApiError(404, None, "m"), Envelope.OPENAI, "")["error"].keys() == {
        "message",
        "type",
        "param",
        "code",
    }


ANTHROPIC_WORDS = {  # SURFACE.md section 2
    *("invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error"),
    *("request_too_large", "rate_limit_error", "api_error", "overloaded_error", "timeout_error"),
}


def test_the_anthropic_envelope_knows_ten_types() -> None:
    for status in range(400, 600):
        body = envelope(ApiError(status, "x", "m"), Envelope.ANTHROPIC, "req_1")
        assert body.keys() == {"type", "error", "request_id"} and body["error"].keys() == {"type", "message"}
        assert body["error"]["type"] in ANTHROPIC_WORDS
    assert envelope(ApiError(413, "x", "m"), Envelope.ANTHROPIC, "")["error"]["type"] == "request_too_large"
    assert envelope(ApiError(429, "queue_full", "m"), Envelope.ANTHROPIC, "")["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize(
    ("status", "type_"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "internal_error"),
        (503, "server_error"),
    ],
)
def test_default_types(status: int, type_: str) -> None:
    assert ApiError(status, None, "m").type == type_
