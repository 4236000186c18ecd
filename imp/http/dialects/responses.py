"""POST /v1/responses: OpenAI's Responses dialect on the way in (WIRE.md section 4). Out: responses_writer.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from imp.chat.message import ChatRequest, Options, Refused
from imp.chat.prepare import ModelFacts, prepare_chat
from imp.http.dialects import thinking, tools
from imp.http.dialects.constraints import CONSTRAINTS, TEXT_FORMAT, constraint_of_text
from imp.http.dialects.generation import LIMITS, SAMPLING, TIMINGS, options, refused
from imp.http.dialects.responses_items import MAX_ITEMS, Item, messages
from imp.http.errors import ApiError, bad_request
from imp.http.fields import Field, Kind, Parsed, Status, parse, wrong
from imp.http.seal import Seal
from imp.types import ConstraintSpec, Request

_NO_PROMPTS = "prompts are not stored here; send the text."
_NO_CONVERSATIONS = "there is no conversations API here; use previous_response_id."
LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"
INCLUDES = (
    LOGPROBS,
    SEALED,
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
MAX_METADATA = 16

_MODEL = Field("model", Kind.STRING, doc="Absent: the served model.")
_INPUT = Field("input", (Kind.STRING, Kind.ARRAY), required=True, max_items=None, doc="Text, or items.")
_INSTRUCTIONS = Field("instructions", Kind.STRING, doc="A system message in front; not kept for later turns.")
_PREVIOUS = Field("previous_response_id", Kind.STRING, doc="The input and output of that response go first.")
_NO_OPS = tuple(
    Field(name, Kind.ANY, status=Status.NO_OP, doc="Accepted; has no effect here.")
    for name in (
        "service_tier",
        "client_metadata",
        "context_management",
        "moderation",
        "prompt_cache_options",
        "prompt_cache_retention",
    )
)
_NAMES = tuple(Field(name, Kind.STRING, doc="Said back.") for name in ("user", "safety_identifier", "prompt_cache_key"))

FIELDS = (
    _MODEL,
    _INPUT,
    _INSTRUCTIONS,
    _PREVIOUS,
    Field("store", Kind.BOOLEAN, default=True, doc="Keep the response for later turns and for GET, within bounds."),
    Field("stream", Kind.BOOLEAN, default=False, doc="Server-sent events. Over a WebSocket always."),
    Field(
        "stream_options",
        Kind.OBJECT,
        doc="Only with stream.",
        fields=(Field("include_obfuscation", Kind.BOOLEAN, status=Status.NO_OP, doc="Padding is never sent."),),
    ),
    TIMINGS,
    Field("background", Kind.BOOLEAN, default=False, doc="Answer at once and go on; needs store."),
    Field("max_output_tokens", Kind.INTEGER, 1, doc="Bounded by the context that is left."),
    Field("max_tool_calls", Kind.INTEGER, 1, doc="Of built-in tools, of which there are none. Said back."),
    *SAMPLING,
    Field("top_logprobs", Kind.INTEGER, 0, 20, doc="Alternatives per token; from 1 on it asks for logprobs, too."),
    Field(
        "include",
        Kind.ARRAY,
        items=Field("", Kind.STRING, choices=INCLUDES),
        doc=f"{LOGPROBS} and {SEALED} are enforced; what the others ask for does not exist here.",
    ),
    Field(
        "reasoning",
        Kind.OBJECT,
        doc="Said back.",
        fields=(
            Field(
                "effort", Kind.STRING, choices=thinking.EFFORTS, doc='For templates that know it; "none": no thinking.'
            ),
            Field(
                "summary",
                Kind.STRING,
                choices=("auto", "concise", "detailed"),
                doc="Has no effect here: reasoning is told whole.",
            ),
            Field("generate_summary", status=Status.NO_OP, doc="The old name of summary."),
        ),
    ),
    Field(
        "text",
        Kind.OBJECT,
        fields=(
            TEXT_FORMAT,
            Field("verbosity", Kind.STRING, choices=("low", "medium", "high"), doc="Has no effect here. Said back."),
        ),
    ),
    *tools.RESPONSES,
    *thinking.BUDGETS,
    Field(
        "truncation",
        Kind.STRING,
        choices=("auto", "disabled"),
        default="disabled",
        doc="auto: the oldest turns of a conversation that is too long are left out.",
    ),
    Field("metadata", Kind.OBJECT, doc="At most 16 short strings. Said back."),
    *(known for known in LIMITS if known.name not in ("max_tokens", "n")),
    *CONSTRAINTS,
    *_NAMES,
    *_NO_OPS,
    *refused("conversation", reason=_NO_CONVERSATIONS),
    *refused("prompt", reason=_NO_PROMPTS),
)
COMPACT = (
    Field("model", Kind.STRING, required=True),
    Field("input", (Kind.STRING, Kind.ARRAY), default=(), max_items=None, doc="Text, or items."),
    _INSTRUCTIONS,
    _PREVIOUS,
    *(known for known in _NAMES if known.name == "prompt_cache_key"),
    *(Field(name, status=Status.NO_OP, doc="Accepted; has no effect here.") for name in ("service_tier", "image")),
    *(known for known in _NO_OPS if known.name.startswith("prompt_cache")),
)
ONLY_SOCKET = (
    Field("type", Kind.STRING, required=True, choices=("response.create",)),
    Field("stream_id", Kind.STRING, max_items=200, doc="Every event of the response repeats it."),
    Field("generate", Kind.BOOLEAN, default=True, doc="false: read the input and answer nothing."),
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request; its items are still as the client wrote them."""

    input: str | Sequence[Any]
    instructions: str | None
    previous: str | None
    model: str | None
    options: Options
    tooling: tools.Tooling = tools.NO_TOOLS
    thinking: Mapping[str, Any] = field(default_factory=dict)  # of ChatRequest
    constraint: ConstraintSpec | None = None
    stream: bool = False
    store: bool = True
    background: bool = False
    truncates: bool = False
    generates: bool = True
    timings: bool = False
    seals: bool = False  # reasoning is given back sealed, too
    echo: Mapping[str, Any] = field(default_factory=dict)  # what the response object repeats
    ignored: tuple[str, ...] = ()

    @property
    def words(self) -> ChatRequest:
        """All but the messages."""
        structured, tooling = self.constraint is not None, self.tooling
        return ChatRequest((), self.options, tooling.tools, tooling.calling, structured=structured, **self.thinking)


