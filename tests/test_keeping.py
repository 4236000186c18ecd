"""What is kept below the pool, by the settings."""

from __future__ import annotations

import threading

import pytest

from imp.keeping import digest_aside
from imp.settings import load
from imp.tiers import fingerprint
from imp.tiers.folder import FolderError


def test_the_thread_that_reads_a_models_files_ends_with_them(tmp_path):
    file = tmp_path / "weights"
    file.write_bytes(b"0123456789" * 1000)
    digest = digest_aside([file], load(["--prefix-cache", str(tmp_path / "kept")]))
    assert digest is not None and digest.result(10) == fingerprint.of_files([file])
    for thread in threading.enumerate():
        if thread.name.startswith("digest"):
            thread.join(10)
            assert not thread.is_alive()


def test_nothing_is_read_where_nothing_is_kept_on_disk(tmp_path):
    assert digest_aside([tmp_path / "missing"], load([])) is None


def test_a_folder_for_a_cache_that_is_off_is_refused(tmp_path):
    with pytest.raises(FolderError, match=r"server\.prefix_cache is false"):
        digest_aside([], load(["--prefix-cache", str(tmp_path), "--set", "server.prefix_cache=false"]))
