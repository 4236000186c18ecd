"""What a request lets the server guess of its output before it is computed. It changes when the output comes only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..types import Drafting, Sampling
from .message import Options

LONGEST = 256  # no vocabulary has a token of more characters


class Encoder(Protocol):
    def encode(self, text: str, add_special: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Declined:
    """Why nothing is guessed although a request says what its output may be, or asks for guesses."""

    code: str
    why: str


def declined(options: Options, defaults: Sampling, no_guesses: str) -> Declined | None:
    """None where nothing was asked for, or it is done. no_guesses: why the server guesses nothing."""
    if not options.speculates and options.prediction is None:
        return None
    if options.speculates is False:
        return Declined("off", "the request's speculative is false")
    if no_guesses:
        return Declined("off", no_guesses)
    if defaults.mirostat if options.mirostat is None else options.mirostat:
        return Declined("mirostat", "with mirostat each draw depends on the one before it")
    return None


def drafting(options: Options, tokenizer: Encoder, context: int, shares: bool, no_guesses: str) -> Drafting:
    """shares: the request reads and fills the prompt cache. One that does not gives its output to nobody's guesses, and
    takes none from others. Of a prediction no more is read than the context holds."""
    wanted = options.speculates is not False and not no_guesses
    text = options.prediction if wanted and options.prediction else ""
    tokens = tokenizer.encode(text[: context * LONGEST], add_special=False) if text else []
    return Drafting(wanted, tuple(tokens[:context]), shares)
