"""What requests have used: the records, the counters, the replies and the model's own count must be one and the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from imp.http.gate import GateSettings
from imp.obs.record import Outcome, RequestRecord
from tests.http.scripted import Harness, serving

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
ONE_TURN = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
HISTOGRAMS = ("request_duration", "ttft", "inter_token", "queue_time")


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


class Books:
    """The records of a server, and its counters as Prometheus reads them."""

    def __init__(self, server: Harness) -> None:
        self.server = server
        self.records: list[RequestRecord] = []
        server.services.sinks = (*server.services.sinks, self.records.append)

    async def closed(self, count: int) -> list[RequestRecord]:
        """All records, once there are so many."""
        await self.server.until(lambda: len(self.records) >= count)
        await asyncio.sleep(0)
        assert len(self.records) == count
        return self.records

    def samples(self) -> dict[str, float]:
        text = self.server.services.metrics.expose().decode()
        families = text_string_to_metric_families(text)
        return {
            f"{each.name}{sorted(each.labels.values())}" if each.labels else each.name: each.value
            for family in families
            for each in family.samples
        }

    def check(self) -> None:
        """Counters are the sums of the records; drawn tokens are the model's own count."""
        found, records = self.samples(), self.records
        for name in ("prompt", "completion", "cached"):
            assert found[f"imp_tokens_{name}_total"] == sum(getattr(each, f"{name}_tokens") for each in records)
        assert found["imp_tokens_completion_total"] == self.server.runner.drawn
        assert found["imp_requests_total"] == len(records)
        for outcome in Outcome:
            if outcome is not Outcome.SUCCEEDED:
                ended = sum(each.outcome is outcome for each in records)
                assert found[f"imp_requests_{outcome.value}_total"] == ended
        for name in HISTOGRAMS:
            answered = [each.endpoint for each in records if each.ttft_s is not None]
            assert found[f"imp_{name}_seconds_count"] == len(answered)
            for endpoint in set(answered):
                assert found[f"imp_endpoint_{name}_seconds_count['{endpoint}']"] == answered.count(endpoint)
        self.server.scheduler.check()


@asynccontextmanager
async def books(*arguments: Any, **options: Any) -> Any:
    async with serving(*arguments, **options) as server:
        yield server, Books(server)


def usage_of(reply: Any) -> tuple[int, int]:
    """(prompt tokens, generated tokens) in either dialect."""
    usage = reply["usage"]
    if "input_tokens" in usage:
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"]


ANSWERED = [
    (CHAT, {"messages": HI}),
    (CHAT, {"messages": HI, "n": 3}),
    (CHAT, {"messages": HI, "max_tokens": 1}),
    (TEXT, {"prompt": "x"}),
    (TEXT, {"prompt": ["x" * 40, "y"], "n": 2}),
    (TEXT, {"prompt": "x", "best_of": 3, "n": 2}),
    (TEXT, {"prompt": "x", "echo": True, "logprobs": 1}),
    (TEXT, {"prompt": "x", "stop": ["lo"]}),
    (MESSAGES, {"messages": HI, "max_tokens": 20}),
]


def test_replies_records_and_counters_agree_on_every_path():
    async def main():
        async with books(["Hel", "lo", " you"]) as (server, account):
            replied = []
            for path, body in ANSWERED:
                for _ in range(2):  # the second one finds the prompt in the cache
                    answer = await server.post(path, **body)
                    assert answer.status_code == 200, answer.text
                    replied.append((path, usage_of(answer.json())))
                if "best_of" in body:
                    continue
                if path == MESSAGES:
                    async with server.client.stream("POST", path, json=body | {"stream": True}) as stream:
                        assert stream.status_code == 200 and await stream.aread()
                    replied.append((path, replied[-1][1]))
                    continue
                *_, last, _ = await server.sse(path, **body, stream_options={"include_usage": True})
                replied.append((path, usage_of(last)))
            records = await account.closed(len(replied))
            assert [(r.endpoint, (r.prompt_tokens, r.completion_tokens)) for r in records] == replied
            assert all(record.outcome is Outcome.SUCCEEDED and record.ttft_s is not None for record in records)
            account.check()
            assert account.samples()["imp_tokens_cached_total"] > 0

    run(main())


def test_a_prompt_without_a_token_counts_and_is_in_no_histogram():
    async def main():
        async with books() as (server, account):
            answer = await server.post(TEXT, prompt="abc", echo=True, max_tokens=0)
            assert usage_of(answer.json()) == (3, 0)
            [record] = await account.closed(1)
            assert (record.prompt_tokens, record.completion_tokens, record.ttft_s) == (3, 0, None)
            account.check()

    run(main())


async def _leave(server: Harness, path: str, body: dict[str, Any], when: Callable[[], bool]) -> None:
    asking = asyncio.ensure_future(server.client.post(path, json=body))
    await server.until(when)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES])
def test_who_leaves_has_used_what_the_model_drew(path, streamed):
    async def main():
        async with books(["x"] * 400, step_s=0.002) as (server, account):
            body = {"prompt": ["x", "y"], "n": 2} if path == TEXT else {"messages": HI}
            await _leave(server, path, body | {"max_tokens": 300, "stream": streamed}, lambda: server.runner.drawn > 20)
            [record] = await account.closed(1)
            assert record.outcome is Outcome.CANCELLED and record.completion_tokens > 20
            assert record.prompt_tokens == (2 if path == TEXT else len(ONE_TURN))
            account.check()

    run(main())


