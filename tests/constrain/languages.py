"""Automata written by hand, as front ends write them: JSON, classes, counters, calls, UTF-8."""

from __future__ import annotations

from collections.abc import Callable

from imp.constrain.nfa import UNBOUNDED, Nfa

Build = Callable[[Nfa], int]


def one_of(nfa: Nfa, chars: bytes, after: int) -> int:
    return nfa.byte([(byte, byte, after) for byte in chars])


def many(nfa: Nfa, chars: bytes, after: int, low: int = 0, high: int = UNBOUNDED) -> int:
    return nfa.repeat(low, high, after, lambda again: one_of(nfa, chars, again))


def unicode_edges(nfa: Nfa, after: int) -> list[tuple[int, int, int]]:
    """UTF-8 of everything beyond ASCII (RFC 3629, section 4)."""
    one = nfa.byte([(0x80, 0xBF, after)])
    two = nfa.byte([(0x80, 0xBF, one)])
    three = nfa.byte([(0x80, 0xBF, two)])
    return [
        (0xC2, 0xDF, one),
        (0xE0, 0xE0, nfa.byte([(0xA0, 0xBF, one)])),
        (0xE1, 0xEC, two),
        (0xED, 0xED, nfa.byte([(0x80, 0x9F, one)])),
        (0xEE, 0xEF, two),
        (0xF0, 0xF0, nfa.byte([(0x90, 0xBF, two)])),
        (0xF1, 0xF3, three),
        (0xF4, 0xF4, nfa.byte([(0x80, 0x8F, two)])),
    ]


def hexes(nfa: Nfa, count: int, after: int) -> int:
    for _ in range(count):
        after = one_of(nfa, b"0123456789abcdefABCDEF", after)
    return after


def escape(nfa: Nfa, after: int) -> int:
    """What follows a backslash in a JSON string; surrogates come in pairs."""
    low = nfa.literal(b"\\u", one_of(nfa, b"dD", one_of(nfa, b"cdefCDEF", hexes(nfa, 2, after))))
    d = nfa.byte([(ord("0"), ord("7"), hexes(nfa, 2, after))])
    for byte in b"89abAB":
        nfa.edge(d, byte, byte, hexes(nfa, 2, low))
    u = one_of(nfa, b"0123456789abcefABCEF", hexes(nfa, 3, after))
    for byte in b"dD":
        nfa.edge(u, byte, byte, d)
    node = one_of(nfa, b'"\\/bfnrt', after)
    nfa.edge(node, ord("u"), ord("u"), u)
    return node


def string_char(nfa: Nfa, after: int) -> int:
    """One character of a JSON string, in any spelling."""
    plain = [(0x20, 0x21, after), (0x23, 0x5B, after), (0x5D, 0x7F, after), (0x5C, 0x5C, escape(nfa, after))]
    return nfa.byte([*plain, *unicode_edges(nfa, after)])


def string(nfa: Nfa, after: int, low: int = 0, high: int = UNBOUNDED) -> int:
    """A JSON string of low .. high characters."""
    body = nfa.repeat(low, high, nfa.literal(b'"', nfa.ret), lambda again: string_char(nfa, again))
    return nfa.call(nfa.literal(b'"', body), after)


def number(nfa: Nfa, after: int) -> int:
    """A JSON number without an exponent."""
    digits = b"0123456789"
    fraction = nfa.eps(nfa.ret, nfa.literal(b".", many(nfa, digits, nfa.ret, 1)))
    whole = nfa.eps(nfa.literal(b"0", fraction), one_of(nfa, b"123456789", many(nfa, digits, fraction)))
    return nfa.call(nfa.eps(whole, nfa.literal(b"-", whole)), after)


def space(nfa: Nfa, after: int) -> int:
    return nfa.eps(after, nfa.literal(b" ", after), nfa.literal(b"\n", many(nfa, b" ", after, 0, 40)))


def value(nfa: Nfa) -> int:
    """The rule of any JSON value."""
    rule = nfa.eps()
    again = nfa.eps()
    nfa.link(again, space(nfa, nfa.literal(b",", space(nfa, nfa.call(rule, again)))))
    nfa.link(again, space(nfa, nfa.literal(b"]", nfa.ret)))
    nfa.link(rule, nfa.literal(b"[", nfa.eps(nfa.literal(b"]", nfa.ret), space(nfa, nfa.call(rule, again)))))
    member = nfa.eps()
    more = nfa.eps()
    nfa.link(member, string(nfa, nfa.literal(b":", space(nfa, nfa.call(rule, more)))))
    nfa.link(more, nfa.literal(b",", space(nfa, member)))
    nfa.link(more, space(nfa, nfa.literal(b"}", nfa.ret)))
    nfa.link(rule, nfa.literal(b"{", nfa.eps(nfa.literal(b"}", nfa.ret), space(nfa, member))))
    for word in (b"null", b"true", b"false"):
        nfa.link(rule, nfa.literal(word, nfa.ret))
    nfa.link(rule, string(nfa, nfa.ret))
    nfa.link(rule, number(nfa, nfa.ret))
    return rule


def quoted(nfa: Nfa, chars: bytes, low: int, high: int, after: int) -> int:
    return nfa.call(nfa.literal(b'"', many(nfa, chars, nfa.literal(b'"', nfa.ret), low, high)), after)


