"""`python -m imp.chat inspect`, and the tools of templates that know none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imp.chat.__main__ import main
from imp.chat.formats import hermes
from imp.chat.formats.detect import detect
from imp.chat.inspect import Subject
from imp.chat.message import ChatRequest, Message
from imp.chat.rendering import render, shown
from imp.chat.template import BUILTIN, ChatTemplate
from imp.chat.tool_prompt import plainly

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
THINKS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|><think>\n"
NO_SYSTEM = """{%- for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no ' + m.role) }}
{%- endif %}{{ '[' + m.role + ']' + m.content }}{% endfor %}[assistant]"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.jinja").write_text(THINKS)
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    (tmp_path / "messages.json").write_text('[{"role": "user", "content": [{"type": "text", "text": "2+2?"}]}]')
    output = 'so</think>Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    (tmp_path / "out.txt").write_text(output)
    return tmp_path


def test_inspect_tells_what_is_found_and_how_an_answer_is_read(folder: Path, capsys: pytest.CaptureFixture[str]):
    files = [f"--{name}" if i == 0 else str(folder / f) for name, f in FILES for i in range(2)]
    assert main(["inspect", str(folder / "t.jinja"), *files]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["format"] == "hermes" and found["reasoning"]["close"] == "</think>"
    assert found["template_shows"] == {"tools": False, "calls": False, "results": True}
    assert found["prompt_reasoning"] == "started" and found["prompt"].endswith("2+2?<|assistant|><think>")
    [call] = found["answer"]["calls"]
    assert (call["name"], call["arguments"], call["unfinished"]) == ("add", '{"a": 1}', None)
    assert (found["answer"]["content"], found["answer"]["reasoning"]) == ("Let me see.", "so")
    assert found["agree"] is True and found["answer_by_characters"] == found["answer"]


FILES = (("messages", "messages.json"), ("tools", "tools.json"), ("output", "out.txt"))


def test_inspect_reads_a_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(tmp_path)]) == 1
    assert tmp_path.name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "arguments", "code", "said"),
    [
        ("t.jinja", None, [], 4, "there is no such file"),
        ("t.jinja", "{% if %}", [], 1, "chat template"),
        ("t.jinja", "{{ raise_exception('never') }}", [], 1, "never"),
        ("t.jinja", b"\xff\xfe", [], 1, "not UTF-8"),
        ("t.gguf", "no model", [], 1, "t.gguf"),
        ("t.jinja", "x", ["--messages", "absent.json"], 4, "absent.json: there is no such file"),
        ("t.jinja", "x", ["--messages", "t.jinja"], 1, "t.jinja is not JSON"),
        ("t.jinja", "[]", ["--messages", "t.jinja"], 1, "the messages must be a list"),
        ("t.jinja", '[{"role": "user", "content": 1}]', ["--messages", "t.jinja"], 1, "the messages must be a list"),
        ("t.jinja", '[{"role": "user", "tool_calls": [1]}]', ["--messages", "t.jinja"], 1, "the messages must be"),
        ("t.jinja", "{}", ["--tools", "t.jinja"], 1, "the tools must be a list"),
        ("t.jinja", '[{"name": "x"}]', ["--tools", "t.jinja"], 1, "the tools must be a list"),
    ],
)
def test_mistakes_are_one_sentence(
    name: str, text: Any, arguments: list[str], code: int, said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["inspect", name, *arguments]) == code
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 and "Traceback" not in err


# -- tools of templates that know none ------------------------------------------------------------


def prompt_of(source: str, *messages: Message) -> str:
    template = ChatTemplate(source)
    voice = detect(template)
    assert not voice.shows_tools and voice.format is hermes.FORMAT
    subject = Subject(template, voice, ("<tool_call>",))
    return shown(render(ChatRequest(messages, tools=tuple(TOOLS)), subject))


def test_tools_are_told_behind_the_system_message():
    prompt = prompt_of(BUILTIN["chatml"], Message("system", "Be brief."), Message("user", "2+2?"))
    system, user, _ = prompt.split("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n") and json.dumps(TOOLS[0]) in system
    assert '<tool_call>\n{"name": "FUNCTION_NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>' in system
    assert user == "<|im_start|>user\n2+2?"


def test_tools_become_the_system_message_or_stand_before_the_question():
    prompt = prompt_of(BUILTIN["chatml"], Message("user", "2+2?"))
    assert prompt.startswith("<|im_start|>system\n# Tools") and prompt.count("# Tools") == 1
    prompt = prompt_of(NO_SYSTEM, Message("user", "2+2?"))
    assert prompt.startswith("[user]# Tools") and prompt.endswith("\n\n2+2?[assistant]")


def test_calls_and_results_become_turns():
    turns = (
        Message("user", "1+1?"),
        Message("assistant", None, tool_calls=(CALL,)),
        Message("tool", "2", tool_call_id="c"),
        Message("tool", "two", tool_call_id="c"),
        Message("user", "thanks"),
    )
    prompt = prompt_of(NO_SYSTEM, *turns)
    _, _, rest = prompt.partition("1+1?")
    assert rest == (
        '[assistant]<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
        "[user]<tool_response>\n2\n</tool_response>\n<tool_response>\ntwo\n</tool_response>\nthanks[assistant]"
    )


def test_a_conversation_without_calls_stays_as_it_is():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert plainly(turns, hermes.ENVELOPE) == turns
