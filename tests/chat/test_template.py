"""Chat templates against transformers' own output, and hostile templates against the clock."""

import ast
import json
import random
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from imp.chat import costs, sandbox
from imp.chat.template import BUILTIN, MAX_SOURCE, ChatTemplate, TemplateError

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("templates.json").read_text(encoding="utf-8"))
TEMPLATES = Path(__file__).resolve().parents[2] / "../shared/data/templates"
NOW = datetime.fromisoformat(GOLDEN["now"])
USER = [{"role": "user", "content": "Hello"}]
CPU_LIMIT_S = 20.0  # generous: a bomb that is not stopped would take hours, and these machines are slow at times


def template(source, **kwargs):
    return ChatTemplate(source, special_tokens=GOLDEN["special_tokens"], clock=lambda: NOW, **kwargs)


def source_of(name):
    if not TEMPLATES.is_dir():
        pytest.skip("the public templates are not here (shared/data/templates)")
    return TEMPLATES.joinpath(name).read_text(encoding="utf-8")


def is_more_than_transformers(expected):
    """Templates may change their lists here, and get the variable `functions` of firefunction."""
    return expected.get("message") in (
        "access to attribute 'append' of 'list' object is unsafe.",
        "'functions' is undefined",
    )


def check(expected, render):
    """`render()` does what transformers did: the same text, or the same refusal."""
    if "text" in expected:
        assert render() == expected["text"]
        return
    if is_more_than_transformers(expected):
        try:
            assert render()
        except TemplateError as error:
            assert error.refused  # as it comes to the template's own checks
        return
    with pytest.raises(TemplateError) as caught:
        render()
    if expected["error"] == "TemplateError":  # raise_exception
        assert caught.value.message == expected["message"]
        assert caught.value.refused
    else:
        assert not caught.value.refused
        if expected["error"] != "SecurityError":  # those are in our own words
            assert expected["message"] in caught.value.message


# G06-03, G06-05, G06-06, G02-07: every public template, every conversation, byte for byte
@pytest.mark.parametrize("name", GOLDEN["templates"])
def test_public_template_equals_transformers(name):
    compiled = template(source_of(name))
    for conversation, expected in GOLDEN["templates"][name].items():
        arguments = dict(GOLDEN["conversations"][conversation])
        check(expected, lambda arguments=arguments: compiled.render(arguments.pop("messages"), **arguments))


# G06-06: tojson, strftime_now, loop controls, generation blocks, and what the sandbox refuses
@pytest.mark.parametrize("feature", GOLDEN["features"], ids=lambda feature: feature["source"])
def test_feature_equals_transformers(feature):
    values = ast.literal_eval(GOLDEN["values"])
    check(feature, lambda: template(feature["source"]).render(GOLDEN["turns"], **values))


def test_every_golden_conversation_is_rendered_by_most_templates():
    for conversation in GOLDEN["conversations"]:
        outcomes = [found[conversation] for found in GOLDEN["templates"].values() if conversation in found]
        assert sum("text" in outcome for outcome in outcomes) > len(outcomes) * 0.45, conversation


def test_content_parts_keep_their_order():  # G06-05
    source = "{% for m in messages %}{% for part in m.content %}{{ part.text }};{% endfor %}{% endfor %}"
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    for role in ("system", "user", "assistant", "tool"):
        assert template(source).render([{"role": role, "content": parts}]) == "A;B;"


def test_null_content_is_absent_not_none():  # G06-05
    assert template("[{{ messages[0].content }}]").render([{"role": "assistant", "content": None}]) == "[]"


def test_refusal_carries_the_templates_words():  # G06-03
    with pytest.raises(TemplateError) as caught:
        template("\n\n{{ raise_exception('System role not supported') }}").render(USER)
    assert (caught.value.message, caught.value.refused) == ("System role not supported", True)
    with pytest.raises(TemplateError, match="no messages") as caught:
        template("x").render([])
    assert caught.value.refused


def test_template_bug_names_its_line():  # G06-03
    with pytest.raises(TemplateError) as caught:
        template("a\nb\n{{ missing.attribute }}\n").render(USER)
    assert (caught.value.message, caught.value.line) == ("chat template: 'missing' is undefined (line 3)", 3)
    with pytest.raises(TemplateError) as caught:
        template("a\n{% if %}")
    assert (caught.value.line, caught.value.refused) == (2, False)


def test_long_refusal_is_cut():
    with pytest.raises(TemplateError) as caught:
        template("{{ raise_exception(messages[0].content) }}").render([{"role": "user", "content": "x" * 100_000}])
    assert len(caught.value.message) < 3000