def items(nfa: Nfa, item: Callable[[int], int], low: int, high: int, after: int) -> int:
    """A JSON array of low .. high items; item(after) builds one."""
    rest = nfa.repeat(
        max(low - 1, 0), high - 1, nfa.literal(b"]", nfa.ret), lambda again: nfa.literal(b", ", item(again))
    )
    return nfa.call(nfa.literal(b"[", item(rest)), after)


def text_until(nfa: Nfa, after: int, ends: bytes = b"\n</parameter>") -> int:
    """Any text, and at the beginning of any line `ends` may follow."""
    start = nfa.eps()
    other = [(byte, byte, start) for byte in range(128) if byte != 10]
    place = nfa.byte([*other, *unicode_edges(nfa, start)])
    nfa.link(start, place)
    nfa.link(start, nfa.literal(ends, after))
    nfa.link(start, nfa.literal(ends[:1], start))
    return start


WORD = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
PRINTABLE = bytes(range(32, 127))
HEX = b"0123456789abcdef"


def _recursive(nfa: Nfa) -> int:
    rule = nfa.eps(one_of(nfa, b"b", nfa.ret))
    for closing in (b"x", b"y", b" "):
        nfa.link(rule, nfa.literal(b"a", nfa.call(rule, nfa.literal(closing, nfa.ret))))
    return rule


def _list_of_lists(nfa: Nfa) -> int:
    word = quoted(nfa, WORD, 0, 12, nfa.ret)
    inner = items(nfa, lambda again: nfa.call(word, again), 1, 4, nfa.ret)
    return items(nfa, lambda again: nfa.call(inner, again), 1, 3, nfa.ret)


def _object(nfa: Nfa) -> int:
    tail = nfa.literal(b', "id": ', quoted(nfa, HEX, 4, 8, nfa.literal(b"}", nfa.ret)))
    return nfa.literal(b'{"name": ', string(nfa, tail, 1, 10))


def _one_or_more(nfa: Nfa) -> int:
    again = nfa.eps()
    letter = one_of(nfa, WORD, again)
    nfa.link(again, letter)
    nfa.link(again, nfa.literal(b"-", letter))
    nfa.link(again, nfa.ret)
    return letter


def _raw(nfa: Nfa) -> int:
    return nfa.literal(b"<parameter=a>\n", text_until(nfa, nfa.literal(b"\n", nfa.ret)))


def _ambiguous(nfa: Nfa) -> int:
    """A class within a class, and words that begin like them."""
    words = [nfa.literal(word, nfa.ret) for word in (b"the cat", b"The end.", b"\n\n", b"123 \xc3\xa9")]
    return nfa.eps(many(nfa, WORD + b" ", nfa.literal(b"!", nfa.ret), 2), many(nfa, PRINTABLE, nfa.ret, 0, 30), *words)


def _runs(nfa: Nfa) -> int:
    """Loops that must go round so often, with all that can follow: another sign, a wider loop, a narrower one, a text
    that begins like the loop's own, and the same loop in another alternative that may end sooner."""
    small = bytes(range(97, 123))
    return nfa.eps(
        many(nfa, WORD, nfa.literal(b"-", many(nfa, WORD, nfa.ret, 4, 4)), 8, 8),
        nfa.literal(b"1", many(nfa, small, many(nfa, WORD, nfa.ret), 6, 6)),
        nfa.literal(b"2", many(nfa, WORD, many(nfa, small, nfa.ret, 3), 5, 5)),
        nfa.literal(b"3", many(nfa, WORD, nfa.literal(b"ing the", nfa.ret), 5, 7)),
        nfa.literal(b"4", nfa.eps(many(nfa, WORD, nfa.ret, 9, 9), many(nfa, small, nfa.literal(b".", nfa.ret), 3, 6))),
        nfa.literal(b"5", nfa.call(many(nfa, WORD, nfa.ret, 7, 7), many(nfa, b" -", nfa.ret))),
    )


LANGUAGES: dict[str, Build] = {
    "value": value,
    "object": _object,
    "list of lists": _list_of_lists,
    "recursive": _recursive,
    "one or more": _one_or_more,
    "raw text": _raw,
    "ambiguous": _ambiguous,
    "short string": lambda nfa: string(nfa, nfa.ret, 3, 6),
    "exact string": lambda nfa: string(nfa, nfa.literal(b", ", string(nfa, nfa.ret, 40, 40)), 5, 5),
    "at least": lambda nfa: string(nfa, nfa.ret, 7),
    "printable": lambda nfa: many(nfa, PRINTABLE, nfa.ret),
    "printable, few": lambda nfa: quoted(nfa, PRINTABLE.replace(b'"', b""), 2, 20, nfa.ret),
    "printable, many": lambda nfa: quoted(nfa, PRINTABLE, 2, 70, nfa.literal(b";", nfa.ret)),
    "runs": _runs,
    "any text": lambda nfa: nfa.repeat(
        0, UNBOUNDED, nfa.ret, lambda again: nfa.byte([(0, 127, again), *unicode_edges(nfa, again)])
    ),
    "numbers": lambda nfa: items(nfa, lambda again: number(nfa, again), 1, 9, nfa.ret),
    "free bytes": lambda nfa: nfa.repeat(
        0, UNBOUNDED, nfa.literal(b"<end>", nfa.ret), lambda again: nfa.byte([(0, 254, again)])
    ),
    "any bytes": lambda nfa: nfa.repeat(0, 9, nfa.literal(b".", nfa.ret), lambda again: nfa.byte([(0, 255, again)])),
}
