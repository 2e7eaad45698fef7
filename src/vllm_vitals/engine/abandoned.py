"""Requests that nobody waits for any more: vLLM tells no stat logger when a client leaves.

They are what is missing in the sum: of those that got a first token, each is still in the engine, has finished, or
was abandoned.
"""

import math
from dataclasses import dataclass

from vllm_vitals.records.step import Step

SKEW = 1.0
"""Seconds that one of several serving processes may take longer than another to hear of a step."""
SLOT = 0.125
"""Seconds whose steps are kept together."""
MOST_SLOTS = 4096
"""Slots kept while somebody is behind; beyond, what the engine had then is not counted."""


@dataclass
class _Slot:
    started: int = 0
    clock: float = -math.inf
    """Monotonic seconds of the latest step that told how many the engine held, and how many that were."""
    held: int = 0


class Abandoned:
    """Counts them from below: never too many, and exactly once the engine is idle and all of that was told."""

    def __init__(self) -> None:
        self._started = 0
        self._ended = 0
        self._counted = 0
        self._unknown = 0
        """How many started of which it will never be told whether they ended."""
        self._slots: dict[float, _Slot] = {}
        self._latest = _Slot(held=1)  # before anybody has told, it may well be at work
        self._heard = -math.inf
        """Monotonic seconds of the latest step."""
        self._lost = -math.inf
        """Monotonic seconds up to which steps may be missing that will never be told."""
        self._newcomers = True
        """Whether requests may end of which nobody told that they started."""

    def step(self, step: Step) -> None:
        """Take a step in, in any order: how many requests got their first token, ended, and are in the engine."""
        running = step.running
        started = len(step.first_token_latencies) if step.first_token_latencies else 0
        # What has no token but a time of prefill is a pooling request at its end: its answer is its first token too.
        ended = sum([1 for request in step.finished if request.output_tokens or request.prefill is not None])
        if running is None and not (started or ended):
            return
        self._started += started
        self._ended += ended
        clock = step.clock
        self._heard = max(self._heard, clock)
        key = clock // SLOT
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
        if len(self._slots) > MOST_SLOTS:
            self._slots.clear()
            self.lose(self._heard)

    def lose(self, clock: float) -> None:
        """Take note that steps up to `clock`, monotonic seconds, were lost: requests may have ended unheard."""
        self._lost = max(self._lost, clock)

    def meet(self) -> None:
        """Take note that somebody is heard from now on whose requests may have started before."""
        self._newcomers = True

    def new(self, told: float, skew: float = 0.0) -> int:
        """Return how many there are more than were returned before, all being told up to `told`, monotonic seconds.

        `skew`: seconds by which those that tell may differ in when they hear of a step.
        """
        if told < self._lost:
            return 0
        if self._lost > -math.inf:
            self._lost, self._newcomers = -math.inf, True
            self._unknown = self._started - self._ended - self._counted
        # Whoever hears of steps that late would have told of a newer one by now.
        rests = not self._latest.held and self._heard <= min(self._latest.clock + skew, told - 2 * skew)
        missing = self._at_rest() if rests else self._at_work(told - skew, skew)
        self._counted += max(missing, 0)
        return max(missing, 0)

    def _missing(self) -> int:
        return self._started - self._ended - self._unknown - self._counted

    def _at_rest(self) -> int:
        """Return how many are missing in an engine that holds none, all that it did being told."""
        self._slots.clear()
        if self._newcomers:
            self._newcomers = False
            self._unknown += min(self._missing(), 0)
        return self._missing()

    def _at_work(self, latest: float, skew: float) -> int:
        """Return how many are missing at least, by the latest step up to `latest` that told how many it held.

        Only those count that had started by then for sure; all that have ended up to now may have been among them.
        """
        moments = [slot for slot in self._slots.values() if -math.inf < slot.clock <= latest]
        if not moments:
            return 0
        moment = max(moments, key=lambda slot: slot.clock)
        sure = moment.clock - skew
        for key in [key for key in self._slots if (key + 1) * SLOT <= sure]:
            del self._slots[key]
        return self._missing() - moment.held - sum(slot.started for slot in self._slots.values())
