"""From formulas to the automaton: a rule for each value, written when the automaton first reaches it.

Nothing is refused here: what these rules need was made by `check` already.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..charset import Encoding
from ..clock import tick
from ..language import Language
from ..nfa import UNBOUNDED, Nfa
from ..tools import Words
from .array_plan import ArrayPlan, CountedPlan, UniquePlan
from .array_plan import State as ArrayState
from .budget import NODES, too_large
from .check import Plan, Reachable, Value
from .formula import Formula
from .keys import other_names, unplain
from .literals import emit_literals, quoted
from .number_text import emit_numbers
from .numbers import Numbers
from .object_plan import Member, ObjectPlan
from .object_plan import State as ObjectState
from .shape import EVERY_STRING, Shape
from .strings import EVERYTHING, Strings, unbounded
from .whitespace import Spacer, Whitespace, whitespace_rule

QUOTE, COMMA, COLON = 0x22, 0x2C, 0x3A
LONG = 10_000  # nodes, written in some 20 milliseconds
JSON_WORDS = Words()


@dataclass(slots=True)
class Written:
    """Rules that are in an automaton, by what they read."""

    values: dict[Formula, int]
    numbers: dict[Numbers, int | None]
    strings: dict[Strings, int]
    other_names: dict[tuple[str, ...], int]
    space: int | None
    rest_of_string: int  # any string behind its opening quote, the closing one included
    unplain: int  # the same, but it begins with an escape that is needed, or a character beyond ASCII

    def copy(self) -> Written:
        return Written(
            self.values.copy(),
            self.numbers.copy(),
            self.strings.copy(),
            self.other_names.copy(),
            self.space,
            self.rest_of_string,
            self.unplain,
        )

    @staticmethod
    def into(nfa: Nfa, whitespace: Whitespace) -> Written:
        """What all others need."""
        end = nfa.byte([(QUOTE, QUOTE, nfa.ret)])
        rest = EVERYTHING.emit(nfa, end, Encoding.JSON, escapes=True)
        return Written({}, {}, {}, {}, whitespace_rule(nfa, whitespace), rest, unplain(nfa, rest))


class JsonBase(Nfa):
    """What many grammars begin with: `written`, in JSON's own words, all of it lowered."""

    def __init__(self, whitespace: Whitespace) -> None:
        super().__init__()
        self.whitespace, self.written = whitespace, Written.into(self, whitespace)


def check_size(nfa: Nfa) -> None:
    if len(nfa.nodes) > NODES:
        raise too_large(f"the schema needs more than {NODES} nodes")


