"""The state of one engine between its steps, and the values that follow from it."""

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
from vllm_vitals.engine.headroom import PrefillSpeed, Saturation, Trend, TypicalRequest, fill_level
from vllm_vitals.engine.limiter import NONE_ENDED, Energy, Limiter, activity, limiter
from vllm_vitals.engine.utilization import GpuUtilization
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.records.step import Facts, Finished, Sleep, Step
from vllm_vitals.store.writers import Writer

WritersByRecord = dict[type, list[Writer]]
MAX_IDLE_LAG = 10.0
"""Seconds for which it stays open at most whether an engine was idle."""
MAX_OUTPUT_ONLY_STEPS = 64
"""Steps with outputs alone, one from each API server, that wait for the step with the scheduler stats."""
LAG_DECAY = 0.99
"""Factor by which the lag shrinks with each step that does not need it."""


class Engine:
    """The state of one engine."""

    def __init__(self, model: str, engine: str, writers: WritersByRecord, clock: float) -> None:
        """`clock`: monotonic seconds of its start."""
        self.scope = (model, engine)
        self.writers = writers
        self.clock = clock
        """Monotonic seconds of the latest step with scheduler stats, or of the engine's start."""
        self.latest_step = -math.inf
        """The same, but `-inf` before the first."""
        self.has_scheduler_stats = False
        """Whether scheduler stats ever came."""
        self.has_steps = False
        """Whether any step ever came."""
        self.holds_requests = False
        self.stale = False
        self.finished: list[Finished] = []
        """Finished requests that are not in the store yet."""
        self.abandoned = Abandoned()
        self.gpus: int | None = None
        """Number of GPUs that it works on."""
        self.gpu_utilization = GpuUtilization(clock)
        self.energy = Energy()
        self.has_energy = False
        """Whether energy readings of its GPUs come."""
        self.watermark = -math.inf
        """Monotonic seconds up to which all steps are known."""
        self._typical_request = TypicalRequest()
        self._prefill_speed = PrefillSpeed()
        self._busy_step: float | None = None
        """Monotonic seconds of the latest step, if it left requests in an engine that is awake."""
        self._max_num_seqs: int | None = None
        self._kv_cache_tokens: int | None = None
        self._kv_tokens_free: float | None = None
        """Tokens that the KV cache had room for at the latest step."""
        self._preempted_wait = False
        """Whether preempted requests wait."""
        self._idle_lag = 0.0
        """Recent duration of single-step work; an idle engine may hide that much."""
        self._output_only_steps: deque[Step] = deque(maxlen=MAX_OUTPUT_ONLY_STEPS)
        """Steps with outputs but no scheduler stats, since the latest step with them."""
        self._limiter = Limiter(clock)
        self._trend = Trend()
        self._saturation = Saturation(clock)

    def set_facts(self, facts: Facts) -> None:
        """Take the facts that are fixed once the engine has started."""
        self._max_num_seqs, self._kv_cache_tokens = facts.max_num_seqs, facts.kv_cache_tokens
        self.gpus = facts.gpus
        self.gpu_utilization.set_facts(facts)

    def add_step(self, step: Step) -> None:
        """Add a step, and complete its fields that depend on earlier steps and on the engine's facts."""
        self.has_steps = True
        self.add_late_step(step)
        if step.running is None:
            self._output_only_steps.append(step)
            return
        parts = self._with_output_only_steps(step)
        ended = NONE_ENDED
        for part in parts:
            if part.finished:
                ended = ended.plus(part.finished)
        clock = step.clock
        self.has_scheduler_stats, self.stale = True, False
        self.latest_step = clock
        self.clock = max(self.clock, clock)
        self.watermark = max(self.watermark, clock)
        if self._busy_step is not None:
            step.interval = clock - self._busy_step
        self.holds_requests = bool(step.running or step.waiting or step.deferred)
        usage = step.kv_cache_usage
        if usage is not None and 0 <= usage <= 1:
            self._trend.add(clock, usage)
            if self._kv_cache_tokens:
                step.kv_cache_free = self._kv_tokens_free = self._kv_cache_tokens * (1 - usage)
        limited_by = limiter(step, self._max_num_seqs, self._kv_tokens_free, self._tokens_needed(step), ended)
        sleep_changed = self._limiter.sleep_changed
        if (
            self._limiter.state == IDLE
            and sleep_changed <= clock
            and (started := min(map(work_started, parts))) < clock
        ):
            self._end_idle_time(max(started, sleep_changed), clock, (step.running or 0) + ended.requests)
        if self.has_energy:
            self._divide_energy(clock)
        if clock >= self._limiter.sleep_changed:  # else a late step, of before the engine fell asleep or woke up
            self._busy_step = clock if self.holds_requests else None
            self._limiter.set_state(clock, limited_by)
            self._saturation.set_level(clock, fill_level(step, self._max_num_seqs, limited_by))

    def _with_output_only_steps(self, step: Step) -> list[Step]:
        """Return a step with scheduler stats, and the steps without them that belong to the same engine step.

        Each of several servers reports its own outputs, a little before or after the server with the scheduler stats.
        They belong to the nearest step.
        """
        if not self._output_only_steps:
            return [step]
        near = [each for each in self._output_only_steps if each.clock - self.latest_step >= step.clock - each.clock]
        self._output_only_steps.clear()
        return [step, *near]

    def _end_idle_time(self, clock: float, until: float, batch: int) -> None:
        """Record that the engine was idle only up to `clock`: from then on it worked on `batch` requests."""
        if self.has_energy:
            self._divide_energy(clock)
        self._idle_lag = min(max(self._idle_lag * LAG_DECAY, until - clock), MAX_IDLE_LAG)
        self._limiter.set_state(clock, "none")
        self._saturation.set_level(clock, clamp(batch / self._max_num_seqs) if self._max_num_seqs else 0.0)

    def _tokens_needed(self, step: Step) -> float | None:
        """Return the KV cache tokens that the next request probably needs; `None` before any request is known.

        Preempted requests wait in front, and need room for the tokens that they had generated as well.
        """
        self._preempted_wait = bool(step.preempted) or (self._preempted_wait and bool(step.waiting))
        if self._preempted_wait:
            return self._typical_request.total_tokens or math.inf
        return self._typical_request.uncached_prompt_tokens

    def add_late_step(self, step: Step) -> None:
        """Add a step that comes after a later one: its counts are added, and no state changes."""
        self.finished += step.finished
        self.abandoned.add_step(step)
        if step.flops or step.memory_traffic:
            self.gpu_utilization.add_step(step)

    def add_finished(self, requests: Requests) -> float:
        """Learn from finished requests, and return the prefill seconds that cached tokens saved them."""
        self._typical_request.update(requests)
        return self._prefill_speed.saved_seconds(requests)

    def set_sleep(self, sleep: Sleep) -> None:
        """Record that the engine fell asleep or woke up."""
        asleep = sleep.state != "awake"
        if asleep:
            self._busy_step = None
        if sleep.clock:
            self._divide_energy(sleep.clock)
            if self._limiter.set_asleep(sleep.clock, asleep=asleep):
                self._saturation.set_level(sleep.clock, 0.0)

    def close(self) -> None:
        """Record that no step will come any more."""
        self._idle_lag = 0.0

    def take_seconds(self, watermark: float) -> dict[str, float]:
        """Return the seconds up to `watermark`, by limiter, that were not returned yet."""
        self.watermark = max(self.watermark, watermark)
        self._divide_energy(self._known_until)
        self._limiter.settle(self._known_until)
        seconds_by_limiter = {state: seconds for state, seconds in self._limiter.seconds.items() if seconds}
        self._limiter.seconds.clear()
        return seconds_by_limiter

    @property
    def _known_until(self) -> float:
        """Return the monotonic seconds up to which the engine's state is known.

        The work of an idle engine is reported only when its first step has ended.
        """
        return self.watermark - self._idle_lag if self._limiter.state == IDLE else self.watermark

    def _divide_energy(self, until: float) -> None:
        """Divide the energy readings up to `until`, monotonic seconds, by the engine's activity."""
        while (clock := self.energy.oldest_reading(until)) is not None:
            self._limiter.settle(clock)
            self.energy.divide_oldest(self._limiter.seconds_by_activity, activity(self._limiter.state))
            self._limiter.seconds_by_activity.clear()

    def headroom(self) -> dict[Gauge[Any], float | None]:
        """Return the gauges of the engine's headroom; `None` for an unknown value."""
        tokens = self._typical_request.total_tokens
        return {
            FREE_SEQUENCES: None
            if self._kv_tokens_free is None or not tokens
            else quotient(self._kv_tokens_free, tokens),
            TIME_TO_FULL: self._trend.seconds_to_full(self.watermark),
            SATURATION: self._saturation.at(self._known_until),
        }

    def utilization(self, settings: PerfSettings) -> dict[Gauge[Any], float | None]:
        """Return the gauges of the use of the engine's GPUs; `None` for an unknown value."""
        return self.gpu_utilization.gauges(self.watermark, settings)


