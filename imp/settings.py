"""Every setting, once: its section, flag, default, bounds and meaning. The only reader of argv, environment and config.

A setting is a dataclass field made by `_setting`. From the fields come the command line (`--help`, by section), the
config file's sections and keys, `--set section.key=value`, and the table in docs/SETTINGS.md.
Later sources win: defaults, config file, IMP_SET, --set, flags.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from . import __version__


class SettingsError(Exception):
    """A flag, variable or config file that cannot be used: one sentence. Exit code 1 (4 for a missing file)."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


def _setting(
    default: Any,
    help: str,
    *,
    flag: str | None = None,
    metavar: str | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    meta = {"help": help, "flag": flag, "metavar": metavar, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True)
class Model:
    """What is served."""

    model: str | None = _setting(
        None, "a .gguf file, a safetensors directory, or a name in the models dir", flag="--model", metavar="PATH|NAME"
    )
    script: Path | None = _setting(
        None,
        "serve the replies written in a JSON file instead of a model (docs/SCRIPT.md)",
        flag="--script",
        metavar="FILE",
    )
    models_dir: Path | None = _setting(None, "folder of models that can be named", flag="--models-dir", metavar="DIR")
    served_name: str | None = _setting(
        None, "name clients use for the model; default: its file name", flag="--served-model-name", metavar="NAME"
    )
    chat_template: str = _setting(
        "auto",
        "auto (the model's own), none, chatml, llama2, llama3, nemotron, gemma, or a Jinja file",
        flag="--chat-template",
        metavar="NAME|FILE",
    )
    max_len: int = _setting(
        0,
        "context length in tokens; 0: the model's own, as far as memory allows",
        flag="--max-model-len",
        metavar="N",
        low=0,
    )
    device: str = _setting("auto", "where the model runs", flag="--device", choices=("auto", "cpu", "reference"))
    names: str = _setting(
        "strict", "strict: an unknown model name is a 404; lenient: any name is served", choices=("strict", "lenient")
    )


@dataclass(frozen=True, slots=True)
class Server:
    """How clients reach it, and what protects it."""

    host: str = _setting("127.0.0.1", "address to listen on", flag="--host")
    port: int = _setting(8080, "port to listen on; 0: any free one", flag="--port", low=0, high=65535)
    api_keys: tuple[str, ...] = _setting(
        (), "require this key; may be given several times", flag="--api-key", metavar="KEY"
    )
    rate_limit: int = _setting(
        0, "requests per minute and key (or address); 0: no limit", flag="--rate-limit", metavar="N", low=0
    )
    metrics_require_auth: bool = _setting(False, "/metrics needs an API key too", flag="--metrics-require-auth")
    trusted_proxies: tuple[str, ...] = _setting(
        (), "believe X-Forwarded-For from this address or network", flag="--trusted-proxy", metavar="ADDR"
    )
    max_concurrent: int = _setting(
        64, "generating requests at once; more get a 429", flag="--max-concurrent", metavar="N", low=1
    )
    request_timeout_s: float = _setting(
        300.0, "a request may take so long; then it ends with what it has", flag="--request-timeout", metavar="S", low=0
    )
    read_timeout_s: float = _setting(
        60.0, "a client may take so long to send a request", flag="--http-read-timeout", metavar="S", low=0.001
    )
    write_timeout_s: float = _setting(
        600.0,
        "a client may leave written bytes unread for so long",
        flag="--http-write-timeout",
        metavar="S",
        low=0.001,
    )
    keep_alive_max: int = _setting(100, "requests on one connection", flag="--http-keep-alive-max", metavar="N", low=1)
    drain_ms: int = _setting(60000, "SIGTERM waits so long for running requests", low=0)
    sse_ping_seconds: float = _setting(15.0, "a silent stream sends a comment this often; 0: never", low=0)
    tokenizer_info: bool = _setting(False, "serve GET /tokenizer_info", flag="--enable-tokenizer-info-endpoint")
    dev_mode: bool = _setting(False, "serve POST /abort_requests", flag="--enable-server-dev-mode")
    cors_origin: str = _setting("*", "Access-Control-Allow-Origin; empty: no CORS headers")


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request may ask for."""

    max_tokens: int = _setting(
        8192, "tokens generated where a request does not say", flag="--max-tokens", metavar="N", low=1
    )
    max_n: int = _setting(8, "largest n", flag="--max-n", metavar="N", low=1)
    max_logit_bias: int = _setting(1024, "entries of logit_bias", flag="--max-logit-bias", metavar="N", low=0)
    max_input_tokens: int = _setting(
        0, "longest prompt; 0: what the context holds", flag="--max-input-tokens", metavar="N", low=0
    )
    max_batch_items: int = _setting(
        512, "prompts in one completions request", flag="--max-batch-items", metavar="N", low=1
    )


@dataclass(frozen=True, slots=True)
class Runtime:
    """How the model runs."""

    max_batch: int = _setting(0, "sequences per step; 0: chosen from memory", flag="--max-batch", metavar="N", low=0)
    prefill_chunk_size: int = _setting(512, "prompt tokens per step", flag="--prefill-chunk-size", metavar="N", low=16)
    threads: int = _setting(0, "compute threads; 0: one per core", low=0, high=256)


@dataclass(frozen=True, slots=True)
class KvCache:
    """Where attention keeps keys and values."""

    max_blocks: int = _setting(0, "blocks of 16 tokens; 0: chosen from memory", low=0)
    prefix_cache: bool = _setting(True, "reuse the computed start of earlier prompts")


@dataclass(frozen=True, slots=True)
class Constrained:
    """Output that must match a schema, a regex or a grammar."""

    jump_ahead: bool = _setting(True, "tokens without an alternative are computed together, in one step")
    whitespace: str = _setting(
        "flexible",
        "JSON whitespace where a request does not say; flexible: none, a space, or a line break with up to 40 spaces",
        choices=("compact", "flexible"),
    )
    cache_mb: int = _setting(256, "compiled constraints kept for later requests, in MiB", low=1)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What is told about the running server."""

    log_level: str = _setting("info", "what is logged to stderr", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True, slots=True)
class Paths:
    """Set by the environment only."""

    default_model: Path | None  # IMP_MODEL
    model_cache: Path  # IMP_MODEL_CACHE, else <cache>/models
    cache: Path  # IMP_CACHE_DIR, else XDG_CACHE_HOME/imp, else ~/.cache/imp
    notify_socket: str | None  # NOTIFY_SOCKET (systemd)
    watchdog_us: int  # WATCHDOG_USEC (systemd); 0: none
    listen_fds: int  # LISTEN_FDS (systemd), if LISTEN_PID is us


@dataclass(frozen=True, slots=True)
class Settings:
    paths: Paths
    model: Model = field(default_factory=Model)
    server: Server = field(default_factory=Server)
    generation: Generation = field(default_factory=Generation)
    runtime: Runtime = field(default_factory=Runtime)
    kv_cache: KvCache = field(default_factory=KvCache)
    constrained: Constrained = field(default_factory=Constrained)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)


