"""The official Node packages, installed from tests/clients/node/package-lock.json beside it, and calls made through them.

IMP_TEST_NODE=required: whatever keeps them from being installed is a failure, not a skip.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "node"
OLDEST = 20  # Node's major version the packages ask for
_UNREACHABLE = re.compile(
    r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT)\b"
)


class Unavailable(Exception):
    """Node, npm or the registry cannot be reached: one sentence."""


def required() -> bool:
    """Whether missing packages are a failure."""
    return os.environ.get("IMP_TEST_NODE") == "required"


def install(folder: Path = FOLDER, limit_s: float = 180) -> None:
    """`npm ci` in a folder, unless its node_modules is what the lock file says already. Raises Unavailable, and
    AssertionError for a lock file or a package that is at fault itself."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise Unavailable("there is no Node with npm on this machine")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.lstrip("v").split(".")[0]) < OLDEST:
        raise Unavailable(f"Node is {version}; the packages need {OLDEST}")
    stamp = folder / "node_modules" / ".installed"
    digest = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    try:
        done = subprocess.run([npm, "ci"], cwd=folder, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm ci did not end within {limit_s:.0f} s") from None
    if done.returncode and (found := _UNREACHABLE.search(done.stderr)):
        raise Unavailable(f"npm cannot reach its registry: {found.group()}")
    assert done.returncode == 0, done.stderr
    stamp.write_text(digest)


def call(url: str, model: str, *names: str) -> dict[str, Any]:
    """The results of these calls of calls.mjs, by name."""
    command = ["node", "calls.mjs", url, model, *names]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
