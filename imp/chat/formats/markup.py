"""Calls written as markup, their arguments one by one: one parser for formats that differ only in their texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..answer import Answer
from ..reader import Reader, Reading, Steps
from .base import NotACall, ParseCalls, Tools
from .json_calls import arguments_value, call_object
from .typed import Members

Kinds = frozenset[str]
_STOPS = "<>\"'{}|"  # none of these stands in a name


def as_said(attributes: str, admitted: Kinds) -> Kinds:
    return admitted


@dataclass(frozen=True, slots=True)
class Markup:
    """`wrap` calls `unwrap`, where a call is `call` NAME `named` ATTRIBUTES `opened` arguments `call_end`, and an
    argument is `key` KEY `keyed` ATTRIBUTES `value` VALUE `value_end`. White space may stand between them.

    wrap: what calls stand in, or may; (): each stands for itself.
    named, opened, value: "": there is nothing, nor attributes before it.
    pad: belongs to the marks, not to the value, where it stands between them.
    json, json_end: around arguments that are one JSON object, which may also follow `opened` directly.
    cdata: a value may stand in a CDATA section.
    unescaped: of a key.
    typing(attributes, admitted): the types of a value of which the schema admits `admitted`.
    """

    call: str
    named: str
    key: str
    keyed: str
    value_end: str
    call_end: str
    opened: str = ""
    value: str = ""
    wrap: tuple[str, ...] = ()
    unwrap: tuple[str, ...] = ()
    pad: str = ""
    json: str = ""
    json_end: str = ""
    cdata: bool = False
    typing: Callable[[str, Kinds], Kinds] = as_said
    unescaped: Callable[[str], str] = str.strip

    @property
    def openers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.wrap, self.call)))

    @property
    def closers(self) -> tuple[str, ...]:
        texts = (self.named, self.opened, self.key, self.keyed, self.value, self.value_end, self.call_end, *self.unwrap)
        return tuple(dict.fromkeys(text for text in texts if len(text) > 2))


def parser(markup: Markup) -> ParseCalls:
    """Reads the calls behind one of `wrap`, and those behind a `call` that stands without."""

    def parse(opener: str, reader: Reader, answer: Answer, tools: Tools) -> Steps:
        if opener in markup.wrap or not markup.named:
            yield from reader.space()
            if (yield from reader.comes("{")):
                yield from _object(markup, reader, answer)
                return
        begin = _call if opener == markup.call else _first
        end = yield from begin(markup, reader, answer, tools)
        while end not in markup.unwrap and not answer.in_call:
            if end != markup.call:
                yield from reader.space()
                if not (yield from reader.match(markup.call)):
                    yield from reader.first_of(markup.unwrap)
                    return
            end = yield from _call(markup, reader, answer, tools)

    return parse


def _object(markup: Markup, reader: Reader, answer: Answer) -> Steps:
    """A call that is one JSON object between the same marks, as models fall back to."""
    yield from call_object(reader, answer)
    if not answer.in_call:
        reader.keep((yield from reader.space()))
        yield from reader.first_of(markup.unwrap or (markup.call_end,))


def _first(markup: Markup, reader: Reader, answer: Answer, tools: Tools) -> Reading[str]:
    yield from reader.space()
    if not (yield from reader.match(markup.call)):
        raise NotACall
    return (yield from _call(markup, reader, answer, tools))


def _call(markup: Markup, reader: Reader, answer: Answer, tools: Tools) -> Reading[str]:
    """One call behind its first mark. The mark that ended it: its own, that of the next call, or that of all of them;
    "": the output ended in it. Raises NotACall."""
    name = yield from reader.word(_STOPS)
    if not name or not (yield from _named(markup, reader)):
        raise NotACall
    marks = (markup.key, markup.call_end, markup.call, *markup.unwrap, *((markup.json,) if markup.json else ()))
    if (yield from reader.cut((*marks, "{"))):
        answer.call(name)
        yield from reader.until((), _drop)
        return ""
    mark = "" if (yield from reader.comes("{")) else (yield from reader.first_of(marks))
    if mark in ("", markup.json):
        if not (yield from reader.comes("{")):
            raise NotACall
        yield from arguments_value(reader, answer, name)
        yield from reader.space()
        if markup.json_end and not answer.in_call and (yield from reader.match(markup.json_end)):
            yield from reader.space()
        return (yield from reader.first_of(marks[1:])) if not answer.in_call else ""
    answer.call(name)
    members = Members(answer, tools[name].parameters if name in tools else {})
    while mark == markup.key:
        if not (yield from _member(markup, members, reader)):
            return ""
        mark = yield from reader.until(marks, _drop)
    if mark:
        members.end()
    return mark


def _named(markup: Markup, reader: Reader) -> Reading[bool]:
    """The rest of a call's beginning; False: it is not there."""
    if not (yield from reader.match(markup.named)):
        return False
    if markup.opened and not (yield from reader.until((markup.opened,), _drop)):
        return False
    if not markup.named and (yield from reader.at_end()):  # the name may be cut
        return False
    yield from reader.space()
    return True


def _member(markup: Markup, members: Members, reader: Reader) -> Reading[bool]:
    """One argument behind its first mark; False: the output ended in it."""
    key: list[str] = []
    attributes: list[str] = []
    if not (yield from reader.until((markup.keyed,), key.append)):
        return False
    if markup.value and not (yield from reader.until((markup.value,), attributes.append)):
        return False
    name = markup.unescaped("".join(key))
    members.open(name, markup.typing("".join(attributes), members.shape(name).kinds))
    if markup.pad:
        yield from reader.match(markup.pad)
    if markup.cdata and (yield from reader.match("<![CDATA[")):
        found = yield from _cdata(markup, members, reader)
    else:
        found = bool((yield from reader.until((markup.pad + markup.value_end, markup.value_end), members.piece)))
    if found:
        members.close()
    return found


def _cdata(markup: Markup, members: Members, reader: Reader) -> Reading[bool]:
    """The rest of a CDATA section, and the end of the value; without that, the section goes on."""
    while (yield from reader.until(("]]>",), members.piece)):
        space = yield from reader.space()
        if (yield from reader.match(markup.value_end)):
            return True
        members.piece("]]>" + space)
    return False


def _drop(text: str) -> None:
    """White space between marks, or what a model has no business to write there."""
