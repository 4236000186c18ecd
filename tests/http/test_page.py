"""The page as it is served: one document that needs no other, under a policy that allows nothing but itself."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from html.parser import HTMLParser

from imp.http.gate import GateSettings
from tests.http.scripted import serving


class Elements(HTMLParser):
    """Every tag with its attributes, and the text of style and script elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: dict[str, list[str]] = {"style": [], "script": []}
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.lasttag in self.inline and self.cdata_elem == self.lasttag:
            self.inline[self.lasttag].append(data)


async def answer(path="/", **headers):
    async with serving(gate=GateSettings(api_keys=("secret",))) as server:
        return await server.client.get(path, headers=headers)


def test_the_policy_allows_this_very_style_and_script_and_nothing_else():
    page = asyncio.run(answer())
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    inline = {name: "".join(texts) for name, texts in Elements(page.text).inline.items()}
    hashes = {
        name: f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for name, text in inline.items()
    }
    assert inline["style"] and inline["script"]
    assert policy == {
        "default-src": "'none'",
        "style-src": hashes["style"],
        "script-src": hashes["script"],
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert page.headers["x-content-type-options"] == "nosniff" and page.headers["referrer-policy"] == "no-referrer"


def test_the_page_names_no_other_file_and_has_no_inline_handlers_or_styles():
    page = asyncio.run(answer())
    tags = Elements(page.text).tags
    assert [tag for tag, _ in tags if tag in ("style", "script")] == ["style", "script"]
    for _, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src", "srcset", "action")]
        assert attributes.get("href", "#").startswith(("#", "data:image/svg+xml,"))
    assert not re.search(r"@import|url\(|import\s*\(|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page.text)
    assert "{{" not in page.text


def test_what_the_browser_has_is_not_sent_again():
    page = asyncio.run(answer())
    again = asyncio.run(answer(**{"If-None-Match": page.headers["etag"]}))
    assert (again.status_code, again.content) == (304, b"")
    assert asyncio.run(answer(**{"If-None-Match": '"other"'})).content == page.content
