"""GGUF metadata to a Vocabulary: four tokenizer models, each a function in `_MODELS`. Knows keys, not files.

Keys and their meaning: the GGUF specification (docs/gguf.md of the GGML project) and llama.cpp's loader, whose
defaults are followed where a file is silent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from .encoders import LibraryEncoder, build, never_leaks, panics_as_invalid, refuse_unknowing
from .merges import merges_from_scores
from .pretokenizers import PRE_TOKENIZERS
from .vocabulary import (
    SPACE_SYMBOL,
    InvalidTokenizer,
    Spelling,
    UnsupportedTokenizer,
    Vocabulary,
    end_tokens,
    spell_bytes,
)

PREFIX = "tokenizer.ggml."
ABSENT = (-1, 0xFFFFFFFF)  # what converters write for "there is no such token"
MAX_WORD_CHARACTERS = 100  # longer words are unknown to WordPiece, as in the published BERT tokenizers


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Keys:
    """The metadata, read with its types checked. Raises InvalidTokenizer naming the key."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def text(self, name: str) -> str | None:
        value = self._metadata.get(PREFIX + name)
        if value is not None and not isinstance(value, str):
            raise InvalidTokenizer(f"{PREFIX}{name} should be a string")
        return value

    def flag(self, name: str) -> bool | None:
        value = self._metadata.get(PREFIX + name)
        if value is not None and not isinstance(value, bool | np.bool_):
            raise InvalidTokenizer(f"{PREFIX}{name} should be a boolean")
        return None if value is None else bool(value)

    def strings(self, name: str) -> list[str] | None:
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
            raise InvalidTokenizer(f"{PREFIX}{name} should be an array of strings")
        strings = list(value)
        if set(map(type, strings)) != {str}:
            strings = [_as_text(item, PREFIX + name) for item in strings]
        return strings

    def numbers(self, name: str, count: int) -> np.ndarray | None:
        """float64 [count]"""
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidTokenizer(f"{PREFIX}{name} should be an array of numbers") from error
        if array.ndim != 1 or len(array) != count or not np.isfinite(array).all():
            raise InvalidTokenizer(f"{PREFIX}{name} should hold one finite number for each of the {count} tokens")
        return array

    def blob(self, name: str) -> bytes | None:
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        try:
            return bytes(value) if isinstance(value, bytes) else np.asarray(value).astype(np.uint8).tobytes()
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidTokenizer(f"{PREFIX}{name} should be an array of bytes") from error

    def token(self, name: str, size: int) -> int | None:
        value = self._metadata.get(PREFIX + name + "_token_id")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InvalidTokenizer(f"{PREFIX}{name}_token_id should be an integer")
        if value in ABSENT:
            return None
        if not 0 <= value < size:
            raise InvalidTokenizer(f"{PREFIX}{name}_token_id is {value}, outside the vocabulary of {size} tokens")
        return int(value)

    @property
    def architecture(self) -> str:
        return str(self._metadata.get("general.architecture", ""))


def _as_text(item: Any, key: str) -> str:
    if not isinstance(item, str | bytes):
        raise InvalidTokenizer(f"{key} should hold strings, not {type(item).__name__}")
    try:
        return item.decode() if isinstance(item, bytes) else str(item)
    except UnicodeDecodeError as error:
        raise InvalidTokenizer(f"{key} holds a string that is not UTF-8") from error


@dataclass(frozen=True)
class Entries:
    """The token arrays of the file, and what follows from them."""

    keys: Keys
    pieces: list[str]
    types: np.ndarray  # int64 [V], TokenType

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Of two tokens with one spelling, the first is the one text encodes to; no text encodes to an empty one."""
        count = len(self.pieces)
        ids = dict(zip(reversed(self.pieces), range(count - 1, -1, -1), strict=True))
        ids.pop("", None)
        return ids

    def of(self, *types: TokenType) -> list[int]:
        return np.flatnonzero(np.isin(self.types, types)).tolist()

    @cached_property
    def control(self) -> list[int]:
        return self.of(TokenType.CONTROL, TokenType.UNKNOWN)

    @cached_property
    def user_defined(self) -> list[int]:
        """Matched in every text before anything else. Fillers ("[PAD151646]") are in no model's own tokenizer."""
        return [token for token in self.of(TokenType.USER_DEFINED) if self.pieces[token] not in ("", f"[PAD{token}]")]


