"""Constraints on the whole output that are no grammar: a regular expression it matches, a list it is chosen from."""

from __future__ import annotations

from collections.abc import Sequence

from . import regex
from .charset import Encoding
from .clock import tick
from .dfa import unanchored
from .errors import Code, ConstraintError, too_large
from .expr import Assert, leaves
from .grammar import compile_rules
from .language import Language
from .nfa import Nfa

MAX_CHOICE_BYTES = 1 << 20


def compile_regex(pattern: str, nfa: Nfa) -> int:
    """The node at which texts begin that `pattern` matches from the first character to the last; they end in `nfa.ret`.

    As a minimal automaton, or where that is too large with counters and calls. Raises RegexError or ConstraintError.
    """
    try:
        language = Language.pattern(pattern, search=False)
    except ConstraintError as error:
        expr = unanchored(regex.parse(pattern))
        if error.code is not Code.TOO_LARGE or any(isinstance(leaf, Assert) for leaf in leaves(expr)):
            raise
        return compile_rules({"the pattern": expr}, "the pattern", nfa)
    if language.is_empty:
        raise ConstraintError(Code.UNSATISFIABLE, "", "no text matches the pattern")
    return language.emit(nfa, nfa.ret, Encoding.RAW)


def compile_choice(choices: Sequence[str], nfa: Nfa) -> int:
    """The node at which each of `choices` begins; they end in `nfa.ret`. Raises ConstraintError."""
    if not choices:
        raise ConstraintError(Code.UNSATISFIABLE, "", "there is nothing to choose from")
    try:
        words = {choice.encode() for choice in choices}
    except UnicodeEncodeError as error:
        raise ConstraintError(Code.INVALID, "", "a choice holds half a surrogate pair, which no text can") from error
    if sum(map(len, words)) > MAX_CHOICE_BYTES:
        raise too_large(f"the choices have more than {MAX_CHOICE_BYTES} bytes")
    return byte_trie(nfa, sorted(words), nfa.ret)


def byte_trie(nfa: Nfa, words: Sequence[bytes], after: int) -> int:
    """A node that reads one of `words`, sorted and distinct, then goes on at `after`. Deterministic."""
    root = nfa.eps()
    work = [(root, 0, len(words), 0)]  # an EPS node, and the words that share their first `depth` bytes
    while work:
        place, first, last, depth = work.pop()
        tick(last - first)
        if len(words[first]) == depth:
            nfa.link(place, after)
            first += 1
        if first == last:
            continue
        fork = nfa.byte()
        nfa.link(place, fork)
        while first < last:
            byte, start = words[first][depth], first
            while first < last and words[first][depth] == byte:
                first += 1
            if first - start == 1:
                nfa.edge(fork, byte, byte, nfa.literal(words[start][depth + 1 :], after))
            else:
                branch = nfa.eps()
                nfa.edge(fork, byte, byte, branch)
                work.append((branch, start, first, depth + 1))
    return root
