"""Giving the interpreter up between small pieces of work, so that vLLM's event loop never waits for long.

A thread says once that its work is `paced()`. What it calls, however deep, calls `checkpoint()` between small pieces.
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PIECE_SECONDS = 200e-6
"""Work after which the interpreter is given up."""
REST_SECONDS = 50e-6
"""Length of the sleep then. A sleep of 0 would often take the interpreter back before anyone else got it."""


class _Pace(threading.local):
    since = math.inf
    """Monotonic seconds when this thread's piece of work began; infinite where work is not paced."""


_pace = _Pace()


@contextmanager
def paced(active: bool = True) -> Iterator[None]:  # noqa: FBT001, FBT002 - it reads well
    """Make `checkpoint()` rest on this thread until the end of the block; not at all if it is not `active`."""
    before, _pace.since = _pace.since, time.monotonic() if active else math.inf
    try:
        yield
    finally:
        _pace.since = before


def checkpoint() -> None:
    """Sleep briefly if this thread has worked long enough since the last time. Outside `paced()` nothing happens."""
    if time.monotonic() - _pace.since >= PIECE_SECONDS:
        time.sleep(REST_SECONDS)
        _pace.since = time.monotonic()


def let_go(items: list[Any]) -> None:
    """Empty a list bit by bit: freeing thousands of objects at once takes long."""
    while items:
        items.pop()
        checkpoint()
