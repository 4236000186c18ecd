"""The official OpenAI SDK against the real server and the real model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.real.process import ServerProcess
from tests.real.prompts import PROMPTS

FRANCE: Any = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def run(test: Any) -> None:
    asyncio.run(test)


@asynccontextmanager
async def sdk(server: ServerProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def test_a_chat_is_answered_sensibly(smollm2_server):
    async def main():
        async with sdk(smollm2_server) as client:
            answer = await client.chat.completions.create(
                model="smollm2", messages=FRANCE, temperature=0, max_completion_tokens=40
            )
            [choice] = answer.choices
            assert "Paris" in choice.message.content and choice.finish_reason == "stop"
            assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    run(main())


def test_a_completion_continues_the_text(smollm2_server):
    async def main():
        async with sdk(smollm2_server) as client:
            answer = await client.completions.create(
                model="smollm2", prompt="1, 2, 3, 4, 5, 6,", temperature=0, max_tokens=6
            )
            assert answer.choices[0].text.startswith(" 7, 8") and answer.usage.completion_tokens == 6

    run(main())


def test_three_choices_stream_side_by_side(smollm2_server):
    async def main():
        async with sdk(smollm2_server) as client:
            ask: Any = {"model": "smollm2", "messages": FRANCE, "n": 3, "seed": 7, "temperature": 1.2, "max_tokens": 24}
            whole = await client.chat.completions.create(**ask)
            texts = ["", "", ""]
            async for chunk in await client.chat.completions.create(**ask, stream=True):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
            assert texts == [choice.message.content for choice in whole.choices]
            assert len(set(texts)) > 1

    run(main())


def test_logprobs_agree_with_the_greedy_choice(smollm2_server):
    async def main():
        async with sdk(smollm2_server) as client:
            answer = await client.chat.completions.create(
                model="smollm2", messages=FRANCE, temperature=0, max_tokens=12, logprobs=True, top_logprobs=5
            )
            entries = answer.choices[0].logprobs.content
            assert b"".join(bytes(e.bytes) for e in entries).decode() == answer.choices[0].message.content
            for entry in entries:
                assert entry.token == entry.top_logprobs[0].token and entry.logprob == entry.top_logprobs[0].logprob
                values = [top.logprob for top in entry.top_logprobs]
                assert values == sorted(values, reverse=True) and len(values) == 5 and values[0] <= 0

    run(main())


def test_echoed_logprobs_are_those_of_a_forced_pass(smollm2_server):  # G05-06
    async def main():
        async with sdk(smollm2_server) as client:
            text = "The quick brown fox jumps over the lazy dog."
            whole = await client.completions.create(
                model="smollm2", prompt=text, echo=True, logprobs=1, max_tokens=0, temperature=0
            )
            lists = whole.choices[0].logprobs
            assert "".join(lists.tokens) == text == whole.choices[0].text
            assert lists.token_logprobs[0] is None
            for at in (3, 6, 9):
                start = text[: lists.text_offset[at]]
                step = await client.completions.create(
                    model="smollm2", prompt=start, logprobs=20, max_tokens=1, temperature=0
                )
                top = step.choices[0].logprobs.top_logprobs[0]
                assert abs(top[lists.tokens[at]] - lists.token_logprobs[at]) < 1e-3

    run(main())


def test_a_stop_string_ends_the_text(smollm2_server):
    async def main():
        async with sdk(smollm2_server) as client:
            ask: Any = {
                "model": "smollm2",
                "prompt": "1, 2, 3, 4, 5,",
                "temperature": 0,
                "max_tokens": 40,
                "stop": [" 9"],
            }
            whole = await client.completions.create(**ask)
            assert whole.choices[0].text == " 6, 7, 8," and whole.choices[0].finish_reason == "stop"
            stream = await client.completions.create(**ask, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text

    run(main())


def test_sixteen_streams_at_once_say_what_each_says_alone(smollm2_server):
    async def main():
        async with sdk(smollm2_server) as client:

            async def stream(prompt: str) -> str:
                chunks = await client.chat.completions.create(
                    model="smollm2",
                    messages=[{"role": "user", "content": prompt}],
                    temperature=0,
                    max_tokens=32,
                    stream=True,
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

            together = await asyncio.gather(*map(stream, PROMPTS[:16]))
            assert [await stream(prompt) for prompt in PROMPTS[:16]] == together

    run(main())


def test_a_seed_gives_the_same_text_whatever_else_runs(smollm2_server):  # G05-01
    async def main():
        async with sdk(smollm2_server) as client:

            async def ask(prompt: str, **options: Any) -> str:
                answer = await client.chat.completions.create(
                    model="smollm2", messages=[{"role": "user", "content": prompt}], max_tokens=24, **options
                )
                return answer.choices[0].message.content

            alone = await ask("Tell me a story.", seed=42, temperature=0.8)
            for neighbours in (1, 7, 15):
                others = [ask(p, temperature=1.0) for p in PROMPTS[:neighbours]]
                probe, *_ = await asyncio.gather(ask("Tell me a story.", seed=42, temperature=0.8), *others)
                assert probe == alone
            assert await ask("Tell me a story.", temperature=1.0) != await ask("Tell me a story.", temperature=1.0)

    run(main())


def test_a_prompt_that_is_cached_gives_the_same_answer(smollm2_server):  # G07-08
    async def main():
        async with sdk(smollm2_server) as client:
            long = "Read this and answer. " + "The river flows to the sea past many towns. " * 12
            ask: Any = {"model": "smollm2", "prompt": long, "temperature": 0, "max_tokens": 24, "logprobs": 5}
            first = await client.completions.create(**ask)
            second = await client.completions.create(**ask)
            assert first.usage.prompt_tokens_details.cached_tokens == 0
            assert second.usage.prompt_tokens_details.cached_tokens > 64
            assert second.choices[0] == first.choices[0]

    run(main())


@pytest.mark.parametrize("bad", [{"temperature": 9}, {"max_tokens": -1}, {"logit_bias": {"x": 1}}])
def test_mistakes_raise_the_sdks_own_errors(smollm2_server, bad):
    async def main():
        async with sdk(smollm2_server) as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="smollm2", messages=FRANCE, **bad)
            assert caught.value.param.startswith(next(iter(bad)))

    run(main())


def test_a_conversation_of_responses_remembers_by_id_streamed_and_over_a_socket(smollm2_server):
    async def main():
        async with sdk(smollm2_server) as client:
            ask: Any = {"model": "smollm2", "temperature": 0, "max_output_tokens": 40}
            first = await client.responses.create(**ask, input=FRANCE[0]["content"])
            assert "Paris" in first.output_text and first.status == "completed"
            again = "Repeat the name of that city, nothing else."
            async with client.responses.stream(**ask, input=again, previous_response_id=first.id) as events:
                second = await (await events.until_done()).get_final_response()
            assert "Paris" in second.output_text and second.usage.input_tokens_details.cached_tokens > 0
            assert second.usage.input_tokens > first.usage.total_tokens
            async with client.responses.connect() as connection:
                await connection.response.create(**ask, input=again, previous_response_id=first.id)
                async for event in connection:
                    if event.type == "response.completed":
                        break
                assert event.response.output_text == second.output_text

    run(main())
