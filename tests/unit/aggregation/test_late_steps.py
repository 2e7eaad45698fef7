"""What a step does that a process tells after later ones of another: it counts, and sets nothing back."""

import math
import sys

import pytest

from tests.unit.builders import AGE, ENGINE, EPOCH, MODEL, Clock, Sight
from vllm_vitals.aggregation import merge
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.aggregation.merge import Merger
from vllm_vitals.catalog.engine import LIMITED
from vllm_vitals.config.settings import PerfSettings, Settings
from vllm_vitals.records.step import Facts, Finished, Record, Sleep, Step

RUNNING = "vllm_engine_requests_running"
BUSY = "vllm_engine_limited_duration_seconds_total"
SATURATION = "vllm_engine_saturation_ratio"
IMBALANCE = "vllm_engine_imbalance_ratio"
MFU = "vllm_perf_mfu_ratio"
LIMITERS = LIMITED.labels[0].values


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (merge, sys.modules[Aggregator.__module__]):
        monkeypatch.setattr(module, "time", made)
    return made


def step(clock: float, running: int | None = None, engine: str = "0", **fields: object) -> Step:
    return Step(MODEL, engine, EPOCH + clock, clock, AGE, running=running, **fields)  # type: ignore[arg-type]


class Servers:
    """Two API servers of some engines; `b` is the one that is behind."""

    def __init__(self, clock: Clock, *engines: str, of_b: tuple[str, ...] | None = None) -> None:
        self.clock = clock
        self.aggregator = Aggregator(Settings(perf=PerfSettings(peak_flops=100e9)))
        self.merger = Merger(self.aggregator)
        self.see = Sight(self.aggregator)
        for name, own in (("a", engines), ("b", of_b or engines)):
            facts = [Facts(MODEL, engine, max_num_seqs=8, precisions=("bf16",)) for engine in own]
            self.merger.take(name, facts, 0.0)

    def tell(self, name: str, *records: Record, at: float) -> None:
        """Let a server tell something at a time, up to which that is all."""
        self.clock.now = at
        self.merger.take(name, records, at)

    def spent(self) -> dict[str, float]:
        found = {name: self.see(BUSY, **ENGINE, limiter=name) or 0.0 for name in LIMITERS}
        return {name: seconds for name, seconds in found.items() if seconds}


def test_the_latest_scheduler_stats_count_despite_later_outputs_of_others(clock: Clock) -> None:
    both = Servers(clock, "0")
    both.tell("a", step(100.0, 3), at=100.2)
    # The last step's stats went to `b`, which heard of it a little before `a` did, but cannot tell so yet.
    both.tell("a", step(103.01, iterated=True, generation_tokens=2), at=105.0)
    assert both.see(RUNNING, **ENGINE) == 3
    both.tell("b", step(103.0, 0, iterated=True, generation_tokens=1), at=106.0)
    assert both.see(RUNNING, **ENGINE) == 0
    assert both.see("vllm_tokens_generation_total", **ENGINE) == 3
    both.tell("a", at=110.0)
    both.tell("b", at=110.0)
    # At 105 s nothing later than 104 s was waited for: time up to then was given to what was known.
    assert both.spent() == {"none": pytest.approx(4.0), "idle": pytest.approx(6.0)}


def test_time_is_divided_once_despite_late_steps(clock: Clock) -> None:
    both = Servers(clock, "0")
    both.tell("a", step(102.0, 2), at=102.1)
    both.tell("a", step(110.0, 0), at=111.0)
    both.tell("b", step(105.0, 8, waiting=4), at=112.0)  # would have been `max_num_seqs` from 105 to 110
    both.tell("a", at=120.0)
    both.tell("b", at=120.0)
    assert both.spent() == {"idle": pytest.approx(2.0 + 10.0), "none": pytest.approx(8.0)}
    assert both.see("vllm_step_interval_seconds_sum", **ENGINE) == pytest.approx(8.0)