def test_variables_win_over_special_tokens_and_are_not_kept():
    compiled = template("{{ bos_token }}")
    assert compiled.render(USER, bos_token="<other>") == "<other>"
    assert compiled.render(USER) == GOLDEN["special_tokens"]["bos_token"]


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": [{"type": "text", "text": "a "}], "thinking": "t", "name": None}]
    before = json.dumps(messages)
    source = (
        "{{ messages[0].reasoning_content }}{% for p in messages[0].content %}{{ p.text }}{% endfor %}{{ eos_token }}"
    )
    assert template(source).render(messages, continue_final_message=True) == "ta "
    assert json.dumps(messages) == before


def test_continuing_ends_inside_the_message():
    messages = [*USER, {"role": "assistant", "content": "The answer is "}]
    assert template(BUILTIN["chatml"]).render(messages, continue_final_message=True).endswith("\nThe answer is ")
    assert template(BUILTIN["llama3"]).render(messages, continue_final_message=True).endswith("\n\nThe answer is")
    with pytest.raises(TemplateError, match="does not keep the text"):
        template("{{ messages[0].content }}").render(messages, continue_final_message=True)
    with pytest.raises(TemplateError, match="no text to continue"):
        template(BUILTIN["chatml"]).render([{"role": "assistant"}], continue_final_message=True)


