"""Scenarios of groups 7, 8 and 10 that concern the door: queues, keys, origins, limits, odd bodies, states; over real
sockets, in every dialect that the server has a route for."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Coroutine
from typing import Any

import httpx
import pytest

from imp.http.gate import GateSettings
from imp.http.router import Access
from imp.http.routes.table import routes
from imp.http.services import State
from tests.http.scripted import Harness, serving

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100}
KEYED = GateSettings(api_keys=("sk-right",))
JSON = {"Content-Type": "application/json"}
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "overloaded_error",
    500: "api_error",
}


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def is_openai(answer: httpx.Response) -> bool:
    return answer.json()["error"].keys() >= {"message", "type", "param", "code"}


async def raw(server: Harness, data: bytes) -> bytes:
    """What comes back for these bytes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.addresses[0][1])
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(-1), 20)
    writer.close()
    return answer


def test_g07_14_a_full_queue_refuses_at_once_and_forgets_who_gave_up() -> None:
    async def main() -> None:
        async with serving(["x"] * 100, rows=2, step_s=0.01, gate=GateSettings(max_concurrent=10)) as server:
            asks = [server.client.post(CHAT, json=ASK, timeout=httpx.Timeout(30, read=0.4)) for _ in range(50)]
            began = time.monotonic()
            answers = await asyncio.gather(*asks, return_exceptions=True)
            refused = [each for each in answers if isinstance(each, httpx.Response) and each.status_code == 429]
            gave_up = [each for each in answers if isinstance(each, httpx.ReadTimeout)]
            assert len(refused) == 40 and len(gave_up) == 10
            assert all(each.headers["retry-after"] and is_openai(each) for each in refused)
            assert {each.json()["error"]["code"] for each in refused} == {"queue_full"}
            assert max(each.elapsed.total_seconds() for each in refused) < time.monotonic() - began
            await server.until(lambda: server.engine.stats.waiting == server.engine.stats.running == 0)
            assert server.engine.stats.blocks_live == 0
            prompt = server.scheduler.snapshot().positions
            assert server.runner.prompt_positions <= prompt
            # two had places; the eight behind them were never computed
            assert server.engine.stats.aborted == 10
            await server.until(lambda: "imp_requests_rejected_total 40" in server.services.metrics.expose().decode())

    run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_g08_08_every_error_of_messages_has_anthropics_form(stream: bool) -> None:
    async def main() -> None:
        gate = GateSettings(api_keys=("sk-right",), max_concurrent=1)
        async with serving(["x"] * 100, rows=1, gate=gate, fail_at=50, step_s=0.002) as server:
            right, wrong = {"x-api-key": "sk-right"}, {"x-api-key": "sk-wrong"}
            ask = ASK | {"stream": stream}

            async def status(headers: dict[str, str], **body: Any) -> httpx.Response:
                return await server.client.post(MESSAGES, json=ask | body, headers=headers)

            unknown_block = [{"role": "user", "content": [{"type": "document_x", "text": "a"}]}]
            cases = [
                (401, await status(wrong)),
                (401, await status({})),
                (404, await status(right, model="nobody")),
                (400, await status(right, messages=unknown_block)),
                (400, await status(right, messages=[])),
                (400, await status(right, max_tokens=-1)),
            ]
            head = f"POST {MESSAGES} HTTP/1.1\r\nHost: a\r\nx-api-key: sk-right\r\nContent-Length: 999999999999\r\n\r\n"
            too_large = await raw(server, head.encode())
            assert too_large.startswith(b"HTTP/1.1 413 ") and b"request_too_large" in too_large
            running = asyncio.create_task(status(right, stream=False))
            await server.until(lambda: server.engine.stats.running == 1)
            cases.append((429, await status(right)))
            cases.append((500, await running))  # the step of its 50th token fails
            for expected, answer in cases:
                assert answer.status_code == expected, answer.text
                body = answer.json()
                assert body["type"] == "error" and body["error"]["type"] == ANTHROPIC_TYPES[expected]
                assert body["request_id"] == answer.headers["request-id"]
                assert "{'" not in body["error"]["message"] and "Traceback" not in body["error"]["message"]
            bearer = {
                "Authorization": "Bearer sk-right",
                "anthropic-version": "1999-01-01",
                "anthropic-beta": "no-such",
            }
            assert (await status(bearer, max_tokens=1)).status_code == 200

    run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_g08_12_a_prompt_that_is_too_long_is_told_in_the_words_clients_look_for(stream: bool) -> None:
    async def main() -> None:
        async with serving(context=512) as server:
            long = [{"role": "user", "content": "x" * 2000}]
            tokens = (await server.client.post("/tokenize", json={"messages": long})).json()["count"]
            body = {"messages": long, "stream": stream}
            messages = await server.client.post(MESSAGES, json=body | {"max_tokens": 10})
            assert messages.status_code == 400 and messages.headers["content-type"].startswith("application/json")
            error = messages.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith(f"prompt is too long: {tokens} tokens > ")
            chat = await server.client.post(CHAT, json=body)
            responses = await server.client.post("/v1/responses", json={"input": "x" * 2000, "stream": stream})
            for answer in (chat, responses):
                assert answer.status_code == 400
                assert answer.json()["error"]["code"] == "context_length_exceeded"

    run(main())


