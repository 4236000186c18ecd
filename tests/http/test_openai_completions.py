"""The legacy dialect over a real socket, the real engine and a scripted model. Ids in comments are scenarios."""

from __future__ import annotations

import asyncio
import functools
import operator
from typing import Any

import openai
import pytest

from tests.http.scripted import logprob_of, serving

PATH = "/v1/completions"


def run(test: Any) -> None:
    asyncio.run(test)


def joined(chunks: list[Any], index: int) -> str:
    return "".join(c["text"] for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == index)


def test_prompts_and_choices_are_numbered_prompt_first():
    async def main():
        async with serving(["a", "b"]) as server:
            for prompt in (["x", "yy"], [[120], [121, 121]]):
                answer = (await server.post(PATH, prompt=prompt, n=2)).json()
                assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
                assert [c["text"] for c in answer["choices"]] == ["ab"] * 4
                assert answer["usage"]["prompt_tokens"] == 3 and answer["usage"]["completion_tokens"] == 12
            chunks = await server.sse(PATH, prompt=["x", "yy"], n=2, stream_options={"include_usage": True})
            assert [joined(chunks, i) for i in range(4)] == ["ab"] * 4
            assert chunks[-2]["usage"] == answer["usage"] | {"prompt_tokens_details": {"cached_tokens": 0}}
            assert (await server.post(PATH, prompt="x")).json()["choices"][0]["finish_reason"] == "stop"

    run(main())


def test_sixteen_tokens_are_the_default():
    async def main():
        async with serving(["a"] * 40) as server:
            answer = (await server.post(PATH, prompt="x")).json()
            assert answer["usage"]["completion_tokens"] == 16 and answer["choices"][0]["finish_reason"] == "length"

    run(main())


@pytest.mark.parametrize("count", [0, 1])
def test_echo_reports_the_prompts_logprobs(count):  # G05-06
    async def main():
        async with serving(["d", "e"]) as server:
            body: dict[str, Any] = {"prompt": "A B C", "echo": True, "logprobs": 1, "max_tokens": count}
            answer = (await server.post(PATH, **body)).json()
            [choice] = answer["choices"]
            assert choice["text"] == "A B C" + "d" * count and choice["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == count
            lists = choice["logprobs"]
            assert {len(values) for values in lists.values()} == {5 + count}
            assert "".join(lists["tokens"]) == choice["text"]
            assert lists["text_offset"] == list(range(5 + count))
            assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
            expected = [logprob_of(ord(c), i) for i, c in enumerate("A B C")][1:]
            assert lists["token_logprobs"][1:5] == expected
            assert all(len(top) == 1 for top in lists["top_logprobs"][1:])
            chunks = await server.sse(PATH, **body)
            assert joined(chunks, 0) == choice["text"]
            parts = [c["logprobs"] for chunk in chunks[:-1] for c in chunk["choices"] if c["logprobs"]]
            assert {key: functools.reduce(operator.iadd, (part[key] for part in parts), []) for key in lists} == lists

    run(main())


def test_echo_without_logprobs_is_text_only():
    async def main():
        async with serving(["d"]) as server:
            for prompt in ("ABC", [65, 66, 67], ["ABC", "ABC"]):
                answer = (await server.post(PATH, prompt=prompt, echo=True)).json()
                assert all(c["text"] == "ABCd" and c["logprobs"] is None for c in answer["choices"])
                chunks = await server.sse(PATH, prompt=prompt, echo=True)
                assert joined(chunks, 0) == "ABCd"
            zero = (await server.post(PATH, prompt="ABC", echo=True, max_tokens=0)).json()
            assert zero["choices"][0]["text"] == "ABC" and zero["usage"]["completion_tokens"] == 0

    run(main())


def test_logprobs_zero_reports_the_token_alone():
    async def main():
        async with serving(["d", "e"]) as server:
            lists = (await server.post(PATH, prompt="x", logprobs=0)).json()["choices"][0]["logprobs"]
            assert lists["tokens"] == ["d", "e"] and [list(top) for top in lists["top_logprobs"]] == [["d"], ["e"]]
            assert lists["text_offset"] == [0, 1]

    run(main())


def test_tokens_that_split_a_character_join_to_the_text():
    async def main():
        raw = "é".encode()
        async with serving([raw[:1], raw[1:], "x"]) as server:
            choice = (await server.post(PATH, prompt="p", logprobs=1)).json()["choices"][0]
            assert choice["text"] == "éx" == "".join(choice["logprobs"]["tokens"])
            assert choice["logprobs"]["tokens"] == ["", "é", "x"]

    run(main())


def test_best_of_keeps_the_likeliest():
    async def main():
        async with serving(["a"]) as server:
            answer = (await server.post(PATH, prompt="x", best_of=3, n=2)).json()
            assert [c["index"] for c in answer["choices"]] == [0, 1]
            assert answer["usage"]["completion_tokens"] == 6  # all three were generated
            for wrong in ({"best_of": 2, "n": 3}, {"best_of": 2, "n": 1, "stream": True}):
                answer = await server.post(PATH, prompt="x", **wrong)
                assert answer.status_code == 400 and answer.json()["error"]["param"] == "best_of"

    run(main())


@pytest.mark.parametrize(
    "change, param",
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": [["a"]]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [999999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"suffix": "end"}, "suffix"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_a_wrong_field_is_a_400_that_names_it(change, param):
    async def main():
        async with serving() as server:
            answer = await server.post(PATH, **({"prompt": "x"} | change))
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param

    run(main())


def test_the_official_sdk_reads_it():
    async def main():
        async with serving(["Hel", "lo"]) as server:
            client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any")
            whole = await client.completions.create(model="toy", prompt=["x", "y"], logprobs=2, echo=True)
            assert [choice.text for choice in whole.choices] == ["xHello", "yHello"]
            assert whole.choices[0].logprobs.token_logprobs[0] is None
            stream = await client.completions.create(model="toy", prompt="x", stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello"
            await client.close()

    run(main())
