"""What reading an answer for reasoning and calls costs, in microseconds of CPU for each token.

    python -m bench.formats [--tokens 2000] [--repeats 5] [FORMAT ...]

Every format reads the same three answers, in pieces as a model writes them: text with tools at hand, reasoning and
text, and one call with long arguments, as its own grammar writes it. Of repeated runs the fastest counts.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import pkgutil
import random
import re
import time
from collections.abc import Sequence

from bench.measure import table
from imp.chat import formats
from imp.chat.formats.base import Format, Thinking, Tool
from imp.chat.speech import Listener, Speech
from imp.constrain.tools import Envelope, Pattern, Text

BUDGET_US = 15.0
TOOL = Tool("write", {"type": "object", "properties": {"text": {"type": "string"}}})
THINKING = Thinking("<think>", "</think>")
IDS = ("1", "abcdefgh1", "a1b2c3d4e5")
WORDS = (" the", " of", "ing", ".\n", " {x}", " a<b", " [1]", ' "so"', "\n", " Łódź", ", then", " >")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help="names; default: all")
    parser.add_argument("--tokens", type=int, default=2000, help="of each answer")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    rows, worst = [], 0.0
    for format in found(options.formats):
        costs = [cost(format, pieces, options.repeats) for pieces in answers(format, options.tokens)]
        worst = max(worst, *costs)
        rows.append([format.name, *(f"{us:.1f}" for us in costs)])
    print(table(("us a token", "text", "reasoning", "call"), rows))
    print(f"\nslowest {worst:.1f} us; the budget is {BUDGET_US:.0f}")


def found(names: Sequence[str]) -> list[Format]:
    modules = (importlib.import_module(f"{formats.__name__}.{m.name}") for m in pkgutil.iter_modules(formats.__path__))
    every = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return [format for format in every if not names or format.name in names]


def answers(format: Format, tokens: int) -> tuple[list[str], list[str], list[str]]:
    """Pieces of text, of reasoning and text, and of a call."""
    words = random.Random(5).choices(WORDS, k=tokens)
    half = tokens // 2
    reasoning = [THINKING.open, *words[:half], THINKING.close, *words[half:]]
    before, after = around(format.envelopes[0])
    inner = [word.replace("<", "") for word in words]
    if format.envelopes[0].parameters is None:
        inner = [json.dumps(word, ensure_ascii=False)[1:-1] for word in words]
    return words, reasoning, [*cut(before), *inner, *cut(after)]


def around(envelope: Envelope) -> tuple[str, str]:
    """What stands in front of the text of a call's only argument, and behind it."""
    texts = envelope.parameters
    if texts is None:
        key, end = '{"text": "', '"}'
    elif texts.end:
        named = "text" + texts.named_end if texts.named_end else ""
        key, end = f"{texts.before_key}text{texts.after_key}", texts.end + named + texts.rest
    else:
        key, end = f'{texts.before_key}text{texts.after_key}"', '"' + texts.rest
    before = [spelled(text) for text in (envelope.opener, envelope.before_name, TOOL.name, envelope.after_name)]
    return "".join(before) + key, end + spelled(envelope.after) + spelled(envelope.closer)


def spelled(text: Text) -> str:
    pieces = (text,) if isinstance(text, str) else text
    return "".join(next(i for i in IDS if re.fullmatch(p.regex, i)) if isinstance(p, Pattern) else p for p in pieces)


def cut(text: str, size: int = 4) -> list[str]:
    return ["".join(part) for part in itertools.batched(text, size)]


def cost(format: Format, pieces: Sequence[str], repeats: int) -> float:
    """Microseconds of CPU for each piece."""
    best = float("inf")
    for _ in range(repeats):
        listener = Listener(Speech(format, THINKING, tools={TOOL.name: TOOL}), lambda: "call_0")
        began = time.process_time_ns()
        for piece in pieces:
            listener.push(piece)
        listener.close()
        best = min(best, (time.process_time_ns() - began) / len(pieces) / 1000)
    return best


if __name__ == "__main__":
    main()
