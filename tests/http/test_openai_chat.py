"""The chat dialect over a real socket, the real engine and a scripted model. Ids in comments are scenarios."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from imp.types import Delta, Failed, Started
from tests.http.scripted import EOS, Harness, logprob_of, serving, tokens_of

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}


def run(test: Any) -> None:
    asyncio.run(test)


def text_of(chunks: list[Any], index: int = 0) -> str:
    choices = [c for chunk in chunks if chunk != "[DONE]" for c in chunk.get("choices", []) if c["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def both(server: Harness, **body: Any) -> tuple[dict[str, Any], list[Any]]:
    """The same request whole and streamed; the texts must agree."""
    answer = await server.post(CHAT, **ASK, **body)
    assert answer.status_code == 200, answer.text
    chunks = await server.sse(CHAT, **ASK, **body)
    for choice in answer.json()["choices"]:
        assert text_of(chunks, choice["index"]) == choice["message"]["content"]
    return answer.json(), chunks


def test_a_plain_answer_has_every_key_clients_read():
    async def main():
        async with serving(["Hello", " there"]) as server:
            answer = (await server.post(CHAT, **ASK)).json()
            assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
            assert answer["model"] == "toy" and isinstance(answer["created"], int) and answer["system_fingerprint"]
            [choice] = answer["choices"]
            assert choice["message"] == {"role": "assistant", "content": "Hello there", "refusal": None}
            assert choice["finish_reason"] == "stop" and choice["logprobs"] is None and choice["index"] == 0
            usage = answer["usage"]
            assert usage["completion_tokens"] == 3  # the end token counts
            assert usage["total_tokens"] == usage["prompt_tokens"] + 3
            assert usage["prompt_tokens_details"] == {"cached_tokens": 0}

    run(main())


def test_usage_comes_in_a_last_chunk_when_asked_for_and_never_else():  # G01-01
    async def main():
        async with serving() as server:
            for options in ({}, {"stream_options": {}}):
                chunks = await server.sse(CHAT, **ASK, **options)
                assert chunks[-1] == "[DONE]"
                assert all(chunk["choices"] and chunk.get("usage") is None for chunk in chunks[:-1])
            chunks = await server.sse(CHAT, **ASK, stream_options={"include_usage": True})
            *before, usage, done = chunks
            assert done == "[DONE]" and usage["choices"] == []
            whole = (await server.post(CHAT, **ASK)).json()["usage"]
            assert usage["usage"]["completion_tokens"] == whole["completion_tokens"]
            assert usage["usage"]["total_tokens"] == usage["usage"]["prompt_tokens"] + whole["completion_tokens"]
            assert all(chunk["usage"] is None for chunk in before)
            assert before[-1]["choices"][0]["finish_reason"] == "stop"
            answer = await server.post(CHAT, **ASK, stream_options={"include_usage": True})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "stream_options"

    run(main())


@pytest.mark.parametrize("limit, reason", [({"max_tokens": 2}, "length"), ({}, "stop")])
def test_the_finish_chunk_carries_no_text_and_the_first_the_role(limit, reason):  # G01-02
    async def main():
        async with serving(["a", "b", "c"]) as server:
            chunks = (await server.sse(CHAT, **ASK, **limit))[:-1]
            choices = [chunk["choices"][0] for chunk in chunks]
            assert choices[0]["delta"] == {"role": "assistant", "content": ""}
            assert all("role" not in choice["delta"] for choice in choices[1:])
            assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [reason]
            assert choices[-1]["delta"] == {} and choices[-1]["logprobs"] is None
            assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1

    run(main())


def test_characters_split_over_tokens_arrive_whole():  # G01-03
    fox, family, conjunct = "🦊", "👩‍👩‍👧", "क्ष"

    async def main():
        raw = [bytes([b]) for b in (fox + family + conjunct).encode()]
        async with serving([*raw, " ok"]) as server:
            answer, chunks = await both(server)
            assert answer["choices"][0]["message"]["content"] == fox + family + conjunct + " ok"
            assert all("\ufffd" not in text_of([chunk]) for chunk in chunks)
            cut, _ = await both(server, max_tokens=2)
            assert cut["choices"][0]["message"]["content"] == "\ufffd" and cut["usage"]["completion_tokens"] == 2

    run(main())


def test_a_stop_string_that_spans_tokens_never_leaks():  # G01-04
    async def main():
        async with serving(["one", " two", " ST", "OP", "ME", " three"]) as server:
            answer, chunks = await both(server, stop=["STOPME"])
            assert answer["choices"][0]["message"]["content"] == "one two "
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert answer["choices"][0]["stop_reason"] == "STOPME"
            assert all("S" not in text_of([chunk]) for chunk in chunks)
            kept, _ = await both(server, stop="STOPME", include_stop_str_in_output=True)
            assert kept["choices"][0]["message"]["content"] == "one two STOPME"
        async with serving(["one", " ST", "ART"]) as server:
            answer, _ = await both(server, stop=["STOPME"])
            assert answer["choices"][0]["message"]["content"] == "one START"

    run(main())


def test_a_stream_pings_while_nothing_comes():  # G01-07
    async def main():
        async with serving(["x"], ping_s=0.05) as server:
            server.runner.held.clear()
            async with server.client.stream("POST", CHAT, json=ASK | {"stream": True}) as answer:
                assert answer.status_code == 200 and answer.headers["cache-control"] == "no-cache"
                seen, lines = 0, answer.aiter_lines()
                async for line in lines:
                    seen += line.startswith(":")
                    if seen == 3:
                        server.runner.held.set()
                    if line == "data: [DONE]":
                        break
                assert seen >= 3
                assert not [line async for line in lines if line]  # nothing after the end

    run(main())


def test_a_failure_in_mid_stream_is_told_and_the_stream_ends():  # G01-09
    async def main():
        async with serving(["a", "b", "c", "d"], fail_at=3) as server:
            *chunks, error, done = await server.sse(CHAT, **ASK)
            assert done == "[DONE]" and text_of(chunks) == "abc"
            assert set(error["error"]) == {"message", "type", "param", "code"}
            assert error["error"]["code"] == "engine_step_failed" and "/etc" not in error["error"]["message"]
            assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
            answer = await server.post(CHAT, **ASK)
            assert answer.status_code == 500 and answer.json()["error"]["type"] == "internal_error"
            assert "secret" not in answer.text
            await server.until(lambda: server.engine.stats.running == 0)
            assert server.engine.stats.blocks_live == 0
            assert "imp_requests_failed_total 2" in server.services.metrics.expose().decode()

    run(main())


def test_text_that_came_with_the_failure_is_not_lost():  # G01-09, everything in one wake-up
    class AllAtOnce:
        def __init__(self, id: str) -> None:
            self.ends = [Failed(id, "engine_step_failed", "it broke")]
            self.batches = [[Started(id, 0, 3, 0), Delta(id, 0, "abc", (97,)), *self.ends]]

        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            if not self.batches:
                raise StopAsyncIteration
            return self.batches.pop()

        async def aclose(self) -> None:
            pass

        def when_over(self, callback: Any) -> None:
            callback()

        def expire_after(self, seconds: float) -> None:
            pass

    class Failing:
        """An engine whose reader finds the text and the failure at once."""

        def __init__(self, engine: Any) -> None:
            self.engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self.engine, name)

        def open(self, requests: Any) -> Any:
            return AllAtOnce(requests[0].id)

    async def main():
        async with serving(["a"]) as server:
            server.services.engine = Failing(server.engine)
            *chunks, error, done = await server.sse(CHAT, **ASK)
            assert done == "[DONE]" and text_of(chunks) == "abc" and error["error"]["message"] == "it broke"

    run(main())


def test_n_choices_are_told_apart_by_their_index():  # G01-11
    async def main():
        async with serving(["a", "b", "c", "d"]) as server:
            answer, chunks = await both(server, n=3, max_tokens=4)
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
            assert answer["usage"]["completion_tokens"] == 12
            prompt = (await server.post(CHAT, **ASK)).json()["usage"]["prompt_tokens"]
            assert answer["usage"]["prompt_tokens"] == prompt
            choices = [chunk["choices"][0] for chunk in chunks[:-1]]
            for index in range(3):
                own = [choice for choice in choices if choice["index"] == index]
                assert sum("role" in choice["delta"] for choice in own) == 1
                assert sum(choice["finish_reason"] is not None for choice in own) == 1
            assert chunks.count("[DONE]") == 1

    run(main())


def test_logprobs_have_the_shape_and_the_numbers_of_the_model():  # G05-05
    quote = "“".encode()
    pieces = ["A", quote[:1], quote[1:2], quote[2:], "z"]

    async def main():
        script, _ = tokens_of(pieces)
        async with serving(pieces) as server:
            plain, _ = await both(server, logprobs=True)
            for count in (0, 3, 20):
                answer, chunks = await both(server, logprobs=True, top_logprobs=count)
                choice = answer["choices"][0]
                content = choice["logprobs"]["content"]
                assert choice["logprobs"]["refusal"] is None
                assert b"".join(bytes(e["bytes"]) for e in content).decode() == choice["message"]["content"] == "A“z"
                assert [len(entry["top_logprobs"]) for entry in content] == [count] * 5
                start = answer["usage"]["prompt_tokens"]
                assert [e["logprob"] for e in content] == [logprob_of(t, start + i) for i, t in enumerate(script)]
                for entry in content:
                    values = [top["logprob"] for top in entry["top_logprobs"]]
                    assert values == sorted(values, reverse=True)
                streamed = [c["logprobs"] for chunk in chunks[:-1] for c in chunk["choices"] if c["logprobs"]]
                assert [entry for part in streamed for entry in part["content"]] == content
            assert [e["top_logprobs"] for e in plain["choices"][0]["logprobs"]["content"]] == [[]] * 5
            for wrong in ({"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 2}, {"logprobs": "yes"}):
                answer = await server.post(CHAT, **ASK, **wrong)
                assert answer.status_code == 400 and answer.json()["error"]["param"] in wrong

    run(main())


def test_text_cut_away_by_a_stop_string_has_no_logprobs():
    async def main():
        async with serving(["one", " STOP", " two"]) as server:
            answer, _ = await both(server, logprobs=True, stop=["STOP"])
            choice = answer["choices"][0]
            assert choice["message"]["content"] == "one "
            assert next(entry["token"] for entry in choice["logprobs"]["content"]) == "one"
            assert len(choice["logprobs"]["content"]) <= 2

    run(main())


@pytest.mark.parametrize(
    "change, param",
    [
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [123]}, "messages[0]"),
        ({"messages": [{}]}, "messages[0].role"),
        ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "banana", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 123}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "wat"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -0.1}, "top_p"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"logit_bias": {"1": "much"}}, "logit_bias.1"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"guided_regex": "a+"}, "guided_regex"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_field_is_a_400_that_names_it(change, param, stream):  # G05-03, G05-10, G07-12
    async def main():
        async with serving() as server:
            answer = await server.post(CHAT, **(ASK | {"stream": stream} | change))
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error["param"] == param and error["type"] == "invalid_request_error"
            assert param.split(".")[0].split("[")[0] in error["message"]
            assert answer.headers["x-request-id"]

    run(main())


def test_harmless_fields_pass_and_unknown_ones_are_named():  # G05-10
    async def main():
        async with serving() as server:
            harmless = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "verbosity": "low"}
            answer = await server.post(CHAT, **ASK, **harmless, temperature_x=1, seed=None, stop=None, tools=None)
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-imp-ignored"] == "temperature_x"

    run(main())


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_content_parts_are_joined_for_every_role(role):  # G06-04, G06-05
    async def main():
        async with serving(template="{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}") as server:
            parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
            body = {"messages": [{"role": role, "content": parts}, {"role": "user", "content": "x"}]}
            answer = (await server.post("/tokenize", **body, return_token_strs=True)).json()
            shown = "system" if role == "developer" else role
            assert "".join(answer["token_strs"]) == f"[{shown}:A\nB][user:x]"

    run(main())


def test_images_are_refused_and_say_why():
    async def main():
        async with serving() as server:
            part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
            answer = await server.post(CHAT, messages=[{"role": "user", "content": [part]}])
            assert answer.status_code == 400 and answer.json()["error"]["code"] == "vision_unavailable"
            assert "image input is not supported" in answer.json()["error"]["message"]

    run(main())


def test_what_the_template_says_is_the_clients_400():  # G06-03
    async def main():
        async with serving(template="{{ raise_exception('Roles must alternate!') }}") as server:
            answer = await server.post(CHAT, **ASK)
            assert answer.status_code == 400 and "Roles must alternate!" in answer.json()["error"]["message"]
        async with serving(
            template="{% for i in range(100) %}{% for j in range(10000) %}{% for k in range(10000) %}x{% endfor %}{% endfor %}{% endfor %}"
        ) as server:
            answer = await server.post(CHAT, **ASK)
            assert answer.status_code == 500 and answer.json()["error"]["code"] == "template_failed"
        async with serving(template=None) as server:  # G06-09
            answer = await server.post(CHAT, **ASK)
            assert answer.status_code == 400 and "--chat-template" in answer.json()["error"]["message"]
            assert (await server.post("/v1/completions", prompt="x")).status_code == 200

    run(main())


def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers():  # G07-11
    async def main():
        async with serving(["a"] * 600, context=128, template="{{ messages[0].content }}") as server:
            answer = await server.post(CHAT, messages=[{"role": "user", "content": "x" * 128}])
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["code"] == "context_length_exceeded"
            assert error["type"] == "invalid_request_error" and "128" in error["message"]
            for limit in ({}, {"max_tokens": 100}, {"max_tokens": 10**9}):
                answer = (await server.post(CHAT, messages=[{"role": "user", "content": "x" * 100}], **limit)).json()
                assert answer["choices"][0]["finish_reason"] == "length"
                assert answer["usage"]["total_tokens"] == 128

    run(main())


def test_max_completion_tokens_wins():  # G07-12
    async def main():
        async with serving(["a"] * 9) as server:
            answer = (await server.post(CHAT, **ASK, max_tokens=5, max_completion_tokens=2)).json()
            assert answer["usage"]["completion_tokens"] == 2
            one = (await server.post(CHAT, **ASK, max_tokens=1)).json()
            assert one["usage"]["completion_tokens"] == 1 and one["choices"][0]["finish_reason"] == "length"

    run(main())


@pytest.mark.parametrize("model", ["/tmp/x", "../..", "a/b/c", "toy/", "toy\x00", "gpt-4", ""])
def test_an_unknown_model_is_a_404_and_no_path(model):
    async def main():
        async with serving() as server:
            answer = await server.post(CHAT, **ASK, model=model)
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
            assert (await server.post(CHAT, **ASK, model="toy")).status_code == 200
        async with serving(lenient_names=True) as server:
            assert (await server.post(CHAT, **ASK, model=model)).status_code == 200

    run(main())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
def test_a_client_that_leaves_frees_its_place(phase, stream):  # G01-06
    async def main():
        async with serving(["x"] * 400, rows=1, step_s=0.005) as server:
            others = []
            if phase == "queue":
                others.append(asyncio.create_task(server.post(CHAT, **ASK, max_tokens=300)))
                await server.until(lambda: server.engine.stats.running == 1)
            content = "y" * (400 if phase == "prefill" else 3)
            body = {"messages": [{"role": "user", "content": content}], "stream": stream, "max_tokens": 60}
            prefilled = server.runner.prompt_positions
            if phase == "prefill":
                server.runner.held.clear()
            asking = asyncio.create_task(server.client.post(CHAT, json=body))
            if phase == "queue":
                await server.until(lambda: server.engine.stats.waiting == 1)
            elif phase == "decode":
                await server.until(lambda: server.engine.stats.decode_rows > 3)
            else:
                await server.until(lambda: len(server.services.generating) == 1)
                await asyncio.sleep(0.05)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            server.runner.held.set()
            await server.until(lambda: server.engine.stats.aborted == 1)
            if phase == "queue":
                assert server.engine.stats.waiting == 0 and server.runner.prompt_positions == prefilled
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await server.until(lambda: server.engine.stats.running == 0)
            assert server.engine.stats.blocks_live == 0
            assert (await server.post(CHAT, **ASK, max_tokens=1)).status_code == 200
            await server.until(
                lambda: "imp_requests_cancelled_total 0" not in server.services.metrics.expose().decode()
            )

    run(main())


def test_ignoring_the_end_goes_on_to_the_limit():
    async def main():
        async with serving(["a", EOS, "b"]) as server:
            answer = (await server.post(CHAT, **ASK, ignore_eos=True, max_tokens=3)).json()
            assert answer["choices"][0]["message"]["content"] == "ab"
            assert answer["usage"]["completion_tokens"] == 3 and answer["choices"][0]["finish_reason"] == "length"
            shown = await server.post(CHAT, **ASK, ignore_eos=True, max_tokens=3, skip_special_tokens=False)
            assert shown.json()["choices"][0]["message"]["content"] == "a<eos>b"

    run(main())


def test_a_stop_token_is_named_as_the_reason():
    async def main():
        async with serving(["a", "b", "c"]) as server:
            script, _ = tokens_of(["a", "b", "c"])
            answer = (await server.post(CHAT, **ASK, stop_token_ids=[script[1]])).json()["choices"][0]
            assert answer["message"]["content"] == "a" and answer["stop_reason"] == script[1]

    run(main())


def test_prompt_logprobs_cover_the_prompt():
    async def main():
        async with serving(["a"], template="{{ messages[0].content }}") as server:
            answer = (await server.post(CHAT, messages=[{"role": "user", "content": "wxyz"}], prompt_logprobs=1)).json()
            first, *rest = answer["prompt_logprobs"]
            assert first is None and len(rest) == 3
            for position, (entry, char) in enumerate(zip(rest, "xyz", strict=True), 1):
                assert entry[str(ord(char))]["logprob"] == logprob_of(ord(char), position)
                assert entry[str(ord(char))]["decoded_token"] == char

    run(main())


def test_the_official_sdk_reads_every_form():
    async def main():
        async with serving(["Hel", "lo", " wörld"]) as server:
            client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any")
            ask: Any = {"model": "toy", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
            whole = await client.chat.completions.create(**ask, n=2, logprobs=True, top_logprobs=2)
            assert [choice.message.content for choice in whole.choices] == ["Hello wörld"] * 2
            assert whole.choices[0].logprobs.content[0].top_logprobs[0].token == "Hel"
            stream = await client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
            chunks = [chunk async for chunk in stream]
            assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello wörld"
            assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens // 2
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**(ask | {"temperature": 3}))
            assert caught.value.param == "temperature" and caught.value.request_id
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(**(ask | {"model": "other"}))
            await client.close()

    run(main())


@pytest.mark.parametrize("shares", [True, False])
def test_cached_tokens_are_reported_and_salts_and_the_switch_prevent_them(shares):  # G07-05, G07-07, G07-08
    async def main():
        async with serving(["a"], shares_prompts=shares) as server:
            ask = {"messages": [{"role": "user", "content": "x" * 100}], "temperature": 0}
            cached = []
            for salt in (None, None, "tenant", "tenant", "other"):
                usage = (await server.post(CHAT, **ask, cache_salt=salt)).json()["usage"]
                cached.append(usage["prompt_tokens_details"]["cached_tokens"] > 0)
            assert cached == ([False, True, False, True, False] if shares else [False] * 5)
            assert (await server.post(CHAT, **ask, n=3)).json()["usage"]["completion_tokens"] == 6

    run(main())
