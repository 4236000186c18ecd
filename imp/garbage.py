"""When garbage that refers to itself is looked for among everything that lives.

Such a full collection stops every thread while it walks all objects: a tenth of a second for a million. Left to itself
the interpreter begins one in the middle of whatever makes many objects, again and again while they grow; compiling one
large grammar cost streams second after second. So here it happens when enough was made since the last one, and where
something streams only when much more was. Collections of what is young go on as ever, and take a millisecond.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

LOOK_S = 1.0
NEVER = 1 << 30
# collections of young objects since the last full one; each stands for 20,000 objects that were made and stayed
DUE, OVERDUE = 5, 100


def begin() -> None:
    """From now on full collections happen in `collect_in_time` alone, and none walks what was imported so far."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)
    gc.freeze()


def is_due(busy: bool) -> bool:
    """Whether it is time for a full collection. busy: something streams."""
    return gc.get_count()[2] >= (OVERDUE if busy else DUE)


async def collect_in_time(busy: Callable[[], bool]) -> None:
    """Until cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        if is_due(busy()):
            gc.collect()
