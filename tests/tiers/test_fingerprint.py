"""Whose KV it is: every part counts, and where one ends."""

from __future__ import annotations

from imp.tiers.fingerprint import of_code, of_files, owner


def test_contents_of_files_count_and_their_names_do_not(tmp_path):
    def digest(**files: bytes) -> bytes:
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        return of_files([tmp_path / name for name in files])

    made = [digest(a=b"12", b=b"3"), digest(a=b"1", b=b"23"), digest(a=b"123"), digest(a=b"3", b=b"12"), digest(a=b"")]
    assert len(set(made)) == len(made) and digest(a=b"12", b=b"3") == digest(c=b"12", d=b"3") == made[0]


def test_parts_do_not_run_into_each_other():
    assert len({owner(b"ab", b"c"), owner(b"a", b"bc"), owner(b"abc"), owner(b"ab", b"c", b"")}) == 4
    assert owner(b"a") == owner(b"a") and len(owner()) == 32


def test_the_code_is_the_same_as_long_as_nobody_edits_it():
    assert of_code() == of_code() and len(of_code()) == 32
