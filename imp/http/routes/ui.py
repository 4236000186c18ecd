"""GET /: the web page, joined at the first request from the files of static/ into one document that needs no other.

Its policy allows this very style and script by their hashes and nothing else: no inline handler, no other origin, and
(trusted types) no way from a string to markup. So what a model says can at worst be ugly.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from imp.http.message import Full, HttpRequest, Response
from imp.http.services import Services

# in the order of their use: together they are one module
SCRIPTS = ("dom", "markdown", "settings", "store", "api", "answer", "metrics", "messages", "sidebar", "app")


async def page(services: Services, request: HttpRequest) -> Response:
    """GET /"""
    body, headers = _page()
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Full(304, b"", headers)
    return Full(200, body, headers)


@cache
def _page() -> tuple[bytes, dict[str, str]]:
    style = _read("style.css")
    script = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    assert "</" not in style and "</script" not in script and "<!--" not in script, "would end the element early"
    body = _read("page.html").replace("{{style}}", style).replace("{{script}}", script).encode()
    policy = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
    }
    return body, headers


def _read(name: str) -> str:
    return files("imp.http").joinpath("static", name).read_text("utf-8")


def _hash(text: str) -> str:
    """A CSP source (Content Security Policy Level 3, section 2.3.1) that matches this inline text alone."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
