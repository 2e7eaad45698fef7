"""The energy of an engine's GPUs by what the engine did meanwhile: busy, idle or asleep."""

from collections import defaultdict, deque
from collections.abc import Mapping

from vllm_vitals._util.amounts import divide, quotient
from vllm_vitals.catalog.cost import ASLEEP, BUSY, IDLE

MOST_POWER = 1e9
"""Watts that no engine draws: what seems to be more came in a time too short to tell."""
MOST_WAITING = 64
"""Readings that wait until it is known what the engine did; beyond, the oldest are made into one."""


def activity(limiter: str) -> str:
    """Return what an engine does while something limits it."""
    return limiter if limiter in {IDLE, ASLEEP} else BUSY


class Energy:
    """Divides what was read at intervals, all of an engine's GPUs together.

    What came while the engine did one thing is that thing's. Where it did several, what was not busy drew the power that
    it drew last when it lasted from one reading to the next, and the rest is busy's; until that is known, each has its
    share by time.
    """

    def __init__(self) -> None:
        self.joules: defaultdict[str, float] = defaultdict(float)
        self._waiting: deque[tuple[float, float]] = deque()
        """Monotonic seconds of a reading, and the joules since the one before."""
        self._power: dict[str, float] = {}
        """Watts that the engine was last seen to draw while it was not busy."""

    def read(self, clock: float, joules: float) -> None:
        """Take a reading at `clock`, monotonic seconds: the joules since the one before, an amount that can be."""
        self._waiting.append((clock, joules))
        if len(self._waiting) > MOST_WAITING:
            (_, oldest), (until, next_) = self._waiting.popleft(), self._waiting.popleft()
            self._waiting.appendleft((until, oldest + next_))

    def due(self, clock: float) -> float | None:
        """Return the monotonic seconds of the oldest reading that waits, if it was made by `clock`."""
        return self._waiting[0][0] if self._waiting and self._waiting[0][0] <= clock else None

    def divide(self, seconds: Mapping[str, float], now: str) -> None:
        """Divide the oldest reading by the seconds of each thing that the engine did since the one before.

        `now`: what it does, for a reading that comes when all is divided.
        """
        _, joules = self._waiting.popleft()
        for state, part in self._parts(joules, seconds or {now: 1.0}).items():
            self.joules[state] += part

    def _parts(self, joules: float, seconds: Mapping[str, float]) -> Mapping[str, float]:
        if len(seconds) == 1:
            (state, elapsed) = next(iter(seconds.items()))
            if state != BUSY and joules and (power := quotient(joules, elapsed, MOST_POWER)):
                self._power[state] = power
            return {state: joules}
        resting = {state: self._power.get(state, 0.0) * elapsed for state, elapsed in seconds.items() if state != BUSY}
        if BUSY in seconds and all(resting.values()):
            most = min(joules / sum(resting.values()), 1.0)
            return {
                **{state: part * most for state, part in resting.items()},
                BUSY: max(joules - sum(resting.values()), 0.0),
            }
        return divide(joules, seconds)
