"""API keys from the command line and from files, and that no mistake opens the door."""

from __future__ import annotations

import pytest

from imp import keys


def read(*given: str) -> tuple[tuple[str, ...], list[str]]:
    warnings: list[str] = []
    return keys.read(given, warnings.append), warnings


def test_keys_files_and_comments(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# team\nsk-one\n\n  sk-two   # of two words\nsk#three\nsk-one\n")
    path.chmod(0o600)
    assert read("sk-zero", f"@{path}") == (("sk-zero", "sk-one", "sk-two", "sk#three"), [])
    assert read(str(path)) == (("sk-one", "sk-two", "sk#three"), [])


def test_what_only_looks_like_a_path_is_a_key():
    assert read("a/b+c==") == (("a/b+c==",), [])


def test_a_file_that_others_can_read_is_warned_about(tmp_path):
    path = tmp_path / "keys"
    path.write_text("sk-one\n")
    path.chmod(0o644)
    found, warnings = read(f"@{path}")
    assert found == ("sk-one",) and len(warnings) == 1
    assert str(path) in warnings[0] and "chmod 600" in warnings[0] and "sk-one" not in warnings[0]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "holds no key"),
        (b"# nothing\n\n", "holds no key"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"sk-one\ntwo words\n", "line 2 of"),
        (b"sk-\x07bell\n", "line 1 of"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_without_telling_its_keys(tmp_path, content, message):
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(keys.KeysError) as caught:
        read(f"@{path}")
    assert message in str(caught.value) and not caught.value.missing
    assert "sk-" not in str(caught.value) and "two words" not in str(caught.value)


def test_missing_files_empty_keys_and_keys_no_header_can_carry(tmp_path):
    with pytest.raises(keys.KeysError) as caught:
        read(f"@{tmp_path}/nowhere")
    assert caught.value.missing
    for wrong in ("", "a b", "a\n", f"@{tmp_path}"):
        with pytest.raises(keys.KeysError):
            read(wrong)
