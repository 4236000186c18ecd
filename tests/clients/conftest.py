"""A real browser: the system's Chromium, driven by playwright.

IMP_TEST_BROWSER=required: no Chromium is a failure, not a skip.  IMP_TEST_SCREENSHOTS: a folder for the pictures.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
# told by the page itself, before any of its scripts runs
WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", event =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
window.pwned = [];
window.alert = text => window.pwned.push(text);
"""


@pytest.fixture(scope="module")  # playwright keeps an event loop running: asyncio.run fails until it is stopped
def chromium() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    required = os.environ.get("IMP_TEST_BROWSER") == "required"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        if required:
            raise
        pytest.skip("playwright is not installed")
    if path is None:
        if required:
            pytest.fail("there is no Chromium on this machine, and IMP_TEST_BROWSER=required")
        pytest.skip("there is no Chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("IMP_TEST_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Any]]:
    """visit(url, expected=(), seed=None, ready=..., **context) -> a page in a context of its own.

    expected: parts of console errors that are no fault.  seed: what localStorage holds.  ready: what to wait for.
    When the test is over nothing else may have been complained about, refused by the policy, or asked of another host.
    """
    with _visits(chromium) as open_page:
        yield open_page


@contextmanager
def _visits(chromium: Any) -> Iterator[Callable[..., Any]]:
    opened: list[tuple[Any, Any, list[str], str, tuple[str, ...]]] = []

    def open_page(
        url: str,
        expected: tuple[str, ...] = (),
        seed: dict[str, str] | None = None,
        ready: str = "#model option[value]:not([value=''])",
        **options: Any,
    ) -> Any:
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 860}} | options))
        context.set_default_timeout(20_000)
        context.add_init_script(WATCH)
        page, complaints = context.new_page(), []
        page.on("console", lambda m: m.type in ("error", "warning") and complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: complaints.append(f"uncaught: {error}"))
        page.on("request", lambda r: r.url.startswith((url, "data:", "blob:")) or complaints.append(f"asked {r.url}"))
        opened.append((context, page, complaints, url, expected))
        page.goto(url)
        if seed:
            page.evaluate("seed => Object.assign(localStorage, seed)", seed)
            page.reload()
        page.wait_for_selector(ready, state="attached")
        return page

    yield open_page
    for context, page, complaints, _, expected in opened:
        left = [each for each in complaints if not any(part in each for part in expected)]
        assert left == []
        assert page.evaluate("[violations, pwned]") == [[], []]
        context.close()
