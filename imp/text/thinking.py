"""Where the answer begins in the text of a model that thinks first."""

from __future__ import annotations

from ..types import Reasoning


class BeforeAnswer:
    """Follows one sequence's text up to its answer. `tokens`: those that came before it, as the caller counts them."""

    def __init__(self, reasoning: Reasoning) -> None:
        self.tokens = 0
        self.answering = False
        self._rule = reasoning
        self._thinks = reasoning.started
        self._tail = ""  # text that has not shown yet whether it thinks; then, where the closing marker may have begun

    def push(self, text: str) -> tuple[str, str]:
        """What of the text belongs before the answer, and what to it. Neither, while that cannot be told."""
        known, self._tail = self._tail + text, ""
        if not self._thinks:
            begun = known.lstrip()
            if len(begun) < len(self._rule.open) and self._rule.open.startswith(begun):
                self._tail = known
                return "", ""
            if not begun.startswith(self._rule.open):
                return "", self.answer(known)
            self._thinks, text = True, known
        at = known.find(self._rule.close)
        if at < 0:
            keep = len(self._rule.close) - 1
            self._tail = known[-keep:] if keep else ""
            return text, ""
        self.answering = True
        answer = known[at + len(self._rule.close) :]
        return text[: len(text) - len(answer)], answer

    def answer(self, text: str) -> str:
        """The output is an answer from the start: so far it is this."""
        self.answering, self.tokens = True, 0
        return text

    def flush(self) -> str:
        """No more text comes: what was held."""
        if self._thinks:
            return ""
        held, self._tail = self._tail, ""
        return self.answer(held)
