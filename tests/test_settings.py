"""Where settings come from, what wins, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from imp import settings
from imp.settings import SettingsError, load


def test_defaults_are_those_of_the_surface():
    made = load([], {"HOME": "/nowhere"})
    assert (made.server.host, made.server.port) == ("127.0.0.1", 8080)
    assert made.server.max_concurrent == 64 and made.generation.max_n == 8 and made.generation.max_tokens == 8192
    assert made.paths.model_cache == Path("/nowhere/.cache/imp/models")


def test_later_sources_win(tmp_path):
    config = tmp_path / "imp.toml"
    config.write_text(
        '[server]\nport = 1\nhost = "a"\napi_keys = ["k1", "k2"]\n[runtime]\nthreads = 1\nmax_batch = 1\n'
    )
    env = {"HOME": "/nowhere", "IMP_CONFIG": str(config), "IMP_SET": "runtime.threads=2 server.host=b"}
    made = load(["--set", "runtime.threads=3", "--port", "9"], env)
    assert (made.server.port, made.server.host, made.runtime.threads, made.runtime.max_batch) == (9, "b", 3, 1)
    assert made.server.api_keys == ("k1", "k2")


def test_an_unknown_key_in_a_file_is_a_warning(tmp_path, capsys):
    config = tmp_path / "imp.toml"
    config.write_text("[server]\nprot = 1\nport = 2\n")
    assert load(["--config", str(config)], {}).server.port == 2
    assert "unknown key 'server.prot'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, message, code",
    [
        (["--port", "70000"], "--port must be between 0 and 65535", 1),
        (["--port", "x"], "--port must be a whole number, not 'x'", 1),
        (["--max-concurrent", "0"], "--max-concurrent must be at least 1", 1),
        (["--device", "tpu"], "--device must be one of auto, cpu, reference", 1),
        (["--set", "runtime.thread=2"], "did you mean 'runtime.threads'?", 1),
        (["--set", "runtime"], "not of the form section.key=value", 1),
        (["--set", "server.request_timeout_s=nan"], "must be a number", 1),
        (["--set", "kv_cache.prefix_cache=maybe"], "must be true or false", 1),
        (["--config", "/does/not/exist"], "/does/not/exist does not exist", 4),
        (["--frobnicate"], "--frobnicate", 1),
        (["stray"], "stray", 1),
    ],
)
def test_mistakes_name_the_flag_and_what_is_allowed(arguments, message, code):
    with pytest.raises(SettingsError) as caught:
        load(arguments, {})
    assert message in str(caught.value) and caught.value.exit_code == code


def test_a_broken_config_file_is_told_with_its_line(tmp_path):
    config = tmp_path / "imp.toml"
    config.write_text("[server\n")
    with pytest.raises(SettingsError, match="line 1"):
        load(["--config", str(config)], {})


def test_every_flag_appears_in_the_help(capsys):
    with pytest.raises(SystemExit):
        load(["--help"], {})
    shown = capsys.readouterr().out
    for key, field in settings._known().items():
        assert field.metadata["flag"] is None or field.metadata["flag"] in shown, key