def read_gguf_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises InvalidTokenizer and UnsupportedTokenizer."""
    keys = Keys(metadata)
    model = keys.text("model")
    if model is None:
        raise InvalidTokenizer(f"{PREFIX}model is missing: the file has no tokenizer")
    if model not in _MODELS:
        raise UnsupportedTokenizer(f'the tokenizer model "{model}" is not one of {", ".join(sorted(_MODELS))}')
    pieces = keys.strings("tokens")
    if not pieces:
        raise InvalidTokenizer(f"{PREFIX}tokens is missing or empty")
    types = keys.numbers("token_type", len(pieces))
    if types is None:
        types = _guessed_types(pieces)
    if not np.isin(types, list(TokenType)).all():
        raise InvalidTokenizer(f"{PREFIX}token_type holds values other than 0 to {max(TokenType)}")
    with panics_as_invalid():
        return _MODELS[model](Entries(keys, pieces, types.astype(np.int64)))


def _guessed_types(pieces: list[str]) -> np.ndarray:
    byte = re.compile(r"<0x[0-9A-F]{2}>").fullmatch
    return np.array([TokenType.BYTE if byte(piece) else TokenType.NORMAL for piece in pieces], np.float64)


def _byte_level(entries: Entries) -> Vocabulary:
    """Model "gpt2": byte-level BPE with the file's merges; its pre-tokenizer is known by name only."""
    keys = entries.keys
    pre = keys.text("pre")
    if pre is None:
        raise UnsupportedTokenizer(f"{PREFIX}pre is missing: how this vocabulary cuts text into words is not known")
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedTokenizer(f'the pre-tokenizer "{pre}" is not known')
    family = PRE_TOKENIZERS[pre]
    lines = keys.strings("merges")
    if lines is None:
        raise InvalidTokenizer(f"{PREFIX}merges is missing")
    model = build(models.BPE, entries.ids, _split_merges(lines), ignore_merges=family.keeps_words)
    parsing, literal = tokenizers.Tokenizer(model), tokenizers.Tokenizer(model)
    for tokenizer in (parsing, literal):
        family.install(tokenizer)
    return _vocabulary(
        entries, Spelling.BYTE_LEVEL, parsing, literal, _Defaults(adds_bos=family.adds_bos), adds_space=False
    )


def _split_merges(lines: list[str]) -> list[tuple[str, str]]:
    merges = []
    for line in lines:
        left, space, right = line[1:].partition(" ")  # a piece may itself begin with a space, in non-byte vocabularies
        if not (line and space and right):
            raise InvalidTokenizer(f"{PREFIX}merges holds {line[:40]!r}, which is not two pieces")
        merges.append((line[0] + left, right))
    return merges


def _sentencepiece(entries: Entries) -> Vocabulary:
    """Model "llama": SentencePiece BPE. The file has scores, not merges."""
    keys = entries.keys
    scores = keys.numbers("scores", len(entries))
    if scores is None:
        raise InvalidTokenizer(f"{PREFIX}scores is missing")
    defaults = _Defaults(adds_bos=True, bos=1, eos=2, unk=0)
    unk = defaults.token(entries, "unknown", defaults.unk)
    mergeable = np.isin(entries.types, [TokenType.NORMAL, TokenType.UNDEFINED])
    merges = merges_from_scores(entries.pieces, scores, mergeable)
    unk_piece = None if unk is None else entries.pieces[unk] or None
    model = build(models.BPE, entries.ids, merges, byte_fallback=True, fuse_unk=True, unk_token=unk_piece)
    parsing, literal = tokenizers.Tokenizer(model), tokenizers.Tokenizer(model)
    adds_space = keys.flag("add_space_prefix") is not False
    visible: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE_SYMBOL)]
    if adds_space:  # of every stretch of text between special tokens
        visible.insert(0, normalizers.Prepend(SPACE_SYMBOL))
    for tokenizer in (parsing, literal):
        tokenizer.normalizer = normalizers.Sequence(visible)  # type: ignore[assignment]
    return _vocabulary(entries, Spelling.SENTENCEPIECE, parsing, literal, defaults, adds_space)


