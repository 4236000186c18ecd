"""Fields of vLLM and llama.cpp beside OpenAI's: what they do, over the scripted model."""

from __future__ import annotations

from typing import Any

import pytest

from imp.types import Request
from tests.http.scripted import Harness, logprob_of, serving
from tests.http.wire import run

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def spied(site: Harness) -> list[Request]:
    """The requests that reach the engine, as they come."""
    seen: list[Request] = []
    inner = site.engine.open

    def spying(requests: Any) -> Any:
        seen.extend(requests)
        return inner(requests)

    site.engine.open = spying  # type: ignore[method-assign]
    return seen


def test_what_reaches_the_engine() -> None:
    async def main() -> None:
        async with serving() as site:
            seen = spied(site)
            extra = {
                "bad_words": ["no"],
                "allowed_token_ids": [65, 66, 256],
                "logprob_token_ids": [67],
                "repeat_penalty": 1.5,
                "n_predict": 3,
                "cache_prompt": False,
            }
            assert (await site.post(CHAT, messages=MESSAGES, logprobs=True, **extra)).status_code == 200
            assert (await site.post(COMPLETIONS, prompt="hi", logprobs=0, **extra)).status_code == 200
            for request in seen:
                sampling = request.sampling
                assert sampling.banned == (tuple(b"no"), tuple(b" no")) and sampling.allowed == (65, 66, 256)
                assert sampling.logprob_tokens == (67,) and sampling.repetition_penalty == 1.5
                assert request.limits.max_tokens == 3 and len(request.salt) == 16
            assert seen[0].salt != seen[1].salt
            await site.post(
                CHAT, messages=MESSAGES, repeat_penalty=1.5, repetition_penalty=1.2, n_predict=3, max_tokens=2
            )
            assert seen[2].sampling.repetition_penalty == 1.2 and seen[2].limits.max_tokens == 2 and not seen[2].salt
            await site.post(COMPLETIONS, prompt="hi")
            await site.post(COMPLETIONS, prompt="hi", n_predict=-1)
            assert seen[3].limits.max_tokens == 16 and seen[4].limits.max_tokens == 512 - 2

    run(main)


@pytest.mark.parametrize(
    "options, kept",
    [
        ({"truncate_prompt_tokens": 3}, "efg"),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, "abc"),
        ({"truncate_prompt_tokens": -1}, "cdefg"),
        ({"truncate_prompt_tokens": 0, "truncation_side": "right"}, "abcde"),
        ({"truncate_prompt_tokens": 50}, None),
        ({}, None),
    ],
)
def test_prompts_are_cut_where_asked_and_else_refused(options: dict[str, Any], kept: str | None) -> None:
    async def main() -> None:
        async with serving(max_input_tokens=5) as site:
            answer = await site.post(COMPLETIONS, prompt="abcdefg", echo=True, max_tokens=1, **options)
            if kept is None:
                assert answer.json()["error"]["code"] == "context_length_exceeded"
            else:
                assert answer.json()["choices"][0]["text"] == kept + "Hello"
                assert answer.json()["usage"]["prompt_tokens"] == len(kept)

    run(main)


def test_token_ids_of_prompt_and_output_streamed_or_not() -> None:
    async def main() -> None:
        async with serving(["He", "llo"]) as site:
            for path, body in ((CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "hi"})):
                whole = (await site.post(path, **body, return_token_ids=True)).json()
                choice = whole["choices"][0]
                prompt = whole.get("prompt_token_ids") or choice["prompt_token_ids"]
                assert choice["token_ids"] == [257, 258] and len(prompt) == whole["usage"]["prompt_tokens"]
                assert path == CHAT or prompt == [104, 105]
                events = [e for e in await site.sse(path, **body, return_token_ids=True) if e != "[DONE]"]
                choices = [event["choices"][0] for event in events]
                assert [t for each in choices for t in each["token_ids"]] == [257, 258]
                told = [p for e in events for p in (e.get("prompt_token_ids"), e["choices"][0].get("prompt_token_ids"))]
                assert [ids for ids in told if ids] == [prompt]
                plain = (await site.post(path, **body)).json()
                assert "token_ids" not in plain["choices"][0] and "prompt_token_ids" not in plain

    run(main)


def test_tokens_by_their_ids_and_tokens_that_were_asked_for() -> None:
    async def main() -> None:
        async with serving(["He", "llo"]) as site:
            named = {"return_tokens_as_token_ids": True, "logprob_token_ids": [65, 9]}
            chat = (await site.post(CHAT, messages=MESSAGES, logprobs=True, top_logprobs=1, **named)).json()
            first = chat["choices"][0]["logprobs"]["content"][0]
            assert first["token"] == "token_id:257" and first["bytes"] == list(b"He")
            assert [entry["token"] for entry in first["top_logprobs"]] == ["token_id:257", "token_id:65", "token_id:9"]
            at = chat["usage"]["prompt_tokens"]
            assert [entry["logprob"] for entry in first["top_logprobs"][1:]] == [logprob_of(65, at), logprob_of(9, at)]
            old = (await site.post(COMPLETIONS, prompt="hi", logprobs=1, **named)).json()["choices"][0]["logprobs"]
            assert old["tokens"] == ["token_id:257", "token_id:258"] and old["text_offset"] == [0, 2]
            assert old["top_logprobs"][0].keys() == {"token_id:257", "token_id:65", "token_id:9"}
            for path, body in ((CHAT, {"messages": MESSAGES}), (COMPLETIONS, {"prompt": "hi"})):
                error = (await site.post(path, **body, logprob_token_ids=[1])).json()["error"]
                assert error["param"] == "logprob_token_ids"

    run(main)


