"""The fields `prediction` and `speculative`, and what guesses gave, over HTTP: the model says a script, a byte a token."""

from __future__ import annotations

import asyncio
import functools
import json

import pytest

from imp.http.gate import GateSettings
from imp.sched.speculation import Speculation
from imp.speculate.lookup import SuffixLookup
from tests.http.scripted import serving

SAID = "def area(width, height):\n    return width * height\n"
SCRIPT = list(SAID.encode())
ASK = {"model": "toy", "messages": [{"role": "user", "content": "?"}], "max_tokens": 200}


@pytest.fixture
def guessing(kernel_folder):
    """Verifies everything it finds, so that counts do not depend on the time a step takes."""
    return lambda shared=4096: Speculation(SuffixLookup(kernel_folder, 3, shared), most=8)


def run(test):
    """The coroutine as a test, within a time."""

    @functools.wraps(test)
    def sync(*args, **kwargs):
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return sync


def predicted(text):
    return {"type": "content", "content": text}


async def details(harness, **fields):
    answer = await harness.post("/v1/chat/completions", **ASK | fields)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["choices"][0]["message"]["content"] == SAID
    assert body["usage"]["completion_tokens"] == len(SCRIPT) + 1
    return body["usage"]["completion_tokens_details"]


@run
async def test_a_right_prediction_is_accepted_and_saves_steps(guessing):
    async with serving(SCRIPT, speculation=guessing()) as harness:
        found = await details(harness, prediction=predicted(SAID))
        steps = harness.runner.steps
        # the first token comes with the prompt, and each step behind it gives one more than it verified
        assert found["accepted_prediction_tokens"] == found["imp_spec_accepted"] == len(SCRIPT) - found["imp_spec_verify_steps"]
        assert found["rejected_prediction_tokens"] == 0
        assert found["imp_spec_emitted"] == found["imp_spec_accepted"] + found["imp_spec_verify_steps"]
        assert steps == 1 + found["imp_spec_verify_steps"] < len(SCRIPT) / 7
        assert "imp_spec_declined" not in found


@run
async def test_what_of_a_prediction_is_wrong_is_rejected(guessing):
    async with serving(SCRIPT, speculation=guessing()) as harness:
        found = await details(harness, prediction=predicted(SAID.replace("return width", "return depth")))
        assert found["accepted_prediction_tokens"] > len(SCRIPT) / 2
        assert 0 < found["rejected_prediction_tokens"] < 20
        found = await details(harness, prediction=predicted("0123456789" * 20), cache_prompt=False)
        assert found["accepted_prediction_tokens"] == 0 < found["rejected_prediction_tokens"]


@run
async def test_parts_of_a_prediction_are_read_as_one(guessing):
    parts = [{"type": "text", "text": SAID[:9]}, {"type": "text", "text": SAID[9:]}]
    async with serving(SCRIPT, speculation=guessing()) as harness:
        found = await details(harness, prediction=predicted(parts))
        assert found["accepted_prediction_tokens"] > len(SCRIPT) * 0.8 and not found["rejected_prediction_tokens"]


@run
async def test_streams_say_the_same(guessing):
    async with serving(SCRIPT, speculation=guessing(0)) as harness:
        whole = await details(harness, prediction=predicted(SAID))
        fields = ASK | {"prediction": predicted(SAID), "stream_options": {"include_usage": True}}
        *chunks, last, done = await harness.sse("/v1/chat/completions", **fields)
        assert done == "[DONE]" and last["usage"]["completion_tokens_details"] == whole
        assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == SAID


@run
async def test_every_dialect_tells_what_was_guessed(guessing):
    counters = {"imp_spec_drafted", "imp_spec_accepted", "imp_spec_emitted", "imp_spec_verify_steps"}
    async with serving(list(b"abcabcabc" * 8), speculation=guessing(0)) as harness:
        said = ("/v1/completions", {"prompt": "x"}, ("completion_tokens_details",)), (
            ("/v1/messages", {"messages": ASK["messages"]}, ())
        ), ("/v1/responses", {"input": "?"}, ("output_tokens_details",))
        for path, fields, places in said:
            usage = (await harness.post(path, **{"model": "toy", "max_tokens": 99} | fields)).json()["usage"]
            for place in places:
                usage = usage[place]
            assert counters <= set(usage), path
            assert 0 < usage["imp_spec_accepted"] <= usage["imp_spec_drafted"]


