"""Where a context ends: an output ends there, a prompt that does not fit is an error, and nothing is ever dropped."""

from __future__ import annotations

import pytest

from tests.http.scripted import serving
from tests.http.wire import run

CONTEXT = 64


@pytest.mark.parametrize("prompt", [CONTEXT - 1, CONTEXT - 20])
@pytest.mark.parametrize("stream", [False, True])
def test_an_output_ends_where_the_context_does(prompt, stream):
    async def main() -> None:
        async with serving(["x"] * 100, context=CONTEXT) as server:
            body = {"prompt": "a" * prompt, "max_tokens": 90}
            if stream:
                *events, done = await server.sse("/v1/completions", **body)
                assert done == "[DONE]" and events[-1]["choices"][0]["finish_reason"] == "length"
                text = "".join(event["choices"][0]["text"] for event in events)
            else:
                told = (await server.post("/v1/completions", **body)).json()
                assert told["choices"][0]["finish_reason"] == "length"
                assert told["usage"]["total_tokens"] == CONTEXT and told["usage"]["prompt_tokens"] == prompt
                text = told["choices"][0]["text"]
            assert text == "x" * (CONTEXT - prompt)

    run(main)


@pytest.mark.parametrize("longer", [0, 1, 500])
def test_a_prompt_that_leaves_no_room_is_an_error_with_both_numbers(longer):
    async def main() -> None:
        async with serving(context=CONTEXT) as server:
            answer = await server.post("/v1/completions", prompt="a" * (CONTEXT + longer))
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["code"] == "context_length_exceeded"
            assert str(CONTEXT - 1) in error["message"]
            assert str(CONTEXT + longer) in error["message"] and server.runner.steps == 0

    run(main)


def test_a_context_shift_cannot_be_asked_for():
    async def main() -> None:
        async with serving(context=CONTEXT) as server:
            answer = await server.post("/v1/completions", prompt="a", context_shift=True)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "context_shift"
            answer = await server.post("/v1/completions", prompt="a", context_shift=False, n_keep=-1, n_discard=10)
            assert answer.status_code == 200 and "x-imp-ignored" not in answer.headers

    run(main)