class Lowering:
    """Writes rules into `nfa`. A rule begins with a value's first byte and ends in `ret`.

    texts: what strings and names may be at most, where a value must not contain the mark of its end; those that a
    schema names are written all the same."""

    def __init__(
        self,
        nfa: Nfa,
        reachable: Reachable,
        whitespace: Whitespace,
        words: Words = JSON_WORDS,
        texts: Language = EVERYTHING,
    ) -> None:
        self._nfa, self._reachable, self._words, self._texts = nfa, reachable, words, texts
        base = nfa.base if words == JSON_WORDS and texts.is_everything else None
        if isinstance(base, JsonBase) and base.whitespace is whitespace:
            self.written = base.written.copy()
        else:
            self.written = Written.into(nfa, whitespace)
        self._space = Spacer(nfa, self.written.space).before
        self._rules, self._numbers = self.written.values, self.written.numbers
        self._strings, self._others = self.written.strings, self.written.other_names
        self._families: dict[Language, int] = {}
        self._some: dict[Strings, Strings] = {}
        self._but: dict[tuple[str, ...], Language] = {}

    def exists(self, formula: Formula) -> bool:
        return self._reachable.exists(formula)

    def rule(self, formula: Formula) -> int:
        if formula not in self._rules:
            self._rules[formula] = self._nfa.lazy(lambda: self._value(formula))
        return self._rules[formula]

    def prepare(self) -> None:
        """Find out now what rules need, and write those that would take long when they are reached. ConstraintError
        where that is too much."""
        for formula, value in list(self._reachable.existing()):
            if not self._texts.is_everything:
                self._prepare_texts(value)
            if self._size(value) > LONG and (node := self.rule(formula)) in self._nfa.pending:
                self._nfa.lower(node)
                check_size(self._nfa)

    def _size(self, value: Value) -> int:
        """Nodes its rule has, about, without those of the values in it."""
        if self._texts.is_everything:
            return value.size
        return value.size + sum(self._writable(each).size for each in value.shape.strings if each.values is None)

    def _prepare_texts(self, value: Value) -> None:
        for strings in value.shape.strings:
            if strings.values is None:
                self._writable(strings).prepare()
        for plan in value.plans:
            if isinstance(plan, ObjectPlan):
                for _, language in plan.key_languages():
                    self._writable(Strings(self._all_but(plan.names) if language.is_everything else language))

    def without_strings(self, formula: Formula) -> int | None:
        """A rule for the values of the formula that are no strings, if there are any."""
        value = self._reachable.value(formula)
        parts = self._parts(replace(value.shape, strings=()), value.plans)
        return self._nfa.eps(*parts) if parts else None

    def _value(self, formula: Formula) -> int:
        value = self._reachable.value(formula)
        parts = self._parts(value.shape, value.plans)
        return parts[0] if len(parts) == 1 else self._nfa.eps(*parts)

    def _parts(self, shape: Shape, plans: list[Plan]) -> list[int]:
        parts = self._scalars(shape)
        return parts + [self._plan(plan) for plan in plans]

    def _plan(self, plan: ArrayPlan | CountedPlan | UniquePlan | ObjectPlan) -> int:
        match plan:
            case ArrayPlan():
                return self._array(plan)
            case CountedPlan():
                return _Counted(self._nfa, plan, self).start()
            case UniquePlan():
                return _Unique(self._nfa, plan, self).start()
            case ObjectPlan():
                return _Object(self._nfa, plan, self).start()

    # --- scalars ------------------------------------------------------------------------------------------------------

    def _scalars(self, shape: Shape) -> list[int]:
        words = [self._words.null] if shape.null else []
        words += [self._words.true if value else self._words.false for value in sorted(shape.booleans)]
        parts = [emit_literals(self._nfa, map(str.encode, words)), *map(self._number, shape.numbers)]
        parts += [self._string(strings) for strings in shape.strings if not strings.is_empty]
        return [part for part in parts if part is not None]

    def _number(self, numbers: Numbers) -> int | None:
        if numbers not in self._numbers:
            self._numbers[numbers] = emit_numbers(self._nfa, numbers)
        return self._numbers[numbers]

    def _string(self, strings: Strings) -> int | None:
        if strings.values is not None:
            return emit_literals(self._nfa, map(quoted, strings.values))
        if strings not in self._strings:
            written = self._writable(strings)
            body = self.written.rest_of_string if written == EVERY_STRING else self._body(written)
            self._strings[strings] = self._nfa.byte([(QUOTE, QUOTE, body)])
        return self._strings[strings]

    def _writable(self, strings: Strings) -> Strings:
        """Those of `texts`, where there are any."""
        if self._texts.is_everything:
            return strings
        if strings not in self._some:
            some = replace(strings, language=strings.language & self._texts)
            self._some[strings] = strings if some.is_empty else some
        return self._some[strings]

    def _body(self, strings: Strings) -> int:
        end = self._nfa.byte([(QUOTE, QUOTE, self._nfa.ret)])
        low, high, free = strings.low, unbounded(strings.high), strings.language.is_everything
        return strings.language.emit(self._nfa, end, Encoding.JSON, low, high, escapes=free)

    # --- names --------------------------------------------------------------------------------------------------------

    def names_beside(self, names: tuple[str, ...]) -> int:
        """The rule for names but these, behind the opening quote."""
        if not self._texts.is_everything:
            return self.names_in(self._all_but(names))
        if names not in self._others:
            self._others[names] = other_names(self._nfa, names, self.written.rest_of_string, self.written.unplain)
        return self._others[names]

    def _all_but(self, names: tuple[str, ...]) -> Language:
        if names not in self._but:
            self._but[names] = ~Language.of(names)
        return self._but[names]

    def names_in(self, language: Language) -> int:
        """The rule for names of the language, behind the opening quote."""
        if language not in self._families:
            end = self._nfa.byte([(QUOTE, QUOTE, self._nfa.ret)])
            written = self._writable(Strings(language)).language
            self._families[language] = written.emit(self._nfa, end, Encoding.JSON)
        return self._families[language]

    # --- between values -----------------------------------------------------------------------------------------------

    def opened(self, bracket: str, *contents: int) -> int:
        return self._nfa.byte([(ord(bracket), ord(bracket), self._space(self._nfa.eps(*contents)))])

    def closed(self, bracket: str) -> int:
        return self._nfa.byte([(ord(bracket), ord(bracket), self._nfa.ret)])

    def comma(self, following: int) -> int:
        return self._nfa.byte([(COMMA, COMMA, self._space(following))])

    def item(self, formula: Formula, after: int) -> int:
        """The value, whitespace, then `after`."""
        return self._nfa.call(self.rule(formula), self._space(after))

    def spaced(self, after: int) -> int:
        return self._space(after)

    # --- arrays without memory ----------------------------------------------------------------------------------------

    def _array(self, plan: ArrayPlan) -> int:
        low, most = plan.limits(self._reachable.exists)
        prefix = plan.arrays.prefix if most is None else plan.arrays.prefix[:most]
        close = self.closed("]")
        after = self._rest(plan.arrays.rest, low - len(prefix), None if most is None else most - len(prefix), close)
        if not prefix:
            return self._list(plan.arrays.rest, low, most, close)
        for index in range(len(prefix) - 1, 0, -1):
            following = self.comma(self.item(prefix[index], after))
            after = self._nfa.eps(close, following) if index >= low else following
        first = self.item(prefix[0], after)
        return self.opened("[", *([close, first] if low <= 0 else [first]))

    def _list(self, formula: Formula, low: int, most: int | None, close: int) -> int:
        if most == 0:
            return self.opened("[", close)
        first = self.item(formula, self._rest(formula, low - 1, None if most is None else most - 1, close))
        return self.opened("[", *([close, first] if low <= 0 else [first]))

    def _rest(self, formula: Formula, low: int, most: int | None, close: int) -> int:
        """After at least one item: `low` to `most` more, then the end."""
        if most is not None and most <= 0:
            return close
        return self._nfa.repeat(
            max(low, 0),
            UNBOUNDED if most is None else most,
            close,
            lambda following: self.comma(self.item(formula, following)),
        )


