"""Calls written as markup, their arguments one by one: one parser for formats that differ only in their texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..answer import Answer
from ..reader import Reader, Reading, Steps
from .base import NotACall, ParseCalls, Tools
from .json_calls import arguments_value
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
    json: before arguments that are one JSON object, which may also follow `opened` directly.
    cdata: a value may stand in a CDATA section.
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
    cdata: bool = False
    typing: Callable[[str, Kinds], Kinds] = as_said

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
        end = markup.call if opener == markup.call else ""  # the mark that was read last
        first = True
        while end not in markup.unwrap and not answer.in_call:
            if end != markup.call:
                yield from reader.space()
                if not (yield from reader.match(markup.call)):
                    break
            header = [markup.call]
            mark = yield from _call(markup, header, reader, answer, tools)
            if mark is None:
                if first:
                    raise NotACall
                answer.text("".join(header))
                return
            end, first = mark, False
        if first:
            raise NotACall
        if not answer.in_call and end not in markup.unwrap:
            yield from reader.first_of(markup.unwrap)

    return parse


def _call(markup: Markup, header: list[str], reader: Reader, answer: Answer, tools: Tools) -> Reading[str | None]:
    """One call behind its first mark. The mark that ended it: its own, that of the next call, or that of all of them;
    "": the output ended in it.  None: it is no call, and `header` is what was read."""
    name = yield from reader.word(_STOPS)
    header.append(name)
    if not name or not (yield from _named(markup, header, reader)):
        return None
    marks = (markup.key, markup.call_end, markup.call, *markup.unwrap, *((markup.json,) if markup.json else ()))
    if (yield from reader.cut((*marks, "{"))):
        answer.call(name)
        yield from reader.until((), _drop)
        return ""
    mark = "" if (yield from reader.comes("{")) else (yield from reader.first_of(marks))
    if mark in ("", markup.json):
        if not (yield from reader.comes("{")):
            return None
        yield from arguments_value(reader, answer, name)
        return "" if answer.in_call else (yield from reader.until(marks[1:], _drop))
    answer.call(name)
    members = Members(answer, tools[name].parameters if name in tools else {})
    while mark == markup.key:
        if not (yield from _member(markup, members, reader)):
            return ""
        mark = yield from reader.until(marks, _drop)
    if mark:
        members.end()
    return mark


def _named(markup: Markup, header: list[str], reader: Reader) -> Reading[bool]:
    """The rest of a call's beginning; False: it is not there."""
    if not (yield from reader.match(markup.named)):
        return False
    header.append(markup.named)
    if markup.opened:
        mark = yield from reader.until((markup.opened,), header.append)
        header.append(mark)
        if not mark:
            return False
    elif not markup.named and (yield from reader.at_end()):  # the name may be cut
        return False
    header.append((yield from reader.space()))
    return True


def _member(markup: Markup, members: Members, reader: Reader) -> Reading[bool]:
    """One argument behind its first mark; False: the output ended in it."""
    key: list[str] = []
    attributes: list[str] = []
    if not (yield from reader.until((markup.keyed,), key.append)):
        return False
    if markup.value and not (yield from reader.until((markup.value,), attributes.append)):
        return False
    name = "".join(key).strip()
    members.open(name, markup.typing("".join(attributes), members.admitted(name)))
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
