"""`--check` and `--check-config`: the server's settings and its model, examined and told about, without serving.

A model is examined as a user would meet it: text goes through the tokenizer and back, the chat template is rendered,
a few tokens are generated. What a file beside the model says differently is told too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from . import keys, settings
from .app import EXIT_CODES, read_model, say
from .bundle import Bundle
from .chat.message import ChatRequest, CompletionRequest, Message, Options, Refused
from .chat.prepare import encode_rendered, prepare_chat, prepare_completion
from .chat.rendering import render, shown
from .memory import available_bytes
from .settings import Action, Settings
from .text.tokenizer import InvalidTokenizer, Tokenizer, UnsupportedTokenizer
from .types import Delta, Failed, Finished

INVALID_MODEL = 5
EXAMPLE = "chat_template_example.json"  # {"messages": [...], "prompt": "..."} beside a model: what its template makes

CORPUS = (
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return {'a': [x, x ** 2], \"b\": None}\n\n\n# done\t\n",
    "".join(map(chr, range(32, 127))),
    "  leading and   inner   spaces  ",
    "1234567890 3.14159 -1e-9 0x7f 12,345,678",
    '{"key": "value with \\"quotes\\" and \\\\", "n": [1, 2.5, true, null]}',
    "https://example.org/a/b?c=d&e=%20#f user@example.org C:\\path\\file.txt",
    "Straße, façade, naïve, Ærø, Łódź, ĳ, ﬁ",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم",
    "你好，世界。こんにちは世界。안녕하세요 세계",
    "नमस्ते दुनिया สวัสดีชาวโลก",
    "emoji: 😀 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽",
    "combining: e\u0301 n\u0303 \u200d zero\u200bwidth",
    "\r\nWindows\r\nlines\r\n",
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β → γ",
)
CONVERSATION = (
    Message("system", "You are a helpful assistant."),
    Message("user", "What is the capital of France?"),
    Message("assistant", "Paris."),
    Message("user", "And of Italy?"),
)
_CONTROL = re.compile(r"<\|[^|<>\s'\"{}]{1,40}\|>|<(?:start|end)_of_turn>|<[｜][^<>\s]{1,40}[｜]>")


class Level(Enum):
    OK = "ok"
    NOTE = "note"  # worth knowing, not wrong
    WRONG = "WRONG"


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    what: str
    detail: str


def run(chosen: Settings) -> int:
    """Do what `chosen.action` says; returns the exit code."""
    return check_config(chosen) if chosen.action is Action.CHECK_CONFIG else check_model(chosen)


# -- settings ----------------------------------------------------------------------------------------------------------


def check_config(chosen: Settings) -> int:
    """Print the settings in force and where each came from, as a config file or as JSON. Exit codes 0, 1, 4."""
    try:
        found = keys.read(chosen.server.api_keys, lambda line: say(f"imp-server: warning: {line}"))
    except keys.KeysError as error:
        say(f"imp-server: error: {error}")
        return 4 if error.missing else 1
    values = shown_settings(chosen, len(found))
    if chosen.as_json:
        print(json.dumps({key: {"value": value, "from": source} for key, (value, source) in values.items()}, indent=2))
    else:
        print(as_toml(values))
    return 0


def shown_settings(chosen: Settings, key_count: int = 0) -> dict[str, tuple[Any, str]]:
    """section.key -> (value as JSON has it, where it came from). Of secrets only how many there are."""
    out: dict[str, tuple[Any, str]] = {}
    for key, f in settings.known().items():
        section, name = key.split(".")
        value = getattr(getattr(chosen, section), name)
        if f.metadata["secret"]:
            value = f"{key_count} hidden" if value else []
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Path):
            value = str(value)
        out[key] = value, chosen.origins.get(key, "default")
    return out


def as_toml(values: dict[str, tuple[Any, str]]) -> str:
    """The settings as a config file; what is not set, or secret, as a comment."""
    lines: list[str] = []
    for section in settings.SECTIONS:
        lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        for key, (value, source) in values.items():
            if key.split(".")[0] == section:
                hidden = value is None or (settings.known()[key].metadata["secret"] and value)
                text = f"{key.split('.')[1]} = {json.dumps(value, ensure_ascii=False)}"
                lines.append(f"{'# ' if hidden else ''}{text}  # {source}")
    return "\n".join(lines)


# -- the model ---------------------------------------------------------------------------------------------------------


def check_model(chosen: Settings) -> int:
    """Load the model, examine it, print findings and memory plan. Exit code 0, or that of what is wrong."""
    try:
        found = read_model(chosen, lambda line: say(f"imp-server: {line}"))
    except tuple(kind for kind, _ in EXIT_CODES) as error:
        say(f"imp-server: error: {error}")
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    if found is None:
        say("imp-server: error: there is no model to check")
        return 4
    path, bundle = found
    try:
        findings = list(examine(bundle, path))
    finally:
        bundle.close()
    print(_report_json(bundle, findings) if chosen.as_json else _report(bundle, findings))
    return INVALID_MODEL if any(finding.level is Level.WRONG for finding in findings) else 0


def examine(bundle: Bundle, path: Path) -> Iterator[Finding]:
    """Everything that is known to be worth a look."""
    yield from round_trips(bundle.tokenizer)
    yield from control_tokens(bundle)
    yield from other_vocabularies(bundle.tokenizer, path)
    yield from template(bundle)
    yield from shipped_example(bundle, path)
    yield generates(bundle)


def round_trips(tokenizer: Tokenizer) -> Iterator[Finding]:
    """Text through the tokenizer and back. A tokenizer may normalise rare characters, plain English it may not."""
    changed = [text for text in CORPUS if tokenizer.decode(tokenizer.encode(text, add_special=False)) != text]
    plain = [text for text in changed if text.isascii()]
    if plain:
        yield Finding(Level.WRONG, "round trip", f"text comes back changed: {plain[0]!r} and {len(plain) - 1} more")
    elif changed:
        yield Finding(Level.NOTE, "round trip", f"{len(changed)} of {len(CORPUS)} texts come back normalised")
    else:
        yield Finding(Level.OK, "round trip", f"{len(CORPUS)} texts come back as they were")


def control_tokens(bundle: Bundle) -> Iterator[Finding]:
    """The control tokens that the chat template writes are one token each."""
    chat = bundle.facts.template
    if chat is None:
        return
    spellings = sorted(set(_CONTROL.findall(chat.source)))
    broken = [each for each in spellings if len(_parsed(bundle.tokenizer, each)) != 1]
    if broken:
        shown_ = ", ".join(broken[:5])
        yield Finding(Level.WRONG, "control tokens", f"the template writes what is no single token: {shown_}")
    else:
        yield Finding(Level.OK, "control tokens", f"{len(spellings)} of the template are one token each")


def _parsed(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False, parse_special=True)


def other_vocabularies(tokenizer: Tokenizer, path: Path) -> Iterator[Finding]:
    """A tokenizer.json beside a GGUF file: the same ids for the same text."""
    other = (path if path.is_dir() else path.parent) / "tokenizer.json"
    is_gguf = path.suffix == ".gguf" or (path.is_dir() and not any(path.glob("*.safetensors")))
    if not is_gguf or not other.is_file():
        return
    config = other.with_name("tokenizer_config.json")
    try:
        settings_of = json.loads(config.read_bytes()) if config.is_file() else {}
        theirs = Tokenizer.from_json(other.read_bytes(), settings_of)
    except (InvalidTokenizer, UnsupportedTokenizer, ValueError) as error:
        yield Finding(Level.NOTE, "tokenizer.json", f"beside the model, but unreadable: {error}")
        return
    for text in CORPUS:
        ours, other_ids = (each.encode(text, add_special=False) for each in (tokenizer, theirs))
        if ours != other_ids:
            detail = f"{text!r} is {ours[:8]} by the model's file, {other_ids[:8]} by tokenizer.json"
            yield Finding(Level.WRONG, "tokenizer.json", detail)
            return
    yield Finding(Level.OK, "tokenizer.json", f"gives the same ids for {len(CORPUS)} texts")


def template(bundle: Bundle) -> Iterator[Finding]:
    """A conversation through the chat template: everything said is in it, and it begins with one BOS at most."""
    facts, tokenizer = bundle.facts, bundle.tokenizer
    if facts.template is None:
        yield Finding(Level.NOTE, "chat template", "there is none; chat answers 400, completions work")
        return
    try:
        rendered = render(ChatRequest(CONVERSATION), facts)
    except Refused as error:
        yield Finding(Level.WRONG, "chat template", error.message)
        return
    text, ids = shown(rendered), encode_rendered(rendered, facts)
    lost = [str(message.content) for message in CONVERSATION if str(message.content) not in text]
    if lost:
        yield Finding(Level.WRONG, "chat template", f"leaves out {lost[0]!r}")
    elif tokenizer.bos_id is not None and ids[:2] == [tokenizer.bos_id] * 2:
        yield Finding(Level.WRONG, "chat template", "the prompt begins with two BOS tokens")
    else:
        yield Finding(Level.OK, "chat template", f"{len(CONVERSATION)} messages are {len(ids)} tokens: {text!r}")


def shipped_example(bundle: Bundle, path: Path) -> Iterator[Finding]:
    """What the model's authors say their template makes of a conversation, where they say it."""
    example = (path if path.is_dir() else path.parent) / EXAMPLE
    if bundle.facts.template is None or not example.is_file():
        return
    try:
        given = json.loads(example.read_bytes())
        messages = tuple(Message(each["role"], each["content"]) for each in given["messages"])
        wanted = given["prompt"]
        made = shown(render(ChatRequest(messages), bundle.facts))
    except (ValueError, KeyError, TypeError, Refused) as error:
        yield Finding(Level.NOTE, EXAMPLE, f"cannot be used: {error!r}")
        return
    if made == wanted:
        yield Finding(Level.OK, EXAMPLE, "the template makes the prompt it shows")
    else:
        yield Finding(Level.WRONG, EXAMPLE, f"the template makes {made!r}, the file shows {wanted!r}")


