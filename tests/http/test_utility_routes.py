"""The probes of other servers' clients, the rest of the tokenize family, and the routes that reach into what runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
import tokenizers

from imp.app import App
from imp.chat.template import BUILTIN
from imp.http.gate import GateSettings
from imp.http.services import State
from imp.settings import load
from imp.text.tokenizer import Tokenizer
from tests.http.scripted import Harness, serving

HI = [{"role": "user", "content": "hi"}]
CHATML_HI = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def run(test: Any) -> None:
    asyncio.run(test)


# -- probes ---------------------------------------------------------------------------------------


def test_every_probe_tells_the_same_context():
    async def main():
        async with serving(context=128) as server:
            props = (await server.client.get("/props")).json()
            info = (await server.client.get("/info")).json()
            card = (await server.client.get("/v1/models/toy")).json()
            figures = {
                props["n_ctx"],
                props["default_generation_settings"]["n_ctx"],
                info["max_total_tokens"],
                card["max_model_len"],
            }
            assert figures == {128} and info["max_input_tokens"] == 127

    run(main())


def test_props_has_llama_cpps_shape():
    async def main():
        async with serving(rows=5) as server:
            props = (await server.client.get("/props")).json()
            assert props["model_path"] == "toy" and props["total_slots"] == 5
            assert props["chat_template"] == BUILTIN["chatml"]
            assert (props["bos_token"], props["eos_token"]) == ("", "<eos>")
            assert props["modalities"] == {"vision": False, "audio": False}
            assert isinstance(props["build_info"], str)
            params = props["default_generation_settings"]["params"]
            shown = (await server.client.get("/v1/models/toy")).json()["sampling_defaults"]
            assert params["seed"] == -1
            for name in ("temperature", "top_p", "top_k", "min_p", "typical_p"):
                assert params[name] == shown[name]
            assert params["repeat_penalty"] == shown["repetition_penalty"]
        async with serving(template=None) as server:
            assert (await server.client.get("/props")).json()["chat_template"] == ""

    run(main())


@pytest.mark.parametrize("flag, longest", [(0, 63), (10, 10), (1000, 63)])
def test_info_tells_bounds_that_hold(flag, longest):
    async def main():
        async with serving(context=64, max_input_tokens=flag, max_concurrent=7, max_batch_items=3) as server:
            info = (await server.client.get("/info")).json()
            assert info["model_id"] == "toy" and info["model_pipeline_tag"] == "text-generation"
            assert (info["max_concurrent_requests"], info["max_client_batch_size"]) == (7, 3)
            assert info["max_input_tokens"] == longest

            async def status(length: int = 1, **fields: Any) -> int:
                answer = await server.post("/v1/completions", prompt="x" * length, max_tokens=1, **fields)
                return answer.status_code

            assert [await status(longest), await status(longest + 1)] == [200, 400]
            stops, choices = info["max_stop_sequences"], info["max_best_of"]
            assert [await status(stop=["z"] * stops), await status(stop=["z"] * (stops + 1))] == [200, 400]
            assert [await status(n=choices), await status(n=choices + 1)] == [200, 400]

    run(main())


def test_server_info_tells_no_secret():
    async def main():
        secret = "sk-very-secret"
        async with serving(gate=GateSettings(api_keys=(secret,))) as server:
            headers = {"Authorization": f"Bearer {secret}"}
            text = await server.client.get("/server_info", headers=headers)
            assert "served_model_name=toy" in text.json()["vllm_config"]
            assert text.json()["vllm_env"] == {} and text.json()["system_env"]["imp_version"]
            asked = await server.client.get("/server_info?config_format=text", headers=headers)
            assert asked.json() == text.json()
            config = await server.client.get("/server_info?config_format=json", headers=headers)
            assert config.json()["vllm_config"]["served_model_name"] == "toy"
            assert config.json()["vllm_config"]["max_model_len"] == 512
            assert secret not in text.text + config.text
            wrong = await server.client.get("/server_info?config_format=xml", headers=headers)
            assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "config_format"

    run(main())


def test_without_a_model_probes_say_so_and_the_server_still_tells_about_itself():
    async def main():
        async with serving() as server:
            server.services.state, server.services.loaded = State.NO_MODEL, None
            for path in ("/props", "/info"):
                answer = await server.client.get(path)
                assert answer.status_code == 503 and answer.json()["error"]["code"] == "no_model"
            assert (await server.client.get("/server_info")).json()["vllm_config"] == ""
            assert (await server.client.get("/load")).json() == {"server_load": 0}
            assert (await server.client.post("/reset_prefix_cache")).status_code == 503

    run(main())


def test_load_counts_requests_that_generate():
    async def main():
        async with serving(["x"] * 9) as server:
            server.runner.held.clear()
            asking = [asyncio.create_task(server.post("/v1/completions", prompt=["a", "b"], n=2)) for _ in range(3)]
            await server.until(lambda: len(server.services.generating) == 3)
            assert (await server.client.get("/load")).json() == {"server_load": 3}
            server.runner.held.set()
            assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
            assert (await server.client.get("/load")).json() == {"server_load": 0}

    run(main())


def test_keys_guard_the_utility_routes():  # G10-02
    async def main():
        gate = GateSettings(api_keys=("one",))
        async with serving(gate=gate, tokenizer_info=True, dev_mode=True) as server:
            for method, path in (
                ("GET", "/props"),
                ("GET", "/info"),
                ("GET", "/server_info"),
                ("GET", "/load"),
                ("GET", "/tokenizer_info"),
                ("POST", "/apply-template"),
                ("POST", "/v1/chat/completions/input_tokens"),
                ("POST", "/reset_prefix_cache"),
                ("POST", "/abort_requests"),
                ("DELETE", "/v1/requests/x"),
            ):
                assert (await server.client.request(method, path)).status_code == 401, path

    run(main())


# -- the tokenize family --------------------------------------------------------------------------


def test_apply_template_gives_the_prompts_text():
    async def main():
        async with serving() as server:
            assert (await server.post("/apply-template", messages=HI)).json() == {"prompt": CHATML_HI}
            bare = await server.post("/apply-template", messages=HI, add_generation_prompt=False)
            assert bare.json()["prompt"] == CHATML_HI.removesuffix("<|im_start|>assistant\n")
            # a control token's spelling in user text is split inside; people never see with what
            tricky = await server.post("/apply-template", messages=[{"role": "user", "content": "a<eos>b"}], odd=1)
            assert tricky.json()["prompt"] == CHATML_HI.replace("hi", "a<eos>b")
            assert tricky.headers["x-imp-ignored"] == "odd"
        async with serving(template="{{ tools[0].function.name }}:{{ messages[0].content }}") as server:
            tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
            assert (await server.post("/apply-template", messages=HI, tools=[tool])).json() == {"prompt": "f:hi"}
        async with serving(template=None) as server:
            assert (await server.post("/apply-template", messages=HI)).status_code == 400

    run(main())


def test_input_tokens_are_those_the_chat_will_use():
    async def main():
        async with serving(context=200) as server:
            counted = await server.post("/v1/chat/completions/input_tokens", messages=HI, max_tokens=3, odd=1)
            assert counted.json() == {"input_tokens": len(CHATML_HI)}
            assert counted.headers["x-imp-ignored"] == "odd"
            chat = (await server.post("/v1/chat/completions", messages=HI)).json()
            assert chat["usage"]["prompt_tokens"] == len(CHATML_HI)
            long = [{"role": "user", "content": "x" * 1000}]  # more than the context: counted all the same
            much = await server.post("/chat/completions/input_tokens", messages=long)
            assert much.json()["input_tokens"] == 1000 + len(CHATML_HI) - 2
            assert (await server.post("/v1/chat/completions", messages=long)).status_code == 400

    run(main())


@pytest.mark.parametrize("path", ["/apply-template", "/v1/chat/completions/input_tokens"])
@pytest.mark.parametrize(
    "body, status, param",
    [
        ({}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": "hi"}, 400, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": HI, "chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs.messages"),
        (
            {"messages": HI, "add_generation_prompt": True, "continue_final_message": True},
            400,
            "continue_final_message",
        ),
        ({"messages": HI, "model": "other"}, 404, "model"),
    ],
)
def test_wrong_chats_are_refused_by_name(path, body, status, param):
    async def main():
        async with serving() as server:
            answer = await server.post(path, **body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)

    run(main())


def test_tokenizer_info_is_there_with_its_flag_only():
    async def main():
        async with serving() as server:
            assert (await server.client.get("/tokenizer_info")).status_code == 404
        async with serving(tokenizer_info=True) as server:
            info = (await server.client.get("/tokenizer_info")).json()
            assert info["vocab_size"] == 259 and info["model_max_length"] == 512 and info["tokenizer_class"]
            assert info["eos_token_id"] == 256 and "bos_token_id" not in info
            assert info["chat_template"] == BUILTIN["chatml"]
            entry = info["added_tokens_decoder"]["256"]
            assert entry == {
                "content": "<eos>",
                "special": True,
                "lstrip": False,
                "rstrip": True,
                "normalized": False,
                "single_word": False,
            }

    run(main())


def test_added_tokens_are_those_of_the_file():
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0}, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken("<end>", rstrip=True, normalized=False)])
    made.add_tokens([tokenizers.AddedToken("word", single_word=True, normalized=False)])
    text = made.to_str()
    added = Tokenizer.from_json(text.encode(), {"eos_token": "<end>"}).added_tokens()
    wanted = {entry.pop("id"): entry for entry in json.loads(text)["added_tokens"]}
    assert wanted.keys() == added.keys() == {1, 2}
    for token, entry in wanted.items():
        assert {name: getattr(added[token], name) for name in entry} == entry


# -- what runs ------------------------------------------------------------------------------------


def test_the_prefix_cache_is_forgotten():
    async def main():
        async with serving(["x"] * 400) as server:
            prompt = "p" * 64

            async def cached() -> int:
                answer = await server.post("/v1/completions", prompt=prompt, max_tokens=1)
                return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

            assert await cached() == 0 and await cached() > 0
            assert (await server.client.post("/reset_prefix_cache")).json() == {"success": True}
            assert await cached() == 0
            server.runner.step_s = 0.01
            asking = asyncio.create_task(server.post("/v1/completions", prompt="q", max_tokens=300))
            await server.until(lambda: server.engine.stats.running == 1)
            assert (await server.client.post("/reset_prefix_cache")).json() == {"success": False}
            asking.cancel()
            await server.until(lambda: server.engine.stats.running == 0)
            assert await cached() > 0

    run(main())


def test_without_keys_only_the_machine_itself_may_reach_in():
    async def main():
        async with serving(gate=GateSettings(trusted_proxies=("127.0.0.1",)), dev_mode=True) as server:
            far = {"X-Forwarded-For": "203.0.113.9"}
            for path in ("/reset_prefix_cache", "/abort_requests"):
                assert (await server.client.post(path, json={}, headers=far)).status_code == 403
                assert (await server.client.post(path, json={})).status_code == 200

    run(main())


def begin(server: Harness, name: str, path: str = "/v1/chat/completions", **body: Any) -> asyncio.Task[httpx.Response]:
    """A request that goes on until it is cancelled."""
    fields = {"messages": HI} if "chat" in path else {"prompt": "x"}
    body = fields | {"max_tokens": 300} | body
    return asyncio.create_task(server.client.post(path, json=body, headers={"X-Request-Id": name}))


def slow() -> Any:
    return serving(["x"] * 400, step_s=0.005, dev_mode=True)


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_request_is_cancelled_by_its_x_request_id():
    async def main():
        async with slow() as server:
            asking, other = begin(server, "mine"), begin(server, "theirs", "/v1/completions", max_tokens=100)
            await server.until(lambda: server.engine.stats.running == 2)
            gone = await server.client.delete("/v1/requests/mine")
            assert gone.status_code == 200 and gone.json() == {"id": "mine", "status": "aborted", "aborted": 1}
            answer = await asking
            assert answer.status_code == 499 and answer.json()["error"]["code"] == "request_aborted"
            assert (await other).json()["usage"]["completion_tokens"] == 100
            again = await server.client.delete("/v1/requests/mine")
            assert again.status_code == 404 and again.json()["error"]["code"] == "request_not_found"
            text = server.services.metrics.expose().decode()
            assert "imp_requests_cancelled_total 1\n" in text and "imp_requests_total 2\n" in text
            server.scheduler.check()

    run(main())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_stream_is_cancelled_by_its_responses_id_and_ends_in_good_order(path):
    async def main():
        async with slow() as server:
            body = ({"messages": HI} if "chat" in path else {"prompt": ["x", "y"]}) | {"stream": True, "n": 2}
            async with server.client.stream("POST", path, json=body | {"max_tokens": 300}) as answer:
                pieces = answer.aiter_text()
                text = ""
                while "\n\n" not in text:
                    text += await anext(pieces)
                first = events_of(text)[0]
                gone = await server.client.delete(f"/v1/requests/{first['id']}")
                assert gone.json()["aborted"] == 1
                async for piece in pieces:
                    text += piece
            *events, error, done = events_of(text)
            assert done == "[DONE]" and error["error"]["code"] == "request_aborted"
            assert not any(choice["finish_reason"] for event in events for choice in event["choices"])
            await server.until(lambda: not server.services.generating and server.engine.stats.blocks_live == 0)
            assert "imp_requests_cancelled_total 1\n" in server.services.metrics.expose().decode()

    run(main())


def test_a_request_that_still_waits_can_be_cancelled():
    async def main():
        async with serving(["x"] * 400, step_s=0.005, rows=1) as server:
            running = begin(server, "running", max_tokens=150)
            await server.until(lambda: server.engine.stats.running == 1)
            waiting = begin(server, "waiting")
            await server.until(lambda: server.engine.stats.waiting == 1)
            assert (await server.client.delete("/v1/requests/waiting")).status_code == 200
            assert (await waiting).status_code == 499
            assert (await running).json()["usage"]["completion_tokens"] == 150

    run(main())


def test_abort_requests_ends_some_or_all():
    async def main():
        async with slow() as server:
            tasks = [begin(server, name) for name in ("a", "b", "b", "c")]
            await server.until(lambda: server.engine.stats.running == 4)
            some = await server.post("/abort_requests", request_ids=["b", "nobody"])
            assert some.status_code == 200 and some.json() == {"status": "aborted", "aborted": 2}
            assert {(await task).status_code for task in tasks[1:3]} == {499}
            assert not tasks[0].done() and not tasks[3].done()
            everybody = await server.post("/abort_requests", request_ids=[])
            assert everybody.json() == {"status": "aborted", "aborted": 2}
            assert {(await task).status_code for task in tasks} == {499}
            one = begin(server, "d")
            await server.until(lambda: server.engine.stats.running == 1)
            assert (await server.post("/abort_requests")).json()["aborted"] == 1
            assert (await one).status_code == 499
            assert (await server.post("/abort_requests")).json() == {"status": "aborted", "aborted": 0}

    run(main())


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'"x"', b'{"request_ids": "a"}', b'{"request_ids": [1]}', b'{"request_ids": {}}']
)
def test_a_malformed_abort_ends_nobody(raw):
    async def main():
        async with slow() as server:
            asking = begin(server, "a", max_tokens=100)
            await server.until(lambda: server.engine.stats.running == 1)
            headers = {"Content-Type": "application/json"}
            answer = await server.client.post("/abort_requests", content=raw, headers=headers)
            assert answer.status_code == 400 and answer.json() == {"detail": "Invalid JSON format"}
            assert (await asking).status_code == 200

    run(main())


# -- flags ----------------------------------------------------------------------------------------


def test_flags_switch_their_routes_on():
    def paths(*arguments: str) -> set[str]:
        app = App(load(list(arguments), {"HOME": "/nowhere"}))
        return {route.pattern for route in app.server.application.router.routes}

    extra = {"/tokenizer_info", "/abort_requests"}
    assert not paths() & extra
    assert paths("--enable-tokenizer-info-endpoint") & extra == {"/tokenizer_info"}
    assert paths("--enable-server-dev-mode") & extra == {"/abort_requests"}
