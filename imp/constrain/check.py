"""Cases of constraints, judged: each is compiled or refused, and its texts are accepted or rejected.

A case is an object {"kind", "spec", "accept", "reject"}; a kind that ends in `_refuse` wants a refusal whose message
holds `must_mention`. A schema with values as MaskBench and the JSON-Schema-Test-Suite have them, {"schema", "tests":
[{"data", "valid"}]}, is a case too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .automaton import DeadEnd, Grammar, Limits
from .code import DEFAULT_CACHE
from .compile import compile_choice, compile_regex
from .errors import Code, ConstraintError
from .gbnf import compile_gbnf
from .lark import compile_lark
from .layout import DEAD
from .nfa import Nfa
from .reference import Reference
from .schema import PropertyOrder, SchemaOptions, Whitespace, compile_schema
from .schema.arguments import arguments
from .tools import Envelope, ParameterTexts, Tool, calls
from .vocab import VocabTables

REFUSE = "_refuse"
ENVELOPES = {  # the two ways to write calls that cases know: an object, and parameters one by one
    "tool_json": Envelope(
        '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", separator="\n", quoted_name=True
    ),
    "tool_xml": Envelope(
        "<tool_call>\n<function=",
        ">\n",
        "</function>\n</tool_call>",
        separator="\n",
        parameters=ParameterTexts("<parameter=", ">\n", "\n</parameter", ">\n"),
    ),
}
SIMPLE: dict[str, Callable[[Any, Nfa], int]] = {
    "regex": compile_regex,
    "gbnf": compile_gbnf,
    "lark": compile_lark,
    "choice": compile_choice,
}
DEFAULTS = SchemaOptions()
KINDS = ("json_schema", *SIMPLE, *ENVELOPES)


class BadCase(Exception):
    """What was given is no list of cases; the message is one sentence."""


@dataclass(frozen=True)
class Case:
    """A constraint, the texts that fulfil it and some that do not."""

    id: str
    kind: str
    spec: Any
    accept: tuple[str, ...] = ()
    reject: tuple[str, ...] = ()
    refused: bool = False  # it must be
    must_mention: str = ""  # in the message of the refusal


@dataclass
class Verdict:
    """What became of a case. texts: for each what was expected, what came out, and the byte at which it died."""

    case: Case
    agrees: bool
    compile_ms: float
    refusal: ConstraintError | None = None
    texts: list[dict[str, Any]] = field(default_factory=list)
    masks_us: list[float] = field(default_factory=list)

    def line(self) -> dict[str, Any]:
        """As one JSON object."""
        line: dict[str, Any] = {"id": self.case.id, "kind": self.case.kind, "agrees": self.agrees}
        line["outcome"] = "compiled" if self.refusal is None else "refused"
        if self.refusal is not None:
            line |= {"code": self.refusal.code.value, "message": self.refusal.message}
        line |= {"compile_ms": round(self.compile_ms, 3), "texts": self.texts}
        if self.masks_us:
            line["mask_us"] = {"masks": len(self.masks_us)} | summary(self.masks_us)
        return line


def summary(times: Iterable[float]) -> dict[str, float]:
    """p50, p99 and the largest of some times."""
    ordered = sorted(times)
    last = len(ordered) - 1
    return {name: round(ordered[int(last * q)], 1) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


# ---- reading


def read_cases(path: Path) -> list[Case]:
    """The cases of a file. Raises BadCase."""
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise BadCase(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadCase(f"{path} is not JSON: {error}") from None
    entries = data if isinstance(data, list) else [data]
    return [case for number, entry in enumerate(entries) for case in _cases_of(entry, path, number)]


def _cases_of(entry: Any, path: Path, number: int) -> Iterator[Case]:
    where = f"{path}: case {number}"
    if not isinstance(entry, Mapping):
        raise BadCase(f"{where} is not an object")
    if "schema" in entry and "tests" in entry:
        yield _of_values(entry, path, number, where)
        return
    kind = entry.get("kind")
    base = kind.removesuffix(REFUSE) if isinstance(kind, str) else ""
    if base not in KINDS:
        raise BadCase(f'{where} has the kind {kind!r}; there are {", ".join(KINDS)}, each also with "{REFUSE}"')
    if "spec" not in entry:
        raise BadCase(f'{where} has no "spec"')
    fits, what = _SHAPES.get(base, (lambda spec: True, ""))
    if not fits(entry["spec"]):
        raise BadCase(f'{where}: the "spec" of a {base} is {what}')
    texts = {name: entry.get(name, []) for name in ("accept", "reject")}
    for name, given in texts.items():
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise BadCase(f'{where}: "{name}" is a list of texts')
    refused, title, mention = base != kind, str(entry.get("id", number)), str(entry.get("must_mention", ""))
    yield Case(title, base, entry["spec"], tuple(texts["accept"]), tuple(texts["reject"]), refused, mention)


def _is_text(spec: Any) -> bool:
    return isinstance(spec, str)


def _is_texts(spec: Any) -> bool:
    return isinstance(spec, list) and all(map(_is_text, spec))


def _has_tools(spec: Any) -> bool:
    tools = spec.get("tools") if isinstance(spec, Mapping) else None
    return isinstance(tools, list) and all(isinstance(t, Mapping) and _is_text(t.get("name")) for t in tools)


_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("regex", "gbnf", "lark"), (_is_text, "a text")),
    "choice": (_is_texts, "a list of texts"),
    **dict.fromkeys(ENVELOPES, (_has_tools, '{"tools": [{"name", "parameters"}]}')),
}


def _of_values(entry: Mapping[str, Any], path: Path, number: int, where: str) -> Case:
    tests = entry["tests"]
    if not isinstance(tests, list) or not all(isinstance(t, Mapping) and {"data", "valid"} <= set(t) for t in tests):
        raise BadCase(f'{where}: "tests" is a list of {{"data", "valid"}}')
    texts: dict[bool, list[str]] = {True: [], False: []}
    for test in tests:
        texts[bool(test["valid"])].append(json.dumps(test["data"], ensure_ascii=False))
    title = str(entry.get("description", f"{path.stem} {number}"))
    return Case(title, "json_schema", entry["schema"], tuple(texts[True]), tuple(texts[False]))


# ---- judging


class Walker(Protocol):
    """A compiled constraint, walked along texts."""

    masks_us: list[float]

    def walk(self, text: bytes) -> tuple[bool, int | None]:
        """Whether it is accepted, and the byte at which it died: None where it only is not complete, or fine."""


class ByteWalker:
    """By the automaton's meaning in plain Python."""

    def __init__(self, nfa: Nfa, start: int) -> None:
        self._reference, self.masks_us = Reference(nfa, start), list[float]()

    def walk(self, text: bytes) -> tuple[bool, int | None]:
        state = self._reference.first
        for at in range(len(text)):
            state = self._reference.advance(state, text[at : at + 1])
            if not state:
                return False, at
        return None in state, None


