"""The server over a script, as a process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real.process import ServerProcess, server


@contextmanager
def scripted(folder: Path, *arguments: str, **script: Any) -> Iterator[ServerProcess]:
    """`--script` with a file of these keys, written into `folder`."""
    path = folder / "script.json"
    path.write_text(json.dumps(script))
    with server("--script", str(path), "--set", "server.model_swap_drain_ms=1000", *arguments) as running:
        yield running
