"""What the collector remembers of one engine between its steps, and what follows from that."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from vllm_vitals._util.amounts import clamp, quotient
from vllm_vitals.catalog.cache import FREE_SEQUENCES, TIME_TO_FULL
from vllm_vitals.catalog.cost import IDLE
from vllm_vitals.catalog.engine import SATURATION
from vllm_vitals.catalog.metric import Gauge
from vllm_vitals.config.settings import PerfSettings
from vllm_vitals.engine.abandoned import Abandoned
from vllm_vitals.engine.energy import Energy, activity
from vllm_vitals.engine.headroom import Prefill, Saturation, Trend, Typical, level
from vllm_vitals.engine.limiter import NOTHING, Limiter, limiter
from vllm_vitals.engine.utilization import Perf
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.records.step import Facts, Finished, Sleep, Step
from vllm_vitals.store.writers import Writer

Rules = dict[type, list[Writer]]
LONGEST_HOLD = 10.0
"""Seconds for which it is left open at most whether an engine was idle."""
MOST_APART = 64
"""Messages with outputs alone, one from each API server, of which it is open to which step they belong."""
FADING = 0.99
"""How much shorter that gets with each step that does not need it."""


class Engine:
    """One engine, as its steps so far tell."""

    def __init__(self, model: str, engine: str, rules: Rules, clock: float) -> None:
        """`clock`: monotonic seconds of its start."""
        self.scope = (model, engine)
        self.rules = rules
        self.clock = clock
        """Monotonic seconds of the latest step whose scheduler stats came, or of the engine's start."""
        self.latest = -math.inf
        """The same, but `-inf` before the first."""
        self.scheduled = False
        """Whether scheduler stats ever came."""
        self.served = False
        """Whether anything came."""
        self.holds_requests = False
        self.stale = False
        self.finished: list[Finished] = []
        self.abandoned = Abandoned()
        self.gpus: int | None = None
        """How many it works on."""
        self.perf = Perf(clock)
        self.energy = Energy()
        self.metered = False
        """Whether its GPUs tell their energy."""
        self._typical = Typical()
        self._prefill = Prefill()
        self._worked: float | None = None
        """Monotonic seconds of the latest step if it left requests in an engine that is awake."""
        self._max_num_seqs: int | None = None
        self._kv_cache_tokens: int | None = None
        self._free: float | None = None
        """Tokens that the KV cache had room for at the latest step."""
        self._preempted = False
        """Whether requests wait that were preempted."""
        self._hold = 0.0
        """Seconds that what began and ended within one step has lately taken: so long nobody tells of the next."""
        self._apart: deque[Step] = deque(maxlen=MOST_APART)
        """What brought outputs but no scheduler stats since the latest that did."""
        self._limiter = Limiter(clock)
        self._trend = Trend()
        self._saturation = Saturation(clock)
        self.told = -math.inf
        """Monotonic seconds up to which all is known."""

    def learn(self, facts: Facts) -> None:
        """Take note of what is fixed."""
        self._max_num_seqs, self._kv_cache_tokens = facts.max_num_seqs, facts.kv_cache_tokens
        self.gpus = facts.gpus
        self.perf.learn(facts)

    def complete(self, step: Step) -> None:
        """Take a step in, and add to it what only its predecessors and the engine's facts tell."""
        self.served = True
        self.late(step)
        if step.running is None:
            self._apart.append(step)
            return
        told = self._with_outputs(step)
        ended = NOTHING
        for each in told:
            if each.finished:
                ended = ended.more(each.finished)
        clock = step.clock
        self.scheduled, self.stale = True, False
        self.latest = clock
        self.clock = max(self.clock, clock)
        self.told = max(self.told, clock)
        if self._worked is not None:
            step.interval = clock - self._worked
        self.holds_requests = bool(step.running or step.waiting or step.deferred)
        usage = step.kv_cache_usage
        if usage is not None and 0 <= usage <= 1:
            self._trend.add(clock, usage)
            if self._kv_cache_tokens:
                step.kv_cache_free = self._free = self._kv_cache_tokens * (1 - usage)
        limited = limiter(step, self._max_num_seqs, self._free, self._need(step), ended)
        turned = self._limiter.turned
        if self._limiter.state == IDLE and turned <= clock and (began := min(map(begun, told))) < clock:
            self._wake(max(began, turned), clock, (step.running or 0) + ended.requests)
        if self.metered:
            self._divide(clock)
        if clock >= self._limiter.turned:  # else it is told after the engine fell asleep or woke up
            self._worked = clock if self.holds_requests else None
            self._limiter.step(clock, limited)
            self._saturation.step(clock, level(step, self._max_num_seqs, limited))

    def _with_outputs(self, step: Step) -> list[Step]:
        """Return a step, and what brought outputs of the same one but no scheduler stats.

        Each of several servers tells of its own outputs, a little before or after the one that has the scheduler stats:
        they belong to the step that is nearest.
        """
        if not self._apart:
            return [step]
        near = [each for each in self._apart if each.clock - self.latest >= step.clock - each.clock]
        self._apart.clear()
        return [step, *near]

    def _wake(self, clock: float, until: float, batch: int) -> None:
        """Take note that the engine was idle up to `clock` only: from then on it was at work on so many requests."""
        if self.metered:
            self._divide(clock)
        self._hold = min(max(self._hold * FADING, until - clock), LONGEST_HOLD)
        self._limiter.step(clock, "none")
        self._saturation.step(clock, clamp(batch / self._max_num_seqs) if self._max_num_seqs else 0.0)

    def _need(self, step: Step) -> float | None:
        """Return the tokens of KV cache that the next request probably needs, `None` if nothing is known of any.

        Preempted requests wait in front, and need room for what they had generated as well.
        """
        self._preempted = bool(step.preempted) or (self._preempted and bool(step.waiting))
        if self._preempted:
            return self._typical.length or math.inf
        return self._typical.prompt

    def late(self, step: Step) -> None:
        """Take in a step that comes after a later one: what it counted counts, but it sets nothing back."""
        self.finished += step.finished
        self.abandoned.step(step)
        if step.flops or step.memory_traffic:
            self.perf.step(step)

    def ended(self, requests: Requests) -> float:
        """Learn from finished requests, and return the seconds of prefill that cached tokens spared them."""
        self._typical.learn(requests)
        return self._prefill.saved(requests)

    def sleep(self, sleep: Sleep) -> None:
        """Take note that the engine fell asleep or woke up."""
        asleep = sleep.state != "awake"
        if asleep:
            self._worked = None
        if sleep.clock:
            self._divide(sleep.clock)
            if self._limiter.sleep(sleep.clock, asleep=asleep):
                self._saturation.step(sleep.clock, 0.0)

    def end(self) -> None:
        """Take note that no step will come any more."""
        self._hold = 0.0

    def spend(self, until: float) -> dict[str, float]:
        """Return the seconds up to `until`, monotonic ones, that were not returned yet, by what limited the engine."""
        self.told = max(self.told, until)
        self._divide(self._certain)
        self._limiter.settle(self._certain)
        spent = {state: seconds for state, seconds in self._limiter.seconds.items() if seconds}
        self._limiter.seconds.clear()
        return spent

    @property
    def _certain(self) -> float:
        """Return up to when it is known what the engine did, monotonic seconds.

        Of what comes to an idle engine nobody tells before its first step has ended.
        """
        return self.told - self._hold if self._limiter.state == IDLE else self.told

    def _divide(self, until: float) -> None:
        """Divide the energy that was read up to `until`, monotonic seconds, by what the engine did."""
        while (clock := self.energy.due(until)) is not None:
            self._limiter.settle(clock)
            self.energy.divide(self._limiter.activity, activity(self._limiter.state))
            self._limiter.activity.clear()

    def headroom(self) -> dict[Gauge[Any], float | None]:
        """Return how much more the engine can take, `None` where that cannot be told."""
        length = self._typical.length
        return {
            FREE_SEQUENCES: None if self._free is None or not length else quotient(self._free, length),
            TIME_TO_FULL: self._trend.seconds_to_full(self.told),
            SATURATION: self._saturation.at(self._certain),
        }

    def utilization(self, settings: PerfSettings) -> dict[Gauge[Any], float | None]:
        """Return what the engine makes of its GPUs, `None` where that cannot be told."""
        return self.perf.gauges(self.told, settings)


