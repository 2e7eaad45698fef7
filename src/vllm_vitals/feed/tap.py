"""Where vLLM's event loop leaves what it has to say: constant time, no lock, no I/O, no exception."""

from collections import deque
from time import monotonic
from typing import Any

from vllm_vitals.step import Rejection, Sleep


class Tap:
    """The hooks of one `AsyncLLM` write here; a feeder drains it.

    Only the thread of the event loop writes; `dropped`, `hook_time` (seconds) and `failed` only grow.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: most records that wait; more are dropped and counted. 0 makes a tap that keeps nothing."""
        # Each tuple is one `record()` call as it came: clock, scheduler, iteration and multimodal stats, engine.
        self.queue: deque[tuple[Any, ...] | Sleep | Rejection] = deque()
        self.limit = limit
        self.dropped = 0
        self.failed = 0
        self.hook_time = 0.0

    def record(self, scheduler: Any, iteration: Any, multimodal: Any, engine: Any) -> None:
        """Keep what vLLM says of one step. The objects are read later, on another thread."""
        clock = monotonic()
        queue = self.queue
        if len(queue) < self.limit:
            queue.append((clock, scheduler, iteration, multimodal, engine))
        elif self.limit:
            self.dropped += 1
        self.hook_time += monotonic() - clock

    def event(self, event: Sleep | Rejection) -> None:
        """Keep a rarer event."""
        if len(self.queue) < self.limit:
            self.queue.append(event)
        elif self.limit:
            self.dropped += 1

    def close(self) -> None:
        """Keep nothing from now on, and forget what waits."""
        self.limit = 0
        self.queue.clear()
