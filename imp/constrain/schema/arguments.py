"""Arguments of tools: a JSON object, or one by one with strings as they are, in the words of a model's format."""

from __future__ import annotations

from collections.abc import Callable

from ..charset import Encoding
from ..clock import tick
from ..errors import Code, ConstraintError
from ..language import Language
from ..nfa import Nfa
from ..tools import ParameterTexts, Text
from .budget import Budget, too_large
from .check import Reachable
from .compile import DEFAULTS, PropertyOrder, SchemaOptions, emit_value
from .explain import explain
from .formula import Formula
from .literals import quoted
from .load import Document
from .lower import LONG, Lowering, check_size
from .object_plan import Key, Member, ObjectPlan, State
from .parse import Parser
from .strings import unbounded

Spell = Callable[[str], bytes]


def arguments(
    schema: object, options: SchemaOptions = DEFAULTS, spell: Spell = str.encode
) -> Callable[[Nfa, int, ParameterTexts | None], int]:
    """How a Tool with this schema reads its arguments; see tools.Tool. spell: the bytes of a format's texts."""

    def read(nfa: Nfa, after: int, texts: ParameterTexts | None) -> int:
        if texts is None:
            return emit_value({"type": "object"} if schema is True else schema, nfa, after, options)
        return emit_parameters(schema, nfa, after, texts, options, spell)

    return read


def emit_parameters(
    schema: object,
    nfa: Nfa,
    after: int,
    texts: ParameterTexts,
    options: SchemaOptions = DEFAULTS,
    spell: Spell = str.encode,
) -> int:
    """A node that reads an object of the schema parameter by parameter, then goes on at `after`.

    Raises ConstraintError, before any token, for what will not be enforced.
    """
    try:
        document = Document(schema, options.draft)
        budget = Budget()
        parser = Parser(document, budget)
        root = parser.root()
        reachable = Reachable(parser.algebra, budget, options.property_order is PropertyOrder.ANY, parser)
        reachable.add(root)
        plans = [plan for plan in reachable.value(root).plans if isinstance(plan, ObjectPlan)]
        if not plans:
            where, reason = explain(document)
            raise ConstraintError(Code.UNSATISFIABLE, where, reason, "no object fulfils the schema")
        unmarked = _without(texts.marker or texts.end)
        lowering = Lowering(nfa, reachable, options.whitespace, texts.words, unmarked)
        values = _Values(nfa, reachable, lowering, texts, spell, unmarked)
        for formula in dict.fromkeys(formula for plan in plans for formula in plan.formulas()):
            if reachable.exists(formula):
                values.prepare(formula)
        lowering.prepare()
        start = nfa.eps(*(_Parameters(nfa, plan, values).start() for plan in plans))
        check_size(nfa)
        return nfa.call(start, after)
    except RecursionError:
        raise too_large("the schema is nested too deeply") from None


class _Values:
    """Values as a format writes them, and what stands around them."""

    def __init__(
        self,
        nfa: Nfa,
        reachable: Reachable,
        lowering: Lowering,
        texts: ParameterTexts,
        spell: Spell,
        unmarked: Language,
    ):
        self._nfa, self._reachable, self._lowering, self.texts, self._spell = nfa, reachable, lowering, texts, spell
        self._unmarked, self._plain = unmarked, Language.pattern(texts.key, search=False)
        self._rules: dict[Formula, int] = {}
        self._texts: dict[Formula, list[tuple[Language, int, int]]] = {}

    def prepare(self, formula: Formula) -> None:
        """Find the texts of the formula's strings; ConstraintError where it has no value that can be written."""
        if not self.texts.end:
            return
        found = []
        for strings in self._reachable.value(formula).shape.strings:
            language = strings.language if strings.values is None else Language.of(strings.values)
            language = language & self._unmarked
            if language.has_length(strings.low, unbounded(strings.high)):
                found.append((language.at_least(strings.low), 0, unbounded(strings.high)))
        self._texts[formula] = found
        if not found and self._lowering.without_strings(formula) is None:
            reason = f"no value of a parameter can be written without {self.texts.marker or self.texts.end!r}"
            raise ConstraintError(Code.UNSATISFIABLE, "", reason)
        texts = sum([language.size for language, _, _ in found])  # larger than the schema's own: without the marker
        if max(self._reachable.value(formula).size, texts) > LONG:
            self._nfa.lower(self._rule_of(formula))
            check_size(self._nfa)

    def literal(self, text: str, after: int) -> int:
        return self._nfa.literal(self._spell(text), after)

    def text(self, text: Text, after: int) -> int:
        for piece in reversed((text,) if isinstance(text, str) else text):
            if isinstance(piece, str):
                after = self.literal(piece, after)
            else:
                after = Language.pattern(piece.regex, search=False).emit(self._nfa, after, Encoding.RAW)
        return after

    def key(self, language: Language) -> Language:
        return language & self._plain

    def is_plain(self, key: str) -> bool:
        return self._plain.accepts(key)

    def value(self, formula: Formula, after: int) -> int:
        """What stands between key and value, the value, the marker of its end, then `after`."""
        return self._nfa.call(self._rule_of(formula), after)

    def _rule_of(self, formula: Formula) -> int:
        if formula not in self._rules:
            self._rules[formula] = self._nfa.lazy(lambda: self._rule(formula))
        return self._rules[formula]

    def _rule(self, formula: Formula) -> int:
        texts = self.texts
        rest = "" if texts.named_end else texts.rest
        end = self.literal(texts.end + rest, self._nfa.ret)
        if not texts.end:
            return self.literal(texts.after_key, self._nfa.call(self._lowering.rule(formula), end))
        strings = [
            language.emit(self._nfa, end, Encoding.RAW, low, high) for language, low, high in self._texts[formula]
        ]
        parts = [self.literal(texts.after_key, self._nfa.eps(*strings))] if strings else []
        other = self._lowering.without_strings(formula)
        if other is not None:
            end_json = end if texts.end_json is None else self.literal(texts.end_json + rest, self._nfa.ret)
            parts.append(self.text(texts.after_key_json or texts.after_key, self._nfa.call(other, end_json)))
        return self._nfa.eps(*parts)