def begun(step: Step) -> float:
    """Return the monotonic seconds when the first of what got its first token in a step came, `inf` if nothing did.

    The answer of what pools is its first token. What ends with its first token tells how long it was in the engine; all
    else is known to have come to the API server only.
    """
    single = [
        each
        for each in step.finished
        if each.output_tokens == 1 or (not each.output_tokens and each.prefill is not None)
    ]
    firsts = step.first_token_latencies or ()
    waited = [*map(_in_engine, single), *(firsts if len(firsts) > len(single) else ())]
    longest = max(waited, default=0.0)
    return step.clock - longest if 0 < longest <= step.age else math.inf


def _in_engine(request: Finished) -> float:
    """Return the seconds that a finished request was in the engine, or with its API server too if that is all it told."""
    if request.queue is None or request.inference is None:
        return request.duration or 0.0
    return request.queue + request.inference


def in_order(steps: Sequence[Step], latest: float) -> tuple[list[Step], list[Step]]:
    """Return the steps that are in order, and those that say what an engine held before `latest`, monotonic seconds.

    A step without scheduler stats only counts things, which is in order at any time.
    """
    timely: list[Step] = []
    late: list[Step] = []
    for step in steps:
        if step.running is None:
            timely.append(step)
        elif step.clock < latest:
            late.append(step)
        else:
            timely.append(step)
            latest = step.clock
    return timely, late