def test_who_leaves_the_queue_has_used_nothing():
    async def main():
        async with books(["x"] * 400, step_s=0.002, rows=1) as (server, account):
            first = asyncio.ensure_future(server.post(TEXT, prompt="x", max_tokens=200))
            await server.until(lambda: server.engine.stats.running == 1)
            await _leave(server, TEXT, {"prompt": "yy"}, lambda: server.engine.stats.waiting == 1)
            [record] = await account.closed(1)
            assert (record.outcome, record.prompt_tokens, record.queue_s) == (Outcome.CANCELLED, 0, None)
            assert (await first).status_code == 200
            await account.closed(2)
            account.check()

    run(main())


@pytest.mark.parametrize("streamed", [False, True])
def test_requests_that_run_into_the_timeout_are_counted_exactly(streamed):
    async def main():
        async with books(["x"] * 400, step_s=0.003, request_timeout_s=0.1) as (server, account):
            await server.client.post(TEXT, json={"prompt": "x", "n": 3, "max_tokens": 300, "stream": streamed})
            [record] = await account.closed(1)
            assert record.outcome is Outcome.TIMED_OUT and record.status == 504 and record.completion_tokens > 3
            account.check()

    run(main())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_requests_whose_step_failed_are_counted_exactly(streamed, n):
    async def main():
        async with books(["x"] * 40, fail_at=7) as (server, account):
            await server.client.post(TEXT, json={"prompt": "abc", "n": n, "max_tokens": 30, "stream": streamed})
            [record] = await account.closed(1)
            assert record.outcome is Outcome.FAILED and record.error_code == "engine_step_failed"
            assert (record.prompt_tokens, record.completion_tokens) == (3, server.runner.drawn) and record.ttft_s
            account.check()

    run(main())


def test_a_request_that_fails_after_some_of_its_choices_ended_counts_its_prompt_once():
    async def main():
        async with books(["x"] * 40, rows=2, step_s=0.005) as (server, account):
            asking = asyncio.ensure_future(server.post(TEXT, prompt="abc", n=5, max_tokens=10))
            await server.until(lambda: server.runner.drawn > 15)  # two choices of ten tokens are done, or nearly
            server.runner.fail_at = 9
            assert (await asking).status_code == 500
            [record] = await account.closed(1)
            assert record.prompt_tokens == 3 and record.completion_tokens == server.runner.drawn
            account.check()

    run(main())


def test_cancelling_by_id_is_counted_exactly():
    async def main():
        async with books(["x"] * 400, step_s=0.002) as (server, account):
            asking = asyncio.ensure_future(
                server.client.post(TEXT, json={"prompt": "x", "n": 2}, headers={"X-Request-Id": "me"})
            )
            await server.until(lambda: server.runner.drawn > 10)
            assert (await server.client.delete("/v1/requests/me")).status_code == 200
            assert (await asking).status_code == 499
            [record] = await account.closed(1)
            assert record.outcome is Outcome.CANCELLED and record.client_request_id == "me"
            assert record.finish_reasons == ()
            account.check()

    run(main())


def test_refused_requests_are_counted_once_wherever_they_are_refused():
    async def main():
        gate = GateSettings(api_keys=("k",), max_concurrent=1)
        async with books(["x"] * 400, step_s=0.002, blocks=4, gate=gate) as (server, account):
            key = {"x-api-key": "k"}

            async def status(path: str, body: dict[str, Any], headers: dict[str, str] = key) -> int:
                return (await server.client.post(path, json=body, headers=headers)).status_code

            assert await status(CHAT, {"messages": HI}, {}) == 401
            assert await status(CHAT, {"messages": "no"}) == 400
            assert await status(CHAT, {"messages": HI, "model": "other"}) == 404
            assert await status(TEXT, {"prompt": "x" * 100}) == 503  # 4 blocks of 16 never hold it
            assert await status(TEXT, {"prompt": "x" * 600}) == 400  # nor does the context
            busy = asyncio.ensure_future(status(TEXT, {"prompt": "x", "max_tokens": 40}))
            await server.until(lambda: server.engine.stats.running == 1)
            assert await status(MESSAGES, {"messages": HI, "max_tokens": 5}) == 429
            assert await busy == 200
            records = await account.closed(7)
            assert [r.status for r in records] == [401, 400, 404, 503, 400, 429, 200]
            assert sum(r.outcome is Outcome.REJECTED for r in records) == 6
            account.check()

    run(main())


def test_a_mistake_of_ours_is_a_failure_and_not_a_client_that_left(caplog):
    async def main():
        async with books() as (server, account):
            server.services.loaded.facts = None
            answer = await server.post(CHAT, messages=HI)
            assert answer.status_code == 500
            [record] = await account.closed(1)
            assert record.outcome is Outcome.FAILED and record.error_code == "internal_error"
            account.check()

    run(main())


def test_requests_that_end_with_the_engine_are_counted_exactly():
    async def main():
        async with books(["x"] * 400, step_s=0.002) as (server, account):
            asking = asyncio.ensure_future(server.post(TEXT, prompt="x"))
            await server.until(lambda: server.runner.drawn > 3)
            await server.engine.stop()
            assert (await asking).status_code == 503
            [record] = await account.closed(1)
            assert record.completion_tokens == server.runner.drawn
            account.check()

    run(main())
