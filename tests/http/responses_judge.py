"""What a Responses object and stream must be, worked from the API's reference and the checks of its SDKs."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.http.scripted import Harness

PATH = "/v1/responses"

# every key the OpenResponses schemas ask for, and what it may be
NUMBER, NULL = (int, float), type(None)
KEYS: dict[str, Any] = {
    "id": str,
    "object": str,
    "created_at": int,
    "completed_at": (int, NULL),
    "status": str,
    "incomplete_details": (dict, NULL),
    "error": (dict, NULL),
    "model": str,
    "previous_response_id": (str, NULL),
    "instructions": (str, NULL),
    "output": list,
    "tools": list,
    "tool_choice": (str, dict),
    "truncation": str,
    "parallel_tool_calls": bool,
    "text": dict,
    "top_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "top_logprobs": int,
    "temperature": NUMBER,
    "reasoning": (dict, NULL),
    "usage": (dict, NULL),
    "max_output_tokens": (int, NULL),
    "max_tool_calls": (int, NULL),
    "store": bool,
    "background": bool,
    "service_tier": str,
    "metadata": dict,
    "safety_identifier": (str, NULL),
    "prompt_cache_key": (str, NULL),
    "user": (str, NULL),
}
OVER = ("completed", "incomplete", "failed", "cancelled")


def check_object(response: dict[str, Any]) -> None:
    assert set(response) == set(KEYS)
    for key, kind in KEYS.items():
        assert isinstance(response[key], kind), (key, response[key])
        assert kind is bool or kind is dict or not isinstance(response[key], bool), key
    assert re.fullmatch(r"resp_[0-9a-f]{24}", response["id"]) and response["object"] == "response"
    assert response["status"] in (*OVER, "queued", "in_progress")
    assert (response["usage"] is not None) == (response["status"] in OVER)
    assert (response["completed_at"] is not None) == (response["status"] == "completed")
    assert (response["incomplete_details"] is not None) == (response["status"] == "incomplete")
    assert (response["error"] is not None) == (response["status"] == "failed")
    if usage := response["usage"]:
        assert set(usage["input_tokens_details"]) == {"cached_tokens", "cache_write_tokens"}
        assert set(usage["output_tokens_details"]) == {"reasoning_tokens"}
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    for item in response["output"]:
        check_item(item)


def check_item(item: dict[str, Any]) -> None:
    assert set(item) == {"id", "type", "status", "role", "content"}
    assert item["type"] == "message" and item["role"] == "assistant" and re.fullmatch(r"msg_[0-9a-f]{24}", item["id"])
    for part in item["content"]:
        assert set(part) == {"type", "text", "annotations", "logprobs"} and part["type"] == "output_text"


def parsed_events(text: str) -> list[dict[str, Any]]:
    """Every event of a stream; each must name its type twice."""
    assert text.endswith("\n\n")
    events = []
    for part in text[:-2].split("\n\n"):
        if part.startswith(": "):
            continue
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


ORDER = re.compile(
    r"response\.created (response\.queued )?response\.in_progress "
    r"(response\.output_item\.added response\.content_part\.added (response\.output_text\.delta )*"
    r"(response\.output_text\.done response\.content_part\.done response\.output_item\.done )?)?"
    r"(response\.(completed|incomplete)|error response\.failed) "
)


def check_stream(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The order and the sums of a whole stream; returns the response of its last event."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert ORDER.fullmatch("".join(event["type"] + " " for event in events)), [event["type"] for event in events]
    lives = [event["response"] for event in events if "response" in event]
    for response in lives:
        check_object(response)
        assert response["id"] == lives[0]["id"] and response["created_at"] == lives[0]["created_at"]
        assert response["status"] in OVER or response["output"] == []
    last = lives[-1]
    added = {e["output_index"]: e["item"] for e in events if e["type"] == "response.output_item.added"}
    assert [added[i]["id"] for i in range(len(added))] == [item["id"] for item in last["output"]]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == added[event["output_index"]]["id"] and event["content_index"] == 0
    for item in added.values():
        assert item["status"] == "in_progress" and item["content"] == []
    if last["output"]:
        deltas = [event for event in events if event["type"] == "response.output_text.delta"]
        assert all(event["delta"] for event in deltas)
        text = "".join(event["delta"] for event in deltas)
        [final] = last["output"][0]["content"]
        assert final["text"] == text
        empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        by_type = {event["type"]: event for event in events}
        assert by_type["response.content_part.added"]["part"] == empty
        if done := by_type.get("response.output_text.done"):
            assert (done["text"], done["logprobs"]) == (text, final["logprobs"])
            assert by_type["response.content_part.done"]["part"] == final
            assert by_type["response.output_item.done"]["item"] == last["output"][0]
    return last


async def stream(server: Harness, **body: Any) -> list[dict[str, Any]]:
    answer = await server.post(PATH, **(body | {"stream": True}))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parsed_events(answer.text)


async def create(server: Harness, **body: Any) -> dict[str, Any]:
    answer = await server.post(PATH, **body)
    assert answer.status_code == 200, answer.text
    check_object(answer.json())
    return answer.json()


async def both(server: Harness, **body: Any) -> dict[str, Any]:
    """The same request whole and streamed; they agree in all but ids, times and what was cached."""
    whole = await create(server, **body)
    streamed = check_stream(await stream(server, **body))
    assert settled(whole) == settled(streamed)
    return whole


def settled(response: dict[str, Any]) -> dict[str, Any]:
    same = json.loads(json.dumps(response))
    same |= {"id": "", "created_at": 0, "completed_at": 0}
    same["usage"]["input_tokens_details"]["cached_tokens"] = 0
    for item in same["output"]:
        item["id"] = ""
    return same


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])
