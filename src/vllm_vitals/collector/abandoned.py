"""Requests that nobody waits for any more: vLLM tells no stat logger when a client leaves.

They are what is missing in the sum: of those that got a first token, each is still in the engine, has finished, or
was abandoned.
"""

from collections import deque
from typing import NamedTuple

from vllm_vitals.step import Step

SKEW = 1.0
"""Seconds by which what a step brought may be told later by one process than by another."""


class _Moment(NamedTuple):
    clock: float
    started: int
    held: int


class Abandoned:
    """Counts them from below: exactly once the engine has been idle for a second, never too many before."""

    def __init__(self) -> None:
        self._started = 0
        self._ended = 0
        self._moments: deque[_Moment] = deque()
        self._counted = 0

    def step(self, step: Step) -> None:
        """Take a step in: how many requests got their first token, ended, and are in the engine."""
        self.late(step)
        if step.running is not None:
            held = step.running + (step.waiting or 0) + (step.deferred or 0)
            self._moments.append(_Moment(step.clock, self._started, held))

    def late(self, step: Step) -> None:
        """Take in what a step brought, but not what it says of the engine, which is out of date."""
        self._started += len(step.first_token_latencies or ())
        self._ended += sum(1 for request in step.finished if request.output_tokens)

    def new(self, told: float) -> int:
        """Return how many there are more than were returned before, all being told up to `told`, monotonic seconds."""
        moments = self._moments
        while len(moments) > 1 and moments[1].clock <= told - SKEW:
            moments.popleft()
        if not moments or moments[0].clock > told - SKEW:
            return 0
        # Whoever had started by then was in the engine, or had ended and has been told of since, or is gone.
        _, started, held = moments[0]
        missing = started - held - self._ended - self._counted
        if missing < 0 and not held and len(moments) == 1:
            self._started -= missing  # some had started before anybody listened
            moments[0] = moments[0]._replace(started=started - missing)
        self._counted += max(missing, 0)
        return max(missing, 0)
