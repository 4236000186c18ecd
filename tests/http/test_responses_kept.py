"""Kept responses: chains, retrieval, the background, compaction, and the bounds of the store."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import openai
import pytest

from imp.http.gate import GateSettings
from imp.http.message import dumps
from imp.http.seal import Seal
from imp.http.store import EventLog, ResponseStore, Stored
from imp.obs.record import Outcome
from tests.http.responses_judge import PATH, check_object, check_stream, create, parsed_events, stream, text_of
from tests.http.scripted import Harness, serving
from tests.http.test_accounting import Books
from tests.http.test_responses import CALL, OUTPUT, SHOWN, prompt_of, sdk


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


# -- chains ---------------------------------------------------------------------------------------


def test_g08_02_a_chain_is_the_same_prompt_as_the_history_sent_again():
    async def main():
        async with serving(["ok"], template=SHOWN) as server:
            first = [{"role": "user", "content": "hi"}, {"type": "reasoning", "id": "rs_1", "summary": []}, CALL]
            second: list[Any] = [OUTPUT, {"role": "user", "content": "and?"}]
            one = await create(server, input=first, instructions="only once")
            chained = await prompt_of(server, input=second, previous_response_id=one["id"])
            again = await prompt_of(server, input=[*first, *one["output"], *second])
            assert chained == again == "<user|hi><assistant|!f:7><assistant|ok><tool f|42><user|and?><assistant|"
            two = await create(server, input=second, previous_response_id=one["id"], instructions="J")
            assert two["previous_response_id"] == one["id"]
            last = await prompt_of(server, input="x", previous_response_id=two["id"])
            assert last == chained.removesuffix("<assistant|") + "<assistant|ok><user|x><assistant|"

    run(main())


def test_children_of_one_response_know_nothing_of_each_other_and_outlive_it():
    async def main():
        async with serving(["ok"], template=SHOWN) as server:
            root = await create(server, input="root")
            left = await create(server, input="left", previous_response_id=root["id"])
            right = await create(server, input="right", previous_response_id=root["id"])
            assert (await server.client.delete(f"{PATH}/{root['id']}")).status_code == 200
            prompt = await prompt_of(server, input="x", previous_response_id=right["id"])
            assert "right" in prompt and "left" not in prompt and "root" in prompt
            gone = await server.post(PATH, input="x", previous_response_id=root["id"])
            assert gone.json()["error"]["code"] == "previous_response_not_found"
            assert left["id"] != right["id"]

    run(main())


def test_references_stand_for_the_items_they_name():
    async def main():
        async with serving(["ok"], template=SHOWN) as server:
            one = await create(server, input=[{"role": "user", "content": "hi", "id": "mine"}])
            items: list[Any] = [{"type": "item_reference", "id": "mine"}, {"id": one["output"][0]["id"]}]
            prompt = await prompt_of(server, input=[*items, {"role": "user", "content": "more"}], store=False)
            assert prompt == "<user|hi><assistant|ok><user|more><assistant|"
            await server.client.delete(f"{PATH}/{one['id']}")
            assert (await server.post(PATH, input=items)).json()["error"]["code"] == "item_not_found"

    run(main())


@pytest.mark.parametrize("store", [{"store": False}, {}])
def test_what_is_not_kept_cannot_be_gone_on_from(store):
    async def main():
        kept = {} if store else {"responses": ResponseStore(entries=0)}
        async with serving(**kept) as server:
            for body in ({}, {"stream": True}):
                answer = await server.post(PATH, input="hi", **store, **body)
                last = check_stream(parsed_events(answer.text)) if body else answer.json()
                assert (await server.client.get(f"{PATH}/{last['id']}")).status_code == 404
                chained = await server.post(PATH, input="x", previous_response_id=last["id"])
                assert chained.json()["error"]["code"] == "previous_response_not_found"
            if not store:
                assert (await server.post(PATH, input="hi", background=True)).json()["error"]["param"] == "background"
            assert len(server.services.responses) == 0

    run(main())


def test_a_client_that_leaves_leaves_nothing_behind():
    async def main():
        async with serving(["a"] * 200, step_s=0.005) as server:
            books = Books(server)
            async with server.client.stream("POST", PATH, json={"input": "hi", "stream": True}) as answer:
                async for chunk in answer.aiter_text():
                    if "output_text.delta" in chunk:
                        break
            [record] = await books.closed(1)
            assert record.outcome is Outcome.CANCELLED and len(server.services.responses) == 0
            await server.until(lambda: server.engine.stats.running == 0)
            books.check()

    run(main())


# -- reading --------------------------------------------------------------------------------------


def test_kept_responses_are_read_listed_and_deleted():
    async def main():
        async with serving(["ok"]) as server, sdk(server) as client:
            one = await client.responses.create(model="toy", input=[{"role": "user", "content": t} for t in "abc"])
            two = await client.responses.create(
                model="toy", input="d", previous_response_id=one.id, metadata={"k": "v"}
            )
            assert await client.responses.retrieve(two.id) == two
            listed = [item async for item in client.responses.input_items.list(two.id, order="asc", limit=2)]
            texts = [item.content[0].text for item in listed]
            assert texts == ["a", "b", "c", "ok", "d"]
            newest = [item async for item in client.responses.input_items.list(two.id)]
            assert newest == listed[::-1]
            page = (await server.client.get(f"{PATH}/{two.id}/input_items?limit=1&order=asc")).json()
            assert page["has_more"] and page["first_id"] == page["last_id"] == listed[0].id
            end = (await server.client.get(f"{PATH}/{two.id}/input_items?after={listed[-1].id}&order=asc")).json()
            empty = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
            assert end == empty
            deleted = await server.client.delete(f"{PATH}/{one.id}")
            assert deleted.json() == {"id": one.id, "object": "response", "deleted": True}
            await client.responses.delete(two.id)
            for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                gone = await server.client.request(method, f"{PATH}/{two.id}{path}")
                assert gone.status_code == 404 and gone.json()["error"]["code"] == "response_not_found"
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve("resp_nope")

    run(main())


@pytest.mark.parametrize(
    "query, param",
    [
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?limit=x", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=nope", "after"),
        ("?stream=maybe", "stream"),
        ("?stream=true", "stream"),  # it was not streamed
        ("?starting_after=1", "starting_after"),
        ("?stream=true&starting_after=-1", "starting_after"),
    ],
)
def test_mistakes_in_queries_are_named(query, param):
    async def main():
        async with serving(["ok"]) as server:
            one = await create(server, input="hi")
            answer = await server.client.get(f"{PATH}/{one['id']}{query}")
            assert answer.status_code == 400 and answer.json()["error"]["param"] == param

    run(main())


def test_g08_03_another_key_sees_nothing():
    async def main():
        async with serving(["ok"], gate=GateSettings(api_keys=("one", "two"))) as server:
            mine, other = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
            kept = (await server.client.post(PATH, json={"input": "hi"}, headers=mine)).json()
            path = f"{PATH}/{kept['id']}"
            for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
                assert (await server.client.request(method, path + rest, headers=other)).status_code == 404
            reference = [{"type": "item_reference", "id": kept["output"][0]["id"]}]
            for body in ({"input": "x", "previous_response_id": kept["id"]}, {"input": reference}):
                assert (await server.client.post(PATH, json=body, headers=other)).status_code == 400
                assert (await server.client.post(PATH, json=body, headers=mine)).status_code == 200
            assert (await server.client.get(path, headers=mine)).json() == kept
            assert (await server.client.get(path)).status_code == 401

    run(main())


def test_events_are_replayed_as_they_were_from_any_place():
    async def main():
        async with serving(["a", "b", "c"]) as server:
            events = await stream(server, input="hi")
            path = f"{PATH}/{events[0]['response']['id']}?stream=true"
            for after in range(-1, len(events) + 1):
                start = "" if after < 0 else f"&starting_after={after}"
                text = (await server.client.get(path + start)).text
                assert (parsed_events(text) if text else []) == events[after + 1 :]

    run(main())


# -- in the background ----------------------------------------------------------------------------


async def begun(server: Harness, **body: Any) -> dict[str, Any]:
    answer = await server.post(PATH, input="hi", background=True, **body)
    assert answer.status_code == 200, answer.text
    check_object(answer.json())
    assert answer.json()["status"] == "queued" and answer.json()["background"] is True
    return answer.json()


async def polled(server: Harness, id: str) -> dict[str, Any]:
    found = (await server.client.get(f"{PATH}/{id}")).json()
    check_object(found)
    return found


async def until_status(server: Harness, id: str, status: str) -> dict[str, Any]:
    while (found := await polled(server, id))["status"] != status:
        assert found["status"] in ("queued", "in_progress"), found
        await asyncio.sleep(0.005)
    return found


def test_a_background_response_is_queued_runs_and_ends_while_nobody_waits():
    async def main():
        async with serving(["a", "b"]) as server:
            books = Books(server)
            server.runner.held.clear()
            waiting = await begun(server)
            assert (await polled(server, waiting["id"]))["status"] == "queued"
            assert books.records == []
            refused = await server.post(PATH, input="x", previous_response_id=waiting["id"])
            assert refused.json()["error"]["code"] == "response_not_over"
            server.runner.held.set()
            done = await until_status(server, waiting["id"], "completed")
            assert text_of(done) == "ab" and done["usage"]["output_tokens"] == 3
            _, record = await books.closed(2)
            assert record.outcome is Outcome.SUCCEEDED and record.completion_tokens == 3
            books.check()
            events = parsed_events((await server.client.get(f"{PATH}/{done['id']}?stream=true")).text)
            assert check_stream(events) == done and events[1]["type"] == "response.queued"
            assert (await create(server, input="x", previous_response_id=done["id"]))["status"] == "completed"
            with_sdk = await sdk(server).responses.cancel(done["id"])
            assert with_sdk.status == "completed"

    run(main())


def test_a_background_stream_can_be_left_and_attached_to_again():
    async def main():
        async with serving(["a"] * 40, step_s=0.005) as server:
            seen: list[Any] = []
            body = {"input": "hi", "background": True, "stream": True}
            async with server.client.stream("POST", PATH, json=body) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        seen.append(line)
                    if "output_text.delta" in line:
                        break
            id = json.loads(seen[0].removeprefix("data: "))["response"]["id"]
            answers = await asyncio.gather(
                *(
                    server.client.get(f"{PATH}/{id}?stream=true{q}")
                    for q in ("", "&starting_after=3", "&starting_after=20")
                )
            )
            whole, later, latest = (parsed_events(answer.text) for answer in answers)
            assert text_of(check_stream(whole)) == "a" * 40
            assert later == whole[4:] and latest == whole[21:]

    run(main())


@pytest.mark.parametrize("queued", [True, False])
def test_cancelling_frees_the_engine_and_the_place_at_the_gate(queued):
    async def main():
        async with serving(["a"] * 400, step_s=0.005, rows=1, gate=GateSettings(max_concurrent=2)) as server:
            books = Books(server)
            first = await begun(server)
            second = await begun(server)
            await until_status(server, first["id"], "in_progress")
            assert (await server.post(PATH, input="hi")).status_code == 429
            victim = second if queued else first
            ended = (await server.client.post(f"{PATH}/{victim['id']}/cancel")).json()
            check_object(ended)
            assert ended["status"] == "cancelled" and ended == await polled(server, victim["id"])
            events = parsed_events((await server.client.get(f"{PATH}/{victim['id']}?stream=true")).text)
            assert check_stream(events) == ended
            await server.until(lambda: len(books.records) == 2)  # the refused one, too
            [record] = [each for each in books.records if each.status != 429]
            assert record.outcome is Outcome.CANCELLED
            rest = first if queued else second
            deleted = await server.client.delete(f"{PATH}/{rest['id']}")
            assert deleted.json()["deleted"]
            await server.until(lambda: server.engine.stats.running + server.engine.stats.waiting == 0)
            assert (await server.client.get(f"{PATH}/{rest['id']}")).status_code == 404
            assert (await server.post(PATH, input="hi", max_output_tokens=1)).status_code == 200

    run(main())


def test_only_the_background_can_be_cancelled():
    async def main():
        async with serving() as server:
            one = await create(server, input="hi")
            answer = await server.client.post(f"{PATH}/{one['id']}/cancel")
            assert answer.status_code == 400 and "background" in answer.json()["error"]["message"]

    run(main())


def test_a_failure_in_the_background_is_told_by_the_response():
    async def main():
        async with serving(["a", "b"], fail_at=1) as server:
            waiting = await begun(server)
            failed = await until_status(server, waiting["id"], "failed")
            assert failed["error"]["code"] == "server_error" and text_of(failed) == "a"

    run(main())


def test_what_runs_in_the_background_ends_with_the_server():
    async def main():
        async with serving(["a"] * 400, step_s=0.005) as server:
            waiting = await begun(server)
            await until_status(server, waiting["id"], "in_progress")
            assert not await server.services.settled(0.01)
            await server.engine.stop()
            assert await server.services.settled(5)
            kept = server.services.responses.get(waiting["id"], "")
            assert kept is not None and kept.response["status"] == "failed"

    run(main())


# -- compaction -----------------------------------------------------------------------------------


def test_a_compaction_goes_on_from_the_models_summary():
    async def main():
        async with serving(["They met."], template=SHOWN) as server, sdk(server) as client:
            books = Books(server)
            turns = [{"role": "developer", "content": "D"}, {"role": "user", "content": "hello " * 5}, CALL, OUTPUT]
            open_call = CALL | {"call_id": "c9", "name": "g"}
            made = await client.responses.compact(model="toy", input=[*turns, open_call])  # type: ignore[list-item]
            assert made.object == "response.compaction" and made.usage.output_tokens == 2
            [item] = made.output
            assert item.type == "compaction" and item.id.startswith("cmp_")
            [record] = await books.closed(1)
            assert record.endpoint == "/v1/responses/compact" and record.completion_tokens == 2
            sent = [item.to_dict(), OUTPUT | {"call_id": "c9"}, {"role": "user", "content": "next"}]
            prompt = await prompt_of(server, input=sent)
            summary = f"Summary of the conversation so far:\nThey met.\n\nThe user's last message was:\n{'hello ' * 5}"
            start = f"<system|D><system|{summary}><assistant|!g:7>"
            assert prompt == start + "<tool g|42><user|next><assistant|"
            one = await create(server, input="hi")
            chained = await client.responses.compact(model="toy", previous_response_id=one["id"])
            assert chained.output[0].type == "compaction"

    run(main())


def test_compactions_of_others_are_refused():
    async def main():
        async with serving() as server:
            mine = server.services.seal.seal("compaction", [])
            for sealed in (
                Seal().seal("compaction", []),
                server.services.seal.seal("reasoning", "x"),
                mine[:-4] + "AAAA",
                ("B" if mine[0] == "A" else "A") + mine[1:],
                mine + "=",
                "\u00e9",
                "",
            ):
                item = {"type": "compaction", "encrypted_content": sealed}
                error = (await server.post(PATH, input=[item, {"role": "user", "content": "x"}])).json()["error"]
                assert error["code"] == "invalid_encrypted_content", sealed
            no_model = await server.post(PATH + "/compact", input="hi")
            nothing = await server.post(PATH + "/compact", model="toy")
            assert (no_model.json()["error"]["param"], nothing.json()["error"]["param"]) == ("model", "input")

    run(main())


def test_sealed_thoughts_are_read_again_and_foreign_ones_stay_shut():
    async def main():
        async with serving(template=SHOWN) as server:
            seal = server.services.seal
            for sealed, shown in ((seal.seal("reasoning", "hm"), "?hm"), (seal.seal("compaction", []), ""), ("x", "")):
                thought = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
                prompt = await prompt_of(server, input=[thought, CALL, OUTPUT])
                assert prompt == f"<assistant{shown}|!f:7><tool f|42><assistant|"

    run(main())


def test_a_seal_opens_what_it_has_made_and_no_random_bytes():
    rng = random.Random(20261130)
    seal = Seal()
    value = {"a": ["\u00e9", 1, None]}
    sealed = seal.seal("a", value)
    assert seal.unseal("a", sealed) == value and seal.unseal("b", sealed) is None
    for _ in range(300):
        at = rng.randrange(len(sealed))
        changed = sealed[:at] + rng.choice("ABCxyz-_= \u00e9") + sealed[at + 1 :]
        assert changed == sealed or seal.unseal("a", changed) in (None, value)  # the last character has unused bits
    for _ in range(300):
        assert seal.unseal("a", "".join(chr(rng.randrange(32, 200)) for _ in range(rng.randrange(80)))) is None


# -- the store ------------------------------------------------------------------------------------


def stored(name: str, size: int = 0, owner: str = "", over: bool = True) -> Stored:
    item = {"id": f"item_{name}", "text": "x" * size}
    made = Stored(name, owner, {"output": []}, (item,), ())
    if over:
        made.over.set()
    return made


def weight(one: Stored) -> int:
    return len(dumps([one.input, one.response]))


def test_the_longest_unused_goes_first():
    store = ResponseStore(entries=3)
    for name in "abc":
        store.put(stored(name))
    assert store.get("a", "")
    store.put(stored("d"))
    assert [name for name in "abcd" if store.get(name, "")] == ["a", "c", "d"]
    assert store.item("item_b", "") is None and store.item("item_a", "")
    store.put(stored("a", 5))
    assert len(store) == 3


def test_bytes_are_bounded_and_the_too_big_is_not_kept():
    one = stored("a", 1000)
    store = ResponseStore(size_bytes=3 * weight(one))
    for name in "abcd":
        store.put(stored(name, 1000))
    assert [name for name in "abcd" if store.get(name, "")] == ["b", "c", "d"]
    store.put(stored("e", 5000))
    assert store.get("e", "") is None and len(store) == 3
    for name in "bcd":
        store.remove(name, "")
    assert store.size_bytes == 0


def test_what_is_old_is_gone():
    now = [0.0]
    store = ResponseStore(ttl_s=10, clock=lambda: now[0])
    store.put(stored("a"))
    now[0] = 9
    store.put(stored("b"))
    assert store.get("a", "")
    now[0] = 10.5
    assert store.get("a", "") is None and store.get("b", "") and len(store) == 1


def test_what_runs_stays_and_what_was_removed_does_not_come_back():
    store = ResponseStore(entries=2)
    running = stored("r", over=False)
    store.put(running)
    for name in "abc":
        store.put(stored(name))
    assert store.get("r", "") and len(store) == 2
    assert store.remove("r", "other") is None and store.remove("r", "") is running
    running.over.set()
    store.put(running)
    assert store.get("r", "") is None


def test_random_use_of_the_store_keeps_its_accounts():
    rng = random.Random(20261130)
    now = [0.0]
    store = ResponseStore(entries=20, size_bytes=6000, ttl_s=50, clock=lambda: now[0])
    for _ in range(5000):
        now[0] += rng.random()
        name, owner = str(rng.randrange(40)), rng.choice(["", "k"])
        action = rng.randrange(4)
        if action < 2:
            store.put(stored(name, rng.randrange(600), owner))
        elif action == 2:
            found = store.get(name, owner)
            assert found is None or (found.owner == owner and found.expires > now[0])
            assert (store.item(f"item_{name}", owner) is None) == (found is None)
        else:
            store.remove(name, owner)
        assert len(store) <= 20 and 0 <= store.size_bytes <= 6000
    for name in map(str, range(40)):
        for owner in ("", "k"):
            store.remove(name, owner)
    now[0] += 1000
    store.get("x", "")
    assert len(store) == 0 and store.size_bytes == 0


def test_a_log_gives_back_what_it_got_to_whoever_follows_from_wherever():
    async def main():
        rng = random.Random(20261130)
        log = EventLog()
        frames = [
            b"event: e\ndata: %d %s\n\n" % (i, bytes(rng.choices(b"ab", k=rng.randrange(3000)))) for i in range(300)
        ]

        async def followed(start: int) -> bytes:
            return b"".join([part async for part in log.follow(start)])

        followers = {start: asyncio.create_task(followed(start)) for start in (0, 1, 7, 150, 299, 300)}
        at = 0
        while at < len(frames):
            count = rng.randrange(1, 6)
            log.add(b"".join(frames[at : at + count]))
            at += count
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        log.close()
        for start, task in followers.items():
            assert await task == b"".join(frames[start:])
            assert await followed(start) == b"".join(frames[start:])
        assert log.size_bytes < sum(map(len, frames)) / 3  # packed

    run(main())


def test_g08_03_a_server_keeps_no_more_than_its_bound():
    async def main():
        store = ResponseStore(entries=50)
        async with serving(["ok"], responses=store) as server:
            ids = []
            for _ in range(40):
                batch = [create(server, input="hi", max_output_tokens=1) for _ in range(4)]
                ids += [each["id"] for each in await asyncio.gather(*batch)]
            assert len(store) == 50
            kept = [id for id in ids if store.get(id, "")]
            assert len(kept) == 50 and set(kept) <= set(ids[-56:])

    run(main())
