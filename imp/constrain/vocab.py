"""A vocabulary as masks need it: two tries of its tokens, and what of them is known before any grammar.

Tokens are renumbered: `rank` is a token's bit in a mask. Ranks go through the tries in depth-first order, so that all
tokens below a trie node are one range of bits. First come the tokens that are text within a JSON string (the clean
trie), then the others, control tokens by their stand-in bytes (nfa.special); tokens of equal bytes share a rank. Then
one bit for all tokens that end a text, and one that is never set, for tokens without bytes.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from . import layout
from .code import DEFAULT_CACHE, ConstraintCode, constraint_code
from .layout import BUCKETS, BYTE, CLASS_LIMIT, FORKS, RANK, SCALARS, SIZE
from .loops import BODY, TEXT, steps_table
from .nfa import special
from .rows import RowPool
from .trie import (
    BODY_DEAD,
    BUILD,
    CHARS,
    CHARS_TO_QUOTE,
    FORK,
    IS_BODY,
    IS_CLEAN,
    QUOTE,
    SCAN,
    SCANNED,
    SUMMARISE,
    work_words,
)

FORMAT = b"2"
NO_TOKEN = 2**31 - 1

EXTENDED = 8192  # answers that are remembered


@dataclass(frozen=True, eq=False)
class VocabTables:
    """Immutable but for `pool` and the rows of character classes, which are guarded: any thread may share it.

    rank: int32 [tokens], each token's bit; words: uint32 words of a mask; end_rank: the bit of all tokens that end.
    """

    digest: str
    rank: np.ndarray
    words: int
    end_rank: int
    starts: np.ndarray  # int64 [tokens + 1]: where each token's bytes are in `data`
    data: np.ndarray  # uint8
    clean_nodes: np.ndarray
    clean_below: np.ndarray
    clean_forks: np.ndarray
    clean_fork_bytes: np.ndarray
    rest_nodes: np.ndarray
    rest_below: np.ndarray
    rest_forks: np.ndarray
    rest_fork_bytes: np.ndarray
    body_rows: np.ndarray  # uint32 [BUCKETS, words]: tokens that stay inside a JSON string, by characters at most
    long: np.ndarray  # int32 [n, 2]: those of BUCKETS characters and more: rank, characters, ascending by these
    suffix_nodes: np.ndarray  # trie of what tokens have behind the quote that ends a string
    group_starts: np.ndarray  # group 0 has nothing there, group 1 + r the suffix of rank r
    groups: np.ndarray  # int32 [n, 2]: rank of a token, characters before its quote, ascending by these in a group

    @staticmethod
    def digest_of(token_bytes: Sequence[bytes], special_ids: Collection[int], eos_ids: Collection[int]) -> str:
        """Equal for equal vocabularies: names the file that `save` writes."""
        digest = hashlib.sha256(FORMAT)
        for some in _parts(token_bytes):
            digest.update(np.fromiter(map(len, some), np.int64, len(some)).tobytes())
        for some in _parts(token_bytes):
            digest.update(b"".join(some))
        for ids in (special_ids, eos_ids):
            digest.update(np.array([len(ids), *sorted(ids)], np.int64).tobytes())
        return digest.hexdigest()

    @staticmethod
    def build(
        token_bytes: Sequence[bytes],
        special_ids: Collection[int],
        eos_ids: Collection[int],
        cache_dir: Path = DEFAULT_CACHE,
    ) -> VocabTables:
        """token_bytes: what every token adds to a text. special_ids: control tokens, which no text contains. eos_ids:
        tokens that end a text. cache_dir: where compiled code is kept."""
        code = constraint_code(cache_dir)
        tokens = _stand_ins(token_bytes, special_ids, eos_ids)
        starts, data = _joined(tokens)
        scanned = _scan(code, starts, data)
        present = np.diff(starts) > 0
        clean = scanned[:, IS_CLEAN] > 0
        rank = np.full(len(tokens), -1, np.int32)
        clean_trie = _trie(code, tokens, np.flatnonzero(clean), rank, 0)
        rest_trie = _trie(code, tokens, np.flatnonzero(present & ~clean), rank, int(clean_trie[0][-1, RANK]))
        end = int(rest_trie[0][-1, RANK])
        rank[rank < 0] = end + 1
        rank[[token for token in eos_ids if 0 <= token < len(tokens)]] = end
        words = (end + 2 + 31) // 32
        return VocabTables(
            *(VocabTables.digest_of(token_bytes, special_ids, eos_ids), rank, words, end, starts, data),
            *(*clean_trie, *rest_trie),
            *(_body_rows(rank, scanned, words), _long(rank, scanned)),
            *_closing(code, tokens, scanned, rank),
        )

    def save(self, path: Path) -> None:
        """As an .npz file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{id(self):x}.npz")
        values: dict[str, Any] = {each.name: np.asarray(getattr(self, each.name)) for each in fields(self)}
        np.savez(aside, **values)
        aside.replace(path)

    @staticmethod
    def load(path: Path) -> VocabTables:
        """What `save` wrote. Raises ValueError for anything else, and OSError."""
        try:
            with np.load(path, allow_pickle=False) as file:
                values = {each.name: file[each.name] for each in fields(VocabTables)}
        except (KeyError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path.name} is not a file of vocabulary tables: {error}") from error
        scalars = {"digest": str(values["digest"]), "words": int(values["words"]), "end_rank": int(values["end_rank"])}
        return VocabTables(**{**values, **scalars})

    @cached_property
    def pool(self) -> RowPool:
        """Masks of all grammars over this vocabulary."""
        return RowPool(self.words)

    @cached_property
    def classes(self) -> CharacterClasses:
        return CharacterClasses(self)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token: no token has more characters."""
        return int(np.diff(self.starts).max(initial=1))

    @cached_property
    def bit_tokens(self) -> np.ndarray:
        """int32 [bits]: the token of each bit of a mask; where several share one, the first. NO_TOKEN: none has it."""
        tokens = np.full(self.end_rank + 2, NO_TOKEN, np.int32)
        tokens[self.rank[::-1]] = np.arange(len(self.rank) - 1, -1, -1, dtype=np.int32)
        return tokens

    @cached_property
    def bit_aliases(self) -> np.ndarray:
        """int32 [n, 2]: (token, bit) of the tokens that are not the first of their bit."""
        others = np.flatnonzero(self.bit_tokens[self.rank] != np.arange(len(self.rank)))
        return np.stack([others, self.rank[others]], axis=1).astype(np.int32)

    @cached_property
    def any_token(self) -> np.ndarray:
        """uint32 [words]: the mask that allows every token."""
        bits = np.zeros(32 * self.words, np.uint8)
        bits[self.rank[self.rank <= self.end_rank]] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def token_bits(self, row: int) -> np.ndarray:
        """bool [tokens]: a mask of the pool in the order of tokens."""
        return np.unpackbits(self.pool[row].view(np.uint8), bitorder="little")[self.rank].view(bool)

    def bytes_of(self, token: int) -> bytes:
        """A token as the automaton reads it; none for one that ends a text."""
        return self.data[self.starts[token] : self.starts[token + 1]].tobytes()

    def extends(self, text: bytes) -> bool:
        """Whether a token begins with `text` and goes on."""
        found = self._extended.get(text)
        if found is None:
            found = _goes_on(self.clean_nodes, text) or _goes_on(self.rest_nodes, text)
            if len(self._extended) >= EXTENDED:
                self._extended.clear()
            self._extended[text] = found
        return found

    @cached_property
    def _extended(self) -> dict[bytes, bool]:
        """Of `extends`: the same few texts are asked for at every step of every constrained sequence."""
        return {}

    def bind(self, context: np.ndarray) -> None:
        """Put what machine code reads into a grammar's context (layout.py)."""
        context[2 * layout.TOKEN_STARTS :] = self._bound[2 * layout.TOKEN_STARTS :]

    @cached_property
    def _bound(self) -> np.ndarray:
        context = np.zeros(2 * layout.SLOTS, np.int64)
        arrays = {
            layout.TOKEN_STARTS: self.starts,
            layout.TOKEN_BYTES: self.data,
            layout.RANKS: self.rank,
            layout.CLEAN: self.clean_nodes,
            layout.CLEAN_BELOW: self.clean_below,
            layout.REST: self.rest_nodes,
            layout.REST_BELOW: self.rest_below,
            layout.CLEAN_FORKS: self.clean_forks,
            layout.CLEAN_FORK_BYTES: self.clean_fork_bytes,
            layout.REST_FORKS: self.rest_forks,
            layout.REST_FORK_BYTES: self.rest_fork_bytes,
            layout.BODY_ROWS: self.body_rows,
            layout.LONG: self.long,
            layout.SUFFIXES: self.suffix_nodes,
            layout.GROUP_STARTS: self.group_starts,
            layout.GROUPS: self.groups,
            layout.CLASSES: self.classes.classes,
            layout.CLASS_ROWS: self.classes.rows,
            layout.CHUNKS: self.pool.addresses,
            layout.VOCABULARY: self.classes.scalars,
        }
        for slot, array in arrays.items():
            layout.bind(context, slot, array)
        return context


