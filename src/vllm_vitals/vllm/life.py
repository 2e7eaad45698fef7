"""Whether an `AsyncLLM` is still there: seen without keeping it, or anything of it, alive."""

import sys
import time
import weakref
from typing import Any

DEEPEST = 16
"""Callers of a logger's making among which its `AsyncLLM` is looked for."""
LINGER = 2.0
"""Seconds after a shutdown in which steps may still come."""


class Life:
    """Of the `AsyncLLM` for which a logger is being made.

    vLLM tells loggers of no end. But the client of its engines has a finalizer, which is spent by `shutdown()`, when the
    engines die, and when nobody refers to the client any more. Where there is none, the end of the `AsyncLLM` or of the
    logger itself is noticed.
    """

    def __init__(self, logger: Any) -> None:
        """Look for it among the callers of who makes a logger."""
        self._gone: list[object] = []
        owner = _owner()
        self._finalizer = getattr(_attribute(owner, "engine_core"), "_finalizer", None)
        if not isinstance(self._finalizer, weakref.finalize):
            self._finalizer = None
            self._watched = _watch(owner, self._gone) or _watch(logger, self._gone)
        self._ended: float | None = None

    def over(self) -> bool:
        """Tell whether nothing will come any more."""
        if self._finalizer is None or self._finalizer.alive:
            return bool(self._gone)
        now = time.monotonic()
        self._ended = now if self._ended is None else self._ended
        return now - self._ended >= LINGER


def _watch(thing: Any, gone: list[object]) -> Any:
    """Let a list be filled once a thing is gone; a reference that somebody follows now and then might be the last."""
    try:
        return None if thing is None else weakref.ref(thing, gone.append)
    except TypeError:
        return None


def _owner() -> Any:
    """Return what makes the loggers, if it is among the callers."""
    frame = sys._getframe(1)  # noqa: SLF001 - vLLM gives loggers nothing that leads to it
    for _ in range(DEEPEST):
        if frame is None:
            break
        caller = frame.f_locals.get("self")
        if _attribute(caller, "engine_core") is not None:
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _attribute(thing: Any, name: str) -> Any:
    """Return what an object holds under a name, without running code of its."""
    held = getattr(thing, "__dict__", None)
    return held.get(name) if isinstance(held, dict) else None
