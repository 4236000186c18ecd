"""Tables of a vocabulary: ranks, tries, what is known of tokens before any grammar."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from imp.constrain.layout import BELOW_FLAGS, BELOW_HIGH, BELOW_LOW, BYTE, CHARS_SHIFT, DEPTH, RANK, SIZE
from imp.constrain.vocab import VocabTables

QUOTE = ord('"')


def spelled(nodes: np.ndarray) -> list[bytes]:
    """The bytes from the root to each node."""
    path, result = bytearray(), []
    for depth, _, _, byte in nodes[:-1].tolist():
        del path[depth:]
        path.append(byte)
        result.append(bytes(path))
    return result


def is_text(data: bytes) -> bool:
    """Whether more bytes can make it UTF-8."""
    for more in range(4):
        try:
            data[: len(data) - more].decode()
        except UnicodeDecodeError:
            continue
        return not more or any(could_begin(data[len(data) - more :], length) for length in (2, 3, 4))
    return False


def could_begin(tail: bytes, length: int) -> bool:
    """Whether `tail` begins a character of `length` bytes: tried with every first and last continuation."""
    if len(tail) >= length:
        return False
    seconds = [bytes([byte]) for byte in range(0x80, 0xC0)] if len(tail) == 1 else [b""]
    for second in seconds:
        whole = tail + second
        whole += b"\x80" * (length - len(whole))
        try:
            whole.decode()
        except UnicodeDecodeError:
            continue
        return True
    return False


def test_every_token_has_a_bit_and_equal_tokens_share_it(gpt2, gpt2_tables: VocabTables):
    bits: dict[int, bytes] = {}
    for token, data in enumerate(gpt2.byte_table):
        if token in gpt2.eos_ids:
            assert gpt2_tables.rank[token] == gpt2_tables.end_rank
        elif b"\xff" in data or not data:
            assert gpt2_tables.rank[token] == gpt2_tables.end_rank + 1
        else:
            assert bits.setdefault(int(gpt2_tables.rank[token]), data) == data
    assert sorted(bits) == list(range(gpt2_tables.end_rank))
    assert gpt2_tables.words * 32 >= gpt2_tables.end_rank + 2


def test_tries_hold_every_token_once_in_the_order_of_bits(gpt2, gpt2_tables: VocabTables):
    by_bit = {int(gpt2_tables.rank[token]): data for token, data in enumerate(gpt2.byte_table)}
    met = []
    for nodes in (gpt2_tables.clean_nodes, gpt2_tables.rest_nodes):
        names = spelled(nodes)
        for place in np.flatnonzero(np.diff(nodes[:, RANK])).tolist():
            assert by_bit[int(nodes[place, RANK])] == names[place]
            met.append(int(nodes[place, RANK]))
        for place in range(0, len(names), 97):
            size = int(nodes[place, SIZE])
            inside = [name.startswith(names[place]) for name in names[place : place + size + 1]]
            assert all(inside[:size]) and not any(inside[size:])
            assert nodes[place, DEPTH] == len(names[place]) - 1 and nodes[place, BYTE] == names[place][-1]
    assert met == list(range(gpt2_tables.end_rank))


def test_the_clean_trie_is_text_that_needs_no_escape(gpt2, gpt2_tables: VocabTables):
    clean = int(gpt2_tables.clean_nodes[-1, RANK])
    for token, data in enumerate(gpt2.byte_table):
        if gpt2_tables.rank[token] < gpt2_tables.end_rank:
            expected = is_text(data) and not any(byte < 32 or byte in b'"\\' for byte in data)
            assert (gpt2_tables.rank[token] < clean) == expected, data


def test_what_lies_below_a_node(gpt2_tables: VocabTables):
    for nodes, below in (
        (gpt2_tables.clean_nodes, gpt2_tables.clean_below),
        (gpt2_tables.rest_nodes, gpt2_tables.rest_below),
    ):
        names = spelled(nodes)
        for place in random.Random(1).sample(range(len(names)), min(400, len(names))):
            size = int(nodes[place, SIZE])
            tails = [name[len(names[place]) :] for name in names[place + 1 : place + size]]
            ascii_set = {byte for tail in tails for byte in tail if byte < 128}
            low, high, flags = (int(below[place, column]) for column in (BELOW_LOW, BELOW_HIGH, BELOW_FLAGS))
            assert {byte for byte in range(128) if (low | high << 64) >> byte & 1} == ascii_set
            texts = [is_text(names[place] + tail) for tail in tails]
            assert (flags & 2 == 0) == all(texts)
            if all(texts):
                assert flags & 1 == any(byte > 127 for tail in tails for byte in tail)
                starts = [sum(byte < 0x80 or byte >= 0xC0 for byte in tail) for tail in tails]
                assert flags >> CHARS_SHIFT == max(starts, default=0)


def test_rows_of_string_bodies(code_folder: Path):
    """What may stand in a JSON string, by characters: an escape and a pair of surrogates are one, begun ones count."""
    tokens = [b"ab", b"\\n", b"\\", b"\\u00e9x", b"\\ud83d\\ude00", b"\\ud83d", "é".encode(), b"\xc3", b"\xa9", b"\n"]
    tokens += [b'a"', b'"', b'abc",', b"\\ud83dx", b"\\x", b"", b"z" * 40, b"y" * 33, b'\\"', b"\\ude00", b'q"", "']
    tables = VocabTables.build(tokens, [], [], code_folder)
    chars = {0: 2, 1: 1, 2: 1, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1, 16: 40, 17: 33, 18: 1}
    for bucket in range(33):
        bits = np.unpackbits(tables.body_rows[bucket].view(np.uint8), bitorder="little")[tables.rank]
        assert set(np.flatnonzero(bits).tolist()) == {t for t, count in chars.items() if not bucket or count <= bucket}
    assert tables.long.tolist() == [[tables.rank[17], 33], [tables.rank[16], 40]]
    groups = np.split(tables.groups, tables.group_starts[1:-1])
    assert [sorted(group.tolist()) for group in groups[:2]] == [
        sorted([[tables.rank[10], 1], [tables.rank[11], 0]]),
        [[tables.rank[20], 1]],
    ]
    assert groups[2].tolist() == [[tables.rank[12], 3]]


def test_tables_survive_the_disk(gpt2, gpt2_tables: VocabTables, tmp_path: Path):
    path = tmp_path / "deep" / "tables.npz"
    gpt2_tables.save(path)
    loaded = VocabTables.load(path)
    assert loaded.digest == gpt2_tables.digest
    assert loaded.digest == VocabTables.digest_of(gpt2.byte_table, gpt2.special_ids, gpt2.eos_ids)
    for name, value in ((each.name, getattr(gpt2_tables, each.name)) for each in fields(gpt2_tables)):
        if isinstance(value, np.ndarray):
            assert (getattr(loaded, name) == value).all(), name
    assert [file.name for file in path.parent.iterdir()] == ["tables.npz"]


def test_digests_differ_with_anything_that_matters():
    base = ([b"a", b"bc"], [1], [])
    digests = {
        VocabTables.digest_of(*each)
        for each in (base, ([b"ab", b"c"], [1], []), ([b"a", b"bc"], [0], []), ([b"a", b"bc"], [1], [1]))
    }
    assert len(digests) == 4


def test_damaged_files_are_refused(gpt2_tables: VocabTables, tmp_path: Path):
    path = tmp_path / "tables.npz"
    gpt2_tables.save(path)
    whole, draw = path.read_bytes(), random.Random(2)
    for damaged in (b"", b"PK", whole[:1000], whole[:-1000], b"\0" * 5000, draw.randbytes(3000)):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"tables\.npz is not a file of vocabulary tables"):
            VocabTables.load(path)


def test_longer_tokens_are_found(gpt2_tables: VocabTables):
    assert gpt2_tables.extends(b" th") and gpt2_tables.extends(b"")
    assert not gpt2_tables.extends(b'": {"zq') and not gpt2_tables.extends(b"\x00\x00\x00")