def test_g10_02_no_route_of_the_table_lets_anybody_in_without_a_key() -> None:
    async def main() -> None:
        options = {"gate": KEYED, "tokenizer_info": True, "dev_mode": True}
        async with serving(**options) as server:
            table = routes(server.services, tokenizer_info=True, dev_mode=True)
            free = {route.pattern for route in table if route.access is Access.OPEN}
            assert free == {"/", "/health", "/ready", "/ping", "/version", "/metrics", "/openapi.json"}
            guarded = [(method, r.pattern) for r in table if r.access is not Access.OPEN for method in r.methods]
            assert len(guarded) > 20
            wrong: list[dict[str, str]] = [{}, {"x-api-key": "sk-wron"}, {"Authorization": "Bearer sk-wrong"}]
            for method, pattern in guarded:
                path = pattern.replace("{", "").replace("}", "")
                for headers in wrong:
                    answer = await server.client.request(method, path, headers=headers | JSON, content=b"{}")
                    assert answer.status_code == 401, (method, path)
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert "sk-right" not in answer.text
                right = await server.client.request(
                    method, path, headers={"x-api-key": "sk-right"} | JSON, content=b"{}"
                )
                assert right.status_code != 401, (method, path)
            shown = [await server.client.get(path) for path in ("/metrics", "/health")]
            assert not any("sk-right" in answer.text for answer in shown)

    run(main())


def test_g10_03_a_foreign_page_cannot_use_the_server() -> None:
    async def main() -> None:
        gate = GateSettings(cors_origins=("https://ui.test",), allowed_hosts=("llm.test",))
        async with serving(gate=gate) as server:
            evil = {"Origin": "http://evil.test"}
            simple = await server.client.post(
                CHAT, content=json.dumps(ASK), headers=evil | {"Content-Type": "text/plain"}
            )
            assert simple.status_code == 415  # what a page may send without asking
            preflight = evil | {
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,x-stainless-os",
            }
            refused = await server.client.options(CHAT, headers=preflight)
            granted = await server.client.options(CHAT, headers=preflight | {"Origin": "https://ui.test"})
            assert not any(name.startswith("access-control") for name in refused.headers)
            assert granted.status_code == 204
            assert granted.headers["access-control-allow-origin"] == "https://ui.test"
            assert granted.headers["vary"] == "Origin"
            assert "x-stainless-os" in granted.headers["access-control-allow-headers"]
            rebound = await server.client.post(CHAT, json=ASK, headers={"Host": "evil.test"})
            assert rebound.status_code == 403 and rebound.json()["error"]["code"] == "host_not_allowed"
            for host in ("llm.test", "127.0.0.1:8080", "localhost"):
                assert (await server.client.post(CHAT, json=ASK, headers={"Host": host})).status_code == 200

    run(main())


DEEP = 1000
ODD_BODIES = {
    "nested arrays": b"[" * DEEP + b"]" * DEEP,
    "nested a hundred thousand times": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested objects in a tool": b'{"messages": [], "tools": [' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"]}",
    "a schema nested deep": b'{"response_format": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "a million keys": b"{" + b",".join(b'"%d":0' % i for i in range(1_000_000)) + b"}",
    "an integer of 50,000 digits": b'{"seed": ' + b"9" * 50_000 + b"}",
    "NaN": b'{"messages": [], "temperature": NaN}',
    "Infinity": b'{"messages": [], "temperature": -Infinity}',
    "a float past all floats": b'{"messages": [], "temperature": 1e999}',
    "half a surrogate pair": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "UTF-16": json.dumps(ASK).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(ASK).encode(),
    "broken UTF-8": b'{"messages": [{"role": "user", "content": "\xff"}]}',
    "nothing": b"",
    "spaces": b"  \n ",
    "a list": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "bytes after the end": json.dumps(ASK).encode() + b"x",
    "two objects": json.dumps(ASK).encode() * 2,
    "a key twice": b'{"model": "a", "model": "b", "messages": []}',
    "single quotes": b"{'messages': []}",
    "a comment": b'{"messages": [] /* x */}',
    "a control character": b'{"messages": [{"role": "user", "content": "a\nb"}]}',
}


