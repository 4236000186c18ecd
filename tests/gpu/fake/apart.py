"""Checks that need the fake driver run in a process of their own: a driver, once loaded, is there for every later test."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.gpu.fake.driver import ROOT, environment


def results(file: Path, report: Path, **settings: int) -> dict[str, str | None]:
    """Runs a file of pytest functions on the fake driver: the name of each, and how it failed or None.

    report: where to write pytest's own. settings: as for `environment`.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(file)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment(**settings)}, capture_output=True, text=True)
    assert report.exists(), done.stdout + done.stderr
    found: dict[str, str | None] = {}
    for case in ET.parse(report).iter("testcase"):
        wrong = [child.text or child.get("message") for child in case if child.tag in ("failure", "error", "skipped")]
        found[case.get("name", "")] = wrong[0] if wrong else None
    assert found, done.stdout + done.stderr
    return found
