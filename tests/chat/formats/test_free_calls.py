"""Where a model may choose to call, what it writes behind a marker of calls is enforced: in none of the spellings in
which calls are read can arguments come that their schema does not allow.

The judge is the naive simulator of the automaton; the outputs are those of the corpus, with schemas that none of their
arguments fulfils.
"""

from __future__ import annotations

import pytest

from imp.chat.formats.base import Tool
from imp.chat.formats.registry import FORMATS
from imp.constrain import tools as grammar
from imp.constrain.nfa import Nfa
from imp.constrain.schema.arguments import arguments
from tests.chat.formats.corpus import Case, of_format
from tests.chat.formats.harness import read
from tests.constrain import simulate

OTHER = {"type": "object", "properties": {"zzz": {"const": 731}}, "required": ["zzz"], "additionalProperties": False}


def calls(case: Case, output: str) -> list[str]:
    """Names of the complete calls that are read of an output whose answer was not preceded by reasoning."""
    tools = [Tool(tool.name, OTHER) for tool in case.tools]
    return [name for channel, name, _, cut in read([output], case.format, tools) if channel == "tool" and not cut]


@pytest.mark.parametrize("name", FORMATS)
def test_no_call_that_is_read_has_arguments_that_are_not_allowed(name: str):
    format = FORMATS[name]
    for case in of_format(format):
        if case.thinking is not None:
            continue
        called = calls(case, case.output)
        if called:
            nfa = Nfa()
            tools = [grammar.Tool(each, arguments(OTHER)) for each in sorted({*called, *(t.name for t in case.tools)})]
            start = grammar.lazy_calls(nfa, tools, format.envelopes)
            assert not simulate.accepts(nfa, start, case.output.encode()), (case.name, case.output)
