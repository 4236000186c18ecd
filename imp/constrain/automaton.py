"""The automaton of one constraint."""

from .reference import accepts

__all__ = ["accepts"]