SECTIONS: dict[str, type] = {
    "model": Model,
    "server": Server,
    "generation": Generation,
    "runtime": Runtime,
    "kv_cache": KvCache,
    "constrained": Constrained,
    "diagnostics": Diagnostics,
}


def _known() -> dict[str, dataclasses.Field]:
    """section.key -> its field."""
    return {f"{section}.{f.name}": f for section, owner in SECTIONS.items() for f in fields(owner)}


# -- values ------------------------------------------------------------------------------------------------------------


def _convert(key: str, f: dataclasses.Field, value: Any) -> Any:
    """A flag's or variable's string, or a TOML value, as the field's type; refused with what is allowed."""
    kind = str(f.type).split(" |")[0]
    try:
        converted = _KINDS[kind](value)
    except (ValueError, TypeError):
        raise SettingsError(f"{key} must be {_NOUNS[kind]}, not {value!r}") from None
    low, high, choices = (f.metadata[name] for name in ("low", "high", "choices"))
    if choices and converted not in choices:
        raise SettingsError(f"{key} must be one of {', '.join(choices)}, not {value!r}")
    if (low is not None and converted < low) or (high is not None and converted > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise SettingsError(f"{key} must be {bounds}, not {value!r}")
    return converted


def _integer(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = _text(value).lower()
    if word not in _TRUE + _FALSE:
        raise ValueError
    return word in _TRUE


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(_text(item) for item in value)


_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_KINDS: dict[str, Any] = {
    "int": _integer,
    "float": _number,
    "bool": _truth,
    "str": _text,
    "Path": lambda value: Path(_text(value)).expanduser(),
    "tuple[str, ...]": _texts,
}
_NOUNS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "Path": "a path",
    "tuple[str, ...]": "text or a list of texts",
}

# -- sources -----------------------------------------------------------------------------------------------------------


def _assignments(text: str, source: str) -> dict[str, str]:
    """`section.key=value` words -> {section.key: value}; an unknown key is refused with the nearest known one."""
    out = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals:
            raise SettingsError(f"{source}: {word!r} is not of the form section.key=value")
        if key not in _known():
            near = difflib.get_close_matches(key, _known(), 1)
            raise SettingsError(f"{source}: unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        out[key] = value
    return out


def _config_file(argv_path: str | None, env: Mapping[str, str]) -> Path | None:
    for given in (argv_path, env.get("IMP_CONFIG")):
        if given:
            if not Path(given).is_file():
                raise SettingsError(f"config file {given} does not exist", exit_code=4)
            return Path(given)
    home = Path(env.get("HOME", "/"))
    places = (Path("imp.conf"), home / ".config/imp/imp.conf", Path("/etc/imp/imp.conf"))
    return next((place for place in places if place.is_file()), None)


def _read_config(path: Path, warn: Any) -> dict[str, Any]:
    """Keys of a TOML file; unknown ones are warned about and left out, so that one file serves several versions."""
    try:
        tree = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {path}: {error}") from None
    out = {}
    for section, values in tree.items():
        for key, value in values.items() if isinstance(values, dict) else [("", values)]:
            name = f"{section}.{key}" if key else section
            if name in _known():
                out[name] = value
            else:
                warn(f"config file {path}: unknown key {name!r} is ignored")
    return out


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise SettingsError(message)


def _parser() -> _Parser:
    parser = _Parser(
        prog="imp-server",
        description="Serve a language model over HTTP. Without --model: the only one of --models-dir, or the default.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=f"imp-server {__version__}")
    for section, owner in SECTIONS.items():
        group = parser.add_argument_group(section, owner.__doc__)
        for f in fields(owner):
            if flag := f.metadata["flag"]:
                _add_flag(group, flag, f"{section}.{f.name}", f)
    group = parser.add_argument_group("configuration")
    group.add_argument(
        "--config", metavar="FILE", help="TOML file with the sections above (also: $IMP_CONFIG, ./imp.conf)"
    )
    group.add_argument(
        "--set", metavar="SECTION.KEY=VALUE", action="append", help="set any key of docs/SETTINGS.md; also $IMP_SET"
    )
    return parser


def _add_flag(group: Any, flag: str, key: str, f: dataclasses.Field) -> None:
    shown = "" if f.default in (None, (), False) else f" (default {f.default})"
    options: dict[str, Any] = {"dest": key, "help": f.metadata["help"] + shown}
    if f.type == "bool":
        options["action"] = "store_true"
    elif f.type == "tuple[str, ...]":
        options |= {"action": "append", "metavar": f.metadata["metavar"]}
    else:
        options |= {"metavar": f.metadata["metavar"] or ("|".join(f.metadata["choices"] or ()) or f.name.upper())}
    group.add_argument(flag, **options)


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
    )


def load(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the command line, the environment and the config file. Raises SettingsError; --help exits."""
    flags = vars(_parser().parse_args(argv))
    chosen = flags.pop("config", None)
    sets = " ".join(flags.pop("set", []))
    values: dict[str, Any] = {}
    if path := _config_file(chosen, env):
        values |= _read_config(path, lambda line: print(f"imp-server: warning: {line}", file=sys.stderr))
    values |= _assignments(env.get("IMP_SET", ""), "IMP_SET") | _assignments(sets, "--set") | flags
    sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key, value in values.items():
        section, name = key.split(".")
        f = _known()[key]
        sections[section][name] = _convert(f.metadata["flag"] if key in flags else key, f, value)
    return Settings(_paths(env), **{section: SECTIONS[section](**given) for section, given in sections.items()})


def table() -> str:
    """The settings as the Markdown of docs/SETTINGS.md."""
    lines = ["| key | flag | default | meaning |", "| --- | --- | --- | --- |"]
    for key, f in _known().items():
        default = (
            "" if f.default in (None, ()) else str(f.default).lower() if isinstance(f.default, bool) else str(f.default)
        )
        help = f.metadata["help"].replace("|", "\\|")
        choices = f" ({', '.join(f.metadata['choices'])})" if f.metadata["choices"] else ""
        flag = f"`{f.metadata['flag']}`" if f.metadata["flag"] else ""
        lines.append(f"| `{key}` | {flag} | {default} | {help}{choices} |")
    return "\n".join(lines) + "\n"
