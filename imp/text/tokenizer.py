"""Text to tokens and back, for any model: one class, whatever file the vocabulary came from.

Encoding is the `tokenizers` library's; decoding is ours, and is nothing but the tokens' bytes one after another read
as UTF-8, so that every way of decoding (whole, incremental, by a grammar) agrees.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from .gguf_vocab import read_gguf_vocabulary
from .json_vocab import read_json_vocabulary
from .vocabulary import AddedToken, InvalidTokenizer, UnsupportedTokenizer, Vocabulary

IDS_AT_ONCE = 1 << 14  # no call of a long decoding holds the interpreter's lock for a millisecond

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")

__all__ = ["InvalidTokenizer", "Tokenizer", "UnsupportedTokenizer"]


class Tokenizer:
    """Immutable once loaded; every method may be called from any thread.

    vocab_size: ids are 0 .. vocab_size - 1; a model's logits may be padded beyond that.
    bos_id, eos_id, pad_id, unk_id: None where the vocabulary has no such token.
    eos_ids: every token that ends a generation, found by metadata and by name.
    special_ids: control tokens; they have no text unless asked for.
    add_bos, add_eos: what `encode` puts around plain text.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes = vocabulary.token_bytes
        self.vocab_size = len(vocabulary.pieces)
        self.bos_id = vocabulary.bos
        self.eos_id = vocabulary.eos
        self.pad_id = vocabulary.pad
        self.unk_id = vocabulary.unk
        self.eos_ids = vocabulary.ends
        self.special_ids = vocabulary.special
        self.add_bos = bool(vocabulary.prefix)
        self.add_eos = bool(vocabulary.suffix)
        self.adds_space = vocabulary.adds_space

    @staticmethod
    def from_json(
        tokenizer_json: bytes, config: Mapping[str, Any], special_tokens: Mapping[str, Any] | None = None
    ) -> Tokenizer:
        """From tokenizer.json, tokenizer_config.json and special_tokens_map.json, the latter two parsed.

        Raises InvalidTokenizer and UnsupportedTokenizer.
        """
        return Tokenizer(read_json_vocabulary(tokenizer_json, config, special_tokens or {}))

    @staticmethod
    def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
        """From the `tokenizer.*` keys of a GGUF file (and `general.architecture`, where there is one).

        Arrays may be any sequences, NumPy arrays too. Raises InvalidTokenizer and UnsupportedTokenizer.
        """
        return Tokenizer(read_gguf_vocabulary(metadata))

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The tokens of `text`.

        add_special: puts what the model expects around a text (BOS, EOS), but never a second one of what is there.
        parse_special: control tokens written in the text become their ids; otherwise they are ordinary characters.
        Lone surrogates, which JSON can carry, count as U+FFFD.
        """
        encoder = self._vocabulary.encoder
        try:
            ids = encoder.encode(text, parse_special)
        except UnicodeError:
            repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = encoder.encode(repaired, parse_special)
        return self._surrounded(ids) if add_special else ids

    def _surrounded(self, ids: list[int]) -> list[int]:
        prefix, suffix = self._vocabulary.prefix, self._vocabulary.suffix
        if prefix and tuple(ids[: len(prefix)]) != prefix:
            ids = [*prefix, *ids]
        if suffix and (len(ids) < len(prefix) + len(suffix) or tuple(ids[-len(suffix) :]) != suffix):
            ids = [*ids, *suffix]
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of `ids`; every maximal invalid sequence of UTF-8 becomes one U+FFFD.

        Where encoding puts a space before a text (`adds_space`), one space at the very start is taken away again.
        Raises ValueError for an id outside the vocabulary.
        """
        decode = _Utf8Decoder("replace").decode
        parts = [
            decode(self._joined(ids[start : start + IDS_AT_ONCE], skip_special))
            for start in range(0, len(ids), IDS_AT_ONCE)
        ]
        text = "".join(parts) + decode(b"", True)
        return text.removeprefix(" ") if self.adds_space else text

    def _joined(self, ids: Sequence[int], skip_special: bool) -> bytes:
        if not 0 <= min(ids) <= max(ids) < self.vocab_size:
            wrong = next(token for token in ids if not 0 <= token < self.vocab_size)
            raise ValueError(f"token {wrong} is outside the vocabulary (0 to {self.vocab_size - 1})")
        hidden = self.special_ids if skip_special else frozenset()
        table = self._bytes
        return b"".join([table[token] for token in ids if token not in hidden])

    @property
    def byte_table(self) -> Sequence[bytes]:
        """`token_bytes` of every token, in order."""
        return self._bytes

    def token_bytes(self, token: int) -> bytes:
        """What `token` adds to a text: its spaces real, a byte token its byte, a control token its literal text."""
        return self._bytes[self._known(token)]

    def token_text(self, token: int) -> str:
        """The vocabulary's own spelling of `token`, for display."""
        return self._vocabulary.pieces[self._known(token)]

    def token_id(self, piece: str) -> int | None:
        """The token spelled exactly `piece` in the vocabulary."""
        return self._vocabulary.encoder.token_id(piece)

    def added_tokens(self) -> Mapping[int, AddedToken]:
        """The tokens that text is searched for before it is tokenised, control tokens among them, by id."""
        return self._vocabulary.added

    def fingerprint(self) -> str:
        """Equal for equal vocabularies: hex SHA-256 over every token's bytes and which tokens are control tokens."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for token, data in enumerate(self._bytes):
            digest.update(b"%d %d " % (len(data), token in self.special_ids) + data)
        return digest.hexdigest()

    def _known(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary (0 to {self.vocab_size - 1})")
        return token