def generates(bundle: Bundle) -> Finding:
    """A few tokens, greedily, the way a request gets them. The bundle has no engine, so its scheduler is ours."""
    options, scheduler = Options(temperature=0.0, max_tokens=8), bundle.scheduler
    try:
        if bundle.facts.template is None:
            (request,) = prepare_completion(
                CompletionRequest(("Once upon a time",), options), bundle.facts, "check", 0.0
            )
        else:
            request = prepare_chat(ChatRequest(CONVERSATION, options), bundle.facts, "check", 0.0)
    except Refused as error:
        return Finding(Level.WRONG, "generation", error.message)
    events, text = scheduler.submit(request, 0.0), ""
    while not any(isinstance(event, Finished | Failed) for event in events):
        batch = scheduler.plan(0.0)
        assert batch is not None
        events = scheduler.apply(batch, bundle.runner.step(batch), 0.0)
        text += "".join(event.text for event in events if isinstance(event, Delta))
    failed = next((event for event in events if isinstance(event, Failed)), None)
    if failed is not None:
        return Finding(Level.WRONG, "generation", failed.message)
    return Finding(Level.OK, "generation", f"at temperature 0: {text!r}")


# -- telling -----------------------------------------------------------------------------------------------------------


def _memory(bundle: Bundle) -> dict[str, Any]:
    """The memory plan; sizes in bytes."""
    plan = bundle.memory
    return {
        "weights_bytes": plan.weights_bytes,
        "kv_bytes": plan.kv_bytes,
        "kv_format": plan.kv_format,
        "kv_blocks": plan.blocks,
        "kv_block_size": plan.block_size,
        "kv_block_bytes": plan.block_bytes,
        "kv_tokens": plan.kv_tokens,
        "kv_most_blocks": plan.reserved_blocks,
        "kv_host_bytes": plan.host_bytes,
        "context": plan.context,
        "sequences_per_step": plan.rows,
        "available_bytes": available_bytes(),
    }