class TokenWalker:
    """By the masks of a vocabulary, as a server does; each is timed in the thread's own time."""

    def __init__(
        self,
        nfa: Nfa,
        start: int,
        tables: VocabTables,
        encode: Callable[[bytes], list[int]],
        cache_dir: Path = DEFAULT_CACHE,
    ) -> None:
        """encode: the tokenizer; what it cannot spell is walked byte by byte."""
        self._grammar = Grammar(nfa, start, tables, Limits(), cache_dir)
        self._tables, self._encode, self.masks_us = tables, encode, list[float]()

    def walk(self, text: bytes) -> tuple[bool, int | None]:
        grammar, state, at = self._grammar, self._grammar.first, 0
        for token in self._encode(text):
            data = self._tables.bytes_of(token)
            if text[at : at + len(data)] != data:
                break
            allowed, following = self._allows(state, token), grammar.advance(state, token)
            assert allowed == (following != DEAD), f"the mask and the automaton disagree over token {token}"
            if not allowed:
                break
            state, at = following, at + len(data)
        for place in range(at, len(text)):
            state = grammar.advance_bytes(state, text[place : place + 1])
            if state == DEAD:
                return False, place
        self._mask(state)
        return grammar.accepting(state), None

    def _allows(self, state: int, token: int) -> bool:
        row, bit = self._mask(state), int(self._tables.rank[token])
        return bool(int(self._tables.pool[row][bit >> 5]) >> (bit & 31) & 1)

    def _mask(self, state: int) -> int:
        began = time.thread_time_ns()
        row = self._grammar.row(state)
        self.masks_us.append((time.thread_time_ns() - began) / 1e3)
        return row


Walk = Callable[[Nfa, int], Walker]


def build(case: Case, nfa: Nfa, options: SchemaOptions) -> int:
    """The first node of a case's constraint. Raises ConstraintError."""
    if case.kind in SIMPLE:
        return SIMPLE[case.kind](case.spec, nfa)
    if case.kind in ENVELOPES:
        tools = [Tool(tool["name"], arguments(tool.get("parameters", True), options)) for tool in case.spec["tools"]]
        return calls(nfa, tools, ENVELOPES[case.kind], nfa.ret)
    return compile_schema(case.spec, nfa, options)


def judge(case: Case, walk: Walk = ByteWalker, options: SchemaOptions = DEFAULTS) -> Verdict:
    """Compile a case and walk its texts."""
    began, nfa = time.thread_time(), Nfa()
    try:
        walker = walk(nfa, build(case, nfa, options))
    except ConstraintError as error:
        spent = (time.thread_time() - began) * 1e3
        return Verdict(case, _right_to_refuse(case, error), spent, error)
    verdict = Verdict(case, not case.refused, (time.thread_time() - began) * 1e3, masks_us=walker.masks_us)
    for expected, texts in ((True, case.accept), (False, case.reject)):
        for text in texts:
            verdict.texts.append(_outcome(walker, text, expected))
    verdict.agrees &= all(text["accepted"] == (text["expected"] == "accept") for text in verdict.texts)
    return verdict


def _right_to_refuse(case: Case, error: ConstraintError) -> bool:
    """It had to be, or no text fulfils it and none was expected to."""
    if case.refused:
        return case.must_mention in error.message
    return error.code is Code.UNSATISFIABLE and not case.accept and bool(case.reject)


def _outcome(walker: Walker, text: str, expected: bool) -> dict[str, Any]:
    try:
        accepted, died = walker.walk(text.encode("utf-8", "surrogatepass"))
    except (DeadEnd, ConstraintError) as error:
        return {"text": text, "expected": "accept" if expected else "reject", "accepted": None, "error": str(error)}
    return {"text": text, "expected": "accept" if expected else "reject", "accepted": accepted, "died_at": died}


ORDERS = {order.value: order for order in PropertyOrder}
WHITESPACE = {mode.value: mode for mode in Whitespace}