@pytest.mark.parametrize("name", ODD_BODIES)
def test_g10_05_odd_bodies_are_400_in_the_words_of_the_path(name: str) -> None:
    async def main() -> None:
        async with serving() as server:
            for path in (CHAT, MESSAGES):
                answer = await server.client.post(path, content=ODD_BODIES[name], headers=JSON)
                assert answer.status_code == 400, answer.text[:200]
                body = answer.json()
                assert body.get("type") == "error" if path == MESSAGES else is_openai(answer)
                assert body["error"]["message"] and len(answer.content) < 1000
            assert (await server.client.post(CHAT, json=ASK)).status_code == 200

    run(main())


def test_g10_07_probes_tell_the_truth_in_every_state() -> None:
    async def main() -> None:
        async with serving(["x"] * 100, rows=1, stall_s=0.2) as server:

            async def ready() -> str | int:
                answer = await server.client.get("/ready")
                return 200 if answer.status_code == 200 else answer.json()["error"]["code"]

            async def health() -> dict[str, Any]:
                answer = await server.client.get("/health")
                assert answer.status_code == 200
                return answer.json()

            assert await ready() == 200 and (await health())["status"] == "ok"
            loaded, engine = server.services.loaded, server.services.engine
            for state, code in ((State.LOADING, "loading"), (State.NO_MODEL, "no_model"), (State.DRAINING, "draining")):
                server.services.state = state
                server.services.loaded = server.services.engine = None
                assert await ready() == code
                assert (await health())["model_loaded"] is False
                chat = await server.client.post(CHAT, json=ASK)
                assert chat.status_code == 503 and chat.json()["error"]["code"] == code and chat.headers["retry-after"]
                assert chat.elapsed.total_seconds() < 5
            server.services.state = State.READY
            server.services.loaded, server.services.engine = loaded, engine
            assert await ready() == 200
            server.runner.held.clear()  # a step that does not end
            stuck = asyncio.create_task(server.client.post(CHAT, json=ASK))
            await server.until(lambda: len(server.services.generating) == 1)
            await asyncio.sleep(0.4)
            assert await ready() == "engine_stalled" and (await health())["status"] == "ok"
            assert (await server.client.get("/v1/models")).status_code == 200
            server.runner.held.set()
            assert (await stuck).status_code == 200
            assert await ready() == 200

    run(main())


def test_g10_15_five_requests_a_minute_and_what_the_sixth_is_told() -> None:
    async def main() -> None:
        gate = GateSettings(api_keys=("sk-a", "sk-b"), rate_limit_per_min=5, token_limit_per_min=100_000)
        async with serving(["x"] * 5, gate=gate) as server:

            async def post(path: str, key: str, **body: Any) -> httpx.Response:
                return await server.client.post(path, json=ASK | body, headers={"x-api-key": key})

            answers = [await post(path, "sk-a") for path in (CHAT, MESSAGES)]
            answers.append(
                await server.client.post("/v1/responses", json={"input": "a"}, headers={"x-api-key": "sk-a"})
            )
            answers.append(await post(CHAT, "sk-a", temperature=9))  # a failing call counts, too
            answers.append(await post(CHAT, "sk-a", stream=True))
            assert [each.status_code for each in answers] == [200, 200, 200, 400, 200]
            left = [int(each.headers["x-ratelimit-remaining-requests"]) for each in answers]
            assert left == [4, 3, 2, 1, 0]
            for path, kind in ((CHAT, "rate_limit_error"), (MESSAGES, "rate_limit_error")):
                sixth = await post(path, "sk-a")
                assert sixth.status_code == 429 and sixth.json()["error"]["type"] == kind
                assert 1 <= int(sixth.headers["retry-after"]) <= 12
                for unit in ("requests", "tokens"):
                    for what in ("limit", "remaining", "reset"):
                        assert sixth.headers[f"x-ratelimit-{what}-{unit}"]
            assert (await post(CHAT, "sk-b")).status_code == 200

    run(main())


def test_g01_06_a_reader_that_never_reads_keeps_nobody_else_waiting() -> None:
    """Its own stream stands still when the buffers are full; others are answered, and leaving frees its place."""

    async def main() -> None:
        async with serving(["x" * 50_000] * 400, rows=4, blocks=200) as server:
            body = json.dumps(ASK | {"stream": True, "max_tokens": 400, "ignore_eos": True}).encode()
            with socket.create_connection(server.server.addresses[0]) as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                await server.until(lambda: any(each.unsent_bytes for each in server.server.connections))
                for _ in range(5):
                    assert (await server.client.post(CHAT, json=ASK | {"max_tokens": 2})).status_code == 200
                assert max(each.unsent_bytes for each in server.server.connections) < 1_000_000
                await server.until(lambda: server.engine.stats.running == 0)  # the engine did not wait for it
            await server.until(lambda: not server.services.generating)
            assert server.engine.stats.blocks_live == 0

    run(main())