def _unigram(entries: Entries) -> Vocabulary:
    """Model "t5": SentencePiece unigram: the likeliest segmentation by the pieces' scores."""
    keys = entries.keys
    scores = keys.numbers("scores", len(entries))
    if scores is None:
        raise InvalidTokenizer(f"{PREFIX}scores is missing")
    defaults = _Defaults(adds_eos=True, eos=1, unk=2, pad=0)
    unk = defaults.token(entries, "unknown", defaults.unk)
    steps: list[normalizers.Normalizer] = []
    if charsmap := keys.blob("precompiled_charsmap"):
        steps.append(build(normalizers.Precompiled, charsmap))
    if keys.flag("remove_extra_whitespaces"):
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    adds_space = keys.flag("add_space_prefix") is not False
    scheme = "always" if adds_space else "never"
    spoken = list(zip(entries.pieces, scores.tolist(), strict=True))
    # a piece with a real space in it meets no text: the pre-tokenizer has made every space visible
    unspoken = spoken.copy()
    for token in entries.control:
        unspoken[token] = (f" {token}", spoken[token][1])
    made = []
    for pieces in (spoken, unspoken):
        tokenizer = tokenizers.Tokenizer(build(models.Unigram, pieces, unk, False))
        tokenizer.normalizer = normalizers.Sequence(steps)  # type: ignore[assignment]
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_SYMBOL, scheme)  # type: ignore[assignment]
        made.append(tokenizer)
    return _vocabulary(entries, Spelling.SENTENCEPIECE, made[0], made[1], defaults, adds_space)


def _wordpiece(entries: Entries) -> Vocabulary:
    """Model "bert": WordPiece. The file marks a word's first piece with U+2581, where BERT marks the others with ##."""
    keys = entries.keys
    defaults = _Defaults(adds_bos=True, adds_eos=True, bos=101, eos=102, unk=100, pad=0)
    spelled = {_bert_spelling(piece): token for piece, token in entries.ids.items()}
    unk = defaults.token(entries, "unknown", defaults.unk)
    if unk is None or not entries.pieces[unk]:
        raise InvalidTokenizer("a WordPiece vocabulary needs a token for unknown words")
    model = build(
        models.WordPiece,
        spelled,
        unk_token=_bert_spelling(entries.pieces[unk]),
        max_input_chars_per_word=MAX_WORD_CHARACTERS,
        continuing_subword_prefix="##",
    )
    lowercase = keys.flag("normalizer.lowercase")
    strip = keys.flag("normalizer.strip_accents")
    normalizer = normalizers.BertNormalizer(lowercase=lowercase is not False, strip_accents=strip)
    parsing, literal = tokenizers.Tokenizer(model), tokenizers.Tokenizer(model)
    for tokenizer in (parsing, literal):
        tokenizer.normalizer = normalizer  # type: ignore[assignment]
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    return _vocabulary(entries, Spelling.WORDPIECE, parsing, literal, defaults, adds_space=True)


def _bert_spelling(piece: str) -> str:
    if piece.startswith(SPACE_SYMBOL):
        return piece[1:]
    return piece if piece.startswith("[") and piece.endswith("]") and len(piece) > 2 else f"##{piece}"


