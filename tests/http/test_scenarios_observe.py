"""What is told about requests, over the real HTTP layer: nobody's words in logs and traces unless a request log is asked
for, spans on every transport, and one line a request with both sides of it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from imp.http.gate import GateSettings
from imp.obs.otlp import SpanExporter
from imp.obs.requestlog import RequestLog
from imp.obs.sinks import Sinks
from tests.http.scripted import Harness, serving
from tests.obs.collector import FakeCollector, attributes, collecting

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES = "/v1/responses"
HI = [{"role": "user", "content": "hi"}]
ASKS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI},
    TEXT: {"prompt": "hi"},
    MESSAGES: {"messages": HI, "max_tokens": 20},
    RESPONSES: {"input": "hi"},
}
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "b7ad6b7169203331"


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


@asynccontextmanager
async def observed(sinks: Sinks, *pieces: Any, **options: Any) -> AsyncIterator[Harness]:
    """A server with these sinks; at the end everything is written and sent."""
    options |= {"sinks": sinks.observers, "keeps_bodies": sinks.log is not None, "traces": sinks.exporter is not None}
    async with serving(*pieces, **options) as server:
        sinks.connect(server.services.metrics)
        yield server
    await sinks.close()


def tracing(collector: FakeCollector) -> Sinks:
    return Sinks(exporter=SpanExporter(collector.url, "imp-server", "1"))


# -- privacy --------------------------------------------------------------------------------------------------------

CANARIES = ("canary-system", "canary-user", "canary-argument", "canary-stop", "canary-schema", "canary-key", "canary-out")


def test_g10_10_nobodys_words_are_in_logs_metrics_or_traces(caplog, capfd):
    """System, user, tool argument, stop string, schema, key and answer; success, 400, template error, failed step,
    timeout, client gone; everything is logged and traces are on."""
    caplog.set_level(logging.DEBUG, logger="imp")
    body: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "canary-system"},
            {"role": "user", "content": "canary-user"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":"canary-argument"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "canary-user"},
        ],
        "stop": ["canary-stop"],
        "max_tokens": 60,
    }
    schema = {"type": "object", "properties": {"canary-schema": {"type": "canary-schema"}}}

    async def main(collector: FakeCollector) -> str:
        gate = GateSettings(api_keys=("canary-key",))
        options: dict[str, Any] = {"gate": gate, "step_s": 0.002, "request_timeout_s": 0.3, "context": 1024}
        async with observed(tracing(collector), ["canary-out"] * 60, **options) as server:
            key = {"Authorization": "Bearer canary-key"}

            async def status(more: dict[str, Any], headers: dict[str, str] = key, path: str = CHAT) -> int:
                return (await server.client.post(path, json=body | more, headers=headers)).status_code

            for streamed in (False, True):
                assert await status({"stream": streamed, "max_tokens": 5}) == 200
            assert await status({}, {"Authorization": "Bearer canary-key-wrong"}) == 401
            assert await status({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}) == 400
            assert await status({"temperature": "canary-user"}) == 400
            assert await status({"messages": [{"role": "canary-user", "content": "canary-user"}]}) == 400
            server.runner.fail_at = 3
            for streamed in (False, True):
                assert await status({"stream": streamed}) == (200 if streamed else 500)
            server.runner.fail_at, server.runner.step_s = None, 0.03
            assert await status({}) == 504
            await server.until(lambda: server.engine.stats.running == 0)
            asking = asyncio.ensure_future(status({"stream": True}))
            await server.until(lambda: server.engine.stats.running == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await server.until(lambda: server.engine.stats.running == 0)
            server.services.loaded.facts = None  # a mistake of ours, with a traceback in the log
            assert await status({}) == 500
            metrics = server.services.metrics
            await server.until(lambda: b"imp_requests_total 11\n" in metrics.expose())
            return (await server.client.get("/metrics", headers=key)).text

    with collecting() as collector:
        scraped = asyncio.run(asyncio.wait_for(main(collector), 60))
        told = [scraped, caplog.text, *capfd.readouterr(), *(body.decode() for _, _, body in collector.requests)]
        assert len(collector.spans()) > 12 and "Traceback" in caplog.text
    for canary in CANARIES:
        assert not any(canary in text for text in told), canary


def test_g10_10_a_template_that_raises_keeps_the_words_of_the_client_to_the_client(caplog):
    caplog.set_level(logging.DEBUG, logger="imp")

    async def main():
        async with serving(template="{{ raise_exception('no: ' + messages[0]['content']) }}") as server:
            answer = await server.post(CHAT, messages=[{"role": "user", "content": "canary-user"}])
            assert answer.status_code == 400 and "canary-user" in answer.text
            assert "canary-user" not in (await server.client.get("/metrics")).text

    run(main())
    assert "canary-user" not in caplog.text


# -- traces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", ASKS)
def test_every_transport_has_its_span_in_the_callers_trace(path, streamed):
    async def main(collector: FakeCollector):
        async with observed(tracing(collector), ["a", "b"]) as server:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "X-Request-Id": "mine"}
            answer = await server.client.post(path, json=ASKS[path] | {"stream": streamed}, headers=headers)
            assert answer.status_code == 200
            return answer.headers["traceparent"]

    with collecting() as collector:
        told = asyncio.run(main(collector))
        root, *children = collector.spans()
    assert root["name"] == path and root["traceId"] == TRACE and root["parentSpanId"] == PARENT
    assert told == f"00-{TRACE}-{root['spanId']}-01" and root["traceState"] == "vendor=1"
    assert [child["name"] for child in children] == ["queue", "prefill", "decode"]
    found = attributes(root)
    assert found["imp.request_id"] == found["imp.client_request_id"] == ("stringValue", "mine")
    assert found["imp.stream"] == ("boolValue", streamed)
    assert found["gen_ai.usage.output_tokens"] == ("intValue", "3")
    begins, ends = int(root["startTimeUnixNano"]), int(root["endTimeUnixNano"])
    for child in children:
        assert child["parentSpanId"] == root["spanId"]
        assert begins <= int(child["startTimeUnixNano"]) <= int(child["endTimeUnixNano"]) <= ends
        begins = int(child["startTimeUnixNano"])


def test_every_turn_on_a_websocket_has_its_span_and_its_line(tmp_path):
    target = tmp_path / "log"

    async def main(collector: FakeCollector):
        sinks = Sinks(RequestLog(str(target)), SpanExporter(collector.url, "imp-server", "1"))
        async with observed(sinks, ["a", "b"]) as server:
            url = server.url.replace("http://", "ws://") + RESPONSES
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            async with connect(url, additional_headers=headers) as socket:
                for text in ("one", "two"):
                    await socket.send(json.dumps({"type": "response.create", "model": "toy", "input": text}))
                    while json.loads(await socket.recv())["type"] != "response.completed":
                        pass
                await server.until(lambda: "imp_requests_total 2\n" in server.services.metrics.expose().decode())

    with collecting() as collector:
        asyncio.run(asyncio.wait_for(main(collector), 60))
        roots = [span for span in collector.spans() if span["kind"] == 2]
    found = lines(target)
    assert [line["request"]["input"] for line in found] == ["one", "two"]
    assert [line["response"]["output"][0]["content"][0]["text"] for line in found] == ["ab", "ab"]
    assert [(root["name"], root["traceId"], root["parentSpanId"]) for root in roots] == [(RESPONSES, TRACE, PARENT)] * 2
    assert [root["spanId"] for root in roots] == [line["span_id"] for line in found]


def test_without_a_callers_trace_each_request_begins_its_own():
    async def main(collector: FakeCollector):
        async with observed(tracing(collector)) as server:
            answers = [await server.post(CHAT, messages=HI) for _ in range(2)]
            assert (await server.post(CHAT, messages=7)).status_code == 400  # no span
            return [answer.headers["traceparent"] for answer in answers]

    with collecting() as collector:
        one, other = asyncio.run(main(collector))
        roots = [span for span in collector.spans() if span["kind"] == 2]
    assert [f"00-{root['traceId']}-{root['spanId']}-01" for root in roots] == [one, other]
    assert roots[0]["traceId"] != roots[1]["traceId"] and all("parentSpanId" not in root for root in roots)


def test_an_unsampled_trace_is_counted_and_told_but_not_exported():
    async def main(collector: FakeCollector):
        async with observed(tracing(collector)) as server:
            answer = await server.client.post(
                CHAT, json=ASKS[CHAT], headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}
            )
            assert answer.headers["traceparent"].endswith("-00")
            assert "imp_otlp_unsampled_requests_total 1\n" in (await server.client.get("/metrics")).text

    with collecting() as collector:
        asyncio.run(main(collector))
        assert collector.requests == []


def test_without_a_collector_no_span_is_claimed():
    async def main():
        async with serving() as server:
            answer = await server.client.post(CHAT, json=ASKS[CHAT], headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
            assert answer.status_code == 200 and "traceparent" not in answer.headers

    run(main())


def test_a_dead_collector_is_told_in_the_metrics_and_nowhere_in_the_answers():
    async def main():
        with collecting() as collector:
            pass  # gone again: its port refuses
        sinks = tracing(collector)
        async with observed(sinks) as server:
            for _ in range(20):
                assert (await server.post(CHAT, messages=HI)).status_code == 200
            await server.until(lambda: sinks.exporter.export_failures > 0)
            text = (await server.client.get("/metrics")).text
            assert "imp_otlp_export_failures_total 0\n" not in text and "imp_otlp_spans_exported_total 0\n" in text

    run(main())


# -- the request log ------------------------------------------------------------------------------------------------


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES])
def test_a_stream_is_logged_as_the_reply_it_adds_up_to(path, tmp_path):
    target = tmp_path / "log"

    async def main():
        async with observed(Sinks(RequestLog(str(target))), ["a", "b"]) as server:
            extra = {"logprobs": 1, "echo": True} if path == TEXT else {}
            whole = await server.post(path, **ASKS[path], **extra)
            streamed = await server.post(path, **ASKS[path], **extra, stream=True)
            assert whole.status_code == streamed.status_code == 200
            return whole.json()

    reply = asyncio.run(main())
    one, other = lines(target)
    assert one["response"] == reply and (one["stream"], other["stream"]) == (False, True)
    assert other["request"] == one["request"] | {"stream": True}
    changing = {"id", "created"} | {"usage"}  # the second finds its prompt in the cache
    assert {k: v for k, v in other["response"].items() if k not in changing} == {
        k: v for k, v in reply.items() if k not in changing
    }
    assert one["finish_reason"] == "stop" and one["completion_tokens"] == other["completion_tokens"] == 3
    assert "trace_id" not in one


def test_every_end_has_its_line(tmp_path):
    target = tmp_path / "log"

    async def main():
        gate = GateSettings(api_keys=("secret-key",))
        options = {"gate": gate, "step_s": 0.002, "request_timeout_s": 0.3}
        async with observed(Sinks(RequestLog(str(target))), ["x"] * 400, **options) as server:
            key = {"x-api-key": "secret-key", "traceparent": f"00-{TRACE}-{PARENT}-01"}

            async def ask(body: Any, headers: dict[str, str] = key) -> int:
                return (await server.client.post(TEXT, json=body, headers=headers)).status_code

            assert await ask({"prompt": "x"}, {}) == 401
            assert await ask({"prompt": 7}) == 400
            assert (await server.client.post(TEXT, content=b"{", headers=key | {"content-type": "application/json"})).status_code == 400
            assert await ask({"prompt": "x", "max_tokens": 3}) == 200
            assert await ask({"prompt": "x", "max_tokens": 400}) == 504
            server.runner.fail_at = 3
            assert await ask({"prompt": "x", "stream": True}) == 200
            server.runner.fail_at = None
            await server.until(lambda: server.engine.stats.running == 0)
            asking = asyncio.ensure_future(ask({"prompt": "x", "max_tokens": 400, "stream": True}))
            await server.until(lambda: server.engine.stats.running == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await server.until(lambda: server.engine.stats.running == 0)

    run(main())
    found = lines(target)
    assert [(line["status"], line["outcome"]) for line in found] == [
        (401, "rejected"),
        (400, "rejected"),
        (400, "rejected"),
        (200, "succeeded"),
        (504, "timed_out"),
        (500, "failed"),
        (499, "cancelled"),
    ]
    assert [line["request"] for line in found[:3]] == [None, {"prompt": 7}, "{"]
    errors = [line["response"]["error"]["code"] for line in found if line["status"] not in (200, 499)]
    assert errors == ["invalid_api_key", "invalid_value", "invalid_json", "request_timeout", "engine_step_failed"]
    assert found[-1]["response"]["choices"][0]["finish_reason"] is None  # the part that was shown
    assert all(line["trace_id"] == TRACE for line in found[1:]) and "secret-key" not in target.read_text()


def test_the_log_is_off_by_default_and_records_hold_no_words():
    async def main():
        records: list[Any] = []
        async with serving(sinks=(records.append,)) as server:
            await server.post(CHAT, messages=HI)
            await server.post(CHAT, messages=7)
            assert [(record.request, record.response) for record in records] == [(b"", None)] * 2

    run(main())