@run
async def test_nothing_is_told_where_nothing_was_guessed(guessing):
    async with serving(list(range(40, 60)), speculation=guessing()) as harness:
        answer = await harness.post("/v1/chat/completions", **ASK)
        assert set(answer.json()["usage"]["completion_tokens_details"]) == {
            *("reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
        }


@pytest.mark.parametrize(
    "fields, code, why",
    [
        ({"speculative": False, "prediction": predicted(SAID)}, "off", "speculative is false"),
        ({"mirostat": 2, "prediction": predicted(SAID)}, "mirostat", "each draw depends"),
        ({"mirostat": 1, "speculative": True}, "mirostat", "each draw depends"),
    ],
)
@run
async def test_a_prediction_that_is_not_used_is_declined_with_the_reason(guessing, fields, code, why):
    async with serving(SCRIPT, speculation=guessing()) as harness:
        found = await details(harness, **fields)
        assert found["imp_spec_declined"] == code and why in found["imp_spec_declined_detail"]
        assert "imp_spec_drafted" not in found and found["accepted_prediction_tokens"] == 0
        assert harness.runner.steps == len(SCRIPT) + 1


@run
async def test_without_a_drafter_predictions_are_declined_and_health_says_why():
    off = Speculation(why="speculative.ngram is false")
    async with serving(SCRIPT, speculation=off) as harness:
        found = await details(harness, prediction=predicted(SAID))
        assert found["imp_spec_declined"] == "off" and "ngram is false" in found["imp_spec_declined_detail"]
        health = (await harness.client.get("/health")).json()
        assert health["speculation"] == {"mode": "off", "why": "speculative.ngram is false"}


@run
async def test_a_draft_model_alone_has_no_use_for_a_prediction():
    class Silent:
        failed = ""

        def propose(self, wanted):
            return 0.001

    alone = Speculation(proposer=Silent(), why="speculative.ngram is false")
    async with serving(SCRIPT, speculation=alone) as harness:
        assert "imp_spec_declined" not in await details(harness, speculative=True)
        found = await details(harness, prediction=predicted(SAID))
        assert found["imp_spec_declined_detail"] == "speculative.ngram is false"
        assert (await harness.client.get("/health")).json()["speculation"]["mode"] == "draft_model"


@run
async def test_health_and_the_counters_tell_of_guesses(guessing):
    async with serving(SCRIPT, speculation=guessing()) as harness:
        found = await details(harness, prediction=predicted(SAID))
        assert (await harness.client.get("/health")).json()["speculation"]["mode"] == "ngram"
        for name in ("drafted", "accepted", "verify_steps"):
            assert getattr(harness.engine.stats, name) == found[f"imp_spec_{name}"]


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"prediction": "text"}, "prediction"),
        ({"prediction": {"content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "words", "content": "x"}}, "prediction.type"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": predicted(7)}, "prediction.content"),
        ({"prediction": predicted(["x"])}, "prediction.content[0].type"),
        ({"prediction": predicted([{"type": "image_url"}])}, "prediction.content[0].type"),
        ({"prediction": predicted([{"type": "text", "text": "a"}, {"type": "text"}])}, "prediction.content[1].text"),
        ({"speculative": 1}, "speculative"),
        ({"speculative": {"k": 3}}, "speculative.k"),
        ({"speculative": {"mtp_k": 2}}, "speculative.mtp_k"),
        ({"speculative": {"mtp_k": "2"}}, "speculative.mtp_k"),
        ({"speculative": {"mtp_k": False}}, "speculative.mtp_k"),
    ],
)
@run
async def test_mistakes_name_the_field(guessing, fields, param):
    async with serving(SCRIPT, speculation=guessing()) as harness:
        answer = await harness.post("/v1/chat/completions", **ASK | fields)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


@pytest.mark.parametrize("fields", [{"prediction": None}, {"speculative": None}, {"speculative": {"mtp_k": 0}}, {"speculative": {}}])
@run
async def test_null_and_none_are_the_default(guessing, fields):
    async with serving(SCRIPT, speculation=guessing()) as harness:
        assert "imp_spec_declined" not in await details(harness, **fields)


@run
async def test_an_answer_given_before_comes_faster_for_its_tenant_alone(guessing):
    """What others were told must not show in how fast a guess at it comes: neither by key, nor by salt."""
    gate = GateSettings(api_keys=("first", "second"))
    script = list(bytes(range(33, 120)))  # nothing repeats inside it
    async with serving(script, speculation=guessing(), gate=gate) as harness:

        async def accepted(key, **fields):
            headers = {"Authorization": f"Bearer {key}"}
            body = ASK | fields
            answer = await harness.client.post("/v1/chat/completions", json=body, headers=headers)
            return answer.json()["usage"]["completion_tokens_details"].get("imp_spec_accepted", 0)

        assert await accepted("first") == 0
        assert await accepted("second") == 0, "the other key's answer was guessed"
        assert await accepted("first", cache_salt="s") == 0
        assert await accepted("first", cache_prompt=False) == 0
        assert await accepted("first") > 50
        assert await accepted("second") > 50
        assert await accepted("first", cache_salt="s") > 50
        assert await accepted("first", cache_prompt=False) == 0, "nothing was to be kept"
        assert await accepted("first", speculative=False) == 0
        answer = await harness.client.post("/reset_prefix_cache", headers={"Authorization": "Bearer first"})
        assert json.loads(answer.text) == {"success": True}
        assert await accepted("first") == 0
