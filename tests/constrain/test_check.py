"""`python -m imp.constrain check`: verdicts of cases, one JSON line each, and what it says of files that hold none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from imp.constrain.__main__ import main
from tests.constrain.schemas import SHARED
from tests.constrain.suites import MASKBENCH

CASES = SHARED / "spec" / "constrain_cases.json"
SMALL = 40  # files of MaskBench


def run(capsys, *arguments: object) -> tuple[int, list[dict], str]:
    code = main(["check", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines()], err


def write(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.skipif(not CASES.exists(), reason="the cases of the specification are not here")
def test_all_cases_of_the_specification(capsys):
    code, lines, err = run(capsys, CASES)
    cases = json.loads(CASES.read_text())
    assert code == 0 and "77 as expected, 0 not" in err
    assert [line["id"] for line in lines] == [case["id"] for case in cases]
    for case, line in zip(cases, lines, strict=True):
        assert line["outcome"] == ("refused" if case["kind"].endswith("_refuse") else "compiled")
        assert [(text["text"], text["accepted"]) for text in line["texts"]] == [
            *((text, True) for text in case["accept"]),
            *((text, False) for text in case["reject"]),
        ]


@pytest.mark.skipif(not CASES.exists(), reason="the cases of the specification are not here")
def test_all_cases_token_by_token(capsys, gpt2, monkeypatch, code_folder):
    monkeypatch.setenv("IMP_CACHE_DIR", str(code_folder))
    vocabulary = SHARED / "data" / "vocab" / "ggml-vocab-gpt-2.gguf"
    code, lines, err = run(capsys, CASES, "--tokenizer", vocabulary)
    assert code == 0 and "mask us" in err
    assert all(line["mask_us"]["masks"] > 0 for line in lines if any(text["text"] for text in line["texts"]))


def test_a_part_of_maskbench(capsys):
    paths = [path for path in sorted(MASKBENCH.glob("*.json"))[::7] if path.stat().st_size < 20_000][:SMALL]
    if not paths:
        pytest.skip("the schemas are not beside the project")
    _, lines, _ = run(capsys, *paths, "--order", "any")
    tests = [test for path in paths for test in json.loads(path.read_text())["tests"]]
    walked = [text for line in lines for text in line["texts"]]
    assert len(lines) == len(paths) and len(walked) > 0.9 * len(tests)
    assert sum(line["agrees"] for line in lines) >= 0.95 * len(lines)
    assert not any(text["accepted"] for text in walked if text["expected"] == "reject")


def test_where_a_text_dies_and_what_only_is_not_complete(capsys, tmp_path):
    case = {"id": "n", "kind": "json_schema", "spec": {"type": "integer"}, "accept": ["-12"], "reject": ["1x", "-", "é"]}
    code, [line], _ = run(capsys, write(tmp_path, [case]))
    assert code == 0 and [text["died_at"] for text in line["texts"]] == [None, 1, None, 0]


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ({"kind": "regex", "spec": "a+", "accept": ["b"]}, "compiled"),
        ({"kind": "regex", "spec": "a+", "reject": ["aa"]}, "compiled"),
        ({"kind": "regex_refuse", "spec": "a+"}, "compiled"),
        ({"kind": "regex", "spec": "(?=a)b", "accept": []}, "refused"),
        ({"kind": "gbnf_refuse", "spec": "root ::= x", "must_mention": "no such words"}, "refused"),
        ({"schema": {"type": "integer"}, "tests": [{"data": "x", "valid": True}]}, "compiled"),
    ],
)
def test_a_verdict_that_is_not_as_expected_is_exit_code_1(capsys, tmp_path, case, outcome):
    code, [line], err = run(capsys, write(tmp_path, case))
    assert code == 1 and line["agrees"] is False and line["outcome"] == outcome and "0 as expected, 1 not" in err


@pytest.mark.parametrize(
    "case",
    [
        {"kind": "lark", "spec": 'start: "a"+', "accept": ["aa"], "reject": [""]},
        {"kind": "choice", "spec": ["yes", "no"], "accept": ["no"], "reject": ["n", "yesno"]},
        {"kind": "choice_refuse", "spec": [], "must_mention": "nothing to choose"},
        {"schema": False, "tests": [{"data": 1, "valid": False}]},
        {"kind": "tool_json", "spec": {"tools": [{"name": "f"}]}, "accept": ['<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>']},
    ],
)
def test_kinds_the_specification_has_no_case_of(capsys, tmp_path, case):
    code, [line], _ = run(capsys, write(tmp_path, case))
    assert code == 0 and line["agrees"]


WRONG = [
    (b"{", "is not JSON"),
    (b"[" * 100_000, "is not JSON"),
    (b"[1]", "case 0 is not an object"),
    (b'[{"kind": "xml"}]', "case 0 has the kind 'xml'"),
    (b'[{"kind": ["regex"], "spec": ""}]', "case 0 has the kind"),
    (b'[{"kind": "regex"}]', 'has no "spec"'),
    (b'[{"kind": "regex", "spec": 1}]', 'the "spec" of a regex is a text'),
    (b'[{"kind": "choice", "spec": [1]}]', "a list of texts"),
    (b'[{"kind": "tool_xml", "spec": {"tools": [{}]}}]', '"tools"'),
    (b'[{"kind": "regex", "spec": "a", "accept": "a"}]', '"accept" is a list of texts'),
    (b'{"schema": {}, "tests": [{"data": 1}]}', '"tests" is a list of'),
]


@pytest.mark.parametrize(("data", "says"), WRONG, ids=range(len(WRONG)))
def test_files_that_hold_no_cases_get_one_sentence(capsys, tmp_path, data, says):
    path = tmp_path / "bad.json"
    path.write_bytes(data)
    code, lines, err = run(capsys, path)
    assert code == 2 and not lines and says in err and err.count("\n") == 1 and "Traceback" not in err


def test_what_is_not_there_gets_one_sentence(capsys, tmp_path):
    assert run(capsys, tmp_path / "none.json")[0] == 2
    path = write(tmp_path, [])
    for model in (tmp_path / "none.gguf", tmp_path, path):
        code, _, err = run(capsys, path, "--tokenizer", model)
        assert code == 2 and err.startswith("imp.constrain: error: ") and err.count("\n") == 1


def test_it_is_a_program(tmp_path):
    path = write(tmp_path, {"kind": "regex", "spec": "a|b", "accept": ["b"]})
    done = subprocess.run([sys.executable, "-m", "imp.constrain", "check", path], capture_output=True, text=True)
    assert done.returncode == 0 and json.loads(done.stdout)["agrees"] is True
    assert subprocess.run([sys.executable, "-m", "imp.constrain"], capture_output=True).returncode == 2
