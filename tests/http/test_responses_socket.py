"""The Responses API over a WebSocket, with the `websockets` client and with the official SDK."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import websockets
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect

from imp.http.gate import GateSettings
from imp.http.store import ResponseStore
from imp.obs.record import Outcome
from tests.http.responses_judge import PATH, check_stream, create, settled, text_of
from tests.http.scripted import Harness, serving
from tests.http.test_accounting import Books
from tests.http.test_responses import sdk


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def opened(server: Harness, path: str = PATH, **options: Any) -> connect:
    return connect(server.url.replace("http:", "ws:") + path, proxy=None, **options)


@asynccontextmanager
async def talking(*pieces: str, **options: Any) -> AsyncIterator[tuple[Harness, ClientConnection]]:
    async with serving(pieces or ("Hello", " there"), **options) as server, opened(server) as client:
        yield server, client


async def say(client: ClientConnection, **body: Any) -> None:
    await client.send(json.dumps({"type": "response.create", "input": "hi", "temperature": 0} | body))


async def heard(client: ClientConnection) -> list[dict[str, Any]]:
    """The events of one turn."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed"):
        events.append(json.loads(await asyncio.wait_for(client.recv(), 20)))
        if events[0]["type"] == "error":
            break
    return events


async def turn(client: ClientConnection, **body: Any) -> dict[str, Any]:
    await say(client, **body)
    return check_stream(await heard(client))


async def refused(client: ClientConnection, **body: Any) -> dict[str, Any]:
    await say(client, **body)
    return await refusal(client)


async def refusal(client: ClientConnection) -> dict[str, Any]:
    [event] = await heard(client)
    assert set(event) - {"stream_id"} == {"type", "sequence_number", "status", "error", "code", "message", "param"}
    assert event["sequence_number"] == 0 and set(event["error"]) - {"headers"} == {"type", "code", "message", "param"}
    assert all(event[name] == event["error"][name] for name in ("code", "message", "param"))
    return event


def test_a_turn_is_the_stream_of_the_same_post():
    async def main():
        async with talking() as (server, client):
            whole = await create(server, input="hi", temperature=0)
            assert settled(await turn(client)) == settled(whole)
            async with opened(server, "/responses") as bare:
                assert text_of(await turn(bare, stream=False, background=False)) == "Hello there"
            assert (await server.client.get(PATH)).status_code == 426

    run(main())


def test_turns_that_are_sent_ahead_are_answered_one_after_the_other():
    async def main():
        async with talking("a", "b", step_s=0.002) as (server, client):
            for i in range(30):  # more than are queued here
                await say(client, metadata={"i": str(i)}, stream_id=f"lane {i % 2}")
            for i in range(30):
                events = await heard(client)
                assert all(event.pop("stream_id") == f"lane {i % 2}" for event in events)
                assert check_stream(events)["metadata"] == {"i": str(i)}
                assert server.engine.stats.running <= 1

    run(main())


def test_a_chain_that_is_not_stored_goes_on_on_its_own_socket_only():
    async def main():
        async with talking("ok") as (server, client):
            one = await turn(client, store=False)
            async with opened(server) as other:
                error = await refused(other, previous_response_id=one["id"])
                assert (error["status"], error["code"]) == (400, "previous_response_not_found")
                assert error["param"] == "previous_response_id"
                assert text_of(await turn(other)) == "ok"  # the connection stays
            two = await turn(client, store=False, previous_response_id=one["id"])
            assert two["usage"]["input_tokens"] > one["usage"]["input_tokens"]
            reference = [{"type": "item_reference", "id": two["output"][0]["id"]}, {"role": "user", "content": "x"}]
            three = await turn(client, store=False, input=reference)
            gone = await refused(client, previous_response_id=one["id"])  # only the latest is kept here
            assert gone["code"] == "previous_response_not_found"
            assert (await turn(client, previous_response_id=three["id"]))["store"] is True
            assert len(server.services.responses) == 2  # this one and the other socket's

    run(main())


