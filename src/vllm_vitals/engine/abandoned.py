"""Count requests whose client left: vLLM reports them to no stat logger.

The count is a difference. Each request that got a first token is still in the engine, has finished, or was abandoned.
"""

import math
from dataclasses import dataclass

from vllm_vitals.records.step import Step

MAX_SERVER_SKEW = 1.0
"""Seconds by which the serving processes of one engine may differ in when they hear of a step."""
SLOT_SECONDS = 0.125
"""Steps of this many seconds are kept together."""
MAX_SLOTS = 4096
"""Slots kept while a serving process is behind. Beyond, the requests that the engine held then are not counted."""


@dataclass
class _Slot:
    started: int = 0
    clock: float = -math.inf
    """Monotonic seconds of the latest step with scheduler stats, and the requests that the engine held then."""
    held: int = 0


class Abandoned:
    """Counts abandoned requests: never too many, and exact once the engine is idle and all steps are known."""

    def __init__(self) -> None:
        self._started = 0
        self._ended = 0
        self._counted = 0
        self._unknown = 0
        """Requests that started and whose end may never be reported."""
        self._slots: dict[float, _Slot] = {}
        self._latest = _Slot(held=1)  # before the first step, the engine may well be at work
        self._latest_clock = -math.inf
        """Monotonic seconds of the latest step."""
        self._lost_until = -math.inf
        """Monotonic seconds up to which steps may be missing for good."""
        self._has_unseen_starts = True
        """Whether requests may end whose start was never reported."""

    def add_step(self, step: Step) -> None:
        """Add a step, in any order: the requests that got their first token, that ended, and that the engine holds."""
        running = step.running
        started = len(step.first_token_latencies) if step.first_token_latencies else 0
        # A pooling request ends with a prefill time and no token: its answer is its first token too.
        ended = sum([1 for request in step.finished if request.output_tokens or request.prefill is not None])
        if running is None and not (started or ended):
            return
        self._started += started
        self._ended += ended
        clock = step.clock
        self._latest_clock = max(self._latest_clock, clock)
        key = clock // SLOT_SECONDS
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot()
        slot.started += started
        if running is not None:
            held = max(running, 0) + max(step.waiting or 0, 0) + max(step.deferred or 0, 0)
            if clock >= slot.clock:
                slot.clock, slot.held = clock, held
            if clock >= self._latest.clock:
                self._latest.clock, self._latest.held = clock, held
        if len(self._slots) > MAX_SLOTS:
            self._slots.clear()
            self.mark_lost(self._latest_clock)

    def mark_lost(self, clock: float) -> None:
        """Record that steps up to `clock`, monotonic seconds, may be lost: requests may have ended unseen."""
        self._lost_until = max(self._lost_until, clock)

    def add_server(self) -> None:
        """Record that another serving process reports from now on, whose requests may have started before."""
        self._has_unseen_starts = True

    def take_new(self, watermark: float, skew: float = 0.0) -> int:
        """Return the requests found abandoned since the last call, all steps up to `watermark` being known.

        `watermark`: monotonic seconds. `skew`: seconds by which the serving processes may differ in when they hear of a
        step.
        """
        if watermark < self._lost_until:
            return 0
        if self._lost_until > -math.inf:
            self._lost_until, self._has_unseen_starts = -math.inf, True
            self._unknown = self._started - self._ended - self._counted
        # A process that hears of steps that late would have reported a newer one by now.
        idle = not self._latest.held and self._latest_clock <= min(self._latest.clock + skew, watermark - 2 * skew)
        missing = self._missing_in_idle_engine() if idle else self._missing_in_busy_engine(watermark - skew, skew)
        self._counted += max(missing, 0)
        return max(missing, 0)

    def _missing(self) -> int:
        return self._started - self._ended - self._unknown - self._counted

    def _missing_in_idle_engine(self) -> int:
        """Return the missing requests of an engine that holds none, all its steps being known."""
        self._slots.clear()
        if self._has_unseen_starts:
            self._has_unseen_starts = False
            self._unknown += min(self._missing(), 0)
        return self._missing()

    def _missing_in_busy_engine(self, latest: float, skew: float) -> int:
        """Return the least number of missing requests, by the latest step up to `latest` that had scheduler stats.

        Only requests that had certainly started by then count. Any request that has ended by now may have been in the
        engine then.
        """
        candidates = [slot for slot in self._slots.values() if -math.inf < slot.clock <= latest]
        if not candidates:
            return 0
        reference = max(candidates, key=lambda slot: slot.clock)
        certain = reference.clock - skew
        for key in [key for key in self._slots if (key + 1) * SLOT_SECONDS <= certain]:
            del self._slots[key]
        return self._missing() - reference.held - sum(slot.started for slot in self._slots.values())
