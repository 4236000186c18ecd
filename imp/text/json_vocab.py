"""tokenizer.json and its companions to a Vocabulary. Knows the format of the `tokenizers` library, not where files lie.

The library reads the file itself; this module finds out how its pieces spell bytes, which tokens are control tokens
and what encoding puts around a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken

from .encoders import LibraryEncoder, build, never_leaks, panics_as_invalid, refuse_unknowing, without_control
from .vocabulary import (
    SPACE_SYMBOL,
    InvalidTokenizer,
    Spelling,
    UnsupportedTokenizer,
    Vocabulary,
    end_tokens,
    spell_bytes,
)

MODELS = ("BPE", "Unigram", "WordPiece")
MAX_HOLES = 1 << 16  # ids without a token; a file with more is broken


def read_json_vocabulary(
    tokenizer_json: bytes, config: Mapping[str, Any], special_tokens: Mapping[str, Any]
) -> Vocabulary:
    """Raises InvalidTokenizer and UnsupportedTokenizer."""
    root = _parsed(tokenizer_json)
    with panics_as_invalid():
        return _vocabulary(root, tokenizer_json, config, special_tokens)


def _parsed(tokenizer_json: bytes) -> dict[str, Any]:
    try:
        root = json.loads(tokenizer_json)
    except (ValueError, RecursionError) as error:
        raise InvalidTokenizer("tokenizer.json is not JSON") from error
    if not isinstance(root, dict) or not isinstance(root.get("model"), dict):
        raise InvalidTokenizer("tokenizer.json has no model")
    kind = root["model"].get("type", "BPE")  # older files leave it out
    if kind not in MODELS:
        raise UnsupportedTokenizer(f"the tokenizer model {kind!r} is not one of {', '.join(MODELS)}")
    if root["model"].get("end_of_word_suffix"):
        raise UnsupportedTokenizer("BPE with an end-of-word suffix is not known")
    return root


def _vocabulary(
    root: dict[str, Any], tokenizer_json: bytes, config: Mapping[str, Any], special_tokens: Mapping[str, Any]
) -> Vocabulary:
    parsing = build(tokenizers.Tokenizer.from_buffer, tokenizer_json)
    parsing.no_padding()
    parsing.no_truncation()
    ids = parsing.get_vocab(with_added_tokens=True)
    pieces = _listed(ids)
    added = parsing.get_added_tokens_decoder()

    bos, eos, pad, unk = (_named(name, config, special_tokens, ids) for name in ("bos", "eos", "pad", "unk"))
    control = {token for token, entry in added.items() if entry.special}
    control |= {token for token in (bos, eos, pad, unk) if token is not None and token in added}
    ends = end_tokens(ids, frozenset(control), (eos,))
    special = frozenset(control) | ends
    promoted = [pieces[token] for token in sorted(special) if token not in added or not added[token].special]
    parsing.add_special_tokens([AddedToken(piece, normalized=False) for piece in promoted])

    refuse_unknowing(parsing)
    spelling = _spelling(root)
    spelled = _spaced_words(pieces, added) if spelling is Spelling.WORDPIECE else pieces
    prefix, suffix = _surroundings(parsing)
    literal = _literal(root, parsing, special, [pieces[token] for token in sorted(special)])
    encoder = LibraryEncoder(literal, parsing, ids)
    return Vocabulary(
        pieces=pieces,
        token_bytes=spell_bytes(spelled, ids, spelling, added),
        encoder=encoder,
        added=encoder.added(),
        special=special,
        ends=ends,
        bos=bos,
        eos=eos,
        pad=pad,
        unk=unk,
        prefix=_switched(prefix, bos, _flag(config, "add_bos_token"), front=True),
        suffix=_switched(suffix, eos, _flag(config, "add_eos_token"), front=False),
        adds_space=spelling is Spelling.WORDPIECE or _strips_first_space(root),
    )


def _listed(ids: Mapping[str, int]) -> list[str]:
    """Pieces by id, "" where an id has none."""
    size = max(ids.values(), default=-1) + 1
    if not 0 < size <= len(ids) + MAX_HOLES:
        raise InvalidTokenizer(f"tokenizer.json numbers {len(ids)} tokens up to {size - 1}")
    pieces = [""] * size
    for piece, token in ids.items():
        pieces[token] = piece
    return pieces


def _literal(
    root: dict[str, Any], parsing: tokenizers.Tokenizer, special: frozenset[int], texts: list[str]
) -> tokenizers.Tokenizer:
    """An encoder that shares the model with `parsing` and takes control tokens for text."""
    if root["model"].get("type") == "Unigram":  # any piece may be chosen, control tokens too
        literal = build(tokenizers.Tokenizer.from_str, json.dumps(without_control(root, special)))
        literal.no_padding()
        literal.no_truncation()
    else:
        literal = tokenizers.Tokenizer(parsing.model)
        literal.normalizer = parsing.normalizer
        literal.pre_tokenizer = parsing.pre_tokenizer
        added = parsing.get_added_tokens_decoder()
        for token in sorted(added):  # in order: ids beyond the model's are given out one by one
            add = literal.add_special_tokens if token in special else literal.add_tokens
            add([added[token]])
    literal.encode_special_tokens = True
    literal = never_leaks(literal, texts, special)
    literal.encode_special_tokens = True  # not part of the file a copy is made through
    return literal


def _named(
    name: str, config: Mapping[str, Any], special_tokens: Mapping[str, Any], ids: Mapping[str, int]
) -> int | None:
    """The token that `config` or `special_tokens` calls "<name>_token"; both may give it as text or as an object."""
    for source in (config, special_tokens):
        value = source.get(f"{name}_token")
        if isinstance(value, Mapping):
            value = value.get("content")
        if value is None:
            continue
        if not isinstance(value, str):
            raise InvalidTokenizer(f'"{name}_token" should be a string')
        return ids.get(value)
    return None


def _flag(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidTokenizer(f'"{name}" should be a boolean')
    return value


def _surroundings(parsing: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the file's post-processor puts before and after a text."""
    plain = parsing.encode("a", add_special_tokens=False).ids
    whole = parsing.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if plain and whole[start : start + len(plain)] == plain:
            return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    return (), ()