def _report(bundle: Bundle, findings: list[Finding]) -> str:
    card, plan = bundle.card, _memory(bundle)
    mib = {name: f"{size / 2**20:8.1f} MiB" for name, size in plan.items() if name.endswith("_bytes")}
    lines = [
        f"model    {card.name} ({card.architecture}, {card.parameters / 1e6:.0f}M parameters, {card.quantization})"
    ]
    lines += [f"backend  {bundle.backend.describe()}", ""]
    lines += [f"{finding.level.value:<6} {finding.what}: {finding.detail}" for finding in findings]
    lines += [
        "",
        "memory plan",
        f"  weights    {mib['weights_bytes']}",
        f"  KV cache   {mib['kv_bytes']}  {plan['kv_blocks']} blocks of {plan['kv_block_size']} tokens"
        f" in {plan['kv_format'] or 'no memory'}"
        + (f", growing to {plan['kv_most_blocks']}" if plan["kv_most_blocks"] > plan["kv_blocks"] else ""),
        *([f"  below it   {mib['kv_host_bytes']}"] if plan["kv_host_bytes"] else []),
        f"  left       {mib['available_bytes']}  with the model loaded",
        f"  context    {plan['context']} tokens, {plan['sequences_per_step']} sequences a step",
    ]
    return "\n".join(lines)


def _report_json(bundle: Bundle, findings: list[Finding]) -> str:
    told = [{"level": each.level.value.lower(), "what": each.what, "detail": each.detail} for each in findings]
    return json.dumps({"model": asdict(bundle.card), "findings": told, "memory": _memory(bundle)}, indent=2)
