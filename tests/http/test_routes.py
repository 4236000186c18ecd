"""The routes that do not generate. Ids in comments are scenarios."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from imp.http.gate import GateSettings
from imp.http.services import State
from tests.http.scripted import serving


def run(test: Any) -> None:
    asyncio.run(test)


def test_models_are_listed_with_and_without_v1():
    async def main():
        async with serving(other_models=lambda: ["other", "toy"]) as server:
            listing = (await server.client.get("/v1/models")).json()
            assert [(m["id"], m["loaded"]) for m in listing["data"]] == [("toy", True), ("other", False)]
            assert listing == (await server.client.get("/models")).json()
            own = (await server.client.get("/v1/models/toy")).json()
            assert own == listing["data"][0]
            assert own["meta"]["n_ctx_train"] == own["max_model_len"] == 512
            assert (await server.client.get("/v1/models/none")).status_code == 404

    run(main())


def test_health_and_readiness_tell_the_truth():  # G10-07
    async def main():
        async with serving() as server:
            health = (await server.client.get("/health")).json()
            assert health["status"] == "ok" and health["model_loaded"] and health["kv_blocks_total"] == 256
            assert (await server.client.get("/ready")).status_code == 200
            for state in (State.LOADING, State.NO_MODEL, State.DRAINING):
                server.services.state = state
                assert (await server.client.get("/health")).status_code == 200
                ready = await server.client.get("/ready")
                assert ready.status_code == 503 and ready.json()["error"]["code"] == state.value
            server.services.state, server.services.loaded = State.LOADING, None
            answer = await server.post("/v1/chat/completions", messages=[{"role": "user", "content": "x"}])
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "loading"
            assert answer.headers["retry-after"]

    run(main())


def test_a_stuck_engine_is_not_ready_but_alive():  # G10-07
    async def main():
        async with serving(["x"], stall_s=0.05) as server:
            server.runner.held.clear()
            asking = asyncio.create_task(server.post("/v1/completions", prompt="x"))
            await asyncio.sleep(0.2)
            ready = await server.client.get("/ready")
            assert ready.status_code == 503 and ready.json()["error"]["code"] == "engine_stalled"
            assert (await server.client.get("/health")).status_code == 200
            server.runner.held.set()
            assert (await asking).status_code == 200
            await server.until(lambda: not server.services.stalled)
            assert (await server.client.get("/ready")).status_code == 200

    run(main())


def test_an_engine_that_fails_again_and_again_is_unhealthy():
    async def main():
        async with serving(["x"], fail_at=0) as server:
            for _ in range(3):
                assert (await server.post("/v1/completions", prompt="x")).status_code == 500
            health = await server.client.get("/health")
            assert health.status_code == 503 and health.json()["code"] == "engine_faulted"

    run(main())


def test_small_probes():
    async def main():
        async with serving() as server:
            for method in ("GET", "POST"):
                answer = await server.client.request(method, "/ping")
                assert answer.status_code == 200 and answer.content == b""
            assert set((await server.client.get("/version")).json()) == {"version"}
            metrics = await server.client.get("/metrics")
            assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert "imp_requests_total 0" in metrics.text
            page = await server.client.get("/")
            assert page.status_code == 200 and "imp-server" in page.text
            for outside in ("http://", "https://", "//cdn"):
                assert outside not in page.text.replace("http://www.w3.org/2000/svg", "")
            assert (await server.client.head("/")).status_code == 200
            missing = await server.client.get("/nope")
            assert missing.status_code == 404 and missing.json()["error"]["code"]
            wrong = await server.client.get("/v1/completions")
            assert wrong.status_code == 405 and "POST" in wrong.headers["allow"]

    run(main())


def test_keys_guard_everything_but_liveness():  # G10-02
    async def main():
        async with serving(gate=GateSettings(api_keys=("one", "two"))) as server:
            for path in ("/health", "/ping", "/version", "/ready", "/"):
                assert (await server.client.get(path)).status_code == 200
            assert (await server.client.get("/v1/models")).status_code == 401
            for headers in ({"Authorization": "Bearer two"}, {"x-api-key": "one"}):
                assert (await server.client.get("/v1/models", headers=headers)).status_code == 200
            refused = await server.client.get("/v1/models", headers={"Authorization": "Bearer three"})
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"

    run(main())


def test_a_full_server_says_so_at_once():  # G07-14
    async def main():
        async with serving(["x"] * 50, step_s=0.01, gate=GateSettings(max_concurrent=3)) as server:
            answers = await asyncio.gather(
                *(server.post("/v1/completions", prompt="x", max_tokens=20) for _ in range(8))
            )
            codes = sorted(answer.status_code for answer in answers)
            assert codes == [200] * 3 + [429] * 5
            refused = next(answer for answer in answers if answer.status_code == 429)
            assert refused.headers["retry-after"] and refused.json()["error"]["code"] == "queue_full"
            assert (await server.post("/v1/completions", prompt="x")).status_code == 200

    run(main())


def test_a_request_that_takes_too_long_ends():
    async def main():
        async with serving(["x"] * 400, step_s=0.02, request_timeout_s=0.1) as server:
            answer = await server.post("/v1/completions", prompt="x", max_tokens=300)
            assert answer.status_code == 504 and answer.json()["error"]["code"] == "request_timeout"
            *_, error, done = await server.sse("/v1/completions", prompt="x", max_tokens=300)
            assert done == "[DONE]" and error["error"]["code"] == "request_timeout"
            await server.until(lambda: server.engine.stats.running == 0)
            await server.until(lambda: "imp_requests_timed_out_total 2" in server.services.metrics.expose().decode())

    run(main())


def test_tokenize_and_detokenize_in_both_dialects():
    async def main():
        async with serving(["piece"]) as server:
            answer = (await server.post("/tokenize", prompt="añ", return_token_strs=True)).json()
            assert answer["tokens"] == list("añ".encode()) and answer["count"] == 3 and answer["max_model_len"] == 512
            assert answer["token_strs"] == ["a", "bytes:\\xc3", "bytes:\\xb1"]
            plain = (await server.post("/tokenize", content="ab", with_pieces=True)).json()
            assert plain["tokens"] == [{"id": 97, "piece": "a"}, {"id": 98, "piece": "b"}]
            back = (await server.post("/detokenize", tokens=[97, 257])).json()
            assert back == {"prompt": "apiece", "content": "apiece"}
            chat = (await server.post("/tokenize", messages=[{"role": "user", "content": "hi"}])).json()
            assert bytes(chat["tokens"]).decode().endswith("<|im_start|>assistant\n")

    run(main())


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": ""}),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}),
        ("/tokenize", {"prompt": 5}),
        (
            "/tokenize",
            {
                "messages": [{"role": "user", "content": "x"}],
                "add_generation_prompt": True,
                "continue_final_message": True,
            },
        ),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**6]}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": "a"}),
    ],
)
def test_wrong_bodies_of_the_tokenize_family_are_400(path, body):
    async def main():
        async with serving() as server:
            answer = await server.post(path, **body)
            assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"

    run(main())
