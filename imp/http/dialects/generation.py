"""The generation fields that OpenAI's chat and completions share, and how they become Options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imp.chat.message import Options
from imp.http.errors import ApiError, bad_request
from imp.http.fields import Field, Kind, Parsed, Status, wrong

_NUMBER, _INTEGER, _BOOLEAN, _STRING = Kind.NUMBER, Kind.INTEGER, Kind.BOOLEAN, Kind.STRING

SAMPLING = (
    Field("temperature", _NUMBER, 0, 2, doc="0: greedy. Default: the model's, else 0.7."),
    Field("top_p", _NUMBER, 0, 1, doc="Default: the model's, else 0.95. 0 keeps the likeliest token only."),
    Field("top_k", _INTEGER, -1, doc="0 or -1: off. Default: the model's, else 40."),
    Field("min_p", _NUMBER, 0, 1, doc="Drops tokens below this share of the likeliest one's probability."),
    Field("typical_p", _NUMBER, 0, 1, above=0, doc="Locally typical sampling; 1: off."),
    Field("repetition_penalty", _NUMBER, above=0, doc="Over prompt and output; 1: off."),
    Field("frequency_penalty", _NUMBER, -2, 2, doc="Per occurrence in the output."),
    Field("presence_penalty", _NUMBER, -2, 2, doc="Once for a token of the output."),
    Field("repeat_last_n", _INTEGER, -1, doc="Tokens the three penalties look back; -1: all."),
    Field("dry_multiplier", _NUMBER, 0, doc="Penalty on repeating a sequence; 0: off."),
    Field("dry_base", _NUMBER, 1, doc="Growth of the DRY penalty per repeated token; default 1.75."),
    Field("dry_allowed_length", _INTEGER, 0, doc="Repetitions up to this length are free; default 2."),
    Field("dry_penalty_last_n", _INTEGER, -1, doc="Tokens DRY looks back; -1: all."),
    Field("xtc_probability", _NUMBER, 0, 1, doc="How often the likeliest choices are excluded; 0: never."),
    Field("xtc_threshold", _NUMBER, 0, 1, doc="Probability from which a token counts as likely; default 0.1."),
    Field("mirostat", _INTEGER, choices=(0, 1, 2), doc="0: off; 1 and 2 replace top_k, top_p, min_p and typical_p."),
    Field("mirostat_tau", _NUMBER, 0, doc="Target surprise in bits; default 5."),
    Field("mirostat_eta", _NUMBER, 0, 1, doc="Learning rate; default 0.1."),
    Field("logit_bias", Kind.OBJECT, doc="Token id -> number added to its logit, -100 to 100."),
    Field("seed", _INTEGER, doc="The same seed gives the same tokens; absent: a random one."),
)

LIMITS = (
    Field("max_tokens", _INTEGER, 1, doc="Bounded by the context that is left."),
    Field("min_tokens", _INTEGER, 0, doc="No end of text and no stop token before."),
    Field("stop", (_STRING, Kind.ARRAY), max_items=None, doc="One string, or at most 16; never shown."),
    Field("stop_token_ids", Kind.ARRAY, items=Field("", _INTEGER, 0), doc="End the output like an end of text."),
    Field("ignore_eos", _BOOLEAN, doc="Go on after an end of text."),
    Field("include_stop_str_in_output", _BOOLEAN, doc="Keep the stop string in the text."),
    Field("skip_special_tokens", _BOOLEAN, doc="Control tokens leave no text; default true."),
    Field("n", _INTEGER, 1, doc="Choices per prompt, at most --max-n."),
    Field("priority", _INTEGER, -1_000_000, 1_000_000, doc="Lower is earlier; default 0."),
    Field("cache_salt", _STRING, min_items=1, max_items=1024, doc="Shares cached prompts only with the same salt."),
)

TIMINGS = Field("timings", _BOOLEAN, default=False, doc="Add where the time went; in a stream, at its end.")

STREAMING = (
    Field("stream", _BOOLEAN, default=False, doc="Server-sent events."),
    Field(
        "stream_options",
        Kind.OBJECT,
        doc="Only with stream.",
        fields=(
            Field("include_usage", _BOOLEAN, default=False, doc="One more chunk with the usage before [DONE]."),
            Field("continuous_usage_stats", _BOOLEAN, default=False, doc="Usage so far in every chunk."),
            Field("include_obfuscation", _BOOLEAN, default=False, status=Status.NO_OP, doc="Padding is never sent."),
        ),
    ),
    TIMINGS,
)

NO_OPS = tuple(
    Field(name, Kind.ANY, status=Status.NO_OP, doc="Accepted; has no effect here.")
    for name in ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity")
)


def refused(*names: str, reason: str) -> tuple[Field, ...]:
    return tuple(Field(name, Kind.ANY, status=Status.REFUSED, doc=reason) for name in names)


def options(
    parsed: Parsed,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    more: Mapping[str, Any] | None = None,
) -> Options:
    """The shared fields as Options, and `more` of them. ApiError for what a table cannot say."""
    names = [f.name for f in SAMPLING if f.name != "logit_bias"] + [
        "min_tokens",
        "ignore_eos",
        "n",
        "priority",
        "cache_salt",
    ]
    return Options(
        **{name: parsed[name] for name in names} | dict(more or {}),
        logit_bias=_logit_bias(parsed["logit_bias"]),
        max_tokens=max_tokens,
        stop=_stops(parsed["stop"]),
        stop_token_ids=tuple(parsed["stop_token_ids"] or ()),
        include_stop=parsed["include_stop_str_in_output"],
        skip_special_tokens=parsed["skip_special_tokens"],
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _logit_bias(value: dict[str, Any] | None) -> tuple[tuple[int, float], ...]:
    out = []
    for key, bias in (value or {}).items():
        path = f"logit_bias.{key}"
        if not key.isascii() or not key.isdigit() or len(key) > 9:
            raise bad_request(path, f'"logit_bias" keys must be token ids, not "{key[:60]}".')
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise wrong(path, "a number between -100 and 100", bias)
        out.append((int(key), float(bias)))
    return tuple(out)


def _stops(value: str | list[Any] | None) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if len(stops) > 16:
        raise bad_request("stop", f'"stop" must have at most 16 strings, not {len(stops)}.')
    for i, stop in enumerate(stops):
        if not isinstance(stop, str) or len(stop) > 1000:
            raise wrong(f"stop[{i}]", "a string of at most 1000 characters", stop)
    return tuple(stops)


def check_stream_options(parsed: Parsed) -> tuple[bool, bool]:
    """(include_usage, continuous_usage_stats). ApiError when given without stream."""
    given = parsed["stream_options"]
    if given is None:
        return False, False
    if not parsed["stream"]:
        raise ApiError(400, "invalid_value", '"stream_options" needs "stream" to be true.', "stream_options")
    return given["include_usage"], given["continuous_usage_stats"]


def prompts(value: str | list[Any], name: str, max_items: int) -> tuple[str | tuple[int, ...], ...]:
    """A string, an array of strings, token ids, or an array of arrays of token ids; none may be empty.

    name: the field. ApiError 400."""
    if isinstance(value, str) or (value and all(type(item) is int for item in value)):
        value = [value]
    if not value or len(value) > max_items:
        raise bad_request(name, f'"{name}" must hold 1 to {max_items} {name}s, not {len(value)}.')
    return tuple(_prompt(item, name if len(value) == 1 else f"{name}[{i}]") for i, item in enumerate(value))


def _prompt(item: Any, path: str) -> str | tuple[int, ...]:
    if isinstance(item, str) and item:
        return item
    if isinstance(item, list) and item and all(type(token) is int for token in item):
        return tuple(item)
    raise wrong(path, "text or token ids, not empty", item)
