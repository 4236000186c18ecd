"""Reasoning, text and calls as items and events of a response; the official SDK's accumulator is the judge."""

from __future__ import annotations

import random
from typing import Any

import pytest
from openai import omit
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from imp.chat.parts import Channel, Closed, Event, Grown, Opened
from imp.http.dialects.responses_output import Output

ANSWER: list[Event] = [
    Opened(0, Channel.REASONING),
    Grown(0, "Let me"),
    Grown(0, " see."),
    Closed(0),
    Opened(1, Channel.TEXT),
    Grown(1, "I will"),
    Grown(1, " look."),
    Closed(1),
    Opened(2, Channel.TOOL, "weather", "call_7"),
    Grown(2, '{"city":'),
    Grown(2, '"Paris"}'),
    Closed(2),
    Opened(3, Channel.TOOL, "time"),
    Grown(3, "{}"),
    Closed(3),
]


def folded(events: list[Event], status: str) -> tuple[Output, list[tuple[str, dict[str, Any]]]]:
    output = Output()
    stream = [each for event in events for each in output.take(event)]
    return output, stream + output.finish(status)


def test_each_kind_has_the_events_of_the_reference():
    output, stream = folded(ANSWER, "completed")
    prefix = "response."
    assert [name.removeprefix(prefix) for name, _ in stream] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    items = [dict(item) for item in output.items]
    assert [item.pop("id").split("_")[0] for item in items] == ["rs", "msg", "fc", "fc"]
    assert items.pop().pop("call_id").startswith("call_")
    said = [{"type": "output_text", "text": "I will look.", "annotations": [], "logprobs": []}]
    call = {"call_id": "call_7", "name": "weather", "arguments": '{"city":"Paris"}'}
    thought = [{"type": "reasoning_text", "text": "Let me see."}]
    assert items == [
        {"type": "reasoning", "status": "completed", "summary": [], "content": thought},
        {"type": "message", "status": "completed", "role": "assistant", "content": said},
        {"type": "function_call", "status": "completed"} | call,
    ]
    added = [event["item"] for name, event in stream if name == "response.output_item.added"]
    assert all(item["status"] == "in_progress" and not item.get("content") for item in added)
    assert [item.get("arguments") for item in added] == [None, None, "", ""]


@pytest.mark.parametrize("kept", range(1, len(ANSWER) + 1))
def test_what_is_cut_off_is_incomplete_and_last(kept):
    output, stream = folded(ANSWER[:kept], "incomplete")
    statuses = [item["status"] for item in output.items]
    assert statuses == ["completed"] * (len(statuses) - 1) + ["incomplete"]
    done = [event["item"] for name, event in stream if name == "response.output_item.done"]
    assert done == output.items
    assert output.finish("completed") == []


def test_a_call_that_the_end_cut_off_is_incomplete_however_the_response_ended():
    cut = [*ANSWER[:10], Closed(2, '<tool_call>{"name": "weather"')]
    output, _ = folded(cut, "completed")
    assert output.items[-1]["status"] == "incomplete"


def test_logprobs_of_the_text_are_those_of_its_pieces_and_of_what_follows():
    output = Output()
    output.take(Opened(0, Channel.TEXT))
    [(_, delta)] = output.take(Grown(0, "a"), [{"token": "a"}])
    assert delta["logprobs"] == [{"token": "a"}]
    (_, done), *_ = output.finish("completed", [{"token": "end"}])
    assert done["logprobs"] == [{"token": "a"}, {"token": "end"}] == output.items[0]["content"][0]["logprobs"]


def test_reasoning_is_sealed_where_that_is_asked_for():
    output = Output(lambda text: f"sealed {text}")
    for event in ANSWER:
        output.take(event)
    output.finish("completed")
    assert [item.get("encrypted_content") for item in output.items] == ["sealed Let me see.", None, None, None]


def test_the_sdks_accumulator_agrees_about_random_answers():
    rng = random.Random(20261130)
    for _ in range(100):
        answer: list[Event] = []
        for index in range(rng.randrange(1, 6)):
            channel = rng.choice(list(Channel))
            answer.append(Opened(index, channel, "f" if channel is Channel.TOOL else ""))
            answer += [Grown(index, rng.choice(["a", "{}", "\u00e9 b"])) for _ in range(rng.randrange(4))]
            answer.append(Closed(index))
        output, stream = folded(answer, "completed")
        response: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": []}
        events = [("response.created", {"response": response | {"status": "in_progress"}}), *stream]
        events.append(("response.completed", {"response": response | {"status": "completed", "output": output.items}}))
        state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
        seen: list[Any] = []
        for number, (name, said) in enumerate(events):
            value = {"type": name, "sequence_number": number} | said
            event: Any = construct_type(type_=ResponseStreamEvent, value=value)
            seen += state.handle_event(event)
        snapshots = {each.item_id: each.snapshot for each in seen if hasattr(each, "snapshot")}
        for item in output.items:
            whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            assert item["type"] == "reasoning" or snapshots.get(item["id"], "") == whole
        final = seen[-1].response.to_dict()["output"]
        for item in final:
            item.pop("parsed_arguments", None)
            for part in item.get("content") or ():
                part.pop("parsed", None)
        assert final == output.items
