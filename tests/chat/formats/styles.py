"""How each family with JSON arguments writes calls: from the templates' own words, not from our envelopes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from imp.chat.formats import (
    apertus,
    apriel,
    command,
    command_plus,
    deepseek,
    deepseek_v31,
    firefunction,
    functionary,
    functionary_v31,
    gigachat,
    gigachat31,
    granite,
    hermes,
    kimi,
    llama,
    minimax_m1,
    mistral,
    mistral_args,
    mistral_call_id,
    nemotron,
    phi4,
    plain,
    solar,
)
from imp.chat.formats.base import Format

Call = tuple[str, str]  # name, arguments


@dataclass(frozen=True)
class Style:
    """call: one, given its number; around: what stands around them all; before: text in front of them, if there can be."""

    format: Format
    call: Callable[[str, str, int], str]
    opener: str = ""
    separator: str = ""
    closer: str = ""
    before: Callable[[str], str] | None = lambda text: text
    parallel: bool = True
    null: bool = True  # can be written for no arguments
    known: bool = False  # calls are of tools that there are: else text that looks like one would be

    def write(self, calls: Sequence[Call]) -> str:
        written = [self.call(name, arguments, index) for index, (name, arguments) in enumerate(calls)]
        return self.opener + self.separator.join(written) + self.closer


def named(name: str, arguments: str, index: int) -> str:
    return f'{{"name": "{name}", "arguments": {arguments}}}'


def parameters(name: str, arguments: str, index: int) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


def with_id(name: str, arguments: str, index: int) -> str:
    return f'{{"name": "{name}", "arguments": {arguments}, "id": "abcdefgh{index}"}}'


def xml(name: str, arguments: str, index: int) -> str:
    return f"<tool_call>\n{named(name, arguments, index)}\n</tool_call>"


def cohere(name: str, arguments: str, index: int) -> str:
    return f'    {{"tool_call_id": "{index}", "tool_name": "{name}", "parameters": {arguments}}}'


def action(name: str, arguments: str, index: int) -> str:
    return f'    {{\n        "tool_name": "{name}",\n        "parameters": {arguments}\n    }}'


def kimi_call(name: str, arguments: str, index: int) -> str:
    return f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def deepseek_call(name: str, arguments: str, index: int) -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def deepseek_v31_call(name: str, arguments: str, index: int) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def solar_call(name: str, arguments: str, index: int) -> str:
    return f"<|tool_call:begin|>a1b2c3d4e{index}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>"


def tag(name: str, arguments: str, index: int) -> str:
    return f"<function={name}>{arguments}</function>"


DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
STYLES: dict[str, Style] = {
    "hermes": Style(hermes.FORMAT, xml, "", "\n"),
    "hermes, Bielik's": Style(hermes.FORMAT, lambda n, a, i: f"<tool_call>{named(n, a, i)}</tool_call>", "", "\n"),
    "hermes, several in one": Style(hermes.FORMAT, named, "<tool_call>\n", "\n", "\n</tool_call>"),
    "mistral": Style(mistral.FORMAT, with_id, "[TOOL_CALLS][", ", ", "]"),
    "mistral, no ids": Style(mistral.FORMAT, named, "[TOOL_CALLS] [", ", ", "]"),
    "mistral args": Style(mistral_args.FORMAT, lambda n, a, i: f"[TOOL_CALLS]{n}[ARGS]{a}"),
    "mistral args, no marker": Style(mistral_args.FORMAT, lambda n, a, i: f"[TOOL_CALLS]{n}{a}", null=False),
    "mistral call id": Style(mistral_call_id.FORMAT, lambda n, a, i: f"[TOOL_CALLS]{n}[CALL_ID]abcdefgh{i}[ARGS]{a}"),
    "deepseek": Style(deepseek.FORMAT, deepseek_call, DEEPSEEK[0], "\n", DEEPSEEK[1]),
    "deepseek, no section": Style(deepseek.FORMAT, deepseek_call, "", "\n"),
    "deepseek v3.1": Style(deepseek_v31.FORMAT, deepseek_v31_call, DEEPSEEK[0], "", DEEPSEEK[1]),
    "kimi": Style(kimi.FORMAT, kimi_call, "<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
    "solar": Style(solar.FORMAT, solar_call, "<|tool_calls|>", "", "<|calls|>"),
    "solar, no section": Style(solar.FORMAT, solar_call, "", "", "<|calls|>"),
    "granite": Style(granite.FORMAT, named, "<|tool_call|>[", ", ", "]"),
    "granite 3.1": Style(granite.FORMAT, named, "<tool_call>[", ",", "]"),
    "phi4": Style(phi4.FORMAT, named, "<|tool_call|>[", ", ", "]<|/tool_call|>"),
    "phi4, functools": Style(phi4.FORMAT, named, "functools[", ", ", "]"),
    "firefunction": Style(firefunction.FORMAT, named, " functools[", ", ", "]"),
    "command": Style(command.FORMAT, cohere, "<|START_ACTION|>[\n", ",\n", "\n]<|END_ACTION|>"),
    "command plus": Style(command_plus.FORMAT, action, "\nAction:\n```json\n[\n", ",\n", "\n]```\n"),
    "command plus, one line": Style(
        command_plus.FORMAT, lambda n, a, i: f'{{"tool_name": "{n}", "parameters": {a}}}', "Action: ```json\n[", ",", "]\n```"
    ),
    "nemotron": Style(nemotron.FORMAT, named, "<TOOLCALL>[", ", ", "]</TOOLCALL>"),
    "apriel": Style(apriel.FORMAT, with_id, "\n<tool_calls>[", ", ", "]</tool_calls>"),
    "apriel, lines": Style(apriel.FORMAT, named, "<tool_calls>[\n    ", ",\n    ", "\n]</tool_calls>"),
    "minimax m1": Style(minimax_m1.FORMAT, named, "<tool_calls>\n", "\n", "\n</tool_calls>"),
    "gigachat": Style(
        gigachat.FORMAT, named, "<|message_sep|>\n\nfunction call<|role_sep|>\n", "", "<|message_sep|>\n\n", parallel=False
    ),
    "gigachat, no text": Style(
        gigachat.FORMAT, named, "function call<|role_sep|>\n", "", "<|message_sep|>", before=None, parallel=False
    ),
    "gigachat 3.1": Style(gigachat31.FORMAT, named, "<|function_call|>", "", "<|message_sep|>\n\n", parallel=False),
    "apertus": Style(apertus.FORMAT, lambda n, a, i: f'{{"{n}": {a}}}', "<|tools_prefix|>[", ", ", "]<|tools_suffix|>"),
    "llama": Style(llama.FORMAT, parameters, before=None, separator="; "),
    "llama, type": Style(
        llama.FORMAT, lambda n, a, i: f'{{"type": "function", "name": "{n}", "parameters": {a}}}', before=None, separator="\n"
    ),
    "llama, nested": Style(
        llama.FORMAT,
        lambda n, a, i: f'{{"type": "function", "function": {{"name": "{n}", "parameters": {a}}}}}',
        *("", ", "),
        before=None,
    ),
    "llama, tagged": Style(llama.FORMAT, parameters, "<|python_tag|>", ";"),
    "llama, function": Style(llama.FORMAT, tag),
    "functionary v3.1": Style(functionary_v31.FORMAT, tag),
    "functionary": Style(
        functionary.FORMAT, lambda n, a, i: f"{n}\n{a}", "", ">>>", before=lambda text: f"all\n{text}>>>", closer="", known=True
    ),
    "functionary, twice": Style(functionary.FORMAT, lambda n, a, i: f">>>{n}\n{a}", before=lambda text: f">>>all\n{text}", known=True),
    "plain": Style(plain.FORMAT, named, separator="\n", before=None),
    "plain, array": Style(plain.FORMAT, named, "[", ", ", "]", before=None),
    "plain, fence": Style(plain.FORMAT, named, "```json\n", "\n", "\n```", before=None),
}
