"""Where vLLM's event loop leaves its stats: in constant time, without a lock, I/O or an exception."""

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from vllm_vitals.records.step import OTHER

Call = tuple[float, Any, Any, Any, Any]
"""A call of `record()`: monotonic seconds, scheduler, iteration and multimodal stats, and the engine."""
Copy = Callable[[Call], Call]
"""Returns a call with a copy of what vLLM changes afterwards."""
MAX_REASONS = 16
"""Reasons of rejections that are counted apart. vLLM has two."""


class StepQueue:
    """The calls of one `AsyncLLM`. Its hooks write here, and a drainer reads.

    Only the thread of the event loop writes. `dropped`, `hook_time` (seconds), `failed` and `rejections` only grow.
    """

    def __init__(self, limit: int, copy: Copy | None = None) -> None:
        """`limit`: maximum of waiting steps; more are dropped and counted. A queue of 0 keeps nothing.

        `copy` runs in the hook. A call for which it raises is kept as it is.
        """
        self.calls: deque[Call] = deque()
        self.limit = limit
        self._copy = copy
        self.dropped = 0
        self.failed = 0
        self.hook_time = 0.0
        self.rejections: dict[str, int] = {}
        self.sleep: str | None = None
        """The latest sleep state of the engines."""
        self.orphaned = False
        """Set when no call will come any more. The drainer removes the queue once it is empty."""

    def record(self, scheduler: Any, iteration: Any, multimodal: Any, engine: Any) -> None:
        """Keep vLLM's stats of one step. Another thread reads them later."""
        clock = monotonic()
        calls = self.calls
        if len(calls) < self.limit:
            call = (clock, scheduler, iteration, multimodal, engine)
            calls.append(call if self._copy is None else self._copied(call))
        elif self.limit:
            self.dropped += 1
        self.hook_time += monotonic() - clock

    def _copied(self, call: Call) -> Call:
        try:
            return self._copy(call)  # type: ignore[misc]
        except (Exception, SystemExit):  # noqa: BLE001 - vLLM's objects may raise anything; Ctrl-C is the user's
            return call

    def reject(self, reason: str) -> None:
        """Count a rejected request."""
        if self.limit:
            if reason not in self.rejections and len(self.rejections) >= MAX_REASONS:
                reason = OTHER
            self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def close(self) -> None:
        """Drop all calls, and keep none from now on."""
        self.limit = 0
        self.calls.clear()
