"""Makes templates.json: what transformers' `apply_chat_template` writes for public templates and small ones of our own.

Needs transformers and jinja2, in an environment of its own; run by hand:

    python make_templates.py DIRECTORY_OF_JINJA_FILES

The clock is fixed. A conversation that fails is kept with the exception's kind and text. `features` are templates of
our own, one for each thing a chat template may use.
"""

import json
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

NOW = datetime(2024, 7, 26, 9, 30, 5)
SPECIAL_TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>", "unk_token": "<|unk|>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city, today's & tomorrow's <now>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name, e.g. Zürich or 東京"},
                "days": {"type": "integer", "description": "How many", "default": 1},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "now", "description": "Now", "parameters": {"type": "object", "properties": {}}},
}
SYSTEM = {"role": "system", "content": "You are brief."}
TURNS = [
    {"role": "user", "content": "Hello, it's <b>me</b> & you: ü/🙂 {{ x }} {% if %}"},
    {"role": "assistant", "content": "Hi.\n\nHow are you?"},
    {"role": "user", "content": "  Fine.  "},
]


def called(arguments, content=None) -> list[dict]:
    call = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return [
        SYSTEM,
        {"role": "user", "content": "Weather in Zürich?"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call12345", "name": "get_weather", "content": '{"sky": "clear", "t": 21.5}'},
    ]


ARGUMENTS = {"city": "Zürich", "days": 2}
CONVERSATIONS = {
    "plain": {"messages": [SYSTEM, *TURNS]},
    "no system": {"messages": TURNS},
    "no generation prompt": {"messages": TURNS[:2], "add_generation_prompt": False},
    "content parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}]
    },
    "tools offered": {"messages": [SYSTEM, TURNS[2]], "tools": [WEATHER, CLOCK]},
    "tool called": {"messages": called(ARGUMENTS), "tools": [WEATHER]},
    "tool called, empty content": {"messages": called(ARGUMENTS, content=""), "tools": [WEATHER]},
    "tool called, arguments as text": {
        "messages": called(json.dumps(ARGUMENTS, ensure_ascii=False)),
        "tools": [WEATHER],
    },
    "no thinking": {
        "messages": [TURNS[0], {**TURNS[1], "reasoning_content": "A greeting."}, TURNS[2]],
        "enable_thinking": False,
        "reasoning_effort": "low",
    },
    "continued": {
        "messages": [TURNS[2], {"role": "assistant", "content": "The answer is "}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "documents": {"messages": [TURNS[2]], "documents": [{"title": "A", "text": "First."}]},
    "two users": {"messages": [TURNS[2], TURNS[2]]},
    "unknown role": {"messages": [{"role": "banana", "content": "?"}]},
}

VALUES = {
    "d": {"t": "it's <b> & ü/", "n": [1, 2.5, None, True], "z": {}, 7: "seven"},
    "xs": [3, 1, 2, 1],
    "rows": [{"k": "b", "v": 1}, {"k": "a", "v": 2}, {"k": "b", "v": 3}],
    "s": " Some Text\n two ",
}
FEATURES = [
    "{{ '<tool_call>' + d | tojson + '</tool_call>' }}",
    "{{ d | tojson(indent=2) }}",
    "{{ d | tojson(ensure_ascii=True) }}",
    "{{ d | tojson(separators=(',', ':')) }}",
    "{{ rows | tojson(sort_keys=True, indent=1) }}",
    "{{ d.n | tojson }} {{ s | tojson }} {{ none | tojson }} {{ 1.0 | tojson }}",
    "{{ missing | tojson }}",
    "{{ d }} {{ xs }} {{ missing }} {{ none }} {{ true }} {{ 1.50 }}",
    "{{ strftime_now('%d %B %Y, %H:%M') }}",
    "{{ raise_exception('no: ' + s) }}",
    "{% for x in xs %}{% if x == 2 %}{% break %}{% elif x == 1 %}{% continue %}{% endif %}{{ x }},{% endfor %}",
    "a{% generation %}b{{ xs[0] }}{% endgeneration %}c",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "  {% if true %}\n  x\n  {% endif %}\n  y\n{#- c -#}\n z",
    "{%- set ns = namespace(a=1, b=xs) %}{% for x in ns.b %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}",
    "{% for r in rows if r.v > 1 %}{{ loop.index }}/{{ loop.length }}{{ r.k }}{% else %}none{% endfor %}",
    "{% for r in rows if false %}{{ r }}{% else %}none{% endfor %}",
    "{% for x in xs %}{{ loop.changed(x) }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.last }} {% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}{{ loop(x) if x is iterable else x }};{% endfor %}",
    "{% macro m(a, b='q') %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(2) %}in{% endcall %}",
    "{{ s.strip().upper() }}|{{ s.split() }}|{{ s.replace('e', 'E') }}|{{ s | trim }}|{{ s | indent(3, true) }}",
    "{{ '%s-%5.1f|%-4d|' % ('a', 2.25, 7) }}{{ '{0:>5}|{x!r}|{y[k]}'.format(1, x='q', y={'k': 2}) }}",
    "{{ '%d%%' | format(5) }} {{ 'a' ~ 1 ~ none ~ missing }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ 2 ** 10 }} {{ 7 // 2 }}",
    "{{ xs | sort }} {{ xs | unique | list }} {{ xs | sum }} {{ xs | max }} {{ xs | reverse | list }} {{ xs[1:] }}",
    "{{ rows | map(attribute='k') | join('+') }} {{ rows | selectattr('v', 'gt', 1) | list | length }}",
    "{{ rows | groupby('k') }} {{ xs | batch(3, 0) | list }} {{ xs | slice(2) | list }} {{ {'b': 1, 'a': 2} | dictsort }}",
    "{{ xs | map('string') | join }} {{ rows | rejectattr('k', 'equalto', 'b') | map(attribute='v') | first }}",
    "{{ dict(a=1, **{'b': 2}) }} {{ d.items() | list | length }} {{ d.get('q', 'none') }} {{ d | items | list | first }}",
    "{{ ('<' | safe) + '>' }} {{ '<' | e }} {{ '<&' | safe ~ '>' }}",
    "{{ 'x' in 'axb' }} {{ 3 in xs }} {{ 't' in d }} {{ 1 < 2 <= 2 }} {{ xs == [3, 1, 2, 1] }} {{ 'a' is in ['a'] }}",
    "{% set x %}<{{ s }}>{% endset %}{{ x }}{% filter upper %}abc{{ xs }}{% endfilter %}",
    "{{ range(3) | list }} {{ range(5, 0, -2) | list }} {{ cycler(1, 2).next() }} {{ xs | tojson | length }}",
    "{{ bos_token }}{{ eos_token }}{{ missing_token }}",
    "{{ missing.attribute }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ ''.__class__ }}",
    "{{ [].append(1) }}",
    "{{ d.update({1: 2}) }}",
    "{{ raise_exception.__globals__ }}",
    "{{ namespace(_a=1) }}",
    "{{ 'a' + 1 }}",
    "{{ 1 // 0 }}",
    "{{ x | nonesuch }}",
    "{% if %}",
    "{{ 'unclosed",
    "{% for x in xs %}",
    "{% include 'other' %}",
]


class FixedClock(datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def outcome(tokenizer, source: str, conversation: dict) -> dict:
    arguments = {"add_generation_prompt": True} | conversation
    try:
        return {"text": tokenizer.apply_chat_template(**wire(arguments), chat_template=source, tokenize=False)}
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)}


def wire(arguments: dict) -> dict:
    return {"conversation": arguments["messages"]} | {k: v for k, v in arguments.items() if k != "messages"}


def main() -> None:
    chat_template_utils.datetime = FixedClock
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")), **SPECIAL_TOKENS)
    templates = {
        path.name: {
            name: outcome(tokenizer, path.read_text(encoding="utf-8"), conversation)
            for name, conversation in CONVERSATIONS.items()
            if name != "documents" or "documents" in path.read_text(encoding="utf-8")
        }
        for path in sorted(Path(sys.argv[1]).glob("*.jinja"))
    }
    # JSON has text keys only; the values travel as Python source so that the key 7 stays a number
    features = [{"source": source, **outcome(tokenizer, source, {"messages": TURNS, **VALUES})} for source in FEATURES]
    document = {
        "versions": {package: version(package) for package in ("transformers", "jinja2")},
        "now": NOW.isoformat(),
        "special_tokens": SPECIAL_TOKENS,
        "conversations": CONVERSATIONS,
        "values": repr(VALUES),
        "turns": TURNS,
        "templates": templates,
        "features": features,
    }
    text = json.dumps(document, ensure_ascii=False, indent=0)
    Path(__file__).with_name("templates.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