def test_a_step_that_waited_while_the_engine_fell_asleep_does_not_saturate_it(clock: Clock) -> None:
    both = Servers(clock, "0")
    both.tell("a", step(100.0, 8), at=100.2)
    both.tell("b", at=100.2)
    both.tell("a", step(160.0, 0, kv_cache_usage=0.5), at=160.1)  # waits for `b`
    both.tell("b", Sleep(MODEL, "0", "weights_offloaded", 160.05), at=160.0)
    both.tell("a", at=161.0)
    both.tell("b", at=161.0)
    assert both.see(RUNNING, **ENGINE) == 0
    both.tell("a", at=500.0)
    both.tell("b", at=500.0)
    assert both.see(SATURATION, **ENGINE) == pytest.approx(0.0, abs=1e-4)
    assert both.spent() == {"none": pytest.approx(60.05), "asleep": pytest.approx(339.95)}


def test_no_interval_spans_a_sleep_reported_before_the_preceding_step(clock: Clock) -> None:
    both = Servers(clock, "0")
    both.tell("a", step(100.0, 8), at=100.2)  # waits for `b`
    both.tell("b", Sleep(MODEL, "0", "weights_offloaded", 100.1), at=100.15)
    both.tell("b", Sleep(MODEL, "0", "awake", 110.0), at=110.0)
    both.tell("a", step(111.0, 8), step(111.5, 8), at=112.0)
    both.tell("b", at=112.0)
    assert both.see("vllm_step_interval_seconds_sum", **ENGINE) == pytest.approx(0.5)


def test_estimates_count_towards_utilization_by_their_age(clock: Clock) -> None:
    both = Servers(clock, "0")
    both.tell("a", step(130.0, 1, flops=int(600e9)), at=130.0)
    both.tell("a", at=132.0)
    both.tell("b", step(100.0, 1, flops=int(900e9)), at=133.0)
    both.tell("a", at=133.0)
    # Of 600 three seconds ago and 900 33 s ago, over 30 s, by a peak of 100 per second (all of them in billions).
    expected = (20 * math.exp(-3 / 30) + 30 * math.exp(-33 / 30)) / 100
    assert both.see(MFU, **ENGINE) == pytest.approx(expected, rel=1e-6)


def test_finished_requests_count_however_late(clock: Clock) -> None:
    both = Servers(clock, "0")
    both.tell("a", step(110.0, 0), at=112.0)
    request = Finished("stop", EPOCH + 105.0, 4.0, input_tokens=10, output_tokens=5)
    both.tell("b", step(105.0, 1, finished=(request,), preempted=2), at=112.0)
    assert both.see("vllm_requests_finished_total", **ENGINE, finish_reason="stop") == 1
    assert both.see("vllm_request_duration_seconds_sum", **ENGINE) == 4
    assert both.see("vllm_requests_preempted_total", **ENGINE) == 2
    assert both.see(RUNNING, **ENGINE) == 0


def test_a_silent_engine_is_not_compared_and_its_backlog_is_no_imbalance(clock: Clock) -> None:
    apart = Servers(clock, "0", of_b=("1",))

    def second(clock: int, *names: str) -> None:
        """Let a second pass in which both engines work on ten tokens, and some servers tell that."""
        for name, engine in (("a", "0"), ("b", "1")):
            made = step(clock + 0.5, 1, engine, scheduled_tokens={"prefill": 0, "decode": 10})
            backlog.setdefault(name, []).append(made)
            if name in names:
                apart.tell(name, *backlog.pop(name), at=clock + 1.0)

    def ratios() -> list[float | None]:
        return [apart.see(IMBALANCE, model_name=MODEL, of=of) for of in ("running", "tokens")]

    backlog: dict[str, list[Step]] = {}
    for now in range(100, 105):
        second(now, "a", "b")
    assert ratios() == [1.0, 1.0]
    for now in range(105, 130):
        second(now, "a")
    assert ratios() == [None, None]
    for now in range(130, 135):
        second(now, "a", "b")
    assert ratios() == [1.0, 1.0]
    assert apart.see("vllm_step_scheduled_tokens_total", model_name=MODEL, engine="1", phase="decode") == 350
