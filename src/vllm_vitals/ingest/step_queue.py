"""Where vLLM's event loop leaves what it has to say: constant time, no lock, no I/O, no exception."""

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from vllm_vitals.records.step import OTHER

Call = tuple[float, Any, Any, Any, Any]
"""A call of `record()`: monotonic seconds, scheduler, iteration and multimodal stats, and the engine."""
Copy = Callable[[Call], Call]
"""Returns a call of which nothing changes any more."""
MOST_REASONS = 16
"""Reasons of rejections that are told apart; there are two."""


class Tap:
    """The hooks of one `AsyncLLM` write here; a feeder drains it.

    Only the thread of the event loop writes; `dropped`, `hook_time` (seconds), `failed` and `rejections` only grow.
    """

    def __init__(self, limit: int, copy: Copy | None = None) -> None:
        """`limit`: most steps that wait; more are dropped and counted. 0 makes a tap that keeps nothing.

        `copy` copies what vLLM changes after the call. A call for which it raises is kept as it is.
        """
        self.queue: deque[Call] = deque()
        self.limit = limit
        self._copy = copy
        self.dropped = 0
        self.failed = 0
        self.hook_time = 0.0
        self.rejections: dict[str, int] = {}
        self.sleep: str | None = None
        """The state that the engines were last said to be in."""
        self.orphaned = False
        """Set when nothing will come any more: the feeder lets go of the tap once it is empty."""

    def record(self, scheduler: Any, iteration: Any, multimodal: Any, engine: Any) -> None:
        """Keep vLLM's stats of one step. Another thread reads them later."""
        clock = monotonic()
        queue = self.queue
        if len(queue) < self.limit:
            call = (clock, scheduler, iteration, multimodal, engine)
            queue.append(call if self._copy is None else self._copied(call))
        elif self.limit:
            self.dropped += 1
        self.hook_time += monotonic() - clock

    def _copied(self, call: Call) -> Call:
        try:
            return self._copy(call)  # type: ignore[misc]
        except (Exception, SystemExit):  # noqa: BLE001 - an object of vLLM's may raise anything; Ctrl-C is not one's
            return call

    def reject(self, reason: str) -> None:
        """Count a request that was turned away."""
        if self.limit:
            if reason not in self.rejections and len(self.rejections) >= MOST_REASONS:
                reason = OTHER
            self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def close(self) -> None:
        """Keep nothing from now on, and forget what waits."""
        self.limit = 0
        self.queue.clear()