def _switched(around: tuple[int, ...], token: int | None, adds: bool | None, *, front: bool) -> tuple[int, ...]:
    """`around` after the configuration's explicit word on one of its tokens, which is the outermost."""
    if token is None or adds is None or adds == (token in around):
        return around
    if not adds:
        return tuple(other for other in around if other != token)
    return (token, *around) if front else (*around, token)


def _spaced_words(pieces: list[str], added: Mapping[int, Any]) -> list[str]:
    """WordPiece's ## turned round: the first piece of a word has a space, the others have nothing."""
    return [
        piece if token in added else piece[2:] if piece.startswith("##") else f" {piece}"
        for token, piece in enumerate(pieces)
    ]


def _components(root: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """A component of the file and all those inside it."""
    waiting = [root.get(name)]
    while waiting:
        component = waiting.pop()
        if isinstance(component, Mapping):
            yield component
            for inner in ("decoders", "pretokenizers", "normalizers"):
                waiting += component.get(inner) or ()


def _spelling(root: Mapping[str, Any]) -> Spelling:
    decoders = list(_components(root, "decoder"))
    types = {component.get("type") for component in (*decoders, *_components(root, "pre_tokenizer"))}
    if root["model"].get("type") == "WordPiece":
        if root["model"].get("continuing_subword_prefix") != "##":
            raise UnsupportedTokenizer("WordPiece with another continuation mark than ## is not known")
        return Spelling.WORDPIECE
    if "ByteLevel" in types:
        return Spelling.BYTE_LEVEL
    replaces_space = any(
        component.get("type") == "Replace" and component.get("pattern") == {"String": SPACE_SYMBOL}
        for component in decoders
    )
    if replaces_space or "Metaspace" in types:
        return Spelling.SENTENCEPIECE
    raise UnsupportedTokenizer("how this tokenizer.json spells bytes is not known: no ByteLevel, Metaspace or Replace")


def _strips_first_space(root: Mapping[str, Any]) -> bool:
    for component in _components(root, "decoder"):
        if component.get("type") == "Strip" and component.get("content") == " " and component.get("start"):
            return True
        if component.get("type") == "Metaspace":
            scheme = component.get("prepend_scheme", "always" if component.get("add_prefix_space", True) else "never")
            return scheme != "never"
    return False