def test_threads_do_not_share_a_budget():
    compiled = template("{% for i in range(20000) %}{{ i }}{% endfor %}")
    texts = []
    threads = [threading.Thread(target=lambda: texts.append(compiled.render(USER))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["".join(map(str, range(20000)))] * 4


# G06-09: the names --chat-template knows. Expected texts are those of the models' own documentation.
BUILTIN_TEXTS = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    "llama2": "<|bos|>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A <|eos|><|bos|>[INST] V [/INST]",
    "llama3": "<|bos|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>"
    "\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user"
    "<|end_header_id|>\n\nV<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "nemotron": "<extra_id_0>System\nS\n<extra_id_1>User\nU\n<extra_id_1>Assistant\nA\n<extra_id_1>User\nV\n"
    "<extra_id_1>Assistant\n",
    "gemma": "<|bos|><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
    "none": "S\nU\nA\nV",
}


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_template(name):
    texts = (("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V"))
    messages = [{"role": role, "content": text} for role, text in texts]
    assert template(BUILTIN[name]).render(messages) == BUILTIN_TEXTS[name]


def test_gemma_builtin_equals_the_public_one_without_a_system_message():
    messages = [*USER, {"role": "assistant", "content": "A"}, {"role": "user", "content": "V"}]
    public = template(source_of("google-gemma-2-2b-it.jinja"))
    assert template(BUILTIN["gemma"]).render(messages) == public.render(messages)


# G06-03, G06-06: bounded time and memory, whatever the template says
DOUBLE = "{% set a = 'xxxxxxxxxx' %}" + "{% set a = OP %}" * 40 + "{{ a | length }}"
NEST = "{% set a = [1, 2, 3, 4, 5, 6, 7, 8, 9] %}" + "{% set a = [a, a, a, a, a, a, a, a, a] %}" * 12
TWIN = NEST + NEST.replace("set a", "set b").replace("a, a, a, a, a, a, a, a, a", "b, b, b, b, b, b, b, b, b")
BIG = "{% set big = messages[0].content * 1000 %}"  # some five thousand characters
FOREVER = "{% for i in range(100000) %}{% for j in range(100000) %}BODY{% endfor %}{% endfor %}"
BOMBS = {
    "repeat": "{{ 'x' * 10**9 }}",
    "repeat list": "{{ [1] * 10**9 }}",
    "repeat left": "{{ 1000000000 * 'x' }}",
    "repeat true": "{{ ('x' * 50000000) * true }}",
    "range": "{{ range(10**9) | list }}",
    "loops": FOREVER.replace("BODY", ""),
    "loops with text": FOREVER.replace("BODY", "x" * 1000),
    "loops with a condition": "{% for i in range(100000) %}{% for j in range(100000) if false %}{% endfor %}{% endfor %}",
    "loops of slices": BIG + FOREVER.replace("BODY", "{% set _ = big[1:] %}"),
    "loops of searches": BIG + FOREVER.replace("BODY", "{% set _ = 'no' in big %}"),
    "loops of comparisons": BIG + FOREVER.replace("BODY", "{% set _ = big + 'x' == big + 'y' %}"),
    "loops of methods": BIG + FOREVER.replace("BODY", "{% set _ = big.split('l') %}"),
    "filters": "{% for i in range(100000) %}{% set _ = range(100000) | sum %}{% endfor %}",
    "lazy filters": "{% for i in range(100000) %}{{ range(100000) | select('none') | list }}{% endfor %}",
    "recursive macro": "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "tree of macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "macro without output": "{% macro m(n) %}{% if n %}{% set _ = m(n - 1) %}{% set _ = m(n - 1) %}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "many arguments": "{% macro m() %}{{ varargs | length }}{% endmacro %}{% set r = range(99999) | list %}"
    "{% for i in range(99999) %}{% set _ = m(*r) %}{% endfor %}",
    "recursive block": "{% block b %}{{ self.b() }}{{ self.b() }}{% endblock %}",
    "recursive loop": "{% for x in [range(9)] recursive %}{{ loop([x, x]) }}{% endfor %}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "power chain": "{% set ns = namespace(n=3) %}{% for i in range(99999) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "doubling +": DOUBLE.replace("OP", "a + a"),
    "doubling ~": DOUBLE.replace("OP", "a ~ a"),
    "doubling list": DOUBLE.replace("'xxxxxxxxxx'", "[1]").replace("OP", "a + a"),
    "doubling replace": DOUBLE.replace("OP", "a.replace('x', 'xx')"),
    "doubling replace filter": DOUBLE.replace("OP", "a | replace(old='x', new='xx')"),
    "doubling join": DOUBLE.replace("OP", "a.join([a, a, a])"),
    "doubling join filter": DOUBLE.replace("OP", "[a, a, a] | join(d=a)"),
    "doubling format": DOUBLE.replace("OP", "'{0}{0}'.format(a)"),
    "doubling format_map": DOUBLE.replace("OP", "'{a}{a}'.format_map({'a': a})"),
    "doubling printf": DOUBLE.replace("OP", "'%(a)s%(a)s%(a)s' % {'a': a}"),
    "doubling set": DOUBLE.replace("{% set a = OP %}", "{% set a %}{{ a }}{{ a }}{% endset %}"),
    "doubling split": "{% set a = 'x' * 20000000 %}{% for i in range(99999) %}{% set b = a.split('x') %}{% endfor %}",
    "printf width": "{{ '%1000000000d' % 1 }}",
    "printf star": "{{ '%*d' % (1000000000, 1) }}",
    "printf name": "{{ '%(a)1000000000d' % {'a': 1} }}",
    "printf nested name": "{{ '%((a)b)1000000000d' % {'(a)b': 1} }}",
    "printf filter": "{{ '%1000000000d' | format(1) }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "format nested width": "{{ '{:{w}}'.format(1, w=1000000000) }}",
    "format safe": "{{ ('{:1000000000}' | safe).format(1) }}",
    "format item": "{{ ''['format'] and '{:1000000000}'['format'](1) }}",
    "center": "{{ 'x' | center(1000000000) }}",
    "center named": "{{ 'x' | center(width=1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "zfill": "{{ '1'.zfill(1000000000) }}",
    "expandtabs": "{{ '\\t'.expandtabs(1000000000) }}",
    "indent": "{{ 'x' | indent(1000000000, true) }}",
    "tojson indent": "{{ [1] | tojson(indent=1000000000) }}",
    "tojson positional": "{{ [1] | tojson(false, 1000000000) }}",
    "batch": "{{ [1] | batch(1000000000, 0) | list }}",
    "slice": "{{ [1] | slice(1000000000) | list }}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "sum of lists": "{{ [[1]] | sum(start=[]) }}",
    "lipsum": "{{ lipsum(1000000) }}",
    "date": "{{ strftime_now('%1000000000Y') }}",
    "bytes": "{{ (1).to_bytes(1000000000, 'big') }}",
    "nested print": NEST + "{{ a }}",
    "nested string": NEST + "{{ a | string | length }}",
    "nested json": NEST + "{{ a | tojson | length }}",
    "nested concat": NEST + "{{ (a ~ a) | length }}",
    "nested compare": TWIN + "{{ a == b }}",
    "nested compare test": TWIN + "{{ a is eq(b) }}",
    "nested in": TWIN + "{{ a in [b] }}",
    "nested in test": TWIN + "{{ a is in([b]) }}",
    "nested unique": TWIN + "{{ [a, b] | sort | length }}",
    "nested index": TWIN + "{{ [a].index(b) }}",
    "nested changed": TWIN + "{% for x in [a, b] %}{{ loop.changed(x) }}{% endfor %}",
    "nested key": NEST.replace("[", "(").replace("]", ")") + "{{ {a: 1} | length }}",
    "nested get": NEST.replace("[", "(").replace("]", ")") + "{{ {}.get(a) }}",
    "nested item": NEST.replace("[", "(").replace("]", ")") + "{{ {}[a] }}",
    "nested dict()": NEST.replace("[", "(").replace("]", ")") + "{{ dict([(a, 1)]) | length }}",
    "nested dict": NEST.replace("[a, a, a, a, a, a, a, a, a]", "{1: a, 2: a, 3: a, 4: a, 5: a, 6: a}") + "{{ a }}",
    "nested raise": NEST + "{{ raise_exception(a) }}",
    "nested fill": "{% set a = [1] %}" + "{% set a = a | batch(9, a) | list %}" * 30 + "{{ a }}",
    "nested default": "{% set a = [none, none] %}" + "{% set a = [0, 0, 0] | map('default', a, true) | list %}" * 40
    + "{{ a }}",
    "nested format": NEST + "{{ '{}'.format(a) | length }}",
    "nested repr": NEST + "{{ '{!r:.5}'.format(a) | length }}",
    "nested printf": NEST + "{{ ('%.5s' % [a]) | length }}",
    "nested upper": NEST + "{{ a | upper | length }}",
    "nested views": NEST + "{{ {1: a}.values() | string | length }}",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_stopped(name):
    started = time.thread_time()
    with pytest.raises(TemplateError) as caught:
        template(BOMBS[name]).render(USER)
    assert time.thread_time() - started < CPU_LIMIT_S
    assert name == "nested raise" or not caught.value.refused


def test_nested_namespace_prints_nothing_of_its_values():
    nest = "{% set n = namespace(x=1) %}" + "{% set n = namespace(x=[n.x, n], y=n) %}" * 60
    assert template(nest + "{{ n }}").render(USER) == "<namespace>"


@pytest.mark.parametrize(
    "source",
    ["((" * 5000, "{{ " + "[" * 5000, "{{ " + "not " * 20000 + "1 }}", "{{ a" + ".a" * 20000 + " }}",
     "{{ 1" + " | abs" * 20000 + " }}", "{{ 1" + "+1" * 20000 + " }}", "{% if a %}" + "{% elif a %}" * 3000 + "{% endif %}",
     "{% for a in a %}" * 3000 + "{% endfor %}" * 3000, "{{ " + "9" * 100_000 + " }}", "x" * (MAX_SOURCE + 1)],
    ids=lambda source: source[:12],
)  # fmt: skip
def test_monstrous_source_is_an_error_or_renders(source):
    try:
        template(source).render(USER)
    except TemplateError as error:
        assert error.message


ESCAPES = [
    "{{ messages.__class__ }}", "{{ messages['__class__'] }}", "{{ messages | attr('__class__') }}", "{{ ('{0.__class__}' | attr('format'))(1) }}",
    "{{ ''.format.__globals__ }}", "{{ '{0.__class__}'.format(1) }}", "{{ '{0[__class__]}'.format(1) }}",
    "{{ [''] | map(attribute='__class__') | list }}", "{{ cycler.__init__.__globals__ }}", "{{ self.__init__ }}",
    "{{ self._TemplateReference__context }}", "{{ loop.__class__ }}", "{{ dict.__call__.__globals__ }}",
    "{{ strftime_now.__closure__ }}", "{{ raise_exception.__code__ }}", "{{ namespace.__init__ }}", "{{ namespace.mro() }}",
    "{{ (messages | map('upper')).gi_frame }}", "{% macro m() %}{% endmacro %}{{ m._func }}", "{{ ''.join.__self__ }}",
    "{{ ('' | safe).__html__ }}", "{{ ('' | safe).format.__func__ }}", "{{ environment }}", "{{ context }}",
    "{{ messages.sort() }}", "{{ ''.encode() }}", "{{ {}.fromkeys([1]) }}",
    "{{ ''.maketrans({}) }}", "{% import 'os' as os %}{{ os }}", "{% extends 'x' %}", "{% from 'os' import path %}",
]  # fmt: skip


@pytest.mark.parametrize("source", ESCAPES)
def test_nothing_of_python_is_reached(source):  # G06-06
    try:
        text = template(source).render(USER)
    except TemplateError:
        return
    assert text in ("", "[Undefined]"), text


def test_a_template_that_changes_lists_changes_only_its_own():
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}]
    source = "{% set _ = tools[0].function.parameters.required.append('b') %}{% set _ = messages.pop(0) %}"
    source += "{{ tools[0].function.parameters.required | length }}{{ messages | length }}"
    messages = [*USER, *USER]
    assert [template(source).render(messages, tools=tools) for _ in range(2)] == ["21", "21"]
    assert tools[0]["function"]["parameters"]["required"] == ["a"] and len(messages) == 2


@pytest.mark.parametrize(
    "source",
    [
        "{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
        "{% set l = [] %}{% set _ = l.append(l) %}{{ l | tojson }}",
        "{% set l = [1] %}{% set _ = l.append(l) %}{% set m = [1] %}{% set _ = m.append(m) %}{{ l == m }}",
    ],
)
def test_lists_without_an_end_are_refused(source):
    with pytest.raises(TemplateError, match="too much work"):
        template(source).render(USER)


def test_long_conversations_render():
    """The budget grows with the conversation: what is slow because it is long is not refused."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": f"{i} " + "word " * 200} for i in range(2000)]
    texts = [template(source).render(messages) for source in BUILTIN.values()]
    assert all(len(text) > 2_000_000 for text in texts)


@pytest.mark.parametrize("name", list(GOLDEN["templates"])[::4])
def test_long_conversation_in_a_public_template(name):
    conversation = GOLDEN["conversations"]["tool called, empty content"]
    turn = [*conversation["messages"][1:], {"role": "assistant", "content": "Clear, 21.5 degrees."}]
    messages = conversation["messages"][:1] + turn * 80 + USER
    expected = GOLDEN["templates"][name]["tool called, empty content"]
    compiled = template(source_of(name))
    if "text" in expected or is_more_than_transformers(expected):
        assert compiled.render(messages, tools=conversation["tools"] * 20)
    else:
        with pytest.raises(TemplateError) as caught:
            compiled.render(messages, tools=conversation["tools"] * 20)
        assert "too much work" not in caught.value.message


PIECES = [
    "{% for x in messages %}", "{% endfor %}", "{% if x %}", "{% else %}", "{% endif %}", "{{ x }}", "{{ messages }}", "{% set x = ",
    "%}", "{{", "}}", "x.role", "| tojson", "| join(", ")", "(", "[", "]", "'", '"', "{#", "#}", "{%- raw %}", "{% endraw %}", "+", "~",
    "**", "%", "9" * 30, "{% macro m(a) %}", "{% endmacro %}", "{{ m(1) }}", "{% generation %}", "{% endgeneration %}", "{% break %}",
    "namespace(", "\x00", "\ud800", "é", "\n", "is defined", "in", "not", "loop", "range(9999)", "*", "{% call m() %}", "{% block b %}",
]  # fmt: skip


def only_template_errors(source):
    try:
        template(source).render(USER, tools=[])
    except TemplateError as error:
        assert error.message


def test_garbage_templates_only_raise_template_errors_seed_1():
    rng = random.Random(1)
    for _ in range(600):
        only_template_errors("".join(rng.choices(PIECES, k=rng.randrange(1, 14))))


def test_truncated_public_templates_only_raise_template_errors_seed_2():
    rng = random.Random(2)
    for name in rng.sample(sorted(GOLDEN["templates"]), 12):
        source = source_of(name)
        for _ in range(4):
            only_template_errors(source[: rng.randrange(len(source))])


def test_every_filter_is_accounted_for():
    """A filter Jinja gains in some release is not let in before somebody decides what it costs."""
    allowed = costs.CONSTANT_FILTERS | costs.PASSING_FILTERS | costs.DEEP_FILTERS.keys()
    assert sandbox.MeteredEnvironment().filters.keys() == allowed


def test_a_template_for_tools_is_taken_where_there_are_tools():
    """As transformers chooses among named templates: `tool_use` with tools, else `default`."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    both = template("D{{ messages[0].content }}{{ own }}", tool_use="U{{ tools | tojson }}{{ other }}")
    assert both.render(USER).startswith("D") and both.render(USER, tools=tools) == "U" + json.dumps(tools)
    assert both.render(USER, tools=[]).startswith("D")
    assert {"own", "other", "tools"} <= both.reads and "own" in both.text and "other" in both.text
    assert (both.source, both.tool_use) == ("D{{ messages[0].content }}{{ own }}", "U{{ tools | tojson }}{{ other }}")
    with pytest.raises(TemplateError):
        template("fine", tool_use="{% if %}")
