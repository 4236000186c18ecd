"""Long bodies and answers: read and written piece by piece, away from the event loop, with the same result."""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import pytest

from imp.http import message, strict_json
from imp.http.dialects.responses_items import read_items
from imp.http.errors import ApiError
from imp.http.message import dumps, dumps_long
from imp.http.services import LONG_BODY
from imp.http.strict_json import parse_json_object

from .scripted import serving
from .test_message import BAD, NAMED, judge, refused
from .wire import run

ALPHABET = [b'"', b'"', b"\\", b'\\"', b"\\\\", b"[", b"]", b"{", b"}", b",", b":", b"12", b" ", b"x", b"\xc3\xa9"]


@pytest.mark.parametrize("window", [2, 3, 5, 8, 64])
def test_strings_are_found_whatever_the_window_seed_3(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "WINDOW", window)
    random_ = random.Random(3)
    for _ in range(4000):
        body = b"".join(random_.choices(ALPHABET, k=random_.randrange(40)))
        expected = strict_json._STRINGS.sub(b"", body)
        assert b"".join(strict_json._outside_strings(body)) == expected, body


@pytest.mark.parametrize("name", BAD)
def test_odd_json_is_refused_in_windows_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "WINDOW", 61)
    assert NAMED.get(name, "") in refused(BAD[name]).message


def grown(random_: random.Random, depth: int) -> Any:
    kind = random_.randrange(8 if depth else 5)
    if kind < 5:
        return [random_.randrange(-(10**12), 10**12), random_.random() * 1e9, '"[\\', "é😀\n", None][kind]
    items = [grown(random_, depth - 1) for _ in range(random_.randrange(6))]
    if kind < 7:
        return items
    return {f"{number}\u2028": item for number, item in enumerate(items)}


def test_good_json_is_read_and_written_in_parts_seed_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "WINDOW", 16)
    monkeypatch.setattr(message, "ITEMS_AT_ONCE", 2)
    monkeypatch.setattr(message, "TEXT_AT_ONCE", 3)
    random_ = random.Random(4)
    for _ in range(500):
        value = {"a": grown(random_, 4), "b": [None, grown(random_, 4), grown(random_, 4)]}
        body = json.dumps(value, ensure_ascii=random_.random() < 0.5).encode()
        assert parse_json_object(body) == judge(body) == value
        assert dumps_long(value) == dumps(value)


TEXT = "a" * (LONG_BODY + 1)
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/chat/completions/input_tokens": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/completions": {"prompt": TEXT},
    "/v1/responses": {"input": TEXT},
    "/v1/responses/input_tokens": {"input": TEXT},
    "/v1/responses/compact": {"input": TEXT},
    "/v1/messages": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/embeddings": {"input": TEXT},
    "/v1/rerank": {"query": "q", "documents": [TEXT]},
    "/v2/rerank": {"query": "q", "documents": [TEXT]},
    "/rerank": {"query": "q", "documents": [TEXT]},
    "/v1/score": {"text_1": "q", "text_2": TEXT},
    "/score": {"text_1": "q", "text_2": TEXT},
    "/infill": {"input_prefix": TEXT, "input_suffix": "b"},
    "/tokenize": {"prompt": TEXT},
    "/detokenize": {"tokens": [97] * LONG_BODY},
    "/apply-template": {"messages": [{"role": "user", "content": TEXT}]},
    "/abort_requests": {"request_ids": [TEXT]},
    "/admin/lora/load": {"name": "a", "path": TEXT},
    "/admin/lora/unload": {"name": TEXT},
}


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each body that is read: whether the event loop does it."""
    seen: list[bool] = []

    def watched(body: bytes) -> dict[str, Any]:
        seen.append(threading.current_thread() is threading.main_thread())
        return parse_json_object(body)

    monkeypatch.setattr(message, "parse_json_object", watched)
    return seen


def test_no_route_reads_a_long_body_on_the_loop(readers: list[bool]) -> None:
    async def main() -> None:
        async with serving(context=40_000, blocks=6000, dev_mode=True, fill=(1, 2, 3)) as server:
            described = (await server.client.get("/openapi.json")).json()["paths"]
            taking = {path for path, methods in described.items() if "requestBody" in methods.get("post", {})}
            assert {path for path in taking if f"/v1{path}" not in taking} <= set(ROUTES), "a route is missing here"
            for path, body in ROUTES.items():
                readers.clear()
                answer = await server.client.post(path, json=body)
                assert readers == [False], path
                assert answer.status_code in (200, 400), (path, answer.text)
                readers.clear()
                await server.post(path)
                assert readers == [True], path

    run(main)


def test_the_items_of_a_conversation_are_read_in_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of earlier responses, too: a short body may have a long conversation behind it."""
    on_loop: list[bool] = []

    def watched(*arguments: Any) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return read_items(*arguments)

    monkeypatch.setattr("imp.http.routes.responses.read_items", watched)

    async def main() -> None:
        async with serving(context=4096, blocks=512) as server:
            first = (await server.post("/v1/responses", input="hi")).json()
            message = first["output"][0]["id"]
            asked: dict[str, Any] = {"previous_response_id": first["id"], "input": "more"}
            assert (await server.post("/v1/responses", **asked)).status_code == 200
            asked = {"input": [{"type": "item_reference", "id": message}, {"role": "user", "content": "more"}]}
            assert (await server.post("/v1/responses", **asked)).status_code == 200
            for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
                counted = await server.post(path, **asked, model="toy")
                assert counted.status_code == 200, (path, counted.text)
            asked["input"][0]["id"] = "msg_of_nobody"
            refused = await server.post("/v1/responses", **asked)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "input[0].id"
            assert on_loop == [False] * 6

    run(main)


def test_a_mistake_in_a_long_body_is_told_as_in_a_short_one() -> None:
    async def main() -> None:
        async with serving(context=40_000, blocks=6000) as server:
            for path in ("/v1/chat/completions", "/v1/messages"):
                messages = [{"role": "user", "content": "hi"}]
                said = []
                for pad in ("", TEXT):
                    body = {"messages": messages, "max_tokens": 5, "temperature": "hot", "metadata": {"pad": pad}}
                    answer = await server.post(path, **body)
                    error = answer.json()["error"]
                    said.append((answer.status_code, error["type"], error["message"], error.get("param")))
                assert said[0] == said[1] and said[0][0] == 400 and "temperature" in said[0][2]

    run(main)


def test_long_answers_say_what_short_ones_do() -> None:
    """Log-probabilities of many tokens are written in the pool."""

    async def main() -> None:
        async with serving(["ab"] * 200) as server:
            asked = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 3}
            short = (await server.post("/v1/chat/completions", **asked, max_tokens=20)).json()
            long = (await server.post("/v1/chat/completions", **asked, max_tokens=150)).json()
            said = [reply["choices"][0]["logprobs"]["content"] for reply in (short, long)]
            assert [len(each) for each in said] == [20, 150] and said[0] == said[1][:20]

    run(main)


def test_an_integer_past_a_thousand_digits_is_refused_wherever_it_is() -> None:
    for pad in (0, strict_json.WINDOW - 500):
        body = b'{"a":[' + b"1," * (pad // 2) + b"7" * 1001 + b"]}"
        with pytest.raises(ApiError, match="more than 1000 digits"):
            parse_json_object(body)
        assert parse_json_object(body.replace(b"7" * 1001, b"7" * 1000))["a"][-1] == int("7" * 1000)
