"""Coding agents as people run them, unmodified: installed from the lock files of tests/clients/agents, pointed at the
server by their own settings, and kept from everything else.

IMP_TEST_AGENTS=required: whatever keeps them from being installed is a failure, not a skip.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients import node

FOLDER = Path(__file__).parent / "agents"
LIMIT_S = 300  # the first constraint after an installation waits for its kernels to be compiled


class Failed(Exception):
    """A command's status and output."""


def required() -> bool:
    """Whether missing packages are a failure."""
    return os.environ.get("IMP_TEST_AGENTS") == "required"


def install() -> None:
    """The agents. Raises node.Unavailable."""
    node.install(FOLDER, limit_s=400)


def install_frameworks() -> Path:
    """The Python that has the frameworks, in a virtual environment of its own. Raises node.Unavailable."""
    lock, folder = FOLDER / "requirements.lock", FOLDER / ".venv"
    stamp, python = folder / ".installed", folder / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == lock.read_text():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    flags = ("--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps", "--only-binary", ":all:")
    command = [python, "-m", "pip", "install", *flags, "-r", lock]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    except subprocess.TimeoutExpired:
        raise node.Unavailable("pip did not end within 400 s") from None
    if "Could not find a version" in done.stderr and "NewConnectionError" in done.stderr:
        raise node.Unavailable("pip cannot reach its index")
    assert done.returncode == 0, done.stderr
    stamp.write_text(lock.read_text())
    return python


@dataclass(frozen=True, slots=True)
class Place:
    """Where an agent runs. url: of the server.  outside: of the proxy for everything else.  window: the context that
    the agent is told of, where it must be."""

    home: Path
    workspace: Path
    url: str
    outside: str
    window: int = 1_000_000

    def run(self, command: list[str | Path], **environment: str) -> str:
        """Standard output of a command, which gets nothing of this process's environment but its PATH. Raises Failed."""
        for folder in (self.home, self.workspace):
            folder.mkdir(parents=True, exist_ok=True)
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.outside)
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", **proxies}
        env |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", **environment}
        done = subprocess.run(
            command,
            cwd=self.workspace,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        if done.returncode:
            raise Failed(f"status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout


@dataclass(frozen=True, slots=True)
class Agent:
    """ask: runs it with a prompt in its place, going on with the last session or not, and returns its final answer.
    call: the tool by which it reads the file note.txt.  binary: raises node.Unavailable where there is none."""

    ask: Callable[[Place, str, bool], str]
    call: dict[str, Any]
    binary: Callable[[], Path]

    def version(self, place: Place) -> str:
        return place.run([self.binary(), "--version"]).strip()


def _binary(pattern: str) -> Path:
    """Of the package for this platform: npm installs those alone that fit it."""
    for path in (FOLDER / "node_modules").glob(pattern):
        return path
    raise node.Unavailable(f"no package for this platform has {pattern}")


def _claude(place: Place, prompt: str, again: bool) -> str:
    command = [_claude_binary(), "-p", prompt, "--output-format", "json", "--model", "script", "--allowedTools", "Bash"]
    told = place.run(
        [*command, *(["--continue"] if again else [])],
        ANTHROPIC_BASE_URL=place.url,
        ANTHROPIC_API_KEY="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
        DISABLE_TELEMETRY="1",
        DISABLE_ERROR_REPORTING="1",
    )
    result = json.loads(told)
    assert (result["subtype"], result["is_error"]) == ("success", False), told
    return result["result"]


def _claude_binary() -> Path:
    return _binary("@anthropic-ai/claude-code-*/claude")


_CODEX = """
model = "script"
model_provider = "imp"
model_context_window = {window}
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
apps = false
plugins = false

[model_providers.imp]
name = "imp-server"
base_url = "{url}/v1"
wire_api = "responses"
"""


def _codex(place: Place, prompt: str, again: bool) -> str:
    config = place.home / ".codex" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(_CODEX.format(url=place.url, window=place.window))
    resumed = ["resume", "--last"] if again else []
    told = place.run([_codex_binary(), "exec", *resumed, "--skip-git-repo-check", "--json", prompt])
    events = [json.loads(line) for line in told.splitlines()]
    assert events[-1]["type"] == "turn.completed", told
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"][-1]


def _codex_binary() -> Path:
    return _binary("@openai/codex-*/vendor/*/bin/codex")


def _opencode(place: Place, prompt: str, again: bool) -> str:
    config = place.home / ".config" / "opencode" / "opencode.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    model = {"name": "script", "tool_call": True, "limit": {"context": place.window, "output": 8000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "imp-server",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": {"script": model},
    }
    settings = {"autoupdate": False, "share": "disabled", "model": "imp/script", "small_model": "imp/script"}
    permission = {"permission": {"bash": "allow"}, "enabled_providers": ["imp"]}
    config.write_text(json.dumps(settings | permission | {"provider": {"imp": provider}}))
    session = ["--continue"] if again else ["--title", "note"]
    told = place.run(
        [_opencode_binary(), "run", "--format", "json", *session, prompt],
        OPENCODE_DISABLE_AUTOUPDATE="1",
        OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_DEFAULT_PLUGINS="1",
        OPENCODE_DISABLE_LSP_DOWNLOAD="1",
    )
    events = [json.loads(line) for line in told.splitlines()]
    return [event["part"]["text"] for event in events if event["type"] == "text"][-1]


def _opencode_binary() -> Path:
    return _binary("opencode-*/bin/opencode")


_READ = "cat note.txt"
AGENTS = {
    "claude": Agent(_claude, {"name": "Bash", "arguments": {"command": _READ}}, _claude_binary),
    "codex": Agent(_codex, {"name": "exec_command", "arguments": {"cmd": _READ}}, _codex_binary),
    "opencode": Agent(_opencode, {"name": "bash", "arguments": {"command": _READ}}, _opencode_binary),
}
