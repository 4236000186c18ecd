"""GET /: the web page, one self-contained file."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from imp.http.message import Full, HttpRequest, Response
from imp.http.services import Services

_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
}


@cache
def _html() -> bytes:
    return files("imp.http").joinpath("static/index.html").read_bytes()


async def page(services: Services, request: HttpRequest) -> Response:
    return Full(200, _html(), dict(_HEADERS))
