"""Giving the interpreter up between small pieces of work, so that vLLM's event loop never waits for long."""

import time
from collections.abc import Callable
from typing import Any

PIECE = 200e-6
"""Seconds of work after which the interpreter is given up."""
REST = 50e-6
"""Seconds to sleep then: a sleep of 0 would often take the interpreter back before anyone else got it."""


class Pace:
    """Sleeps briefly whenever a piece of work has been done since the last time."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since = time.monotonic()

    def breathe(self) -> None:
        """Sleep if a piece of work was done."""
        if time.monotonic() - self._since >= PIECE:
            time.sleep(REST)
            self._since = time.monotonic()


def let_go(items: list[Any], pause: Callable[[], None]) -> None:
    """Empty a list bit by bit: freeing thousands of objects at once takes long."""
    while items:
        items.pop()
        pause()
