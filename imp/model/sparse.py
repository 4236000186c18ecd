"""Which blocks of keys a position attends to where it does not attend to all: the first ones, the latest, and of those
between the ones whose best key scores highest. Defines the rule; backends compute it.

Only positions of outputs are sparse, never those of prompts, and whether one is depends on nothing but its own
sequence: so batches, chunks, guesses and preemption stay invisible in the output, as ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .inputs import StepInputs


@dataclass(frozen=True, slots=True)
class Sparse:
    """In positions; each is rounded up to whole blocks."""

    top: int  # of the best blocks between; 0: attention is never sparse
    sink: int = 16  # the first ones
    recent: int = 256  # the latest ones, the position itself included
    least: int = 12288  # a position with fewer keys attends to all

    def blocks(self, size: int) -> tuple[int, int]:
        """Blocks at the beginning that are always there, and how many are chosen."""
        return -(-self.sink // size), -(-self.top // size)

    def latest(self, position: int, size: int) -> int:
        """The first of the latest blocks."""
        return max(0, position + 1 - self.recent) // size


ALL = Sparse(0)


def first_sparse(sparse: Sparse, outputs: np.ndarray, inputs: StepInputs, b: int) -> int:
    """The first position of row b that is sparse, if it is reached.   outputs: of each row, where its output begins."""
    if not sparse.top or not len(outputs):
        return int(inputs.contexts[b])
    return max(int(outputs[b]), sparse.least - 1)


def chosen(scores: np.ndarray, position: int, sparse: Sparse, size: int) -> np.ndarray:
    """bool [blocks]: those a position attends to.   scores: of each block up to the position's own, its best."""
    sink, top = sparse.blocks(size)
    latest = sparse.latest(position, size)
    keep = np.ones(len(scores), bool)
    between = scores[sink:latest]
    if len(between) > top:
        keep[sink:latest] = False
        best = np.argsort(-between, kind="stable")[:top]  # of equal ones the earlier
        keep[sink + best] = True
    return keep
