"""Asks a running server one question and exits 0 if the answer is right.

usage: chat.py URL SECONDS    waits up to SECONDS for the server; standard library only
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request

QUESTION = "What is the capital of France? Answer in one sentence."
ANSWER = "Paris"


def main(url: str, patience_s: float) -> None:
    started = time.monotonic()
    wait_for(url, started + patience_s)
    ready = time.monotonic()
    reply = ask(url)
    choice = reply["choices"][0]
    text, tokens = choice["message"]["content"], reply["usage"]["completion_tokens"]
    print(f"ready after {ready - started:.2f} s; {tokens} tokens in {time.monotonic() - ready:.2f} s: {text!r}")
    if ANSWER not in text or choice["finish_reason"] not in ("stop", "length"):
        sys.exit(f"chat.py: wanted {ANSWER!r} in the answer and a finish reason, got {json.dumps(reply)}")


def wait_for(url: str, deadline: float) -> None:
    """Return when GET /ready answers 200: the model is loaded."""
    while True:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if time.monotonic() > deadline:
                sys.exit(f"chat.py: {url}/ready does not answer 200: {error}")
        time.sleep(0.1)


def ask(url: str) -> dict:
    """The reply to one greedy chat completion."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        sys.exit(f"chat.py: status {error.code}: {error.read().decode()}")
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        sys.exit(f"chat.py: no reply: {error}")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
