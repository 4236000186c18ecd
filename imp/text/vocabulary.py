"""What every tokenizer source is read into: pieces, bytes, roles of tokens, and what encodes text.

Knows the ways a vocabulary spells bytes (byte-level alphabet, SentencePiece, WordPiece), not the files they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

SPACE_SYMBOL = "▁"  # U+2581, SentencePiece's visible space

# Texts of tokens that end a generation, whatever the metadata names (the list llama.cpp keeps, for the same reason:
# files name one end-of-text token, and chat models have two or three).
END_TEXTS = frozenset(
    {
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<end_of_turn>", "<turn|>", "<|end|>", "<|return|>", "<|call|>"),
        *("<|calls|>", "<|flush|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "[e~["),
        *("<｜end▁of▁sentence｜>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    }
)
# Texts that end a generation only where the vocabulary itself calls them control tokens: in others they are HTML.
AMBIGUOUS_END_TEXTS = frozenset({"</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]"})


class InvalidTokenizer(Exception):
    """The tokenizer's files are broken or contradict each other. The message is one sentence naming the fault."""

    exit_code = 5


class UnsupportedTokenizer(Exception):
    """The tokenizer is sound but of a kind this server does not know. The message is one sentence."""

    exit_code = 6


class Spelling(Enum):
    """How the pieces of a vocabulary spell bytes."""

    BYTE_LEVEL = "byte-level"  # one printable character a byte (GPT-2's alphabet)
    SENTENCEPIECE = "sentencepiece"  # UTF-8, U+2581 for a space, <0xHH> for a lone byte
    WORDPIECE = "wordpiece"  # UTF-8, a space in front of what begins a word (each file marks that in its own way)


class Encoder(Protocol):
    """Finds tokens by text; may be called from any thread."""

    def encode(self, text: str, parse_special: bool) -> list[int]:
        """parse_special: control tokens written in the text become their ids; otherwise they are ordinary characters.

        Raises UnicodeError for lone surrogates."""

    def token_id(self, piece: str) -> int | None:
        """The token spelled exactly `piece`, the first of several."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that text is searched for before it is tokenised, with the library's names for how it is matched."""

    content: str
    special: bool
    lstrip: bool
    rstrip: bool
    normalized: bool
    single_word: bool


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """A loaded tokenizer. `pieces` and `token_bytes` are indexed by token id and of equal length."""

    pieces: Sequence[str]
    token_bytes: Sequence[bytes]
    encoder: Encoder
    added: Mapping[int, AddedToken]
    special: frozenset[int]
    ends: frozenset[int]  # whatever ends a generation
    bos: int | None = None
    eos: int | None = None
    pad: int | None = None
    unk: int | None = None
    prefix: tuple[int, ...] = ()  # what encoding plain text puts before it
    suffix: tuple[int, ...] = ()  # ... and after it
    adds_space: bool = False  # encoding puts a space before the text, decoding takes it away


def byte_alphabet() -> dict[int, str]:
    """GPT-2's mapping of bytes to printable characters (bytes_to_unicode of its encoder.py): Latin-1's visible
    characters stand for themselves, the other 68 bytes are numbered from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in visible)
    return {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + n) for n, byte in enumerate(hidden)}


def spell_bytes(
    pieces: Sequence[str], ids: Mapping[str, int], spelling: Spelling, verbatim: Iterable[int]
) -> list[bytes]:
    """The bytes each token adds to a text. verbatim: tokens whose piece is the text itself (control tokens...)."""
    table = _SPELLED[spelling](pieces, ids)
    for token in verbatim:
        table[token] = pieces[token].encode("utf-8", "replace")
    return table


def _byte_level_bytes(pieces: Sequence[str], ids: Mapping[str, int]) -> list[bytes]:
    to_latin = str.maketrans({char: chr(byte) for byte, char in byte_alphabet().items()})
    table = []
    for piece in pieces:
        try:
            table.append(piece.translate(to_latin).encode("latin-1"))
        except UnicodeEncodeError:  # a character that spells no byte: the piece is text
            table.append(piece.encode("utf-8", "replace"))
    return table


def _sentencepiece_bytes(pieces: Sequence[str], ids: Mapping[str, int]) -> list[bytes]:
    table = _encoded(pieces)
    for byte in range(256):
        for spelled in (f"<0x{byte:02X}>", f"<0x{byte:02x}>"):
            if spelled in ids:
                table[ids[spelled]] = bytes([byte])
    return table


def _wordpiece_bytes(pieces: Sequence[str], ids: Mapping[str, int]) -> list[bytes]:
    return [piece.encode("utf-8", "replace") for piece in pieces]


_SPELLED = {
    Spelling.BYTE_LEVEL: _byte_level_bytes,
    Spelling.SENTENCEPIECE: _sentencepiece_bytes,
    Spelling.WORDPIECE: _wordpiece_bytes,
}


def _encoded(pieces: Sequence[str]) -> list[bytes]:
    """UTF-8 of every piece, its spaces real. One call over the joined text is several times faster than one a piece."""
    separator = "\uffff"
    joined = separator.join(pieces).replace(SPACE_SYMBOL, " ").encode("utf-8", "replace")
    table = joined.split(separator.encode())
    if len(table) != len(pieces):  # a piece contains the separator
        table = [piece.replace(SPACE_SYMBOL, " ").encode("utf-8", "replace") for piece in pieces]
    return table


def end_tokens(ids: Mapping[str, int], control: frozenset[int], named: Iterable[int | None]) -> frozenset[int]:
    """Every token that ends a generation: those the metadata names, and those known by their text."""
    ends = {token for token in named if token is not None}
    ends |= {ids[text] for text in END_TEXTS if text in ids}
    ends |= {ids[text] for text in AMBIGUOUS_END_TEXTS if ids.get(text) in control}
    # In the harmony family <|end|> closes a message, and the reply goes on: <|return|> and <|call|> end it.
    if "<|end|>" in ids and ("<|return|>" in ids or "<|flush|>" in ids) and ("<|call|>" in ids or "<|calls|>" in ids):
        ends.discard(ids["<|end|>"])
    return frozenset(ends)
