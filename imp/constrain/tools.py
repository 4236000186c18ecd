"""Calls of tools in a model's own words, enforced: the texts around names and arguments are data, the rest is here.

A format says with an `Envelope` how its calls are written. The arguments' schema follows the name that was chosen.
Calls are forced from the first token on (`calls`), or only from the marker on that begins them (`lazy_calls`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .charset import Encoding
from .errors import Code, ConstraintError
from .free import free_text, spelled, unspelled
from .language import Language
from .nfa import UNBOUNDED, Nfa


@dataclass(frozen=True, slots=True)
class Pattern:
    """A piece of an envelope that is not always the same, as a regular expression: a number, an id."""

    regex: str


Text = str | tuple[str | Pattern, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """How a format writes the scalars that have names."""

    null: str = "null"
    true: str = "true"
    false: str = "false"


@dataclass(frozen=True, slots=True)
class ParameterTexts:
    """Arguments one by one: `before_key` KEY `after_key` VALUE `end` `rest`, and the next behind `separator`.

    With an `end`, strings are written as they are: any text without `end`, and once that stands there, only `rest` may
    follow, so that nothing that looks nearly like the end of a value is one. It must not overlap itself. Other values
    are JSON. Without an `end`, all values are JSON, strings too. `words` are for values outside of JSON's own.
    `marker`: the part of `end` that no value contains, where readers end a value at less than all of it.
    `after_key_json`, `end_json`: what stands around values that are not strings, where it is something else.
    `named_end`: where `end` is followed by the key once more, what comes behind that, and then `rest`.
    """

    before_key: str
    after_key: str
    end: str = ""
    rest: str = ""
    separator: str = ""
    key: str = r"[^\s<>=]+"  # what a parameter may be called that the schema does not name
    quote: str = ""  # stands around what it is called otherwise
    marker: str = ""
    after_key_json: Text = ""
    end_json: str | None = None
    named_end: str = ""
    words: Words = Words()

    def __post_init__(self) -> None:
        if any(self.end.startswith(self.end[at:]) for at in range(1, len(self.end))):
            raise ValueError(f"the end {self.end!r} overlaps itself")


@dataclass(frozen=True, slots=True)
class Envelope:
    """How a format writes calls: `opener` CALL `separator` CALL `closer`, CALL being
    `before_name` NAME `after_name` ARGUMENTS `after`.

    All texts are as the model writes them; control tokens are spelled out. Where one of them ends the output, what
    would come behind it is left out.
    """

    before_name: Text
    after_name: Text
    after: Text
    opener: Text = ""
    separator: Text = ""
    closer: Text = ""
    trigger: str = ""  # what calls in free text are known by; "": `opener`, or `before_name` without one
    quoted_name: bool = False  # the name stands in a JSON string
    parameters: ParameterTexts | None = None  # None: the arguments are a JSON object
    others: tuple[str, ...] = ()  # what may stand behind the trigger in the place of a call; text goes on behind it
    parallel: bool = True  # the format can hold more than one call
    at_start: bool = False  # calls stand where a text begins, and nowhere else
    by_name: bool = False  # calls in free text are known by all up to the name of a tool and one more character


def alone(envelope: Envelope, trigger: str = "") -> Envelope:
    """The same calls where they stand without what is around them all, as models forget it."""
    return replace(envelope, opener="", closer="", trigger=trigger)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that may be called.

    arguments(nfa, after, texts): a node that reads the arguments, as JSON or with `texts` one by one, then goes on at
    `after`. See schema.arguments.
    """

    name: str
    arguments: Callable[[Nfa, int, ParameterTexts | None], int]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Control tokens: those with a spelling a format may use, and all that free text may hold (none that ends it).
    ends: spellings of those that end an output."""

    spellings: Mapping[str, int]
    free: frozenset[int] = frozenset()
    ends: frozenset[str] = frozenset()


NO_CONTROLS = Vocabulary({})


def calls(
    nfa: Nfa,
    tools: Sequence[Tool],
    envelope: Envelope,
    after: int,
    vocabulary: Vocabulary = NO_CONTROLS,
    low: int = 1,
    high: int = UNBOUNDED,
) -> int:
    """A node that reads `low` (at least 1) to `high` calls, then goes on at `after`. Raises ConstraintError."""
    writer = _Writer(nfa, tools, envelope, vocabulary)
    opener = writer.text(envelope.opener)
    return writer.pieces(opener, writer.sequence(after, low, high))


def lazy_calls(
    nfa: Nfa,
    tools: Sequence[Tool],
    envelopes: Sequence[Envelope],
    vocabulary: Vocabulary = NO_CONTROLS,
    high: int = UNBOUNDED,
) -> int:
    """Free text, in which what begins a call must become one; `high` calls in a row at most, or in all if it is 1.

    envelopes: the ways of the format to write calls.
    """
    later = nfa.eps()
    after = nfa.ret if high == 1 else nfa.eps(later)
    markers: dict[bytes, int] = {}
    first: dict[bytes, int] = {}
    rules: dict[ParameterTexts | None, Mapping[str, int]] = {}
    for envelope in map(spaced, envelopes):
        writer = _Writer(nfa, tools, envelope, vocabulary, rules.get(envelope.parameters))
        rules[envelope.parameters] = writer.rules
        found = first if envelope.at_start else markers
        for marker, start in writer.marked(after, high, later).items():
            found[marker] = nfa.eps(found[marker], start) if marker in found else start
    nfa.link(later, free_text(nfa, markers, vocabulary.free, ends=True))
    return free_text(nfa, markers, vocabulary.free, True, first) if first else later


SPACE = Pattern("[ \\t\\r\\n]{0,20}")
_JSON = re.compile(r"\s+|([{}\[\]:,])")


def spaced(envelope: Envelope) -> Envelope:
    """The same calls with white space between the parts of their JSON objects as a model likes it, behind what calls
    are known by. Where they are known by name, it is as it is."""
    if not envelope.quoted_name or envelope.by_name:
        return envelope
    known = len(envelope.trigger)
    if known <= len(_first(envelope.opener)):
        opener, before = _spaced(envelope.opener, known), _spaced(envelope.before_name)
    else:
        opener, before = envelope.opener, _spaced(envelope.before_name, known - len(_first(envelope.opener)))
    return replace(
        envelope,
        opener=opener,
        before_name=before,
        after_name=_spaced(envelope.after_name),
        after=_spaced(envelope.after),
        separator=_spaced(envelope.separator),
        closer=_spaced(envelope.closer),
    )


def _first(text: Text) -> str:
    return text if isinstance(text, str) else next((piece for piece in text if isinstance(piece, str)), "")


def _spaced(text: Text, known: int = 0) -> Text:
    """known: characters at the beginning that stay as they are."""
    found: list[str | Pattern] = []
    for piece in (text,) if isinstance(text, str) else text:
        if isinstance(piece, Pattern):
            found.append(piece)
            continue
        found.append(piece[:known])
        at = known
        for mark in _JSON.finditer(piece, known):
            found += [piece[at : mark.start()], SPACE, *([mark[1], SPACE] if mark[1] else [])]
            at = mark.end()
        found.append(piece[at:])
        known = 0
    pieces = [piece for piece in found if piece]
    return tuple(piece for piece, before in zip(pieces, [None, *pieces], strict=False) if piece != before)


def ended(envelope: Envelope, ends: Collection[str]) -> Envelope:
    """The envelope without what would stand behind control tokens that end the output, and without these: an output
    that may end needs no mark of it."""
    after, over = _up_to(envelope.after, ends)
    closer = "" if over else _up_to(envelope.closer, ends)[0]
    alone = over or _up_to(envelope.separator, ends)[1]
    return replace(envelope, after=after, closer=closer, parallel=envelope.parallel and not alone)


def _up_to(text: Text, ends: Collection[str]) -> tuple[Text, bool]:
    """The text up to the first of `ends`, and whether there is one."""
    kept: list[str | Pattern] = []
    for piece in (text,) if isinstance(text, str) else text:
        found = [] if isinstance(piece, Pattern) else [at for end in ends if (at := piece.find(end)) >= 0]
        if found and isinstance(piece, str):
            return (*kept, piece[: min(found)]), True
        kept.append(piece)
    return text, False


Piece = bytes | Pattern


class _Writer:
    """rules: of the tools' arguments, by name, where they were made before."""

    def __init__(
        self,
        nfa: Nfa,
        tools: Sequence[Tool],
        envelope: Envelope,
        vocabulary: Vocabulary,
        rules: Mapping[str, int] | None = None,
    ):
        if not tools:
            raise ConstraintError(Code.UNSATISFIABLE, "", "there is no tool to call")
        self.nfa, self.envelope, self.vocabulary = nfa, ended(envelope, vocabulary.ends), vocabulary
        self.rules = rules or {tool.name: tool.arguments(nfa, nfa.ret, envelope.parameters) for tool in tools}

    def text(self, text: Text) -> list[Piece]:
        pieces = (text,) if isinstance(text, str) else text
        return [p if isinstance(p, Pattern) else spelled(p, self.vocabulary.spellings) for p in pieces]

    def pieces(self, pieces: Iterable[Piece], after: int) -> int:
        for piece in reversed(list(pieces)):
            if isinstance(piece, bytes):
                after = self.nfa.literal(piece, after)
            else:
                after = Language.pattern(piece.regex, search=False).emit(self.nfa, after, Encoding.RAW)
        return after

    def marked(self, after: int, high: int, later: int) -> dict[bytes, int]:
        """What begins calls in free text, and the node behind it.  later: of free text that goes on."""
        if not self.envelope.by_name:
            trigger, rest = self.triggered()
            others = [self.pieces(self.text(other), later) for other in self.envelope.others]
            begun = self.nfa.eps(self.pieces(rest, self.sequence(after, 1, high, self.named)), *others)
            return {trigger: begun, unspelled(trigger, self.vocabulary.spellings): begun}
        before = b"".join(self.plain(text) for text in (self.envelope.opener, self.envelope.before_name))
        mark, rest_of_name = self.plain(self.envelope.after_name)[:1], self.plain(self.envelope.after_name)[1:]
        found = {}
        for name, rule in self.rules.items():

            def call(then: int, rule: int = rule) -> int:
                behind = self.pieces(self.text(self.envelope.after), then)
                return self.nfa.literal(rest_of_name, self.nfa.call(rule, behind))

            marker = before + self.written(name) + mark
            found[marker] = found[unspelled(marker, self.vocabulary.spellings)] = self.sequence(after, 1, high, call)
        return found

    def plain(self, text: Text) -> bytes:
        assert isinstance(text, str), "a pattern tells no calls from text"
        return spelled(text, self.vocabulary.spellings)

    def triggered(self) -> tuple[bytes, list[Piece]]:
        """The trigger, and what comes behind it before the name."""
        pieces = [
            piece for text in (self.envelope.opener, self.envelope.before_name) for piece in self.text(text) if piece
        ]
        first = pieces[0] if pieces and isinstance(pieces[0], bytes) else b""
        head = b""
        while pieces and isinstance(pieces[0], bytes):
            head += pieces[0]
            del pieces[0]
        trigger = spelled(self.envelope.trigger, self.vocabulary.spellings) or first
        if not trigger or not head.startswith(trigger):
            raise ValueError(f"calls do not begin with their trigger {trigger!r}")
        return trigger, [head[len(trigger) :], *pieces]

    def sequence(self, after: int, low: int, high: int, first: Callable[[int], int] | None = None) -> int:
        """Calls behind the opener. first(then): the rest of the first one, which has begun."""
        high = high if self.envelope.parallel else 1
        if UNBOUNDED < high < low or (low > 1 and not self.envelope.parallel):
            raise ConstraintError(Code.UNSATISFIABLE, "", f"{low} calls are more than there can be")
        before, separator = self.text(self.envelope.before_name), self.text(self.envelope.separator)
        end = self.pieces(self.text(self.envelope.closer), self.nfa.ret)

        def another(then: int) -> int:
            return self.pieces([*separator, *before], self.named(then))

        more = UNBOUNDED if high == UNBOUNDED else high - 1
        rest = self.nfa.repeat(max(low - 1, 0), more, end, another) if more else end
        return self.nfa.call(first(rest) if first else self.pieces(before, self.named(rest)), after)

    def named(self, after: int) -> int:
        """A name, and the arguments that belong to it."""
        behind = self.pieces(self.text(self.envelope.after), after)
        return self.nfa.eps(*(self.tool(name, rule, behind) for name, rule in self.rules.items()))

    def tool(self, name: str, rule: int, behind: int) -> int:
        pieces = [self.written(name), *self.text(self.envelope.after_name)]
        return self.pieces(pieces, self.nfa.call(rule, behind))

    def written(self, name: str) -> bytes:
        return (json.dumps(name, ensure_ascii=False)[1:-1] if self.envelope.quoted_name else name).encode()