def test_a_turn_that_fails_takes_the_response_it_went_on_from_with_it():
    async def main():
        async with talking("ok") as (_, client):
            one = await turn(client, store=False)
            assert (await refused(client, previous_response_id=one["id"], temperature=9))["param"] == "temperature"
            gone = await refused(client, previous_response_id=one["id"])
            assert gone["code"] == "previous_response_not_found"
        async with talking("a", "b", fail_at=1) as (_, client):
            last = await turn(client, store=False)
            assert last["status"] == "failed"
            assert (await refused(client, previous_response_id=last["id"]))["status"] == 400

    run(main())


def test_a_stored_chain_goes_on_anywhere():
    async def main():
        async with talking("ok") as (server, client):
            one = await turn(client)
            async with opened(server) as other:
                two = await turn(other, previous_response_id=one["id"])
            assert (await create(server, input="x", previous_response_id=two["id"]))["status"] == "completed"
            assert (await turn(client, previous_response_id=two["id"]))["status"] == "completed"

    run(main())


def test_input_can_be_sent_ahead_without_an_answer():
    async def main():
        async with talking("ok") as (_, client):
            await say(client, generate=False, store=False, input="a" * 100)
            events = await heard(client)
            names = ["response.created", "response.in_progress", "response.completed"]
            assert [event["type"] for event in events] == names
            ahead = events[-1]["response"]
            assert ahead["output"] == [] and ahead["usage"]["output_tokens"] == 0
            after = await turn(client, store=False, previous_response_id=ahead["id"], input="b")
            assert text_of(after) == "ok" and after["usage"]["input_tokens_details"]["cached_tokens"] > 64

    run(main())


@pytest.mark.parametrize(
    "message, param",
    [
        ("", None),
        ("not json", None),
        ("[]", None),
        ('"response.create"', None),
        ("{}", "type"),
        ('{"type": "response.steer"}', "type"),
        ('{"type": ["response.create"]}', "type"),
        ('{"type": "response.create"}', "input"),
        ('{"type": "response.create", "input": "x", "background": true}', "background"),
        ('{"type": "response.create", "input": "x", "generate": "no"}', "generate"),
        ('{"type": "response.create", "input": "x", "stream_id": 5}', "stream_id"),
        ('{"type": "response.create", "input": "x", "model": "other"}', "model"),
        ("[" * 200 + "]" * 200, None),
    ],
)
def test_mistakes_are_named_and_the_connection_stays(message, param):
    async def main():
        async with talking("ok") as (_, client):
            await client.send(message)
            error = await refusal(client)
            assert error["status"] == (404 if param == "model" else 400) and error["param"] == param
            assert text_of(await turn(client)) == "ok"

    run(main())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["response.create", "hi"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "input", "store", "stream_id", "role", "content"]), inner, max_size=5
        )
    ),
    max_leaves=10,
)


def test_any_message_is_answered():
    async def main():
        async with talking("ok") as (_, client):
            messages: list[str] = []

            @settings(max_examples=150, deadline=None, database=None)
            @given(JSON.map(json.dumps) | st.text(max_size=20))
            def collect(message: str) -> None:
                messages.append(message)

            collect()
            for message in messages:
                await client.send(message)
                await heard(client)
            assert text_of(await turn(client)) == "ok"

    run(main())


