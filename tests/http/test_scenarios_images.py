"""A server without vision never fetches what a request points to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.http.scripted import serving

IMAGE = {"type": "image_url", "image_url": {"url": "URL"}}
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "URL"}}]}]}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "URL"}}]}]}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "URL"}]}]}),
    ("/v1/responses/input_tokens", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "URL"}]}]}),
]


def put(value: Any, url: str) -> Any:
    """The body with its URL."""
    if isinstance(value, dict):
        return {key: put(item, url) for key, item in value.items()}
    if isinstance(value, list):
        return [put(item, url) for item in value]
    return url if value == "URL" else value


@pytest.mark.parametrize(("path", "body"), FORMS)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"])
def test_g10_01_an_image_url_is_refused_and_nothing_is_fetched(path: str, body: dict[str, Any], host: str) -> None:
    visits = 0

    async def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal visits
        visits += 1
        writer.close()

    async def test() -> None:
        listener = await asyncio.start_server(visited, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with listener, serving() as harness:
            answer = await harness.post(path, **put(body, f"http://{host}:{port}/x.png"))
            assert answer.status_code == 400, answer.text
            assert "image input is not supported" in answer.json()["error"]["message"]
            await asyncio.sleep(0.05)
            (_, closing) = await asyncio.open_connection("127.0.0.1", port)  # the listener does hear
            closing.close()
            await harness.until(lambda: visits == 1)

    asyncio.run(test())
    assert visits == 1