def _spaced_words(pieces: list[str]) -> list[str]:
    return [f" {piece[1:]}" if piece.startswith(SPACE_SYMBOL) else piece for piece in pieces]


_MODELS: dict[str, Callable[[Entries], Vocabulary]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "t5": _unigram,
    "bert": _wordpiece,
}


@dataclass(frozen=True)
class _Defaults:
    """What a tokenizer model means where the file does not say."""

    adds_bos: bool = False
    adds_eos: bool = False
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    pad: int | None = None

    @staticmethod
    def token(entries: Entries, name: str, default: int | None) -> int | None:
        named = entries.keys.token(name, len(entries))
        if named is not None or default is None or default >= len(entries):
            return named
        # a default id that is no control token here belongs to another vocabulary
        return default if default in set(entries.control) else None


def _vocabulary(
    entries: Entries,
    spelling: Spelling,
    parsing: tokenizers.Tokenizer,
    literal: tokenizers.Tokenizer,
    defaults: _Defaults,
    adds_space: bool,
) -> Vocabulary:
    keys, size = entries.keys, len(entries)
    bos = defaults.token(entries, "bos", None)
    if bos is None:
        bos = defaults.token(entries, "cls", defaults.bos)
    eos = defaults.token(entries, "eos", None)
    if eos is None:
        eos = defaults.token(entries, "seperator", defaults.eos)  # the specification's own spelling
    named = [eos, keys.token("eot", size), keys.token("eom", size)]
    ends = end_tokens(entries.ids, frozenset(entries.control), named)
    special = frozenset(entries.control) | ends
    user_defined = [token for token in entries.user_defined if token not in special]
    strips = _strips_after(entries)
    for tokenizer in (parsing, literal):
        tokenizer.add_tokens([_added(entries.pieces[token], token in strips) for token in user_defined])
    control = [token for token in sorted(special) if entries.pieces[token]]
    parsing.add_special_tokens([_added(entries.pieces[token], token in strips) for token in control])
    refuse_unknowing(literal, parsing)
    literal = never_leaks(literal, [entries.pieces[token] for token in control], special)
    encoder = LibraryEncoder(literal, parsing, entries.ids)
    spelled = _spaced_words(entries.pieces) if spelling is Spelling.WORDPIECE else entries.pieces
    return Vocabulary(
        pieces=entries.pieces,
        token_bytes=spell_bytes(spelled, entries.ids, spelling, [*special, *entries.user_defined]),
        encoder=encoder,
        added=encoder.added(),
        special=special,
        ends=ends,
        bos=bos,
        eos=eos,
        pad=defaults.token(entries, "padding", defaults.pad),
        unk=defaults.token(entries, "unknown", defaults.unk),
        prefix=_around(keys, "bos", bos, defaults.adds_bos),
        suffix=_around(keys, "sep" if spelling is Spelling.WORDPIECE else "eos", eos, defaults.adds_eos),
        adds_space=adds_space,
    )


def _around(keys: Keys, name: str, token: int | None, default: bool) -> tuple[int, ...]:
    said = keys.flag(f"add_{name}_token")
    if said and token is None:
        raise InvalidTokenizer(f"{PREFIX}add_{name}_token is true, but the file names no such token")
    adds = default if said is None else said
    return (token,) if adds and token is not None else ()


def _added(piece: str, strips_after: bool = False) -> AddedToken:
    return AddedToken(piece, normalized=False, rstrip=strips_after)


def _strips_after(entries: Entries) -> frozenset[int]:
    """Special tokens that swallow the whitespace after them. The file does not say; Phi-3's tokenizer does."""
    if entries.keys.architecture != "phi3" or entries.keys.text("model") != "llama":
        return frozenset()
    exempt = {entries.ids.get(text) for text in ("<unk>", "<s>", "<|endoftext|>")}
    return frozenset({*entries.control, *entries.user_defined} - exempt)
