"""Incremental decoding: tokens in, text that is safe to show out. Knows bytes and stop strings, not why tokens came.

Three things are held back: an incomplete UTF-8 character, text that may become a stop string, and nothing else.

Stop strings: the one that starts earliest in the text wins; of two that start together, the one that is complete first.
A stop string that is complete while another that started before it may still become complete waits for the next token
(or for `flush`) to decide. So the result depends on the text alone, never on how tokens cut it.

Reasoning: stop strings are looked for in the answer alone, that is behind the marker that closes the reasoning. Where
the prompt did not open any, the first text that is not white space decides whether the output does; it is held until
then (thinking.py).

The first space: where the tokenizer's encoding puts a space before a text, the first space of a text is the
tokenizer's, not the author's. It is taken away only where the text begins with these tokens, that is where the prompt
is empty or nothing but BOS; after any other prompt the first token's space is part of the text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ..types import Headers, Reasoning
from .spelled import BREAK, Quotes, joined, place
from .thinking import Outline, Pieces
from .tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TextDecoder:
    """One sequence's text (imp.types.Decoder). Belongs to one thread.

    Joined, what `push` and `flush` return is `tokenizer.decode` of the same tokens, cut where `stopped` was met.
    stopped: the stop string that was met; may be set by `flush` too. Afterwards nothing more is returned.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        prompt_tail: Sequence[int] = (),
        visible: frozenset[int] = frozenset(),
        reasoning: Reasoning | None = None,
        headers: Headers | None = None,
    ) -> None:
        """visible: control tokens that leave their text although the others leave none.

        prompt_tail: the prompt, or any number of its last tokens; empty where the text begins with what is pushed.

        include_stop: the matched stop string is part of the text. Empty stop strings are ignored.
        """
        self.stopped: str | None = None
        self._table = tokenizer.byte_table
        self._hidden = tokenizer.special_ids - visible if skip_special else frozenset()
        self._stops = tuple(stop for stop in dict.fromkeys(stop_strings) if stop)
        self._include_stop = include_stop
        self._decode = _Utf8Decoder("replace").decode
        self._held = ""
        self._seen = 0
        self._shown = 0
        self._visible = visible
        self._outline = None if reasoning is None and headers is None else Outline(reasoning, headers)
        self._quotes = (
            None if self._outline is None or not visible else Quotes(_markers(tokenizer, visible, reasoning, headers))
        )
        begins = all(token == tokenizer.bos_id for token in prompt_tail)
        self._drops_space = tokenizer.adds_space and begins

    @property
    def seen(self) -> int:
        """Characters decoded so far, held back ones included; an incomplete character is not one yet."""
        return self._seen

    @property
    def shown(self) -> int:
        """Characters returned so far."""
        return self._shown

    @property
    def reasoning_tokens(self) -> int:
        """Tokens pushed before the answer began, the one that ends the closing marker included."""
        return 0 if self._outline is None else self._outline.tokens

    @property
    def thinks(self) -> bool:
        """The text ends inside the reasoning."""
        return self._outline is not None and self._outline.thinks

    def push(self, token: int) -> str:
        """The text that has become safe with `token`. An id beyond the vocabulary (padding logits) adds no text."""
        if self._outline is not None:
            self._outline.token()
        if self.stopped is not None or token in self._hidden or token >= len(self._table):
            return ""
        data = self._table[token]
        if self._drops_space and data:
            self._drops_space = False
            data = data.removeprefix(b" ")
        text = self._decode(data)
        if not text:
            return ""
        is_control = token in self._visible
        if self._quotes is not None:
            text = text if is_control else self._quotes.plain(text)
            if is_control:
                self._quotes.control()
        self._seen += len(text)
        if self._outline is not None and self._outline.follows:
            text = self._told(self._outline.push(text), is_control)
        elif self._stops:
            text = self._told([(text, True)], is_control)
        self._shown += len(text)
        return text

    def _told(self, pieces: Pieces, is_control: bool) -> str:
        """What of these pieces is safe: stop strings are looked for in the answer, and not in control tokens."""
        if not self._stops:
            return "".join(text for text, _ in pieces)
        out = ""
        for text, is_answer in pieces:
            if is_answer and not is_control:
                out += self._released(self._held + text)
                if self.stopped is not None:
                    break
            else:
                out += self._held + text
                self._held = ""
        return out

    def flush(self) -> str:
        """The rest, when no more tokens come: an incomplete character as one U+FFFD, and what was held back."""
        if self.stopped is not None:
            return ""
        rest = self._decode(b"", True)
        self._seen += len(rest)
        first = ""
        if self._outline is not None:
            first = self._told(self._outline.push(rest), False) if rest else ""
            rest = "" if self.stopped is not None else self._outline.flush()
        text, self._held = self._held + rest, ""
        start, stop = self._match(text)
        if stop is not None:
            text = self._cut(text, start, stop)
        text = first + text
        self._shown += len(text)
        return text

    def _released(self, text: str) -> str:
        """What of `text` (all that is not shown) no later token can take back; the rest is held."""
        start, stop = self._match(text)
        begun = self._begun(text)
        if stop is not None and start <= begun:
            self._held = ""
            return self._cut(text, start, stop)
        self._held = text[begun:]
        return text[:begun]

    def _match(self, text: str) -> tuple[int, str | None]:
        """Where the winning complete stop string starts, and which it is."""
        if BREAK in text:
            start, winner = self._match(joined(text))
            return place(text, start), winner
        start, winner = len(text), None
        for stop in self._stops:
            at = text.find(stop)
            if at != -1 and (at < start or (at == start and winner is not None and len(stop) < len(winner))):
                start, winner = at, stop
        return start, winner

    def _begun(self, text: str) -> int:
        """Where the longest end of `text` that is the beginning of a stop string starts; len(text) if none does."""
        if BREAK in text:
            return place(text, self._begun(joined(text)))
        begun = size = len(text)
        for stop in self._stops:
            first = stop[0]
            at = text.find(first, max(0, size - len(stop) + 1), begun)
            while at != -1 and not stop.startswith(text[at:]):
                at = text.find(first, at + 1, begun)
            if at != -1:
                begun = at
        return begun

    def _cut(self, text: str, start: int, stop: str) -> str:
        self.stopped = stop
        return text[:start] + stop if self._include_stop else text[:start]


def _markers(
    tokenizer: Tokenizer, visible: frozenset[int], reasoning: Reasoning | None, headers: Headers | None
) -> list[str]:
    """Spellings of the control tokens that tell reasoning, answer and headers apart."""
    texts = (*headers.begins, *headers.ends) if headers else ()
    texts += (reasoning.open, reasoning.close) if reasoning else ()
    spellings = (tokenizer.token_text(token) for token in visible)
    return [each for each in spellings if each and any(each in text for text in texts)]