class _Counted:
    """Arrays with `contains`."""

    def __init__(self, nfa: Nfa, plan: CountedPlan, lowering: Lowering) -> None:
        self._nfa, self._plan, self._lowering = nfa, plan, lowering
        self._close = lowering.closed("]")
        self._after: dict[ArrayState, int] = {}

    def start(self) -> int:
        first = self._plan.first
        close = [self._close] if self._plan.closes(first) else []
        return self._lowering.opened("[", *close, *self._items(first))

    def _items(self, state: ArrayState) -> list[int]:
        return [
            self._lowering.item(formula, self._node(following))
            for formula, following in self._plan.items(state)
            if self._plan.is_feasible(following) and self._lowering.exists(formula)
        ]

    def _node(self, state: ArrayState) -> int:
        """After an item."""
        if state not in self._after:
            self._after[state] = self._nfa.lazy(lambda: self._following(state))
        return self._after[state]

    def _following(self, state: ArrayState) -> int:
        close = [self._close] if self._plan.closes(state) else []
        items = self._items(state)
        return self._nfa.eps(*close, *([self._lowering.comma(self._nfa.eps(*items))] if items else []))


class _Unique:
    """Arrays of different values."""

    def __init__(self, nfa: Nfa, plan: UniquePlan, lowering: Lowering) -> None:
        self._nfa, self._plan, self._lowering = nfa, plan, lowering
        self._close = lowering.closed("]")
        self._after: dict[frozenset[bytes], int] = {}

    def start(self) -> int:
        close = [self._close] if self._plan.arrays.low == 0 else []
        items = self._items(())
        return self._lowering.opened("[", *close, *([items] if items is not None else []))

    def _items(self, used: tuple[bytes, ...]) -> int | None:
        parts = [
            self._nfa.literal(value, self._lowering.spaced(self._node((*used, value))))
            for value in self._plan.items(used)
        ]
        return self._nfa.eps(*parts) if parts else None

    def _node(self, used: tuple[bytes, ...]) -> int:
        key = frozenset(used)
        if key not in self._after:
            self._after[key] = self._nfa.lazy(lambda: self._following(used))
        return self._after[key]

    def _following(self, used: tuple[bytes, ...]) -> int:
        close = [self._close] if len(used) >= self._plan.arrays.low else []
        items = self._items(used)
        return self._nfa.eps(*close, *([self._lowering.comma(items)] if items is not None else []))


