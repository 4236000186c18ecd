"""Names of members other than some."""

from __future__ import annotations

from ..charset import CharSet, Encoding, add_template, template
from ..nfa import Nfa
from .strings import EVERYTHING

QUOTE = 0x22


def other_key(nfa: Nfa, names: list[str], after: int) -> int:
    """The rest of a name, behind its opening quote, and the closing quote: any name that is none of `names`.

    Up to where it differs from all of them it is spelled canonically, so that no escape can spell one of them.
    """
    free = EVERYTHING.emit(nfa, nfa.byte([(QUOTE, QUOTE, after)]), Encoding.JSON, escapes=True)
    return _diverging(nfa, sorted(set(names)), 0, free, after) if names else free


def _diverging(nfa: Nfa, names: list[str], depth: int, free: int, after: int) -> int:
    """`names`: those that begin with the `depth` characters read so far; `free`: anything up to the closing quote."""
    node = nfa.byte()
    if len(names[0]) > depth:
        nfa.edge(node, QUOTE, QUOTE, after)
    groups: dict[str, list[str]] = {}
    for name in names:
        if len(name) > depth:
            groups.setdefault(name[depth], []).append(name)
    others = ~CharSet.chars("".join(groups))
    add_template(nfa, node, template(others, Encoding.JSON), free)
    for char, group in groups.items():
        below = nfa.lazy(lambda group=group: _diverging(nfa, group, depth + 1, free, after))  # type: ignore[misc]
        add_template(nfa, node, template(CharSet.chars(char), Encoding.JSON), below)
    return node
