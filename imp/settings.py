"""Every setting, once: its section, flag, default, bounds and meaning. The only reader of argv, environment and config.

A setting is a dataclass field made by `setting`. From the fields come the command line (`--help`, by section), the
config file's sections and keys, `--set section.key=value`, and the table in docs/SETTINGS.md.
Later sources win: defaults, config file, IMP_SET, --set, flags.
"""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from . import __version__, absent
from .sources import (
    Parser,
    SettingsError,
    add_flags,
    assignments,
    convert,
    flag_of,
    read_config,
    refuse_absent,
    setting,
)


def _networks(addresses: tuple[str, ...]) -> None:
    for address in addresses:
        ipaddress.ip_network(address, strict=False)  # ValueError names what is wrong


def named_paths(words: tuple[str, ...]) -> dict[str, Path]:
    """NAME=PATH, each name once. Raises ValueError."""
    found: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not name or not path:
            raise ValueError(f"{word!r} is not of the form NAME=PATH")
        if name in found:
            raise ValueError(f"the name {name!r} is given twice")
        if not name.isprintable() or set(name) & set("/\\,"):
            raise ValueError(f"{name!r} can be no model's name")
        found[name] = Path(path).expanduser()
    return found


def _no_empty(texts: tuple[str, ...]) -> None:
    if "" in texts:
        raise ValueError("an empty text is not one")


def _backend(device: str) -> None:
    if device not in ("auto", "cpu", "reference") and not re.fullmatch(r"cuda(:[0-9]+)?", device):
        raise ValueError("it must be one of auto, cpu, reference, cuda[:N]")


@dataclass(frozen=True, slots=True)
class Model:
    """What is served."""

    model: str | None = setting(
        None, "a .gguf file, a safetensors directory, or a name in the models dir", flag="--model", metavar="PATH|NAME"
    )
    script: Path | None = setting(
        None,
        "serve the replies written in a JSON file instead of a model (docs/SCRIPT.md)",
        flag="--script",
        metavar="FILE",
    )
    models_dir: Path | None = setting(None, "folder of models that can be named", flag="--models-dir", metavar="DIR")
    served_name: str | None = setting(
        None, "name clients use for the model; default: its file name", flag="--served-model-name", metavar="NAME"
    )
    lora: tuple[str, ...] = setting(
        (),
        "an adapter of the model (a PEFT directory), and the name it is asked for by; may be given several times",
        flag="--lora",
        metavar="NAME=PATH",
        check=named_paths,
    )
    chat_template: str = setting(
        "auto",
        "auto (the model's own), none, chatml, llama2, llama3, nemotron, gemma, or a Jinja file",
        flag="--chat-template",
        metavar="NAME|FILE",
    )
    tool_call_parser: str = setting(
        "auto",
        "how the model writes tool calls: auto (as its chat template says), or a name (docs/FORMATS.md)",
        flag="--tool-call-parser",
        metavar="NAME",
    )
    reasoning_format: str = setting(
        "deepseek",
        "deepseek (reasoning_content apart from content), none (reasoning stays in content, with its markers)",
        flag="--reasoning-format",
        metavar="NAME",
        choices=("deepseek", "none"),
    )
    device: str = setting(
        "auto",
        "where the model runs: cuda[:N] (a GPU), cpu, reference; auto: on a GPU where there is one, else on the CPU",
        flag="--device",
        metavar="NAME",
        check=_backend,
    )


