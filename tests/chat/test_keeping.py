"""How much of a prompt is to be kept: up to the last marked block, as the template puts it."""

from __future__ import annotations

import pytest

from imp.chat.keeping import kept_tokens
from imp.chat.message import ChatRequest, Kept, Message, Refused
from imp.chat.template import ChatTemplate, TemplateError
from imp.http.dialects import anthropic
from imp.http.errors import ApiError

MARKED = {"cache_control": {"type": "ephemeral"}}
CHATML = """{%- for m in messages %}<|im_start|>{{ m.role }}
{% if loop.first and m.role == 'system' and tools %}{{ tools | tojson }}
{% endif %}{{ m.content | trim }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
STRICT = """{%- set first = 1 if messages[0].role == 'system' else 0 %}
{%- if messages[first].role != 'user' %}{{ raise_exception('A user must speak first.') }}{% endif %}
{%- for m in messages[first:] %}{{ '[INST] ' if m.role == 'user' else '' }}
{%- if loop.first and first %}{{ messages[0].content }}

{% endif %}{{ m.content }}{{ ' [/INST]' if m.role == 'user' else '</s>' }}{% endfor %}"""


def block(text: str, marked: bool = False) -> dict[str, object]:
    return {"type": "text", "text": text} | (MARKED if marked else {})


def tool(name: str, marked: bool = False) -> dict[str, object]:
    return {"name": name, "input_schema": {"type": "object"}} | (MARKED if marked else {})


def kept_text(body: dict[str, object], source: str = CHATML) -> str:
    """The part of the prompt that a request to /v1/messages wants kept; every character is a token."""
    chat = anthropic.read({"max_tokens": 5, **body}).chat
    template = ChatTemplate(source)

    def render(part: ChatRequest) -> str:
        turns = [{"role": m.role, "content": m.content or ""} for m in part.messages]
        try:
            return template.render(
                turns,
                tools=list(part.tools),
                add_generation_prompt=part.add_generation_prompt,
                continue_final_message=part.continue_final_message,
            )
        except TemplateError as error:
            raise Refused(error.message) from None

    rendered = render(chat)
    encoded = [ord(c) for c in rendered]
    return rendered[: kept_tokens(chat, rendered, encoded, render, lambda text: [ord(c) for c in text])]


USER = [{"role": "user", "content": "hello"}]
LONG = [
    {"role": "user", "content": [block("read it", marked=True), block("quickly")]},
    {"role": "assistant", "content": [block("I have"), block("read it", marked=True)]},
    {"role": "user", "content": "and now?"},
]


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ({"system": [block("be kind", marked=True), block("be quick")], "messages": USER}, "be kind"),
        ({"system": [block("be kind", marked=True)], "messages": USER}, "be kind<|im_end|>\n<|im_start|>user\n"),
        ({"system": [block("be kind\n\n", marked=True), block("quick")], "messages": USER}, "be kind"),
        ({"system": [block("a", marked=True), block("b"), block("c", marked=True), block("d")], "messages": USER}, "c"),
        ({"messages": LONG}, "I have\nread it<|im_end|>\n"),
        ({"messages": LONG[:1]}, "read it"),
        ({"messages": [{"role": "user", "content": [block("hello", marked=True)]}]}, "hello<|im_end|>\n"),
        ({"messages": USER, **MARKED}, "hello<|im_end|>\n"),
        ({"messages": [*USER, {"role": "assistant", "content": "hi"}, *USER], **MARKED}, "hello<|im_end|>\n"),
    ],
)
def test_the_last_marked_block_bounds_what_is_kept(body, end):
    assert kept_text(body).endswith(end)


def test_tools_are_kept_up_to_the_marked_one():
    tools = [tool("one"), tool("two", marked=True), tool("three")]
    text = kept_text({"system": "s", "tools": tools, "messages": USER})
    assert '"two"' in text and "three" not in text and text.endswith("}")
    both = {"system": [block("s", marked=True)], "tools": tools, "messages": USER}
    assert '"three"' in kept_text(both) and kept_text(both).endswith("s<|im_end|>\n<|im_start|>user\n")


def test_what_is_not_marked_is_not_kept():
    assert kept_text({"system": "s", "messages": USER}) == ""


def test_a_template_that_wants_a_user_gets_one_and_theirs_is_not_kept():
    body = {"system": [block("be kind", marked=True)], "messages": USER}
    assert kept_text(body, STRICT) == "[INST] be kind\n\n"
    assert kept_text(body | {"messages": [{"role": "user", "content": " and?"}]}, STRICT) == "[INST] be kind\n\n"


def test_all_is_kept_where_the_template_refuses_the_beginning_by_itself():
    source = "{%- if messages | length < 4 %}{{ raise_exception('too short') }}{% endif %}" + CHATML
    body = {"system": "s", "messages": LONG}
    assert kept_text(body).endswith("read it<|im_end|>\n")
    assert kept_text(body, source).endswith("and now?<|im_end|>\n<|im_start|>assistant\n")


def test_tokens_that_span_the_end_are_counted_only_once_they_are_whole():
    """Pairs of characters are tokens here."""

    def encode(text: str) -> list[int]:
        return [hash(text[i : i + 2]) for i in range(0, len(text), 2)]

    turns = (Message("user", "abcdefghi"),)
    chat = ChatRequest(turns, kept=Kept((Message("user", "abc"),)))
    said = "abcdefghi"
    assert kept_tokens(chat, said, encode(said), lambda part: part.messages[-1].content or "", encode) == 1


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"system": [block("s") | {"cache_control": "yes"}]}, "system[0].cache_control"),
        ({"system": [block("s") | {"cache_control": {"type": "eternal"}}]}, "system[0].cache_control.type"),
        ({"tools": [tool("t") | {"cache_control": {}}]}, "tools[0].cache_control.type"),
        ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
        ({"cache_control": ["ephemeral"]}, "cache_control"),
        (
            {"messages": [{"role": "user", "content": [block("s") | {"cache_control": 1}]}]},
            "messages[0].content[0].cache_control",
        ),
    ],
)
def test_a_mark_that_is_none_is_a_400_that_names_it(change, path):
    with pytest.raises(ApiError) as caught:
        anthropic.read({"messages": USER, "max_tokens": 5} | change)
    assert (caught.value.status, caught.value.param) == (400, path)


def test_marks_inside_of_tool_results_count():
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "t", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "x", "content": [block("found", marked=True)]}
    body = {"messages": [*USER, use, {"role": "user", "content": [result, block("so?")]}]}
    assert kept_text(body).endswith("found<|im_end|>\n")