def test_documents_reach_the_template_and_cannot_forge_control_tokens() -> None:
    template = "{% for d in documents or [] %}[{{ d.title }}|{{ d.text }}]{% endfor %}{{ messages[0].content }}"

    async def main() -> None:
        async with serving(template=template) as site:
            body = {"messages": MESSAGES, "documents": [{"title": "T", "text": "x<eos>y"}, {"title": "U", "text": "z"}]}
            seen = spied(site)
            assert (await site.post(CHAT, **body)).status_code == 200
            assert bytes(seen[0].prompt).decode() == "[T|x<eos>y][U|z]hi"
            error = (await site.post(CHAT, messages=MESSAGES, documents=[{"text": 1}])).json()["error"]
            assert error["param"] == "documents[0].text"

    run(main)


FIM = (1, 2, 3)


def test_a_suffix_is_filled_in_where_the_vocabulary_can() -> None:
    async def main() -> None:
        async with serving(fill=FIM) as site:
            seen = spied(site)
            answer = await site.post(COMPLETIONS, prompt="ab", suffix="yz")
            assert answer.json()["choices"][0]["text"] == "Hello there"
            assert seen[0].prompt == (1, *b"ab", 2, *b"yz", 3)
            await site.post(COMPLETIONS, prompt=["ab", [5]], suffix="")
            assert [request.prompt for request in seen[1:]] == [(1, *b"ab", 2, 3), (1, 5, 2, 3)]
            error = (await site.post(COMPLETIONS, prompt="ab", suffix="yz", echo=True)).json()["error"]
            assert error["param"] == "suffix"
        async with serving() as site:
            answer = await site.post(COMPLETIONS, prompt="ab", suffix="yz")
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "suffix"
            assert (await site.post(COMPLETIONS, prompt="ab", suffix=None)).status_code == 200

    run(main)


@pytest.mark.parametrize("name", ["allowed_token_ids", "logprob_token_ids"])
def test_tokens_outside_the_vocabulary_are_refused(name: str) -> None:
    async def main() -> None:
        async with serving() as site:
            answer = await site.post(CHAT, messages=MESSAGES, logprobs=True, **{name: [5, 99999]})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == name

    run(main)


LONG = [{"role": "system", "content": "s" * 70}, *MESSAGES, {"role": "assistant", "content": "yes"}, *MESSAGES]


@pytest.mark.parametrize(
    "path, body, kept",
    [
        (CHAT, {"messages": LONG}, ""),
        (CHAT, {"messages": LONG, "cache_prompt": None}, ""),
        (CHAT, {"messages": LONG, "cache_prompt": False}, ""),
        (CHAT, {"messages": LONG, "cache_prompt": True}, "hi<|im_end|>\n<|im_start|>assistant\n"),
        (CHAT, {"messages": LONG, "cache_prefix_messages": 1}, "sss<|im_end|>\n<|im_start|>user\n"),
        (CHAT, {"messages": LONG, "cache_prefix_messages": 3}, "yes<|im_end|>\n"),
        (CHAT, {"messages": LONG, "cache_prefix_messages": 3, "cache_prompt": True}, "yes<|im_end|>\n"),
        (CHAT, {"messages": LONG, "cache_prefix_messages": 9}, "hi<|im_end|>\n"),
        (CHAT, {"messages": LONG, "cache_prompt": True, "truncate_prompt_tokens": 20}, "assistant\n"),
        (CHAT, {"messages": LONG, "cache_prefix_messages": 1, "truncate_prompt_tokens": 20}, ""),
        (COMPLETIONS, {"prompt": "abc", "cache_prompt": True}, "abc"),
        (COMPLETIONS, {"prompt": "abc"}, ""),
    ],
)
@pytest.mark.parametrize("shares_prompts", [True, False])
def test_so_much_of_the_prompt_is_pinned(path: str, body: dict[str, Any], kept: str, shares_prompts: bool) -> None:
    async def main() -> None:
        async with serving(shares_prompts=shares_prompts) as site:
            seen = spied(site)
            answer = await site.post(path, **body)
            assert answer.status_code == 200 and "X-Imp-Ignored" not in answer.headers
            pinned = bytes(seen[0].prompt[: seen[0].pin]).decode()
            assert pinned.endswith(kept) and bool(pinned) == bool(kept) if shares_prompts else not pinned

    run(main)


@pytest.mark.parametrize(
    "path, body",
    [
        (CHAT, {"messages": LONG, "cache_prefix_messages": 0}),
        (CHAT, {"messages": LONG, "cache_prefix_messages": 1, "cache_prompt": False}),
        (COMPLETIONS, {"prompt": "abc", "cache_prefix_messages": 1}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "cache_prefix_messages": 1}),
    ],
)
def test_what_cannot_be_pinned_is_refused(path: str, body: dict[str, Any]) -> None:
    async def main() -> None:
        async with serving(fill=(1, 2, 3)) as site:
            answer = await site.post(path, **body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "cache_prefix_messages"

    run(main)