@dataclass(frozen=True, slots=True)
class Server:
    """How clients reach it, and what protects it."""

    host: str = setting("127.0.0.1", "address to listen on", flag="--host")
    port: int = setting(8080, "port to listen on; 0: any free one", flag="--port", low=0, high=65535)
    api_keys: tuple[str, ...] = setting(
        (),
        "require this key; @FILE or a path: a file of keys, one a line, # begins a comment; may be given several times",
        flag="--api-key",
        metavar="KEY|@FILE",
        check=_no_empty,
        secret=True,
    )
    rate_limit: int = setting(
        0, "requests per minute and key (or address); 0: no limit", flag="--rate-limit", metavar="N", low=0
    )
    token_rate_limit: int = setting(
        0, "tokens per minute and key (or address); 0: no limit", flag="--token-rate-limit", metavar="N", low=0
    )
    ip_rate_limit: int = setting(
        0,
        "requests per minute from one address, whatever its key, wrong ones too; 0: no limit",
        flag="--ip-rate-limit",
        metavar="N",
        low=0,
    )
    ip_token_rate_limit: int = setting(0, "tokens per minute for one address, whatever its key; 0: no limit", low=0)
    metrics_require_auth: bool = setting(False, "/metrics needs an API key too", flag="--metrics-require-auth")
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "believe X-Forwarded-For and Forwarded from this address or network",
        flag="--trusted-proxy",
        metavar="ADDR",
        check=_networks,
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), "host names requests may be addressed to, *.NAME for all below; loopback always may; empty: any"
    )
    max_concurrent: int = setting(
        64,
        "generating requests at once, waiting ones included; more get a 429",
        flag="--max-concurrent",
        metavar="N",
        low=1,
    )
    max_queued_tokens: int = setting(
        0,
        "prompt tokens of waiting requests; one that would be too many gets a 429; 0: no limit",
        flag="--max-queued-tokens",
        metavar="N",
        low=0,
    )
    queue_timeout_s: float = setting(
        0.0,
        "a request that waits so long for its first step gets a 503; 0: no limit",
        flag="--queue-timeout",
        metavar="S",
        low=0,
    )
    request_timeout_s: float = setting(
        300.0,
        "a request that takes so long ends with an error; 0: no limit",
        flag="--request-timeout",
        metavar="S",
        low=0,
    )
    read_timeout_s: float = setting(
        60.0, "a client may take so long to send a request", flag="--http-read-timeout", metavar="S", low=0.001
    )
    write_timeout_s: float = setting(
        600.0,
        "a client may leave written bytes unread for so long",
        flag="--http-write-timeout",
        metavar="S",
        low=0.001,
    )
    keep_alive_max: int = setting(
        100, "requests on one connection; 0: no limit", flag="--http-keep-alive-max", metavar="N", low=0
    )
    max_connections: int = setting(0, "open connections; more get a 503; 0: no limit", low=0)
    max_body_kib: int = setting(100 * 1024, "a request body may be so long; 413 past it", low=1)
    max_head_kib: int = setting(
        64, "request line and header fields may be so long together; 431 past it", low=1, high=1024
    )
    max_request_line_kib: int = setting(16, "a request line may be so long; 414 past it", low=1, high=1024)
    max_headers: int = setting(256, "header fields of a request; 431 past it", low=1, high=10000)
    model_names: str = setting(
        "strict", "strict: an unknown model name is a 404; lenient: any name is served", choices=("strict", "lenient")
    )
    prefix_cache: bool = setting(True, "reuse the computed start of earlier prompts")
    prefix_pin_budget_pct: int = setting(
        25,
        "share of the KV memory for prompts that clients want kept, in percent; the oldest go first",
        low=0,
        high=100,
    )
    model_swap: bool = setting(True, "a request that names another model of the models dir loads it instead")
    model_swap_drain_ms: int = setting(60000, "a model swap, and SIGTERM, wait so long for running requests", low=0)
    sse_ping_seconds: float = setting(15.0, "a silent stream sends a comment this often; 0: never", low=0)
    agent_scan_limit: int = setting(
        256,
        "Claude Code's line x-anthropic-billing-header, which changes each time, is left out of system prompts on "
        "/v1/messages where it is no longer, in characters; 0: never",
        low=0,
    )
    tokenizer_info: bool = setting(False, "serve GET /tokenizer_info", flag="--enable-tokenizer-info-endpoint")
    dev_mode: bool = setting(False, "serve POST /abort_requests", flag="--enable-server-dev-mode")
    response_store_entries: int = setting(1000, "responses kept for later turns; 0: none", low=0)
    response_store_mib: int = setting(64, "memory for kept responses, with their conversations; 0: none", low=0)
    response_store_ttl_s: float = setting(86400.0, "a response is kept so long; 0: no limit", low=0)
    cors_origins: tuple[str, ...] = setting(("*",), "web pages of these origins may read answers; empty: none")
    cors_credentials: bool = setting(True, "pages of named origins (not *) may send cookies and keep them")
    cors_headers: tuple[str, ...] = setting((), "request fields those pages may send; empty: any they ask for")
    cors_max_age_s: int = setting(600, "browsers may remember the answer to a preflight so long", low=0, high=86400)
    log_requests: str | None = setting(
        None,
        "append a line of JSON for each request, with prompt and answer, to this file; -: standard output",
        flag="--log-requests",
        metavar="FILE",
    )
    otlp_endpoint: str = setting("", "send traces to this OTLP/HTTP collector, http://HOST:4318; empty: none")
    otlp_service_name: str = setting("imp-server", "service.name of the traces")


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request may ask for."""

    max_tokens: int = setting(
        8192, "tokens generated where a request does not say", flag="--max-tokens", metavar="N", low=1
    )
    think_budget: float = setting(
        0.5,
        "share of max_tokens that thinking may take, where a request does not say",
        flag="--think-budget",
        metavar="SHARE",
        low=0,
        high=1,
    )
    max_n: int = setting(8, "largest n", flag="--max-n", metavar="N", low=1)
    max_logit_bias: int = setting(1024, "entries of logit_bias", flag="--max-logit-bias", metavar="N", low=0)
    max_input_tokens: int = setting(
        0, "longest prompt; 0: what the context holds", flag="--max-input-tokens", metavar="N", low=0
    )
    max_batch_items: int = setting(
        512, "prompts in one completions request", flag="--max-batch-items", metavar="N", low=1
    )


@dataclass(frozen=True, slots=True)
class Runtime:
    """How the model runs."""

    max_batch_size: int = setting(
        0, "sequences per step; 0: chosen from memory", flag="--max-batch", metavar="N", low=0
    )
    max_seq_len: int = setting(
        0,
        "context length in tokens, no more than the model was made for; 0: that, as far as memory allows",
        flag="--max-model-len",
        metavar="N",
        low=0,
    )
    prefill_chunk_size: int = setting(512, "prompt tokens per step", flag="--prefill-chunk-size", metavar="N", low=16)
    prefill_chunk_decode_cap: int = setting(1024, "prompt tokens per step while others are being answered", low=16)
    max_stall_ms: float = setting(
        0.0,
        "prompts and guesses are cut so that others' next tokens do not wait longer; 0: four times an idle step",
        low=0,
    )
    deterministic: bool = setting(
        False,
        "compute prompts in the arithmetic of outputs: not even what the cache holds of earlier answers changes a bit;"
        " slower where prompts have an arithmetic of their own (docs/DETERMINISM.md)",
    )
    think_answer_reserve: int = setting(256, "tokens kept for the answer: thinking may take all others", low=0)
    threads: int = setting(0, "compute threads; 0: one per core", low=0, high=256)
    vram_budget: int = setting(
        0, "memory of the GPU that may be used, in MiB; 0: what is free", flag="--vram-budget", metavar="MB", low=0
    )


@dataclass(frozen=True, slots=True)
class KvCache:
    """Where attention keeps keys and values."""

    dtype: str = setting(
        "auto",
        "how they are kept (docs/KV.md); auto: fp16, or fp32 for a model whose matrices are all float32",
        choices=("auto", "fp32", "fp16", "bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4"),
        switches={f"--kv-{name}": name for name in ("fp8", "int8", "int4", "nvfp4", "mxfp4")},
    )
    max_blocks: int = setting(0, "blocks of 16 tokens; 0: chosen from memory", low=0)
    growable: bool = setting(
        False, "begin with blocks for one sequence, and take more as they are needed and memory is free (docs/KV.md)"
    )
    host_mb: int = setting(0, "memory for blocks that were given up for others, in MiB; 0: none (docs/KV.md)", low=0)
    disk_dir: Path | None = setting(
        None,
        "keep computed prompts in files of this folder, over restarts and swaps of models (docs/KV.md)",
        flag="--prefix-cache",
        metavar="DIR",
    )
    disk_mb: int = setting(8192, "most that those files may take, in MiB; the least recently used go first", low=1)


@dataclass(frozen=True, slots=True)
class Attention:
    """Outputs of long contexts may attend to chosen keys alone: faster, not exact (docs/LONG_CONTEXT.md)."""

    sparse_topk_tokens: int = setting(0, "keys chosen by their scores, in blocks of 16; 0: all keys, always", low=0)
    sparse_sink_tokens: int = setting(16, "keys at the beginning that are always there", low=0)
    sparse_recent_tokens: int = setting(256, "latest keys that are always there", low=1)
    sparse_min_ctx: int = setting(12288, "positions with fewer keys attend to all", low=1)


@dataclass(frozen=True, slots=True)
class Rope:
    """Another scaling of positions than the model's own, for longer texts (docs/LONG_CONTEXT.md)."""

    scaling: str = setting(
        "", "its kind; empty: the model's own", choices=("", "none", "linear", "dynamic", "yarn", "llama3", "longrope")
    )
    factor: float = setting(0.0, "how many times longer texts become; 0: the model's own", low=0, high=1024)
    orig_ctx: int = setting(0, "positions before that; 0: what the model says", low=0)


