"""Where vLLM's event loop leaves what it has to say: constant time, no lock, no I/O, no exception."""

from asyncio import AbstractEventLoop, get_running_loop
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

Call = tuple[float, Any, Any, Any, Any]
"""A call of `record()`: monotonic seconds, scheduler, iteration and multimodal stats, and the engine."""
Pack = Callable[[Call], Call]

PACK = 4
"""Calls that are packed together."""
MOST_REASONS = 16
"""Reasons of rejections that are told apart; there are two."""


class Tap:
    """The hooks of one `AsyncLLM` write here; a feeder drains it.

    Only the thread of the event loop writes; `dropped`, `hook_time` (seconds), `failed` and `rejections` only grow.
    """

    def __init__(self, limit: int, pack: Pack | None = None) -> None:
        """`limit`: most steps that wait; more are dropped and counted. 0 makes a tap that keeps nothing.

        `pack` makes a call smaller, in a few microseconds whatever it holds, and never raises.
        """
        self.queue: deque[Call] = deque()
        self.limit = limit
        self._pack = pack
        self._unpacked = 0
        self.dropped = 0
        self.failed = 0
        self.hook_time = 0.0
        self.rejections: dict[str, int] = {}
        self.sleep: str | None = None
        """The state that the engines were last said to be in."""
        self.orphaned = False
        """Set when nothing will come any more: the feeder lets go of the tap once it is empty."""

    def record(self, scheduler: Any, iteration: Any, multimodal: Any, engine: Any) -> None:
        """Keep what vLLM says of one step. The objects are read later, on another thread."""
        clock = monotonic()
        queue = self.queue
        if len(queue) < self.limit:
            queue.append((clock, scheduler, iteration, multimodal, engine))
            self._unpacked += 1
            if self._unpacked == PACK:
                self._pack_soon()
        elif self.limit:
            self.dropped += 1
        self.hook_time += monotonic() - clock

    def _pack_soon(self) -> None:
        """Have the latest calls packed when the event loop has done what is due, while their numbers are in its cache.

        Reading a thousand float objects later, on another core, and freeing them there takes ten times as long.
        """
        self._unpacked = 0
        loop = _running_loop()
        if loop is not None and self._pack is not None:
            loop.call_soon(self._pack_latest, self._pack)

    def _pack_latest(self, pack: Pack) -> None:
        begun = monotonic()
        queue = self.queue
        for place in range(-PACK, 0):
            try:
                # Counted from the right, a place stays that of its call while the feeder takes others from the left.
                queue[place] = pack(queue[place])
            except IndexError:
                continue  # the feeder has it
        self.hook_time += monotonic() - begun

    def reject(self, reason: str) -> None:
        """Count a request that was turned away."""
        if self.limit and (reason in self.rejections or len(self.rejections) < MOST_REASONS):
            self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def close(self) -> None:
        """Keep nothing from now on, and forget what waits."""
        self.limit = 0
        self.queue.clear()


def _running_loop() -> AbstractEventLoop | None:
    try:
        return get_running_loop()
    except RuntimeError:
        return None