def read(body: Mapping[str, Any], over_socket: bool = False) -> Ask:
    """The body of a request. ApiError 400 naming the field that is wrong.

    over_socket: it is a `response.create` of a WebSocket, which always streams and never goes to the background.
    """
    parsed = parse(body, FIELDS + ONLY_SOCKET if over_socket else FIELDS)
    _check_input(parsed["input"])
    if over_socket and parsed["background"]:
        raise bad_request("background", '"background" does not go with a WebSocket.')
    if parsed["background"] and not parsed["store"]:
        raise bad_request("background", '"background" needs "store" to be true.')
    if parsed["stream_options"] is not None and not (parsed["stream"] or over_socket):
        raise bad_request("stream_options", '"stream_options" needs "stream" to be true.')
    generates = not over_socket or parsed["generate"]
    tooling = tools.responses(parsed)
    return Ask(
        input=parsed["input"],
        instructions=parsed["instructions"],
        previous=parsed["previous_response_id"],
        model=parsed["model"],
        options=_options(parsed, generates),
        tooling=tooling,
        thinking=thinking.wanted(parsed, (parsed["reasoning"] or {}).get("effort")),
        constraint=constraint_of_text(parsed),
        stream=parsed["stream"] or over_socket,
        store=parsed["store"],
        background=parsed["background"],
        truncates=parsed["truncation"] == "auto",
        generates=generates,
        timings=parsed["timings"],
        seals=SEALED in (parsed["include"] or ()),
        echo=_echo(parsed, tooling),
        ignored=tooling.ignored,
    )


def read_compact(body: Mapping[str, Any]) -> Ask:
    """The body of a request to compact a conversation. ApiError 400 naming the field that is wrong."""
    parsed = parse(body, COMPACT)
    _check_input(parsed["input"])
    if not parsed["input"] and parsed["previous_response_id"] is None:
        raise bad_request("input", '"input" or "previous_response_id" must name a conversation.')
    return Ask(
        input=parsed["input"],
        instructions=parsed["instructions"],
        previous=parsed["previous_response_id"],
        model=parsed["model"],
        options=Options(),
        ignored=parsed.ignored,
    )


def _check_input(value: str | Sequence[Any]) -> None:
    if not isinstance(value, str) and len(value) > MAX_ITEMS:
        raise bad_request("input", f'"input" must have at most {MAX_ITEMS} items, not {len(value)}.')


