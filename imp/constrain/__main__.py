"""python -m imp.constrain check FILE... [--tokenizer MODEL]: what becomes of constraints, before a server meets them.

Prints one JSON line a case. Exit codes: 0 every verdict is as the file says, 1 some are not, 2 the files or the model
cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .. import settings
from ..encoder import read_vocabulary
from ..text.tokenizer import Tokenizer
from ..weights.checkpoint import InvalidModel, UnsupportedModel
from ..weights.gguf_file import parse
from ..weights.mapped import map_file
from .check import ORDERS, WHITESPACE, BadCase, ByteWalker, TokenWalker, Verdict, Walk, judge, read_cases, summary
from .nfa import Nfa
from .schema import SchemaOptions
from .vocab import vocabulary_tables


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    schemas = SchemaOptions(WHITESPACE[options.whitespace], ORDERS[options.order])
    try:
        cases = [case for path in options.files for case in read_cases(path)]
        walk = ByteWalker if options.tokenizer is None else token_walk(options.tokenizer)
    except (BadCase, InvalidModel, UnsupportedModel) as error:
        print(f"imp.constrain: error: {error}", file=sys.stderr)
        return 2
    verdicts = []
    for case in cases:
        verdicts.append(judge(case, walk, schemas))
        print(json.dumps(verdicts[-1].line(), ensure_ascii=False), flush=True)
    print(total(verdicts), file=sys.stderr)
    return 0 if all(verdict.agrees for verdict in verdicts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m imp.constrain", description="Try constraints without a server.")
    commands = parser.add_subparsers(required=True, metavar="check")
    check = commands.add_parser("check", help="compile cases, and walk their texts")
    check.add_argument("files", nargs="+", type=Path, metavar="FILE", help="cases, or schemas with values (MaskBench)")
    check.add_argument("--tokenizer", type=Path, metavar="MODEL", help="walk tokens of this model, and time its masks")
    check.add_argument("--whitespace", choices=WHITESPACE, default="bounded", help="of JSON")
    check.add_argument("--order", choices=ORDERS, default="declared", help="of the names of an object")
    return parser


def token_walk(model: Path) -> Walk:
    """Walks over the tokens of a model: a GGUF file, of which the vocabulary is enough, or a folder."""
    tokenizer, cache_dir = load_tokenizer(model), settings.load([]).paths.cache
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    tables = vocabulary_tables(pieces, tokenizer.special_ids, tokenizer.eos_ids, cache_dir)

    def encode(text: bytes) -> list[int]:
        with suppress(UnicodeDecodeError):
            return tokenizer.encode(text.decode(), add_special=False)
        return []

    def walk(nfa: Nfa, start: int) -> TokenWalker:
        return TokenWalker(nfa, start, tables, encode, cache_dir)

    return walk


def load_tokenizer(model: Path) -> Tokenizer:
    """Raises InvalidModel, UnsupportedModel."""
    if model.is_file() and model.suffix == ".gguf":
        return Tokenizer.from_gguf(parse(map_file(model)).metadata)
    return Tokenizer(read_vocabulary(model))


def total(verdicts: Sequence[Verdict]) -> str:
    """The last line, for people."""
    agree = sum(verdict.agrees for verdict in verdicts)
    refused = sum(verdict.refusal is not None for verdict in verdicts)
    line = f"{len(verdicts)} cases, {refused} refused: {agree} as expected, {len(verdicts) - agree} not"
    for name, times in (
        ("compile ms", [verdict.compile_ms for verdict in verdicts]),
        ("mask us", [time for verdict in verdicts for time in verdict.masks_us]),
    ):
        if times:
            line += f"; {name} " + ", ".join(f"{key} {value:g}" for key, value in summary(times).items())
    return line


if __name__ == "__main__":
    sys.exit(main())