class CharacterClasses:
    """Rows of the tokens made of one wide class of characters, by characters at most: made when a grammar first needs
    them, kept with the vocabulary. What machine code sees of them grows by single numbers, each written when complete;
    making one is for the holder of `lock`."""

    def __init__(self, tables: VocabTables) -> None:
        self.lock = Lock()
        self.classes = np.zeros((CLASS_LIMIT, 4), np.uint64)  # bytes 0..63, 64..127, whether all beyond
        self.rows = np.full((CLASS_LIMIT, BUCKETS), -1, np.int32)  # rows of the pool
        self.scalars = np.zeros(SCALARS, np.int64)
        self.scalars[[layout.WORDS, layout.END_RANK, layout.LONGEST]] = tables.words, tables.end_rank, tables.longest
        self.scalars[[layout.TOKENS, layout.CHUNK_ROWS]] = len(tables.rank), tables.pool.chunk_rows

    def number(self, low: int, high: int, beyond: int) -> int | None:
        """The place of this class, a new one if need be; None when there are too many."""
        used = int(self.scalars[layout.CLASSES_USED])
        wanted = np.array([low, high, beyond, 0], np.uint64)
        for place in range(used):
            if (self.classes[place] == wanted).all():
                return place
        if used == CLASS_LIMIT:
            return None
        self.classes[used] = wanted
        self.scalars[layout.CLASSES_USED] = used + 1
        return used