@dataclass(frozen=True, slots=True)
class Speculative:
    """Tokens that are guessed, and verified several in a step (docs/SPECULATION.md). The output is the same."""

    ngram: bool = setting(True, "guess what followed the same tokens before, as far as that pays")
    draft_model: str | None = setting(
        None,
        "a smaller model with the same vocabulary that guesses where the text itself gives no guess",
        flag="--draft-model",
        metavar="PATH|NAME",
    )
    k: int = setting(16, "tokens guessed at once for a sequence; 0: none", low=0, high=64)
    min_match: int = setting(2, "tokens that must be the same before a guess", low=1, high=16)
    shared_tokens: int = setting(
        262144,
        "tokens of ended outputs kept for guesses about later ones of the same API key and cache_salt; 0: none",
        low=0,
    )


@dataclass(frozen=True, slots=True)
class Constrained:
    """Output that must match a schema, a regex or a grammar."""

    jump_ahead: bool = setting(True, "tokens without an alternative are computed together, in one step")
    whitespace: str = setting(
        "flexible",
        "JSON whitespace where a request does not say; flexible: none, a space, or a line break with up to 40 spaces",
        choices=("compact", "flexible"),
    )
    property_order: str = setting(
        "declared",
        "members of JSON objects; declared: in the schema's order, which models follow well; any: as the model likes,"
        " in objects of up to 64 names",
        choices=("declared", "any"),
    )
    auto_calls: str = setting(
        "strict",
        "calls that a model may make or not are enforced once they have begun; strict: where a tool is strict; all:"
        " whatever the tools are, which helps models that are weak at calls",
        choices=("strict", "all"),
    )
    cache_mb: int = setting(256, "compiled constraints kept for later requests, in MiB", low=1)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What is told about the running server."""

    log_level: str = setting("info", "what is logged to stderr", choices=("debug", "info", "warning", "error"))
    step_timing: bool = setting(False, "measure the parts of every step: imp_step_phase_seconds_total")
    debug_template: bool = setting(False, "log every rendered chat prompt; people's words are in it")


@dataclass(frozen=True, slots=True)
class Paths:
    """Set by the environment only."""

    default_model: Path | None  # IMP_MODEL
    model_cache: Path  # IMP_MODEL_CACHE, else <cache>/models
    cache: Path  # IMP_CACHE_DIR, else XDG_CACHE_HOME/imp, else ~/.cache/imp
    notify_socket: str | None  # NOTIFY_SOCKET (systemd)
    watchdog_us: int  # WATCHDOG_USEC (systemd); 0: none
    listen_fds: int  # LISTEN_FDS (systemd), if LISTEN_PID is us
    otlp_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # OTEL_EXPORTER_OTLP_HEADERS


class Action(Enum):
    """What the process is for."""

    SERVE = "serve"
    CHECK = "check"  # load the model, examine it, say so, end
    CHECK_CONFIG = "check-config"  # print the settings, end


@dataclass(frozen=True, slots=True)
class Settings:
    paths: Paths
    model: Model = field(default_factory=Model)
    server: Server = field(default_factory=Server)
    generation: Generation = field(default_factory=Generation)
    runtime: Runtime = field(default_factory=Runtime)
    kv_cache: KvCache = field(default_factory=KvCache)
    attention: Attention = field(default_factory=Attention)
    rope: Rope = field(default_factory=Rope)
    speculative: Speculative = field(default_factory=Speculative)
    constrained: Constrained = field(default_factory=Constrained)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    action: Action = Action.SERVE
    as_json: bool = False  # how a check tells what it found
    origins: Mapping[str, str] = MappingProxyType({})  # section.key -> which source said it; not there: the default


SECTIONS: dict[str, type] = {
    "model": Model,
    "server": Server,
    "generation": Generation,
    "runtime": Runtime,
    "kv_cache": KvCache,
    "attention": Attention,
    "rope": Rope,
    "speculative": Speculative,
    "constrained": Constrained,
    "diagnostics": Diagnostics,
}


def known() -> dict[str, dataclasses.Field]:
    """section.key -> its field."""
    return {f"{section}.{f.name}": f for section, owner in SECTIONS.items() for f in fields(owner)}


def load(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the command line, the environment and the config file. Raises SettingsError; --help exits."""
    table, missing = known(), absent.KEYS
    flags = _parser().read(argv)
    _refuse_absent_flags(flags)
    action, as_json = _action(flags)
    chosen, sets = flags.pop("config", None), flags.pop("set", [])
    sources: list[tuple[str, Mapping[str, Any]]] = []
    if path := _config_file(chosen, env):
        sources.append((str(path), read_config(path, table, missing, _warn)))
    sources.append(("IMP_SET", assignments(env.get("IMP_SET", "").split(), "IMP_SET", table, missing)))
    sources.append(("--set", assignments(sets, "--set", table, missing)))
    sources += [(flag_of(table[key], value), {key: value}) for key, value in flags.items()]
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    origins: dict[str, str] = {}
    for source, values in sources:
        for key, value in values.items():
            section, name = key.split(".")
            sections[section][name] = convert(
                source if source.startswith("--") and key in flags else key, table[key], value
            )
            origins[key] = source
    made = {section: SECTIONS[section](**given) for section, given in sections.items()}
    return Settings(_paths(env), **made, action=action, as_json=as_json, origins=MappingProxyType(origins))