def test_every_turn_has_its_key_its_rate_its_place_and_its_record():
    async def main():
        gate = GateSettings(api_keys=("good",), rate_limit_per_min=4, max_concurrent=1)
        async with serving(["a"] * 50, gate=gate, step_s=0.002) as server:
            books = Books(server)
            key = {"Authorization": "Bearer good", "X-Request-Id": "mine"}
            with pytest.raises(websockets.InvalidStatus) as refused_opening:
                async with opened(server):
                    pass
            assert refused_opening.value.response.status_code == 401
            async with opened(server, additional_headers=key) as client:  # the first of four
                assert client.response.headers["X-Request-Id"] == "mine"
                one = await turn(client)
                assert (await server.client.get(f"{PATH}/{one['id']}")).status_code == 401
                await say(client, stream_id="x")
                await client.recv()
                busy = await server.client.post(PATH, json={"input": "x"}, headers=key)  # the fourth
                assert busy.json()["error"]["code"] == "queue_full"
                await heard(client)
                over = await refused(client)
                assert (over["status"], over["code"]) == (429, "rate_limit_exceeded")
                assert 1 <= int(over["error"]["headers"]["retry-after"]) <= 15
            records = await books.closed(4)
            assert [each.status for each in records] == [200, 429, 200, 429]
            assert [each.streamed for each in records] == [True, False, True, False]
            assert {each.endpoint for each in records} == {PATH}
            assert len({each.request_id for each in records if each.client_request_id is None}) == 3
            books.check()

    run(main())


def test_leaving_in_the_middle_of_a_turn_aborts_it():
    async def main():
        async with serving(["a"] * 400, step_s=0.005) as server:
            books = Books(server)
            for leave in ("close", "abort"):
                client = await opened(server)
                await say(client)
                await say(client)  # never begins
                while "delta" not in json.loads(await client.recv()):
                    pass
                if leave == "close":
                    await client.close()
                else:
                    client.transport.abort()
                await server.until(lambda: server.engine.stats.running == 0)
            records = await books.closed(2)
            assert [each.outcome for each in records] == [Outcome.CANCELLED] * 2
            assert len(server.services.responses) == 0 and not server.services.generating
            await server.until(lambda: not [one for one in server.server.connections if one.is_busy])
            books.check()

    run(main())


def test_a_turn_in_flight_ends_before_the_server_goes_down():
    async def main():
        async with talking("a", "b", "c", step_s=0.01) as (server, client):
            await say(client)
            await say(client)
            while "delta" not in (event := json.loads(await client.recv())):
                pass
            draining = asyncio.create_task(server.server.drain(10))
            while event["type"] != "response.completed":
                event = json.loads(await client.recv())
            with pytest.raises(websockets.ConnectionClosedOK):
                await client.recv()
            assert client.close_code == 1001 and await draining

    run(main())


def test_a_connection_has_its_time_and_a_turn_its_end():
    async def main():
        async with talking("ok", socket_limit_s=1.0) as (server, client):
            server.runner.held.clear()
            await say(client)
            await server.until(lambda: bool(server.services.generating))
            await asyncio.sleep(1.1)
            server.runner.held.set()
            assert text_of(check_stream(await heard(client))) == "ok"
            over = await refusal(client)
            assert (over["code"], over["status"]) == ("websocket_connection_limit_reached", 400)
            with pytest.raises(websockets.ConnectionClosedOK):
                await client.recv()
            server.services.socket_limit_s = 0.01
            async with opened(server) as idle:
                assert (await refusal(idle))["code"] == "websocket_connection_limit_reached"

    run(main())


def test_one_that_reads_slowly_holds_up_nobody_else():
    async def main():
        async with (
            serving(["x" * 2000] * 300, responses=ResponseStore(entries=0)) as server,
            opened(server, max_queue=1) as slow,
            opened(server) as quick,
        ):
            await say(slow)
            assert text_of(await turn(quick)) == "x" * 600_000
            assert text_of(check_stream(await heard(slow))) == "x" * 600_000

    run(main())


def test_the_official_sdk_speaks_it():
    async def main():
        async with serving(["Hello", " there"]) as server, sdk(server) as client:
            async with client.responses.connect() as connection:
                text, previous = "", None
                for _ in range(2):
                    await connection.response.create(
                        model="toy", input="hi", store=False, **({"previous_response_id": previous} if previous else {})
                    )
                    async for event in connection:
                        if event.type == "response.output_text.delta":
                            text += event.delta
                        if event.type == "response.completed":
                            previous = event.response.id
                            break
            assert text == "Hello there" * 2

    run(main())