def _goes_on(nodes: np.ndarray, text: bytes) -> bool:
    """Whether the trie has a node below the one `text` leads to."""
    node, last = 0, len(nodes) - 1
    for byte in text:
        while node < last and nodes[node, BYTE] != byte:
            node += int(nodes[node, SIZE])
        if node >= last:
            return False
        node, last = node + 1, node + int(nodes[node, SIZE])
    return node < last


def _stand_ins(token_bytes: Sequence[bytes], special_ids: Collection[int], eos_ids: Collection[int]) -> list[bytes]:
    """Tokens as the automaton reads them; none for those that end a text, and for those with a byte 0xFF, which begins
    a stand-in and is in no text."""
    tokens = [b"" if b"\xff" in token else token for token in token_bytes]
    for token in special_ids:
        if token < len(tokens):
            tokens[token] = special(token)
    for token in eos_ids:
        if token < len(tokens):
            tokens[token] = b""
    return tokens


def _parts(tokens: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """All of them, so many at a time that no call over them holds the interpreter's lock for a millisecond."""
    for start in range(0, len(tokens), 1 << 13):
        yield tokens[start : start + (1 << 13)]


def _joined(tokens: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Where each token starts, and all bytes."""
    lengths = [np.fromiter(map(len, some), np.int64, len(some)) for some in _parts(tokens)]
    starts = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum(np.concatenate([*lengths, np.zeros(0, np.int64)]), out=starts[1:])
    return starts, np.frombuffer(b"".join(b"".join(some) for some in _parts(tokens)) or b"\0", np.uint8)


def _in_order(tokens: Sequence[bytes], ids: Sequence[int]) -> list[int]:
    """`ids` by their bytes; by what they begin with at first, because one sort of all would hold the lock for long."""
    groups: dict[bytes, list[int]] = {}
    for token in ids:
        groups.setdefault(tokens[token][:2], []).append(token)
    return [token for start in sorted(groups) for token in sorted(groups[start], key=tokens.__getitem__)]


def _call(code: ConstraintCode, operation: int, tokens: int, nodes: int, size: int, *arrays: np.ndarray) -> int:
    work = np.zeros(work_words.py_func(nodes), np.int32)
    block = np.zeros(7, np.int64)
    block[: len(arrays)] = [array.ctypes.data for array in arrays]
    block[5], block[6] = size, work.ctypes.data
    return code.tries(block.ctypes.data, operation, tokens, nodes)


def _scan(code: ConstraintCode, starts: np.ndarray, data: np.ndarray) -> np.ndarray:
    """int32 [tokens, SCANNED]; columns in trie.py."""
    out = np.zeros((len(starts) - 1, SCANNED), np.int32)
    steps = steps_table(BODY, BODY_DEAD)
    _call(code, SCAN, len(out), len(steps), len(data), steps, data, starts, out)
    return out


def _trie(
    code: ConstraintCode, tokens: Sequence[bytes], ids: np.ndarray, rank: np.ndarray, first_rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The trie of tokens `ids`, what is below its nodes, and lists of children (trie.FORK); ranks count from first_rank
    and are written to `rank`."""
    order = _in_order(tokens, ids.tolist())
    chosen = [tokens[token] for token in order]
    starts, data = _joined(chosen)
    nodes = np.zeros((len(data) + 1, 4), np.int32)
    ranks = np.zeros(len(order), np.int32)
    places = np.arange(len(order), dtype=np.int32)
    count = _call(code, BUILD, len(order), len(order), len(data), data, starts, places, ranks, nodes)
    nodes = nodes[: count + 1].copy()
    nodes[:, RANK] += first_rank
    rank[order] = ranks + first_rank
    below = np.zeros((count, 4), np.uint64)
    steps = steps_table(TEXT, BODY_DEAD)
    _call(code, SUMMARISE, len(steps), count, 0, steps, nodes, below)
    size = count + count // FORKS + 2
    forks, bytes_of = np.zeros(size, np.int32), np.zeros(size, np.uint8)
    used = _call(code, FORK, size, count, 0, nodes, below, forks, bytes_of)
    return nodes, below, forks[:used].copy(), bytes_of[:used].copy()


def _body_rows(rank: np.ndarray, scanned: np.ndarray, words: int) -> np.ndarray:
    """uint32 [BUCKETS, words]"""
    rows = np.zeros((BUCKETS, words * 4), np.uint8)
    body = scanned[:, IS_BODY] > 0
    for bucket in range(BUCKETS):
        bits = np.zeros(words * 32, bool)
        bits[rank[body & (scanned[:, CHARS] <= bucket) if bucket else body]] = True
        rows[bucket] = np.packbits(bits, bitorder="little")
    return rows.view("<u4").astype(np.uint32)


def _long(rank: np.ndarray, scanned: np.ndarray) -> np.ndarray:
    """int32 [n, 2]"""
    long = np.flatnonzero((scanned[:, IS_BODY] > 0) & (scanned[:, CHARS] >= BUCKETS))
    pairs = np.stack([rank[long], scanned[long, CHARS]], 1)
    return np.ascontiguousarray(pairs[np.argsort(pairs[:, 1], kind="stable")], np.int32)


def _closing(
    code: ConstraintCode, tokens: Sequence[bytes], scanned: np.ndarray, rank: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens with a quote that ends a string, by what is behind it: the trie of that, group_starts, groups."""
    members: dict[bytes, list[tuple[int, int]]] = {b"": []}
    for token in np.flatnonzero(scanned[:, QUOTE] >= 0).tolist():
        suffix = tokens[token][scanned[token, QUOTE] + 1 :]
        members.setdefault(suffix, []).append((int(scanned[token, CHARS_TO_QUOTE]), int(rank[token])))
    suffixes = [b"", *sorted(filter(None, members))]
    nodes, *_ = _trie(code, suffixes, np.arange(1, len(suffixes)), np.zeros(len(suffixes), np.int32), 0)
    group_starts, groups = [0], []
    for suffix in suffixes:
        groups += [(token_rank, chars) for chars, token_rank in sorted(members[suffix])]
        group_starts.append(len(groups))
    return nodes, np.array(group_starts, np.int32), np.array(groups, np.int32).reshape(-1, 2)


def vocabulary_tables(
    token_bytes: Sequence[bytes], special_ids: Collection[int], eos_ids: Collection[int], cache_dir: Path
) -> VocabTables:
    """The tables of a vocabulary, found under `cache_dir` or built and kept there. Arguments as for `build`."""
    path = cache_dir.expanduser() / "vocabularies" / f"{VocabTables.digest_of(token_bytes, special_ids, eos_ids)}.npz"
    try:
        return VocabTables.load(path)
    except (OSError, ValueError):
        tables = VocabTables.build(token_bytes, special_ids, eos_ids, cache_dir)
    with suppress(OSError):  # built again next time
        tables.save(path)
    return tables