def work_started(step: Step) -> float:
    """Return when the earliest request with a first token in this step came, monotonic seconds; `inf` if there is none.

    The answer of a pooling request is its first token. A request that ends with its first token reports its time in the
    engine. Of all others only their arrival at the API server is known.
    """
    single = [
        each
        for each in step.finished
        if each.output_tokens == 1 or (not each.output_tokens and each.prefill is not None)
    ]
    firsts = step.first_token_latencies or ()
    waits = [*map(_seconds_in_engine, single), *(firsts if len(firsts) > len(single) else ())]
    longest = max(waits, default=0.0)
    return step.clock - longest if 0 < longest <= step.age else math.inf


def _seconds_in_engine(request: Finished) -> float:
    """Return the seconds of a finished request in the engine, or in all where only those are known."""
    if request.queue is None or request.inference is None:
        return request.duration or 0.0
    return request.queue + request.inference


def split_late(steps: Sequence[Step], latest_step: float) -> tuple[list[Step], list[Step]]:
    """Return the steps in order, and the late ones: those with the state of an engine before `latest_step`.

    A step without scheduler stats only counts things, and is never late.
    """
    timely: list[Step] = []
    late: list[Step] = []
    for step in steps:
        if step.running is None:
            timely.append(step)
        elif step.clock < latest_step:
            late.append(step)
        else:
            timely.append(step)
            latest_step = step.clock
    return timely, late
