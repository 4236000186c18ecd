"""Bodies and envelopes: the strict JSON parser against the standard library's, and the two error shapes."""

from __future__ import annotations

import json
import math
import random
import time
from typing import Any

import pytest

from imp.http.errors import ApiError, Envelope, bad_request, envelope, envelope_of
from imp.http.message import Headers, HttpRequest, error_response, parse_query
from imp.http.strict_json import parse_json_object


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


NAMED = {  # a part of what each is told
    "empty": "is empty",
    "blank": "is empty",
    "list": "not an array",
    "string": "not a string",
    "number": "not a number",
    "null": "not null",
    "1,000 deep": "deeper than 100 levels",
    "100,000 opened": "deeper than 100 levels",
    "101 deep": "deeper than 100 levels",
    "integer of 50,000 digits": "more than 1000 digits",
    "float past 64 bits": "too large for a 64-bit float",
    "NaN": "NaN is not a JSON number",
    "-Infinity": "-Infinity is not a JSON number",
    "lone high surrogate": "half of a surrogate pair",
    "raw surrogate": "byte 6 is not UTF-8",
    "utf-16": "byte 0 is not UTF-8",
    "utf-8 mark": "byte order mark",
    "latin-1": "byte 6 is not UTF-8",
    "trailing bytes": "line 1, column 8",
    "name twice": '"model" occurs more than once',
    "name twice, escaped": '"a" occurs more than once',
    "trailing comma": "line 1, column",
    "raw newline in a string": "line 1, column 7",
    "mismatched": "line 1, column 7",
    "three million values": "more than 2000000 values",
}


@pytest.mark.parametrize("name", NAMED)
def test_odd_json_is_told_what_is_wrong_in_the_words_of_its_dialect(name: str) -> None:
    error = refused(BAD[name])
    assert NAMED[name] in error.message and error.code == "invalid_json"
    for path in ("/v1/chat/completions", "/v1/messages", "/tokenize"):
        body = json.loads(error_response(error, path, "req_1").body)
        assert body["error"]["type"] == "invalid_request_error" and NAMED[name] in body["error"]["message"]
        assert (body.get("type") == "error") == (path == "/v1/messages")


def depth_of(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else 1 + max((depth_of(part) for part in parts), default=0)


def test_depth_is_counted_exactly_seed_5() -> None:
    """Containers inside one another to a random depth, among siblings, names and strings full of brackets."""
    random_ = random.Random(5)
    texts = ["[", "]]]", '{"', "\\", '\\"[', "x"]

    def grown(levels: int) -> Any:
        value: Any = random_.choice(texts)
        for _ in range(levels):
            sibling = random_.choice([1, random_.choice(texts), [], {}, [[]]])
            value = {random_.choice(texts): sibling, "v": value} if random_.random() < 0.5 else [sibling, value]
        return {"a": value}

    verdicts = {True: 0, False: 0}
    for _ in range(600):
        value = grown(random_.choice([random_.randrange(90), random_.randrange(95, 105), random_.randrange(105, 140)]))
        body, fits = json.dumps(value).encode(), depth_of(value) <= 100
        verdicts[fits] += 1
        if fits:
            assert parse_json_object(body) == value
        else:
            assert "deeper than 100" in refused(body).message
    assert min(verdicts.values()) > 100


def test_any_bytes_are_an_object_or_a_400_seed_7() -> None:
    random_ = random.Random(7)
    alphabet = [b"{", b"}", b"[", b"]", b'"', b":", b",", b"\\", b"0", b"1e9", b"-", b"true", b"null", b"\xc3", b"\xa9"]
    for _ in range(20_000):
        body = b"".join(random_.choices(alphabet, k=random_.randrange(12)))
        if random_.random() < 0.3:
            body = b'{"k":' + body + b"}"
        if random_.random() < 0.2:
            body = random_.randbytes(random_.randrange(20))
        try:
            expected = judge(body)
        except (ValueError, RecursionError):
            refused(body)
        else:
            assert parse_json_object(body) == expected


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
