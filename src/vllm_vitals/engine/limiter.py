"""An engine's time by what kept requests out of its batch, and its GPUs' energy by whether it was busy.

vLLM's scheduler admits waiting requests until the batch has `max_num_seqs` requests, the tokens of the step are used
up, or the KV cache is full. The `waiting` of its stats is the rest. The stats are taken at the end of a step: requests
that ended in the step were in its batch, and are not counted as running any more. The time between two steps belongs
to the state after the first.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vllm_vitals._util.amounts import divide, quotient
from vllm_vitals.catalog.cost import ASLEEP, BUSY, IDLE
from vllm_vitals.records.step import Finished, Step

NEARLY_FULL = 0.95
"""Share of the KV cache in use from which it counts as full, before typical prompts are known."""
MAX_WATTS = 1e9
"""No engine draws more: a higher power comes from an interval too short to measure."""
MAX_READINGS = 64
"""Energy readings that wait to be divided. Beyond, the oldest two are merged."""


class EndedRequests(NamedTuple):
    """The requests that ended in a step: they were in its batch, and its stats leave them out."""

    requests: int = 0
    tokens: int = 0
    """Tokens that they held in the KV cache, without cached prompt tokens, which others may hold as well."""

    def plus(self, finished: Iterable[Finished]) -> "EndedRequests":
        """Return the sum with more finished requests. A request aborted before its first token was in no batch."""
        held = [
            max((each.input_tokens or 0) - (each.cached_tokens or 0), 0) + max(each.output_tokens or 0, 0)
            for each in finished
            if each.output_tokens or each.prefill is not None  # a pooling request has no token, but a prefill
        ]
        return EndedRequests(self.requests + len(held), self.tokens + sum(held))


NONE_ENDED = EndedRequests()


def limiter(
    step: Step, max_num_seqs: int | None, free: float | None, need: float | None, ended: EndedRequests = NONE_ENDED
) -> str:
    """Return the reason why requests were kept out of a step's batch.

    `free`: tokens that the KV cache has room for after the step. `need`: tokens that the next request probably needs
    there. `ended`: the requests that ended in the step. `None` stands for unknown.
    """
    if not step.waiting:
        return "deferred" if step.deferred else "none" if step.running else "idle"
    if step.preempted:
        return "kv_cache"  # a step that preempts requests admits none
    if max_num_seqs and (step.running or 0) + ended.requests >= max_num_seqs:
        return "max_num_seqs"
    if _is_full(step, None if free is None else free - ended.tokens, need):
        return "kv_cache"
    return "token_budget"  # there was room, so the tokens of the step were used up


def _is_full(step: Step, free: float | None, need: float | None) -> bool:
    if free is not None and need is not None:
        return free < need
    return (step.kv_cache_usage or 0.0) >= NEARLY_FULL


def activity(state: str) -> str:
    """Return whether an engine in a state of the limiter is busy, idle or asleep."""
    return state if state in {IDLE, ASLEEP} else BUSY


class Limiter:
    """Adds an engine's time up by what limited it. Every second since its start belongs to one state."""

    def __init__(self, clock: float) -> None:
        """`clock`: monotonic seconds of the engine's start."""
        self.state = "idle"
        self._activity = activity(self.state)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.seconds_by_activity: defaultdict[str, float] = defaultdict(float)
        """The same seconds by activity, for a reader that clears them at other times."""
        self._settled_until = clock
        self._asleep = False
        self.sleep_changed = -math.inf
        """Monotonic seconds when the engine last fell asleep or woke up."""

    def set_state(self, clock: float, state: str) -> None:
        """Set the state from `clock` on, monotonic seconds."""
        if clock < self.sleep_changed:
            return  # a late step, of before the engine fell asleep or woke up
        self.settle(clock)
        self._set(state)
        self._asleep = False

    def set_asleep(self, clock: float, *, asleep: bool) -> bool:
        """Record that the engine fell asleep or woke up. Return whether it was not so before.

        An engine that woke up is idle until its first step.
        """
        if asleep == self._asleep:
            return False
        self.settle(clock)
        self._set("asleep" if asleep else "idle")
        self._asleep = asleep
        self.sleep_changed = clock
        return True

    def settle(self, clock: float) -> None:
        """Add the time up to `clock`, monotonic seconds; an earlier time than the latest adds nothing."""
        if clock > self._settled_until:
            self.seconds[self.state] += clock - self._settled_until
            self.seconds_by_activity[self._activity] += clock - self._settled_until
            self._settled_until = clock

    def _set(self, state: str) -> None:
        if state != self.state:
            self.state, self._activity = state, activity(state)


class Energy:
    """Divides energy readings, of all GPUs of an engine together, among busy, idle and asleep.

    A reading during which the engine did one thing belongs to that. In a mixed reading, idle and asleep have the power
    of their latest unmixed reading, and busy has the rest. Until that power is known, each has its share by time.
    """

    def __init__(self) -> None:
        self.joules: defaultdict[str, float] = defaultdict(float)
        self._readings: deque[tuple[float, float]] = deque()
        """Monotonic seconds of each reading, and the joules since the one before."""
        self._watts: dict[str, float] = {}
        """Latest known power of an idle and of a sleeping engine."""

    def add_reading(self, clock: float, joules: float) -> None:
        """Add a reading at `clock`, monotonic seconds: the joules since the one before, a plausible amount."""
        self._readings.append((clock, joules))
        if len(self._readings) > MAX_READINGS:
            (_, oldest), (until, next_) = self._readings.popleft(), self._readings.popleft()
            self._readings.appendleft((until, oldest + next_))

    def oldest_reading(self, until: float) -> float | None:
        """Return the clock of the oldest reading that is not divided, if it was made by `until`, monotonic seconds."""
        return self._readings[0][0] if self._readings and self._readings[0][0] <= until else None

    def divide_oldest(self, seconds: Mapping[str, float], current: str) -> None:
        """Divide the oldest reading by the seconds of each activity since the one before.

        `current`: the present activity, for a reading that comes after all time was divided.
        """
        _, joules = self._readings.popleft()
        for state, part in self._parts(joules, seconds or {current: 1.0}).items():
            self.joules[state] += part

    def _parts(self, joules: float, seconds: Mapping[str, float]) -> Mapping[str, float]:
        if len(seconds) == 1:
            (state, elapsed) = next(iter(seconds.items()))
            if state != BUSY and joules and (watts := quotient(joules, elapsed, MAX_WATTS)):
                self._watts[state] = watts
            return {state: joules}
        resting = {state: self._watts.get(state, 0.0) * elapsed for state, elapsed in seconds.items() if state != BUSY}
        if BUSY in seconds and all(resting.values()):
            scale = min(joules / sum(resting.values()), 1.0)
            return {
                **{state: part * scale for state, part in resting.items()},
                BUSY: max(joules - sum(resting.values()), 0.0),
            }
        return divide(joules, seconds)
