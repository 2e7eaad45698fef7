"""Where vLLM's event loop leaves what it has to say: constant time, no lock, no I/O, no exception."""

from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from vllm_vitals.records.step import OTHER

Call = tuple[float, Any, Any, Any, Any]
"""A call of `record()`: monotonic seconds, scheduler, iteration and multimodal stats, and the engine."""
Written = tuple[float, bytes]
"""The same, written down: monotonic seconds, and all the rest."""
Write = Callable[[Call], bytes | Call]
MOST_REASONS = 16
"""Reasons of rejections that are told apart; there are two."""


class Tap:
    """The hooks of one `AsyncLLM` write here; a feeder drains it.

    Only the thread of the event loop writes; `dropped`, `hook_time` (seconds), `failed` and `rejections` only grow.
    """

    def __init__(self, limit: int, write: Write | None = None) -> None:
        """`limit`: most steps that wait; more are dropped and counted. 0 makes a tap that keeps nothing.

        `write` writes a call down at once, which takes a few microseconds for each hundred requests while their numbers
        are in the processor's cache, and many times that on another thread later. What it raises for is kept as it is, and
        so is a call that it returns.
        """
        self.queue: deque[Call | Written] = deque()
        self.limit = limit
        self.write = write
        self.dropped = 0
        self.failed = 0
        self.hook_time = 0.0
        self.rejections: dict[str, int] = {}
        self.sleep: str | None = None
        """The state that the engines were last said to be in."""
        self.orphaned = False
        """Set when nothing will come any more: the feeder lets go of the tap once it is empty."""

    def record(self, scheduler: Any, iteration: Any, multimodal: Any, engine: Any) -> None:
        """Keep what vLLM says of one step. The objects are read later, on another thread, or written down now."""
        clock = monotonic()
        queue = self.queue
        if len(queue) < self.limit:
            call = (clock, scheduler, iteration, multimodal, engine)
            queue.append(call if self.write is None else self._written(call))
        elif self.limit:
            self.dropped += 1
        self.hook_time += monotonic() - clock

    def _written(self, call: Call) -> Call | Written:
        try:
            written = self.write(call)  # type: ignore[misc]
        except (Exception, SystemExit):  # noqa: BLE001 - an object of vLLM's may raise anything; Ctrl-C is not one's
            return call
        return (call[0], written) if isinstance(written, bytes) else written

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