def _warn(line: str) -> None:
    print(f"imp-server: warning: {line}", file=sys.stderr)


def _config_file(argv_path: str | None, env: Mapping[str, str]) -> Path | None:
    for given in (argv_path, env.get("IMP_CONFIG")):
        if given:
            if not Path(given).is_file():
                raise SettingsError(f"config file {given} does not exist", exit_code=4)
            return Path(given)
    home = Path(env.get("HOME", "/"))
    places = (Path("imp.conf"), home / ".config/imp/imp.conf", Path("/etc/imp/imp.conf"))
    return next((place for place in places if place.is_file()), None)


def _parser() -> Parser:
    parser = Parser(
        prog="imp-server",
        description="Serve a language model over HTTP. Without --model: the only one of --models-dir, or the default.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=f"imp-server {__version__}")
    for section, owner in SECTIONS.items():
        group = parser.add_argument_group(section, owner.__doc__)
        for f in fields(owner):
            add_flags(group, f"{section}.{f.name}", f)
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--config", metavar="FILE", help="TOML file with the sections above (also: $IMP_CONFIG, ./imp.conf)"
    )
    group.add_argument(
        "--set", metavar="SECTION.KEY=VALUE", action="append", help="set any key of docs/SETTINGS.md; also $IMP_SET"
    )
    group = parser.add_argument_group("instead of serving")
    group.add_argument(
        "--check",
        nargs="?",
        const="text",
        choices=("text", "json"),
        help="load the model, examine tokenizer, template and memory, and end",
    )
    group.add_argument(
        "--check-config", action="store_true", help="print the settings and where each came from, and end"
    )
    group.add_argument("--json", action="store_true", help="with --check or --check-config: print JSON")
    for each in absent.FLAGS:
        switch: dict[str, Any] = {"action": "store_const", "const": "on"} if each.name in absent.SWITCHES else {}
        parser.add_argument(each.name, dest=each.name, help=argparse.SUPPRESS, **switch)
    return parser


