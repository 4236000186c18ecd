"""For every format, outputs as its models write them and what must be read of each: gathered from the tests of formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from imp.chat.formats import functionary, gemma4, harmony, hermes, lfm2, muse, pythonic, qwen_xml
from imp.chat.formats.base import Format, Thinking, Tool
from tests.chat.formats import (
    test_families,
    test_json_formats,
    test_markup,
    test_messages,
    test_program,
    test_python_calls,
    test_qwen_xml,
)
from tests.chat.formats.harness import THINK, Part
from tests.chat.formats.parts import call, text, thought
from tests.chat.formats.styles import STYLES


@dataclass(frozen=True)
class Case:
    """started: the prompt ends inside the reasoning.  by_value: the texts of arguments in `parts` are a judge's."""

    name: str
    format: Format
    output: str
    parts: list[Part]
    tools: Sequence[Tool]
    thinking: Thinking | None = None
    started: bool = False
    by_value: bool = False


def _json_arguments() -> Iterator[Case]:
    tools = test_json_formats.TOOLS
    for style, of in STYLES.items():
        for name, calls in test_json_formats.SITUATIONS.items():
            wanted = test_json_formats.given(of, calls)
            yield Case(f"{style}: {name}", of.format, of.write(wanted), test_json_formats.expected(wanted), tools)
        wanted = test_json_formats.given(of, test_json_formats.SITUATIONS["parallel"])
        written, parts = of.write(wanted), test_json_formats.expected(wanted)
        behind = ">>>all\nDone." if of.format is functionary.FORMAT else "\nDone."
        yield Case(f"{style}: text behind", of.format, written + behind, [*parts, text("Done.")], tools)
        thinks = f"<think>\nhm {{\n</think>\n\n{written}"
        yield Case(f"{style}: reasoning", of.format, thinks, [thought("hm {"), *parts], tools, THINK)
        yield Case(f"{style}: reasoning goes on", of.format, thinks[8:], [thought("hm {"), *parts], tools, THINK, True)
        if of.before is not None:
            yield Case(f"{style}: text before", of.format, of.before("So. {") + written, [text("So. {"), *parts], tools)


def _others() -> Iterator[Case]:
    for name, writing in test_markup.WRITINGS.items():
        for case, make in test_markup.CASES.items():
            if (name, case) not in test_markup.MISSING:
                output, parts = make(writing)
                yield Case(f"{name}: {case}", writing.format, output, parts, test_markup.TOOLS, THINK)
    for name, (output, parts) in test_qwen_xml.CASES.items():
        yield Case(f"qwen-xml: {name}", qwen_xml.FORMAT, output, parts, test_qwen_xml.TOOLS, THINK)
    for format, cases in (
        (harmony.FORMAT, test_messages.HARMONY),
        (muse.FORMAT, test_messages.MUSE),
        (gemma4.FORMAT, test_messages.GEMMA),
    ):
        for name, (output, parts) in cases.items():
            yield Case(f"{format.name}: {name}", format, output, parts, test_messages.TOOLS)
    for name, (format, output, tools, parts) in test_families.CASES.items():
        yield Case(name, format, output, parts, tools)
    for name, (output, started, parts) in test_program.CASES.items():
        yield Case(f"hermes: {name}", hermes.FORMAT, output, parts, test_program.TOOLS, THINK, started)


def _python() -> Iterator[Case]:
    for source in test_python_calls.LISTS:
        wanted = test_python_calls.judged(source)
        parts = [call(name, json.dumps(values, ensure_ascii=False)) for name, values in wanted]
        known = [Tool(name) for name, _ in wanted]
        yield Case(f"pythonic: {source}", pythonic.FORMAT, source, parts, known, by_value=True)
        for format, (opener, closer) in (
            (pythonic.FORMAT, ("<|python_start|>", "<|python_end|>")),
            (lfm2.FORMAT, ("Well.\n<|tool_call_start|>", "<|tool_call_end|>\nDone.")),
        ):
            whole = [text("Well."), *parts, text("Done.")] if format is lfm2.FORMAT else parts
            marked = f"{opener}{source}{closer}"
            yield Case(f"{format.name}: {marked}", format, marked, whole, test_python_calls.TOOLS, by_value=True)
    for name, (written, parts) in test_python_calls.LOOSE.items():
        output = f"<|tool_call_start|>{written}<|tool_call_end|>"
        yield Case(f"lfm2: {name}", lfm2.FORMAT, output, parts, test_python_calls.TOOLS)


CORPUS: tuple[Case, ...] = (*_json_arguments(), *_others(), *_python())


def of_format(format: Format) -> list[Case]:
    return [case for case in CORPUS if case.format is format]
