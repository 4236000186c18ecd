"""The benchmarks' own arithmetic, and what they read of others' output. Expected values are worked out by hand."""

from __future__ import annotations

import importlib
import json
import math
import re
from pathlib import Path

import pytest

from bench import limits, lines, llama, measure, peer, phases, soak, subjects
from bench.client import Answer, Dechunker, figures
from bench.measure import Timing, percentile, table
from bench.model import Case
from bench.soak import Tally, levels, violations

MODULES = sorted(path.stem for path in (Path(peer.__file__).parent).glob("*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_every_script_imports(name):
    if name == "gpu":
        pytest.importorskip("cuda.bindings", reason="needs the cuda packages")
    importlib.import_module(f"bench.{name}")


@pytest.mark.parametrize(
    "text, case, work",
    [
        ("pp512", Case("pp", 512), 512),
        ("tg64", Case("tg", 64), 64),
        ("tg32x8@16", Case("tg", 32, 8, 16), 256),
        ("tg32@2048", Case("tg", 32, 1, 2048), 32),
    ],
)
def test_cases_are_written_as_they_are_read(text, case, work):
    assert Case.parse(text) == case and str(case) == text and case.work == work


@pytest.mark.parametrize("text", ["", "tg", "pp0", "xx5", "tg5x0", "tg5@", "pp5 "])
def test_what_is_no_case_is_refused(text):
    with pytest.raises(ValueError, match="is not a case"):
        Case.parse(text)


def test_rates_of_a_timing():
    timing = Timing((2.0, 1.0, 4.0), 100)
    assert timing.best == 100 and timing.median == 50


def test_percentiles_are_nearest_rank():
    values = [15, 20, 35, 40, 50]  # the usual textbook example
    assert [percentile(values, p) for p in (0.05, 0.3, 0.4, 0.5, 1.0)] == [15, 20, 20, 35, 50]
    assert percentile([7], 0.99) == 7 and math.isnan(percentile([], 0.5))


def test_a_table_lines_up():
    assert table(["what", "n"], [["a", "10"], ["longer", "5"]]) == (
        "| what   |  n |\n| ------ | -: |\n| a      | 10 |\n| longer |  5 |"
    )


def test_the_ratio_is_of_medians_and_says_how_many_times_better():
    rate = lines.Line("x", "tokens/s", ours=[300.0, 100.0, 200.0], theirs=[50.0, 100.0, 900.0], target=2.0)
    assert rate.times == 2.0 and not rate.missed
    rate.theirs.append(2000.0)  # their median is now (100 + 900) / 2
    assert rate.times == 0.4 and rate.missed
    time_to_first = lines.Line("y", "ms", ours=[50.0], theirs=[200.0], target=1.0, lower_is_better=True)
    assert time_to_first.times == 4.0 and not time_to_first.missed
    assert measure.ratio(1.0, 0.0) == 0.0


@pytest.mark.parametrize("subject", subjects.SUBJECTS.values(), ids=list(subjects.SUBJECTS))
def test_every_target_is_a_case_that_is_run(subject):
    assert set(subject.what) <= set(subjects.WHAT)
    assert set(subject.targets) <= {str(case) for case in subject.cases(subject.what)}
    assert set(subjects.HTTP_TARGETS) <= {f"http x{n}" for n in peer.CONCURRENCY}


def test_every_case_is_written_as_its_name():
    for name in (case for group in subjects.CASES.values() for case in group):
        assert str(Case.parse(name)) == name


def test_a_subject_is_found_by_name_or_by_path(tmp_path):
    assert subjects.find("gemma3").name == "gemma3"
    (tmp_path / "my.gguf").touch()
    mine = subjects.find(str(tmp_path / "my.gguf"))
    assert mine.name == "my" and mine.source() == tmp_path / "my.gguf" and not mine.targets
    with pytest.raises(ValueError, match="neither a file nor one of Q4_0"):
        subjects.find("Q3_0")


def test_what_missed_its_target_is_told():
    found = lines.Lines("them")
    fast = found.line("fast", "tokens/s", 2.0)
    fast.ours, fast.theirs = [30.0], [10.0]
    slow = found.line("slow", "ms", 1.0, lower_is_better=True)
    slow.ours, slow.theirs = [30.0], [10.0]
    assert found.missed() == [slow]
    assert [(v["name"], v["times"], v["missed"]) for v in found.values()] == [
        ("fast", 3.0, False),
        ("slow", pytest.approx(1 / 3), True),
    ]
    assert "| them |" in found.table()


def test_a_limit_is_held_by_the_median():
    slow = limits.Figure("start", "s", 1.5, values=[1.0, 1.6, 9.0])
    shared = limits.Figure("share", "", 0.6, at_least=True, values=[0.1, 0.61, 0.7])
    told = limits.Figure("resident", "MiB", values=[436.0])
    assert (slow.missed, shared.missed, told.missed) == (True, False, False)
    assert slow.cells() == ["start", "s", "1.60 (1.00-9.00)", "<= 1.5", "no"]
    assert shared.cells()[-2:] == [">= 0.6", "yes"] and told.cells()[-2:] == ["", ""]
    assert lines.with_section(lines.DOCS.read_text(), "x\n", *limits.MARKS).count(limits.MARKS[0]) == 1


def test_shares_of_a_step_are_of_their_sum_and_small_ones_are_one():
    found = phases.shares({"norm": 1.0, "matmul": 8.0, "glu": 0.96, "a": 0.03, "b": 0.01})
    assert [name for name, _ in found] == ["matmul", "norm", "glu", "all others"]
    assert [share for _, share in found] == pytest.approx([0.8, 0.1, 0.096, 0.004])
    assert phases.shares({"matmul": 2.0}) == [("matmul", 1.0)]


def test_medians_are_shown_with_their_range():
    assert lines.shown([151.2, 163.0, 139.7]) == "151 (140-163)"
    assert lines.shown([0.5]) == "0.50"


def test_only_the_marked_part_of_the_page_changes():
    marks = ("<begin>", "<end>")
    page = "before\n<begin>\nold\n<end>\nafter\n"
    assert lines.with_section(page, "new\n", *marks) == "before\n<begin>\nnew\n<end>\nafter\n"
    with pytest.raises(ValueError, match="lacks"):
        lines.with_section("no markers", "new", *marks)
    assert lines.with_section(lines.DOCS.read_text(), "x\n", *peer.MARKS).count(peer.MARKS[0]) == 1


def test_what_llama_cpp_was_built_with_is_read_of_its_own_report():
    assert llama.read_features("CPU : SSE3 = 1 | AVX512 = 1 | SVE = 0 | AMX_INT8 = 1 | REPACK = 1 | \n") == (
        "SSE3 AVX512 AMX_INT8 REPACK"
    )
    assert llama.read_features("") == "?"


def test_llama_bench_is_read_by_its_sizes():
    tests = [
        {"n_prompt": 128, "n_gen": 0, "n_depth": 0, "avg_ts": 266.5},
        {"n_prompt": 0, "n_gen": 64, "n_depth": 0, "avg_ts": 76.25},
        {"n_prompt": 0, "n_gen": 64, "n_depth": 2048, "avg_ts": 23.0},
    ]
    output = json.dumps(tests)
    assert llama.read_bench(output, Case.parse("pp128")) == 266.5
    assert llama.read_bench(output, Case.parse("tg64")) == 76.25
    assert llama.read_bench(output, Case.parse("tg64@2048")) == 23.0
    with pytest.raises(ValueError, match="did not report pp512"):
        llama.read_bench(output, Case.parse("pp512"))


def test_llama_batched_bench_is_read_among_its_log():
    line = '{"n_kv_max": 4096, "pp": 16, "tg": 32, "pl": 8, "t_tg": 2.0, "speed_tg": 128.0, "speed": 150.0}'
    assert llama.read_batched_bench(f"\nloading {{model}}\n{line}\n\n") == 128.0
    with pytest.raises(ValueError, match="0 lines"):
        llama.read_batched_bench("main: failed\n")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_chunks_come_off_however_they_are_cut(size):
    wire = b"5\r\nhello\r\nA;name=value\r\n, wor\r\nld!\r\n0\r\n\r\n"
    unwrap, out = Dechunker(), b""
    for i in range(0, len(wire), size):
        out += unwrap.feed(wire[i : i + size])
    assert out == b"hello, wor\r\nld!" and unwrap.ended


def answered(began: float, events: list[float], tokens: int = 0) -> Answer:
    return Answer(began, 200, events, "text", tokens, events[-1] + 0.5, complete=True)


def test_figures_of_a_load():
    got = figures(2, [answered(0.0, [1.0, 1.1, 1.3], 3), answered(0.5, [2.5, 3.5])], expected_tokens=5)
    assert got.tokens_per_s == pytest.approx(8 / 4.0)  # 3 counted, 5 expected; from 0.0 to 4.0
    assert (got.ttft_p50_s, got.ttft_p99_s) == (1.0, 2.0)
    assert (got.itl_p50_s, got.itl_p99_s) == (pytest.approx(0.2), 1.0)


def test_a_load_with_a_failed_request_has_no_figures():
    failed = Answer(0.0, 503, error="503: draining")
    with pytest.raises(RuntimeError, match="503: draining"):
        figures(1, [failed], 5)


CALM = {
    "imp_queue_depth": 0.0,
    "imp_kv_blocks_live": 0.0,
    "imp_kv_blocks_used": 0.0,
    "imp_kv_blocks_pinned": 0.0,
    "imp_requests_failed_total": 0.0,
}
MIB = 1 << 20


def tally(**changes) -> Tally:
    memory = [(t, (300 + min(t, 25)) * MIB) for t in range(101)]  # grows while it warms up, then no more
    return Tally(**({"seconds": 100.0, "requests": 10, "disconnects": 3, "memory": memory} | changes))


def test_a_calm_end_has_no_violation():
    assert violations(tally(), CALM, may_refuse=False) == []
    assert levels(tally()) == (300 * MIB, 325 * MIB, 325 * MIB)


@pytest.mark.parametrize(
    "changes, metrics, words",
    [
        ({"errors": ["500: None", "500: None"]}, {}, r"unexpected error \(2 times\): 500"),
        ({"refused": 1}, {}, "1 requests were refused"),
        ({"disconnects": 10}, {}, "no request was answered"),
        ({"memory": [(t, (300 + t) * MIB) for t in range(101)]}, {}, "memory grew from 325 to 398 MiB"),
        ({}, {"imp_queue_depth": 2.0}, "2 sequences still"),
        ({}, {"imp_kv_blocks_live": 7.0}, "7 KV blocks are still held"),
        ({}, {"imp_kv_blocks_used": 3.0, "imp_kv_blocks_pinned": 2.0}, "3 KV blocks are used, 2 of them pinned"),
        ({}, {"imp_requests_failed_total": 1.0}, "counts 1 failed"),
    ],
)
def test_every_violation_is_found_alone(changes, metrics, words):
    (found,) = violations(tally(**changes), CALM | metrics, may_refuse=False)
    assert re.search(words, found)


def test_a_server_of_others_may_refuse():
    assert violations(tally(refused=2), CALM, may_refuse=True) == []


def test_a_soak_has_room_for_its_longest_requests_and_fewer_blocks_than_all_want():
    for streams in (1, 16, 64):
        assert soak.kv_blocks(streams) * 16 >= 2 * (2 * soak.LONGEST_PROMPT + soak.LONGEST_ANSWER)
    assert soak.kv_blocks(64) * 16 < 64 * (soak.LONGEST_PROMPT + soak.LONGEST_ANSWER) / 2
