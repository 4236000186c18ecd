"""Where settings come from, what wins, and how mistakes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from imp import absent, settings
from imp.settings import SettingsError, load


def test_defaults_are_those_of_the_surface():
    made = load([], {"HOME": "/nowhere"})
    assert (made.server.host, made.server.port) == ("127.0.0.1", 8080)
    assert made.server.max_concurrent == 64 and made.generation.max_n == 8 and made.generation.max_tokens == 8192
    assert made.paths.model_cache == Path("/nowhere/.cache/imp/models")


def test_later_sources_win(tmp_path):
    config = tmp_path / "imp.toml"
    config.write_text(
        '[server]\nport = 1\nhost = "a"\napi_keys = ["k1", "k2"]\n[runtime]\nthreads = 1\nmax_batch_size = 1\n'
    )
    env = {"HOME": "/nowhere", "IMP_CONFIG": str(config), "IMP_SET": "runtime.threads=2 server.host=b"}
    made = load(["--set", "runtime.threads=3", "--port", "9"], env)
    assert (made.server.port, made.server.host, made.runtime.threads, made.runtime.max_batch_size) == (9, "b", 3, 1)
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
        (["--device", "tpu"], "--device: it must be one of auto, cpu, reference, cuda[:N]", 1),
        (["--set", "runtime.thread=2"], "did you mean 'runtime.threads'?", 1),
        (["--set", "runtime"], "not of the form section.key=value", 1),
        (["--set", "server.request_timeout_s=nan"], "must be a number", 1),
        (["--set", "server.prefix_cache=maybe"], "must be true or false", 1),
        (["--config", "/does/not/exist"], "/does/not/exist does not exist", 4),
        (["--frobnicate"], "unknown argument '--frobnicate'", 1),
        (["--max-model-length=5"], "did you mean '--max-model-len'?", 1),
        (["--api-key", ""], "--api-key", 1),
        (["--trusted-proxy", "10.0.0.0/99"], "--trusted-proxy: '10.0.0.0/99'", 1),
        (["--device", "cuda:one"], "--device: it must be one of auto, cpu, reference, cuda[:N]", 1),
        (["--lora", "a"], "--lora: 'a' is not of the form NAME=PATH", 1),
        (["--lora", "a=b", "--lora", "a=c"], "--lora: the name 'a' is given twice", 1),
        (["--lora", "../a=b"], "--lora: '../a' can be no model's name", 1),
        (["--mmproj", "a"], "--mmproj is not possible: this server has no vision", 6),
        (["--kv-fp8", "--kv-int8"], "--kv-int8: not allowed with argument --kv-fp8", 1),
        (["--set", "kv_cache.dtype=int5"], "kv_cache.dtype must be one of auto, fp32, fp16, bf16, fp8, int8", 1),
        (["--set", "kv_cache.dtyp=fp8"], "did you mean 'kv_cache.dtype'?", 1),
        (["--check=xml"], "--check", 1),
        (["--check", "--check-config"], "exclude each other", 1),
        (["--json"], "--json goes with", 1),
        (["stray"], "stray", 1),
    ],
)
def test_mistakes_name_the_flag_and_what_is_allowed(arguments, message, code):
    with pytest.raises(SettingsError) as caught:
        load(arguments, {})
    assert message in str(caught.value) and caught.value.exit_code == code


def test_values_that_ask_for_what_is_the_case_are_let_through(tmp_path):
    config = tmp_path / "imp.toml"
    config.write_text('[kv_cache]\ndtype = "auto"\nblock_size = 16\n[speculative]\nmtp_k = 0\n')
    load(["--config", str(config), "--think-budget", "0.5", "--set", "runtime.warmup=false"], {})
    config.write_text("[speculative]\nmtp_k = 2\n")
    with pytest.raises(SettingsError, match=r"speculative.mtp_k is not possible") as caught:
        load(["--config", str(config)], {})
    assert caught.value.exit_code == 6


@pytest.mark.parametrize("name", ["fp8", "int8", "int4", "nvfp4", "mxfp4"])
def test_a_switch_is_a_value_of_its_setting(name):
    made = load([f"--kv-{name}"], {"IMP_SET": "kv_cache.dtype=bf16"})
    assert made.kv_cache.dtype == name and made.origins["kv_cache.dtype"] == f"--kv-{name}"


def test_no_name_is_both_there_and_absent():
    fields = settings.known().values()
    known = set(settings.known()) | {f.metadata["flag"] for f in fields}
    known |= {switch for f in fields for switch in f.metadata["switches"]}
    assert not known & {each.name for each in (*absent.FLAGS, *absent.KEYS)}


SURFACE_FLAGS = """
--model --models-dir --host --port --device --chat-template --served-model-name --max-tokens --max-model-len
--lora --mmproj --kv-fp8 --kv-int8 --kv-int4 --kv-nvfp4 --kv-mxfp4 --think-budget --reasoning-format --tool-call-parser
--api-key --rate-limit --metrics-require-auth --trusted-proxy --max-concurrent --max-queued-tokens --max-batch
--max-batch-items --max-input-tokens --max-n --max-logit-bias --max-images-per-request --request-timeout
--http-read-timeout --http-write-timeout --http-keep-alive-max --log-requests --allow-remote-images --vram-budget
--prefix-cache --prefill-chunk-size --speech-model --video-model --enable-tokenizer-info-endpoint
--enable-server-dev-mode --config --set --help --version --check
"""
SURFACE_KEYS = {
    "runtime": "max_batch_size max_seq_len prefill_chunk_size prefill_chunk_decode_cap prefill_batch deterministic threads"
    " warmup graph_prewarm think_answer_reserve decode_burst",
    "kv_cache": "dtype block_size max_blocks growable host_mb",
    "attention": "sparse_topk_tokens sparse_sink_tokens sparse_recent_tokens sparse_min_ctx",
    "rope": "scaling factor orig_ctx",
    "server": "model_names prefix_cache prefix_pin_budget_pct model_swap model_swap_drain_ms recurrent_snapshot_mb"
    " recurrent_snapshot_host_mb otlp_endpoint otlp_service_name sse_ping_seconds agent_scan_limit",
    "speculative": "ngram k min_match mtp_k mtp_adaptive_k",
    "constrained": "jump_ahead whitespace",
    "diagnostics": "log_level step_timing debug_template",
}


def test_every_flag_and_key_of_the_surface_is_known_or_refused_by_name():
    parser = settings._parser()
    assert {flag for flag in SURFACE_FLAGS.split() if flag not in parser._option_string_actions} == set()
    names = set(settings.known()) | {each.name for each in absent.KEYS}
    assert {f"{section}.{key}" for section, keys in SURFACE_KEYS.items() for key in keys.split()} - names == set()


def test_lists_are_split_in_words_and_kept_as_they_are_in_files(tmp_path):
    config = tmp_path / "imp.toml"
    config.write_text('[server]\ncors_origins = ["https://a", "https://b"]\n')
    assert load(["--config", str(config)], {}).server.cors_origins == ("https://a", "https://b")
    assert load(["--set", "server.cors_origins=https://a,https://b"], {}).server.cors_origins == (
        "https://a",
        "https://b",
    )
    assert load(["--set", "server.cors_origins="], {}).server.cors_origins == ()
    assert load(["--set", "model.served_name=two words"], {}).model.served_name == "two words"


def test_where_each_value_came_from_is_known(tmp_path):
    config = tmp_path / "imp.toml"
    config.write_text("[server]\nport = 1\nkeep_alive_max = 5\n")
    made = load(
        ["--config", str(config), "--set", "runtime.threads=3", "--port", "9"], {"IMP_SET": "runtime.threads=2"}
    )
    assert dict(made.origins) == {
        "server.port": "--port",
        "server.keep_alive_max": str(config),
        "runtime.threads": "--set",
    }


def test_the_config_file_is_looked_for_in_order(tmp_path, monkeypatch):
    home, here, given = tmp_path / "home", tmp_path / "here", tmp_path / "given.conf"
    (home / ".config/imp").mkdir(parents=True)
    here.mkdir()
    places = [(home / ".config/imp/imp.conf", 1), (here / "imp.conf", 2), (tmp_path / "env.conf", 3), (given, 4)]
    monkeypatch.chdir(here)
    env, argv = {"HOME": str(home)}, []
    for path, port in places:
        path.write_text(f"[server]\nport = {port}\n")
        if path.name == "env.conf":
            env["IMP_CONFIG"] = str(path)
        if path == given:
            argv = ["--config", str(path)]
        assert load(argv, env).server.port == port


def test_a_broken_config_file_is_told_with_its_line(tmp_path):
    config = tmp_path / "imp.toml"
    config.write_text("[server\n")
    with pytest.raises(SettingsError, match="line 1"):
        load(["--config", str(config)], {})


def test_every_flag_appears_in_the_help(capsys):
    with pytest.raises(SystemExit):
        load(["--help"], {})
    shown = capsys.readouterr().out
    for key, field in settings.known().items():
        assert field.metadata["flag"] is None or field.metadata["flag"] in shown, key
