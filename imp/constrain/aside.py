"""Whose an automaton is at a moment: its user's, or a thread's that works on it beside the user.

A user who cannot wait asks `Custody.ready` before anything else. What takes long is then worked out in another thread,
and until that has ended the automaton is left alone.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Protocol

from .clock import SECONDS, Rest, TimeOver, timed
from .errors import ConstraintError

THREADS = 4  # one that is made to wait must not keep short work from being done
# What masks may cost the user: so much at once, and for each that is new. What takes longer is done in another thread,
# and given up beyond SECONDS.
AT_ONCE_S, EARNED_S = 0.002, 0.0002


class DeadEnd(Exception):
    """The automaton cannot go on: the constraint is more ambiguous than can be followed, or lowering it failed."""


STUCK = (DeadEnd, ConstraintError, MemoryError)


class Masks(Protocol):
    """Of the automaton, by state."""

    def has(self, state: int) -> bool: ...
    def make(self, state: int) -> int:
        """Raises one of STUCK, TimeOver where the thread's clock says so."""


class Custody:
    """Belongs to the user. Threads that the automaton is lent to work on it inside `piece`, unless it was claimed."""

    def __init__(self) -> None:
        self.piece = Lock()
        self.claimed = True
        self.failed: dict[int, str] = {}  # states whose mask cannot be made, and why
        self.rest: Rest = lambda took_s: None
        self._patience_s = AT_ONCE_S

    def lend(self) -> None:
        """To be worked on in pieces, until it is claimed."""
        self.claimed = False

    def claim(self) -> None:
        """From now on it is the user's, who waits for the end of the piece of work in progress."""
        self.claimed = True
        with self.piece:
            pass

    def ready(self, masks: Masks, state: int) -> bool:
        """Whether the mask of `state` is there, or cannot be made. If not, it is being made."""
        if not self.claimed:
            if not self.piece.acquire(blocking=False):
                return False
            self.piece.release()
            self.claimed = True
        if state in self.failed or masks.has(state):
            return True
        self._patience_s = min(self._patience_s + EARNED_S, AT_ONCE_S)
        if self._patience_s > 0 and self._made_soon(masks, state):
            return True
        self.piece.acquire()  # for the thread, which lets go of it
        self.claimed = False
        _threads().submit(self._make, masks, state)
        return False

    def _made_soon(self, masks: Masks, state: int) -> bool:
        began = time.thread_time()
        try:
            with timed(self._patience_s):
                masks.make(state)
        except TimeOver:
            return False
        except STUCK as error:
            self.failed[state] = str(error)
        finally:
            self._patience_s -= time.thread_time() - began
        return True

    def _make(self, masks: Masks, state: int) -> None:
        """In a thread. Ends soon after the user claims it all the same, who will have to make the mask then."""
        try:
            with timed(SECONDS, lambda: self.claimed, self.rest):
                masks.make(state)
        except TimeOver:
            if not self.claimed:
                self.failed[state] = f"too large: a mask takes more than {SECONDS:g} s"
        except STUCK as error:
            self.failed[state] = str(error)
        finally:
            self.piece.release()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "masks")
