"""python -m imp.chat inspect TEMPLATE.jinja|MODEL: how a template is understood, before a server meets it.

Prints JSON: the format of calls and what marks reasoning, the prompt, and with --output the parts of an answer, read
whole and one character at a time. Exit codes: 0, 1 for what cannot be used, 4 for a file that is not there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..encoder import vocabulary_of
from ..text.tokenizer import Tokenizer
from ..weights.checkpoint import InvalidModel, UnsupportedModel, open_checkpoint
from ..weights.gguf_file import parse
from ..weights.mapped import map_file
from .formats.detect import detect
from .formats.registry import FORMATS
from .inspect import BadConversation, Subject, conversation, report
from .message import Refused
from .template import ChatTemplate, TemplateError

BAD, MISSING = 1, 4


class Mistake(Exception):
    def __init__(self, message: str, code: int = BAD) -> None:
        super().__init__(message)
        self.code = code


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        subject = _subject(options.subject, options.tool_call_parser)
        chat = conversation(_json(options.messages), _json(options.tools))
        output = None if options.output is None else _text(options.output)
        found = report(subject, chat, output)
    except Mistake as error:
        return _failed(str(error), error.code)
    except (BadConversation, TemplateError, InvalidModel, UnsupportedModel) as error:
        return _failed(str(error), BAD)
    except Refused as error:
        return _failed(error.message, BAD)
    print(json.dumps(found, ensure_ascii=False, indent=2))
    return 0


def _failed(message: str, code: int) -> int:
    print(f"imp.chat: error: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m imp.chat", description="Try chat templates without a server.")
    commands = parser.add_subparsers(required=True, metavar="inspect")
    inspect = commands.add_parser("inspect", help="what is found of a template, what it renders, how answers are read")
    inspect.add_argument("subject", type=Path, metavar="TEMPLATE.jinja|MODEL", help="a template, a GGUF file, a folder")
    inspect.add_argument("--messages", type=Path, metavar="FILE", help="a JSON list of messages; default: a greeting")
    inspect.add_argument("--tools", type=Path, metavar="FILE", help="a JSON list of tools, as OpenAI has them")
    inspect.add_argument("--output", type=Path, metavar="FILE", help="what the model answered, as text")
    inspect.add_argument("--tool-call-parser", default="auto", metavar="NAME", choices=("auto", *FORMATS))
    return parser


def _subject(path: Path, parser: str) -> Subject:
    if not path.exists():
        raise Mistake(f"{path}: there is no such file", MISSING)
    if path.suffix in (".jinja", ".jinja2", ".j2", ".txt"):
        template = ChatTemplate(_text(path))
        return Subject(template, detect(template, (), parser))
    source, tool_use, tokenizer = _of_model(path)
    source = source or tool_use
    if source is None:
        raise Mistake(f"{path}: the model has no chat template")
    ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id, "pad_token": tokenizer.pad_id}
    special = {name: tokenizer.token_text(token) for name, token in ids.items() if token is not None}
    template = ChatTemplate(source, tool_use=tool_use, special_tokens=special)
    spellings = tuple(sorted(filter(None, map(tokenizer.token_text, tokenizer.special_ids))))
    return Subject(template, detect(template, spellings, parser), spellings)


def _of_model(path: Path) -> tuple[str | None, str | None, Tokenizer]:
    """A model's template, the one for tools, and its tokenizer; of a GGUF file the metadata is enough."""
    if path.is_file():
        metadata = parse(map_file(path)).metadata
        sources = (metadata.get(f"tokenizer.chat_template{name}") for name in ("", ".tool_use"))
        own, tool_use = (source if isinstance(source, str) else None for source in sources)
        return own, tool_use, Tokenizer.from_gguf(metadata)
    checkpoint = open_checkpoint(path)
    templates = checkpoint.chat_template, checkpoint.chat_templates.get("tool_use")
    return *templates, Tokenizer(vocabulary_of(checkpoint))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Mistake(f"{path}: there is no such file", MISSING) from None
    except OSError as error:
        raise Mistake(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Mistake(f"{path} is not UTF-8 text") from None


def _json(path: Path | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(_text(path))
    except (ValueError, RecursionError):
        raise Mistake(f"{path} is not JSON") from None


if __name__ == "__main__":
    sys.exit(main())