def _without(marker: str) -> Language:
    """All texts that do not contain the marker; "": all texts."""
    return ~Language.pattern(_escaped(marker)) if marker else Language.everything()


def _escaped(text: str) -> str:
    return "".join(f"\\u{{{ord(char):x}}}" for char in text)


class _Parameters:
    """An object as parameters, in the order and number its plan allows."""

    def __init__(self, nfa: Nfa, plan: ObjectPlan, values: _Values):
        self._nfa, self._plan, self._values = nfa, plan, values
        self._keys = {key: self._unnamed(key, language) for key, language in plan.key_languages()}
        self._after: dict[State, int] = {}
        self._choices: dict[State, int | None] = {}

    def _unnamed(self, key: Key, language: Language) -> Language:
        """What is written for a name of a family."""
        written = self._values.key(language)
        return written - Language.of(self._plan.names) if key[0] == self._plan.free and self._plan.names else written

    def start(self) -> int:
        return self._nfa.eps(*self._ends(self._plan.first), *self._members(self._plan.first, ""))

    def _ends(self, state: State) -> list[int]:
        return [self._nfa.ret] if self._plan.closes(state) else []

    def _members(self, state: State, separator: str) -> list[int]:
        choice = self._choice(state)
        if choice is None:
            return []
        return [self._values.literal(separator + self._values.texts.before_key, choice)]

    def _choice(self, state: State) -> int | None:
        """All keys that may come next; None for none."""
        chain = [state]
        while chain[-1] not in self._choices and (skipped := self._plan.skipped(chain[-1])) is not None:
            chain.append(skipped)
        for later in reversed(chain):
            if later not in self._choices:
                parts = [self._key(later, member) for member in self._plan.members(later)]
                skipped = self._plan.skipped(later)
                parts += [self._choices[skipped]] if skipped is not None else []
                found = [part for part in parts if part is not None]
                self._choices[later] = self._nfa.eps(*found) if found else None
        return self._choices[state]

    def _key(self, state: State, member: Member) -> int | None:
        tick(16)
        after = self._node(member.after)
        if member.name is not None:
            return self._named(self._plan.names[member.name], member.formula, after)
        texts, key = self._values.texts, self._keys[self._plan.key(state, member)]
        if key.is_empty:
            return None
        if texts.named_end:  # of keys that are not named in the schema, any: the reader does not compare them
            after = key.emit(self._nfa, self._values.literal(texts.named_end + texts.rest, after), Encoding.RAW)
        return key.emit(self._nfa, self._values.value(member.formula, after), Encoding.RAW)

    def _named(self, name: str, formula: Formula, after: int) -> int | None:
        texts, literal = self._values.texts, self._nfa.literal
        if any("\ud800" <= char <= "\udfff" for char in name):  # which no UTF-8 has
            return None
        if texts.quote and not self._values.is_plain(name):
            closing = self._values.literal(texts.quote, self._values.value(formula, after))
            return self._values.literal(texts.quote, literal(quoted(name)[1:-1], closing))
        if texts.named_end:
            after = literal(name.encode(), self._values.literal(texts.named_end + texts.rest, after))
        return literal(name.encode(), self._values.value(formula, after))

    def _node(self, state: State) -> int:
        """After a parameter."""
        if state not in self._after:
            self._after[state] = self._nfa.lazy(
                lambda: self._nfa.eps(*self._ends(state), *self._members(state, self._values.texts.separator))
            )
        return self._after[state]
