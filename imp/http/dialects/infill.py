"""POST /infill: llama.cpp's way to have the middle of a text written, and its native shape of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imp.chat.message import CompletionRequest
from imp.http import sse
from imp.http.dialects.extensions import EXTENSIONS, NO_MESSAGES, extended, longest
from imp.http.dialects.generation import LIMITS, NO_OPS, SAMPLING, STREAMING, options
from imp.http.dialects.openai_chat import Header
from imp.http.dialects.shared import Choice, Conversation
from imp.http.errors import ApiError, Envelope, envelope
from imp.http.fields import Field, Kind, parse, wrong
from imp.types import Delta, Event, Finished, Reason

_ELSEWHERE = ("stream_options", "n", "logprob_token_ids", "return_token_ids", "return_tokens_as_token_ids")

FIELDS = (
    Field("model", Kind.STRING, doc="Absent: the served model."),
    Field("input_prefix", Kind.STRING, required=True, doc="Text before the one to be written."),
    Field("input_suffix", Kind.STRING, required=True, doc="Text behind it."),
    Field("prompt", Kind.STRING, default="", doc="Text right behind the prefix."),
    Field(
        "input_extra",
        Kind.ARRAY,
        max_items=1000,
        items=Field("", Kind.OBJECT),
        doc=("Other files as {filename, text}: each goes before the prefix, under its name."),
    ),
    *SAMPLING,
    *(each for each in (*LIMITS, *STREAMING, *EXTENSIONS) if each.name not in _ELSEWHERE),
    NO_MESSAGES,
    *NO_OPS,
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request."""

    completion: CompletionRequest
    model: str | None
    lora: str | None
    stream: bool
    timings: bool
    ignored: tuple[str, ...]


def read(body: Mapping[str, Any]) -> Ask:
    """The body of a request. ApiError 400 naming the field that is wrong."""
    parsed = parse(body, FIELDS)
    values = parsed.values | dict.fromkeys(_ELSEWHERE)
    given = type(parsed)(values, parsed.ignored)
    chosen = options(
        given,
        max_tokens=longest(given, "max_tokens"),
        logprobs=None,
        prompt_logprobs=None,
        more=extended(given, None),
    )
    prefix = _extra(parsed["input_extra"]) + parsed["input_prefix"] + parsed["prompt"]
    completion = CompletionRequest((prefix,), chosen, suffix=parsed["input_suffix"])
    return Ask(completion, parsed["model"], parsed["lora"], parsed["stream"], parsed["timings"], parsed.ignored)


def _extra(files: list[Mapping[str, Any]] | None) -> str:
    texts = []
    for i, file in enumerate(files or ()):
        for name in ("filename", "text"):
            if not isinstance(file.get(name), str):
                raise wrong(f"input_extra[{i}].{name}", "a string", file.get(name))
        texts.append(f"--- {file['filename']} ---\n{file['text']}\n\n")
    return "".join(texts)


class Writer:
    """Engine events as llama.cpp's partial answers, or folded into one."""

    def __init__(self, header: Header, conversation: Conversation):
        """conversation: of one choice."""
        self.header, self.conversation = header, conversation
        self.told = 0  # tokens of the output sent so far

    def end(self) -> bytes:
        """After the last event, which said that it is the last."""
        return b""

    def error(self, error: ApiError) -> bytes:
        """A failure after the head of the stream was sent."""
        return sse.frame(envelope(error, Envelope.OPENAI, self.header.id))

    def frame(self, event: Event) -> bytes:
        choice = self.conversation.take(event)
        if isinstance(event, Delta) and event.text:
            tokens, self.told = choice.tokens[self.told :], len(choice.tokens)
            part = {"index": 0, "content": event.text, "tokens": tokens, "stop": False}
            return sse.frame(part | self._counts(choice))
        if isinstance(event, Finished):
            return sse.frame(self._whole(choice, "", choice.tokens[self.told :]))
        return b""

    def reply(self) -> dict[str, Any]:
        """The whole answer, once every event has been taken."""
        choice = self.conversation.choices[0]
        return self._whole(choice, choice.text, choice.tokens)

    def _whole(self, choice: Choice, text: str, tokens: list[int]) -> dict[str, Any]:
        finished = choice.finished
        stop = finished.stop if finished and isinstance(finished.stop, str) else ""
        limit = finished is not None and finished.reason is Reason.LENGTH
        return {
            "index": 0,
            "content": text,
            "tokens": tokens,
            "id": self.header.id,
            "model": self.header.model,
            "stop": finished is not None,
            "stop_type": "word" if stop else "limit" if limit else "eos",
            "stopping_word": stop,
            "truncated": False,
            "tokens_cached": choice.cached,
            **self._counts(choice),
            **self.conversation.timings(),
        }

    def _counts(self, choice: Choice) -> dict[str, int]:
        usage = self.conversation.usage()
        return {"tokens_predicted": usage.generated, "tokens_evaluated": usage.prompt}
