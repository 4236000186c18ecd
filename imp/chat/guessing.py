"""What a request lets the server guess of its output before it is computed. It changes when the output comes only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..types import Drafting, Sampling
from .message import Options

LONGEST = 256  # no vocabulary has a token of more characters


class Encoder(Protocol):
    def encode(self, text: str, add_special: bool = True) -> list[int]: ...


class Guesser(Protocol):
    """What of prepare.ModelFacts says how outputs are guessed at."""

    @property
    def tokenizer(self) -> Encoder: ...
    @property
    def defaults(self) -> Sampling: ...
    @property
    def context(self) -> int: ...
    @property
    def no_guesses(self) -> str: ...
    @property
    def no_predictions(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Declined:
    """Why nothing is guessed although a request says what its output may be, or asks for guesses."""

    code: str
    why: str


def declined(options: Options, facts: Guesser) -> Declined | None:
    """None where nothing was asked for, or it is done."""
    predicts = options.prediction is not None
    if not options.speculates and not predicts:
        return None
    if options.speculates is False:
        return Declined("off", "the request's speculative is false")
    if why := facts.no_guesses or (predicts and facts.no_predictions):
        return Declined("off", why)
    if facts.defaults.mirostat if options.mirostat is None else options.mirostat:
        return Declined("mirostat", "with mirostat each draw depends on the one before it")
    return None


def drafting(options: Options, facts: Guesser, shares: bool) -> Drafting:
    """shares: the request reads and fills the prompt cache. One that does not gives its output to nobody's guesses, and
    takes none from others. Of a prediction no more is read than the context holds."""
    wanted = options.speculates is not False and not facts.no_guesses
    text = options.prediction if wanted and not facts.no_predictions and options.prediction else ""
    tokens = facts.tokenizer.encode(text[: facts.context * LONGEST], add_special=False) if text else []
    return Drafting(wanted, tuple(tokens[: facts.context]), shares)
