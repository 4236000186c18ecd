"""A process that wants one core and gets on with it, as long as something is measured beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# it ends by itself where whoever started it is gone
_SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(10000))\n"


@contextmanager
def busy() -> Iterator[subprocess.Popen[bytes]]:
    """One process that never sleeps."""
    process = subprocess.Popen([sys.executable, "-c", _SPIN, str(os.getpid())])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
