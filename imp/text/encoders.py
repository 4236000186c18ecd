"""Building encoders with the `tokenizers` library: its failures become ours, and control tokens stay unreachable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tokenizers

from .vocabulary import AddedToken, InvalidTokenizer


@dataclass(frozen=True, slots=True, eq=False)
class LibraryEncoder:
    """The library in this process (vocabulary.Encoder): two of its tokenizers, which share one model where they can."""

    literal: tokenizers.Tokenizer  # control tokens written in the text are ordinary characters
    parsing: tokenizers.Tokenizer  # ... become their ids
    ids: Mapping[str, int]

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """A batch of one: only those release the interpreter's lock, and this kind keeps no offsets."""
        tokenizer = self.parsing if parse_special else self.literal
        try:
            [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        except TypeError as error:  # what the library says of text that is not UTF-8
            raise UnicodeError("the text holds lone surrogates") from error
        ids: list[int] = encoding.ids
        return ids

    def token_id(self, piece: str) -> int | None:
        return self.ids.get(piece)

    def added(self) -> dict[int, AddedToken]:
        return {
            token: AddedToken(each.content, each.special, each.lstrip, each.rstrip, each.normalized, each.single_word)
            for token, each in self.parsing.get_added_tokens_decoder().items()
        }


def build[**P, T](make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """make(...). Raises InvalidTokenizer where the library refuses the values, which it does with plain Exception."""
    try:
        return make(*args, **kwargs)
    except Exception as error:
        raise InvalidTokenizer(f"the vocabulary cannot be built: {_sentence(error)}") from error


@contextmanager
def panics_as_invalid() -> Iterator[None]:
    """A panic inside the library is a BaseException; from foreign bytes it means that these bytes are broken."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise InvalidTokenizer(f"the vocabulary cannot be built: {_sentence(error)}") from error


def refuse_unknowing(*encoders: tokenizers.Tokenizer) -> None:
    """Raises InvalidTokenizer where a character that no piece has cannot be encoded (no token for the unknown)."""
    for encoder in encoders:
        build(encoder.encode, "a \U0010fffd", add_special_tokens=False)


def _sentence(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def never_leaks(
    literal: tokenizers.Tokenizer, control_texts: Sequence[str], control: frozenset[int]
) -> tokenizers.Tokenizer:
    """`literal`, or a copy of it that cannot produce a control token from its spelling.

    Byte-level merges never join to a control token's piece, but an encoder that takes whole words from the vocabulary
    (`ignore_merges`), or one whose merges were made without care, might.
    """
    leaks = any(
        not control.isdisjoint(encoding.ids)
        for encoding in literal.encode_batch(list(control_texts), add_special_tokens=False)
    )
    if not leaks:
        return literal
    return tokenizers.Tokenizer.from_str(json.dumps(without_control(json.loads(literal.to_str()), control)))


def without_control(root: dict[str, Any], control: frozenset[int]) -> dict[str, Any]:
    """A tokenizer.json whose model cannot produce `control`: their pieces are renamed to what no text can spell.

    A real space meets no piece: byte-level and SentencePiece vocabularies see spaces as other characters.
    """
    model = root["model"]
    vocab = model["vocab"]
    names = {}
    if isinstance(vocab, dict):
        names = {piece: f" {token}" for piece, token in vocab.items() if token in control}
        model["vocab"] = {names.get(piece, piece): token for piece, token in vocab.items()}
    else:
        names = {vocab[token][0]: f" {token}" for token in control if token < len(vocab)}
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if "merges" in model:
        pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if not names.keys() & {*pair, "".join(pair)}]
    for added in root.get("added_tokens", ()):
        added["content"] = names.get(added["content"], added["content"])
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return root