class _Object:
    def __init__(self, nfa: Nfa, plan: ObjectPlan, lowering: Lowering) -> None:
        self._nfa, self._plan, self._lowering = nfa, plan, lowering
        self._close = lowering.closed("}")
        self._after: dict[ObjectState, int] = {}
        self._choices: dict[ObjectState, int] = {}
        self._keys: dict[Member, int] = {}

    def start(self) -> int:
        first = self._plan.first
        close = [self._close] if self._plan.closes(first) else []
        return self._lowering.opened("{", *close, *self._opened_key(first))

    def _opened_key(self, state: ObjectState) -> list[int]:
        if not self._plan.has_member(state):
            return []
        return [self._nfa.byte([(QUOTE, QUOTE, self._choice(state))])]

    def _choice(self, state: ObjectState) -> int:
        """After the quote that opens a name: all names that may come next."""
        chain = [state]
        while chain[-1] not in self._choices and (skipped := self._plan.skipped(chain[-1])) is not None:
            chain.append(skipped)
        for later in reversed(chain):
            if later not in self._choices:
                keys = [self._key(later, member) for member in self._plan.members(later)]
                skipped = self._plan.skipped(later)
                rest = [self._choices[skipped]] if skipped is not None else []
                self._choices[later] = self._nfa.eps(*keys, *rest)
        return self._choices[state]

    def _key(self, state: ObjectState, member: Member) -> int:
        tick(16)
        nfa = self._nfa
        value = self._lowering.item(member.formula, self._node(member.after))
        colon = self._lowering.spaced(nfa.byte([(COLON, COLON, self._lowering.spaced(value))]))
        if member.name is not None:
            return nfa.literal(quoted(self._plan.names[member.name])[1:], colon)
        language = self._plan.key_language(state, member)
        if language.is_everything:
            return nfa.call(self._lowering.names_beside(self._plan.names), colon)
        return nfa.call(self._lowering.names_in(language), colon)

    def _node(self, state: ObjectState) -> int:
        """After a member."""
        if state not in self._after:
            self._after[state] = self._nfa.lazy(lambda: self._following(state))
        return self._after[state]

    def _following(self, state: ObjectState) -> int:
        close = [self._close] if self._plan.closes(state) else []
        return self._nfa.eps(*close, *(self._lowering.comma(key) for key in self._opened_key(state)))