def _refuse_absent_flags(flags: dict[str, Any]) -> None:
    for each in absent.FLAGS:
        if each.name in flags:
            refuse_absent(each.name, flags.pop(each.name), each)


def _action(flags: dict[str, Any]) -> tuple[Action, bool]:
    """What to do, and whether to tell it as JSON."""
    checks, config, as_json = flags.pop("check", None), flags.pop("check_config", False), flags.pop("json", False)
    if checks is not None and config:
        raise SettingsError("--check and --check-config exclude each other")
    if as_json and checks is None and not config:
        raise SettingsError("--json goes with --check or --check-config")
    action = Action.CHECK if checks is not None else Action.CHECK_CONFIG if config else Action.SERVE
    return action, as_json or checks == "json"


def _paths(env: Mapping[str, str]) -> Paths:
    home = Path(env.get("HOME") or "/tmp")
    cache = Path(env.get("IMP_CACHE_DIR") or Path(env.get("XDG_CACHE_HOME") or home / ".cache") / "imp")
    ours = env.get("LISTEN_PID") == str(os.getpid())
    return Paths(
        default_model=Path(env["IMP_MODEL"]) if env.get("IMP_MODEL") else None,
        model_cache=Path(env.get("IMP_MODEL_CACHE") or cache / "models"),
        cache=cache,
        notify_socket=env.get("NOTIFY_SOCKET"),
        watchdog_us=int(env.get("WATCHDOG_USEC") or 0),
        listen_fds=int(env.get("LISTEN_FDS") or 0) if ours else 0,
        otlp_headers=_otlp_headers(env.get("OTEL_EXPORTER_OTLP_HEADERS") or ""),
    )


def _otlp_headers(text: str) -> tuple[tuple[str, str], ...]:
    """`name=value,name=value`, percent-encoded: OpenTelemetry's form. They may be secrets, so no error repeats them."""
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    headers = tuple((name.strip(), unquote(value.strip())) for name, _, value in pairs)
    for (name, value), (_, equals, _) in zip(headers, pairs, strict=True):
        if not equals or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[ -~]*", value):
            raise SettingsError("OTEL_EXPORTER_OTLP_HEADERS must be name=value pairs with commas between them")
    return headers
