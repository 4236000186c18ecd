"""Chat templates: messages in, the prompt's text out, exactly as transformers' `apply_chat_template` writes it.

Owns what a template is given and how its failures read. What it may do is `sandbox.py`'s, how much `costs.py`'s.
Knows no tokens and no wire format: messages are plain JSON values in the shape templates expect.
"""

from __future__ import annotations

import copy
import re
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import meta

from imp.chat import costs, sandbox

MAX_SOURCE = 262_144  # characters; the longest template of a known model has some 17 thousand
MAX_MESSAGE = 2000  # characters of a TemplateError
MAX_DATE_FORMAT = 256
# one thing, as families of templates call it
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning", "thought")

# Private-use characters no conversation means anything by; the space shows whether the template trims.
CONTINUE_MARK = "\ue0c0continue\ue0c1 "


class TemplateError(Exception):
    """The template cannot be compiled, or did not render this conversation.

    message: what the template said, or what went wrong in one sentence
    line: of the template, where it is known
    refused: the template itself said no (`raise_exception`); False: the template is broken, or does too much
    """

    def __init__(self, message: str, *, line: int | None = None, refused: bool = False) -> None:
        message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + "..."
        super().__init__(message)
        self.message, self.line, self.refused = message, line, refused


class _Program:
    """One compiled source.  reads: names of the variables it takes from outside."""

    def __init__(self, source: str, clock: Callable[[], datetime]) -> None:
        if len(source) > MAX_SOURCE:
            raise TemplateError(f"the chat template has {len(source)} characters; {MAX_SOURCE} are allowed")
        self.source = source
        self._changes_lists = re.search(r"\.\s*(append|pop)\s*\(", source) is not None
        environment = sandbox.MeteredEnvironment()
        environment.globals["strftime_now"] = _strftime(clock)
        try:
            self.reads = frozenset(meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.from_string(source)
        except Exception as error:  # a foreign program: Jinja's parser and Python's compiler fail in many ways
            raise _failure(error) from error

    def run(self, variables: dict[str, Any]) -> str:
        if self._changes_lists:
            variables = copy.deepcopy(variables)
        size = costs.weight(variables, costs.BASE_BUDGET)
        reset = costs.METER.set(costs.Meter(costs.BASE_BUDGET + costs.BUDGET_PER_INPUT * size))
        try:
            return self._template.render(variables)
        except Exception as error:  # a foreign program may raise anything; whatever it is ends this request only
            raise _failure(error) from error
        finally:
            costs.METER.reset(reset)


class ChatTemplate:
    """A compiled template, and perhaps another one that is for conversations with tools, as transformers chooses.
    Immutable; renders in any number of threads at once.

    source: of the template.  tool_use: of the other; None: there is none
    text: all of it that tells how the model speaks
    reads: names of the variables it takes from outside
    special_tokens: variables of the template, `bos_token` and the like, by name
    clock: what `strftime_now` reads
    """

    def __init__(
        self,
        source: str,
        *,
        tool_use: str | None = None,
        special_tokens: Mapping[str, str] = types.MappingProxyType({}),
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source, self.tool_use = source, tool_use
        self.text = source if tool_use is None else f"{source}\n{tool_use}"
        self._special_tokens = dict(special_tokens)
        self._clock = clock
        self._plain = _Program(source, clock)
        self._with_tools = self._plain if tool_use is None else _Program(tool_use, clock)
        self.reads = self._plain.reads | self._with_tools.reads

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt's text. `kwargs` are further variables, and win over special tokens.

        With `continue_final_message` the text ends inside the last message, so that the model goes on with it, and
        there is no generation prompt. Raises TemplateError.
        """
        if not messages:
            raise TemplateError("there are no messages to render", refused=True)
        chat = [_as_templates_know_it(message) for message in messages]
        program = self._with_tools if tools else self._plain
        if continue_final_message:
            final = _mark_end(program, chat[-1])
        variables = self._special_tokens | self._older_names(program, tools) | kwargs
        variables |= {"messages": chat, "tools": tools, "documents": documents}
        variables["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        text = program.run(variables)
        return _cut_at_mark(text, final) if continue_final_message else text

    def _older_names(self, program: _Program, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        """What templates from before there was `tools` read: its functions as text, and the time."""
        if "functions" not in program.reads or "tools" in program.reads:
            return {}
        functions = [tool.get("function", tool) for tool in tools or ()]
        return {"functions": sandbox.tojson(functions, indent=4), "datetime": self._clock().strftime("%B %d %Y, %H:%M")}


def _mark_end(program: _Program, message: dict[str, Any]) -> str:
    """Put CONTINUE_MARK behind the message's last text; returns that text."""
    content: Any = message.get("content")
    if "content" not in program.source:
        raise TemplateError("continue_final_message: the chat template does not read `content`", refused=True)
    if isinstance(content, str):
        message["content"] = content + CONTINUE_MARK
        return content
    for i in reversed(range(len(content or ()))):
        if "text" in content[i]:
            text = content[i]["text"]
            marked = {**content[i], "text": text + CONTINUE_MARK}
            message["content"] = [*content[:i], marked, *content[i + 1 :]]
            return text
    raise TemplateError("continue_final_message: the final message has no text to continue", refused=True)


def _as_templates_know_it(message: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without null values (templates would print `None`), reasoning under every name templates read."""
    known = {key: value for key, value in message.items() if value is not None}
    reasoning = next((known[name] for name in REASONING_NAMES if name in known), None)
    if reasoning is not None:
        known = dict.fromkeys(REASONING_NAMES, reasoning) | known | {"reasoning_content": reasoning}
    return known


def _cut_at_mark(text: str, final: str) -> str:
    end = text.rfind(CONTINUE_MARK.strip())
    if end < 0 or final.strip() not in text:
        raise TemplateError(
            "continue_final_message: the chat template does not keep the text of the final message", refused=True
        )
    kept = text[:end]
    return kept if text.startswith(CONTINUE_MARK, end) else kept.rstrip()


def _strftime(clock: Callable[[], datetime]) -> Callable[[str], str]:
    def strftime_now(format: str) -> str:
        if len(format) > MAX_DATE_FORMAT or re.search(r"%[^a-zA-Z%]*\d{3}", format):
            raise costs.BudgetExceeded("strftime_now with a long format or a wide field")
        return clock().strftime(format)

    return strftime_now


def _failure(error: Exception) -> TemplateError:
    """What a client may read of an exception that compiling or running a template raised."""
    if isinstance(error, sandbox.Refused):
        return TemplateError(error.message or "the chat template refused this conversation", refused=True)
    line = getattr(error, "lineno", None) or _line(error.__traceback__)
    what = str(error) or type(error).__name__
    if isinstance(error, RecursionError | MemoryError):
        what = "nested too deeply"
    return TemplateError(f"chat template: {what}" + (f" (line {line})" if line else ""), line=line)


def _line(traceback: types.TracebackType | None) -> int | None:
    """The template's line an exception went through; Jinja maps the frames of compiled code back to it."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


# `--chat-template` by name: short sources of our own for models that come without a template.
BUILTIN: dict[str, str] = {
    "chatml": """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}""",
    # Llama 2 chat: the system text lives inside the first instruction
    "llama2": """\
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = '<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + ' ' + (eos_token or '') }}
    {%- else %}
        {{- (bos_token or '') + '[INST] ' + ns.system + message.content | trim + ' [/INST]' }}
        {%- set ns.system = '' %}
    {%- endif %}
{%- endfor %}""",
    "llama3": """\
{{- bos_token or '' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}""",
    # Nemotron 3 and 4 instruct: turns are named by an <extra_id>, the system turn is always there
    "nemotron": """\
{{- '<extra_id_0>System\\n' }}
{%- if messages[0].role == 'system' %}
    {{- messages[0].content | trim }}
{%- endif %}
{{- '\\n' }}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '<extra_id_1>User\\n' + message.content | trim + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<extra_id_1>Assistant\\n' + message.content | trim + '\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<extra_id_1>Tool\\n' + message.content | trim + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<extra_id_1>Assistant\\n' }}
{%- endif %}""",
    # Gemma has no system turn: its text goes in front of the first user's
    "gemma": """\
{{- bos_token or '' }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = ns.system + message.content | trim + '\\n\\n' %}
    {%- else %}
        {%- set role = 'model' if message.role == 'assistant' else message.role %}
        {{- '<start_of_turn>' + role + '\\n' + ns.system + message.content | trim + '<end_of_turn>\\n' }}
        {%- set ns.system = '' %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\\n' }}
{%- endif %}""",
    # no turns at all: the texts, a line each
    "none": "{{- messages | map(attribute='content') | join('\\n') }}",
}