def _options(parsed: Parsed, generates: bool) -> Options:
    wanted = parsed["top_logprobs"] or (0 if LOGPROBS in (parsed["include"] or ()) else None)
    return options(
        Parsed(parsed.values | {"n": None}, ()),
        max_tokens=parsed["max_output_tokens"] if generates else 0,
        logprobs=wanted,
        prompt_logprobs=None,
    )


_ECHOED = (
    "instructions",
    "previous_response_id",
    "max_output_tokens",
    "max_tool_calls",
    "parallel_tool_calls",
    "truncation",
    "store",
    "background",
    "user",
    "safety_identifier",
    "prompt_cache_key",
)


def _echo(parsed: Parsed, tooling: tools.Tooling) -> dict[str, Any]:
    """What the response object says back of the request."""
    reasoning, text = parsed["reasoning"] or {}, parsed["text"] or {}
    verbosity = {} if text.get("verbosity") is None else {"verbosity": text["verbosity"]}
    return {name: parsed[name] for name in _ECHOED} | {
        "metadata": _metadata(parsed["metadata"] or {}),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "text": {"format": _format(text.get("format") or {"type": "text"})} | verbosity,
        "tool_choice": parsed["tool_choice"] or "auto",
        "tools": [_tool(each["function"]) for each in tooling.offered],
        "top_logprobs": parsed["top_logprobs"] or 0,
    }


def _format(given: Mapping[str, Any]) -> dict[str, Any]:
    """The format said back: a schema with all the keys clients look for, anything else as it was given."""
    if given["type"] != "json_schema":
        return {name: value for name, value in given.items() if value is not None}
    names = ("type", "description", "schema")
    return {name: given[name] for name in names} | {
        "name": given["name"] or "output",
        "strict": bool(given["strict"]),
    }


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters")
    return {"type": "function"} | {name: function.get(name) for name in names} | {"strict": "strict" in function}


def _metadata(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(given) > MAX_METADATA:
        raise bad_request("metadata", f'"metadata" must have at most {MAX_METADATA} entries, not {len(given)}.')
    for name, value in given.items():
        if len(name) > 64:
            raise bad_request("metadata", '"metadata" must have names of at most 64 characters.')
        if not isinstance(value, str) or len(value) > 512:
            raise wrong(f"metadata.{name}", "a string of at most 512 characters", value)
    return given


# -- to the engine --------------------------------------------------------------------------------


def chat(ask: Ask, conversation: Sequence[Item], seal: Seal) -> ChatRequest:
    """The conversation as the chat it is: what was kept, then what was sent. ApiError 400 where there is nothing."""
    turns = messages(ask.instructions, conversation, seal)
    if not turns:
        raise bad_request("input", '"input" must not be empty.')
    return replace(ask.words, messages=turns)


def prepare(ask: Ask, turns: ChatRequest, facts: ModelFacts, id: str, arrived: float) -> Request:
    """The engine's request. With truncation the oldest turns of what is too long go. Raises Refused."""
    try:
        return prepare_chat(turns, facts, id, arrived)
    except Refused as error:
        if error.code != "context_length_exceeded" or not ask.truncates:
            raise
        return _truncated(turns, facts, id, arrived, error)


def _truncated(turns: ChatRequest, facts: ModelFacts, id: str, arrived: float, error: Refused) -> Request:
    """The longest end of the conversation that leaves room for an answer, found by bisection.

    A conversation is cut where the user speaks, so that no answer stands without its question and no tool's output
    without its call. System messages stay. Raises `error` where not even the last of these parts fits.
    """
    longest = min(facts.max_input_tokens or facts.context - 1, facts.context - 1)
    room = min(turns.options.max_tokens or facts.context // 4, facts.context // 2)
    roomy = replace(facts, max_input_tokens=max(1, min(longest, facts.context - room)))
    system = [turn for turn in turns.messages if turn.role in ("system", "developer")]
    rest = [turn for turn in turns.messages if turn.role not in ("system", "developer")]
    starts = [at for at, turn in enumerate(rest) if turn.role == "user" and at]
    fitting = None
    low, high = 0, len(starts)  # starts[high:] fit, as far as is known
    while low < high:
        middle = (low + high) // 2
        kept = replace(turns, messages=(*system, *rest[starts[middle] :]))
        try:
            fitting, high = prepare_chat(kept, roomy, id, arrived), middle
        except Refused as refusal:
            if refusal.code != "context_length_exceeded":
                raise
            low = middle + 1
    if fitting is None:
        raise error
    return fitting


def previous_not_found(name: str) -> ApiError:
    message = f'Previous response with id "{name[:100]}" not found.'
    return bad_request("previous_response_id", message, "previous_response_not_found")
