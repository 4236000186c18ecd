"""A small HTTP client for load: raw asyncio streams, one connection per request, times of every event.

The same client drives every server that is compared, and it costs little beside them. It knows just enough HTTP/1.1:
a status line, headers, and a body in chunks, of a length, or until the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from bench.measure import percentile

# Common words, one token each in most vocabularies
WORDS = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
body information
""".split()  # noqa: SIM905 (a list of so many literals is no easier to read)


def words(rng: random.Random, count: int) -> str:
    """`count` random words; with most tokenizers as many tokens."""
    return " ".join(rng.choices(WORDS, k=count))


class Dechunker:
    """The chunked transfer coding taken off (RFC 9112, section 7.1), however the bytes are cut."""

    def __init__(self) -> None:
        self._held = b""
        self._left = 0  # bytes of the current chunk still to come, its line end included
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        out = []
        self._held += data
        while self._held and not self.ended:
            if self._left == 0:
                line, end, rest = self._held.partition(b"\r\n")
                if not end:
                    break
                size = int(line.partition(b";")[0], 16)
                self._held, self._left, self.ended = rest, size + 2, size == 0
                continue
            part = self._held[: self._left]
            out.append(part[: max(0, self._left - 2)])
            self._held = self._held[len(part) :]
            self._left -= len(part)
        return b"".join(out)


@dataclass(slots=True)
class Answer:
    """What came of one request. Times are time.perf_counter() readings."""

    began: float
    status: int = 0
    events: list[float] = field(default_factory=list)  # when text arrived
    text: str = ""
    tokens: int = 0  # generated, as the server counts them; 0 where it did not say
    ended: float = 0.0
    complete: bool = False  # the stream came to its [DONE], or the body to its end
    left: bool = False  # we hung up
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.events[0] - self.began

    @property
    def gaps_s(self) -> list[float]:
        """Between events that brought text."""
        return [b - a for a, b in zip(self.events, self.events[1:], strict=False)]


async def ask(url: str, path: str, body: Mapping[str, Any], leave_after: int | None = None) -> Answer:
    """POST `body` and read the answer. leave_after: hang up after so many events with text; 0: once it is sent."""
    target = urlsplit(url)
    answer = Answer(began=time.perf_counter())
    writer = None
    try:
        reader, writer = await asyncio.open_connection(target.hostname, target.port)
        payload = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {target.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        await writer.drain()
        if leave_after == 0:
            answer.left = True
        else:
            await _read(reader, answer, bool(body.get("stream")), leave_after)
    except (OSError, asyncio.IncompleteReadError, ValueError, KeyError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    finally:
        if writer is not None:
            writer.close()
    answer.ended = time.perf_counter()
    return answer


async def _read(reader: asyncio.StreamReader, answer: Answer, stream: bool, leave_after: int | None) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    answer.status = int(head.split(" ", 2)[1])
    unwrap = Dechunker() if "transfer-encoding: chunked" in head else None
    held = b""
    while data := await reader.read(65536):
        held += unwrap.feed(data) if unwrap else data
        if stream and answer.status == 200:
            *events, held = held.split(b"\n\n")
            for event in events:
                _note(answer, event)
            if leave_after is not None and len(answer.events) >= leave_after and not answer.complete:
                answer.left = True
                return
        if answer.complete or (unwrap and unwrap.ended):
            break
    if not stream or answer.status != 200:
        _note_whole(answer, held)
    elif not answer.complete and not answer.error:
        answer.error = "the stream ended without [DONE]"


def _note(answer: Answer, event: bytes) -> None:
    """One server-sent event of a completions stream."""
    data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
    if not data:
        return
    if data == b"[DONE]":
        answer.complete = True
        return
    value = json.loads(data)
    if "error" in value:
        answer.error = str(value["error"])
        return
    _count(answer, value)
    text = "".join(choice.get("text") or "" for choice in value.get("choices", ()))
    if text:
        answer.events.append(time.perf_counter())
        answer.text += text


def _note_whole(answer: Answer, body: bytes) -> None:
    """A body that is one JSON value."""
    value = json.loads(body)
    if answer.status != 200:
        answer.error = f"{answer.status}: {value.get('error')}"
        return
    _count(answer, value)
    answer.text = "".join(choice["text"] for choice in value["choices"])
    answer.complete = True


def _count(answer: Answer, value: Mapping[str, Any]) -> None:
    if usage := value.get("usage"):
        answer.tokens = usage["completion_tokens"]


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What a number of concurrent clients got. Times in seconds."""

    concurrency: int
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_p50_s: float
    itl_p99_s: float


def figures(concurrency: int, answers: list[Answer], expected_tokens: int) -> LoadFigures:
    """expected_tokens: of each answer, where the server did not count. Raises RuntimeError if any request failed."""
    for answer in answers:
        if answer.error or not answer.complete or not answer.events:
            raise RuntimeError(f"a request failed: status {answer.status}, {answer.error or 'no text'}")
    wall = max(a.ended for a in answers) - min(a.began for a in answers)
    firsts = [a.ttft_s for a in answers]
    gaps = [gap for a in answers for gap in a.gaps_s]
    return LoadFigures(
        concurrency,
        sum(a.tokens or expected_tokens for a in answers) / wall,
        percentile(firsts, 0.5),
        percentile(firsts, 0.99),
        percentile(gaps, 0.5),
        percentile(gaps, 0.99),
    )


async def streams(url: str, concurrency: int, requests: int, prompt_words: int, tokens: int, seed: int) -> LoadFigures:
    """`requests` streamed completions, `concurrency` at any time, every prompt another one."""
    rng = random.Random(seed)
    prompts = [words(rng, prompt_words) for _ in range(requests)]
    answers: list[Answer] = []

    async def client() -> None:
        while prompts:
            body = {
                **{"prompt": prompts.pop(), "max_tokens": tokens, "temperature": 0, "ignore_eos": True},
                **{"stream": True, "stream_options": {"include_usage": True}},
            }
            answers.append(await ask(url, "/v1/completions", body))

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return figures(concurrency, answers, tokens)


def main() -> None:
    """URL CONCURRENCY REQUESTS PROMPT_WORDS TOKENS: one line of JSON, the LoadFigures."""
    parser = argparse.ArgumentParser(prog="bench.client", description="Streamed completions, many at once.")
    parser.add_argument("url")
    for name in ("concurrency", "requests", "prompt_words", "tokens"):
        parser.add_argument(name, type=int)
    chosen = parser.parse_args()
    got = streams(chosen.url, chosen.concurrency, chosen.requests, chosen.prompt_words, chosen.tokens, seed=1)
    print(json.dumps(asdict(asyncio.run(got))))


if __name__ == "__main__":
    main()
