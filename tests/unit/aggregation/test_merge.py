"""Several processes' records made into one: hand-made batches with hand-counted results."""

import math

import pytest

from tests.unit.builders import AGE, ENGINE, EPOCH, MODEL, Clock, Sight
from vllm_vitals.aggregation import merge
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.aggregation.merge import LONGEST_HOLD, Merger
from vllm_vitals.config.settings import Settings
from vllm_vitals.records.step import Facts, Gone, Health, Sleep, Step

RUNNING = "vllm_engine_requests_running"
GENERATED = "vllm_tokens_generation_total"
UP = "vllm_engine_up"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(merge, "time", made)
    return made


class Deployment:
    """A merger before an aggregator, and what a scrape shows of them."""

    def __init__(self) -> None:
        self.aggregator = Aggregator(Settings())
        self.merger = Merger(self.aggregator)
        self.see = Sight(self.aggregator)

    def join(self, *processes: str, engines: tuple[str, ...] = ("0",), startup: float = 1.0) -> "Deployment":
        for process in processes:
            for engine in engines:
                facts = Facts(MODEL, engine, max_num_seqs=8, startup=startup)
                self.merger.take(process, [facts, Sleep(MODEL, engine, "awake")], 0.0)
            startup += 1
        return self

    def running(self) -> float | None:
        return self.see(RUNNING, **ENGINE)


def step(clock: float, running: int | None = None, **fields: object) -> Step:
    return Step(MODEL, "0", EPOCH + clock, clock, AGE, running=running, **fields)  # type: ignore[arg-type]


def test_counters_of_all_processes_add_up() -> None:
    both = Deployment().join("a", "b")
    both.merger.take("a", [step(90.0, 1, iterated=True, generation_tokens=3)], 91.0)
    both.merger.take("b", [step(90.5, iterated=True, generation_tokens=4)], 91.0)
    assert both.see("vllm_tokens_generation_total", **ENGINE) == 7


def test_a_gauge_is_the_latest_whoever_told_it_and_however_late() -> None:
    both = Deployment().join("a", "b")
    both.merger.take("b", [step(99.9, 7)], 99.95)  # waits: `a` may have something older to tell
    assert both.running() == 0
    both.merger.take("a", [step(99.7, 5), step(99.8, 6)], 99.95)
    assert both.running() == 7


def test_steps_are_taken_in_by_time() -> None:
    both = Deployment().join("a", "b")
    both.merger.take("a", [step(99.5, 1), step(99.7, 1)], 99.9)
    both.merger.take("b", [step(99.6, 1)], 99.9)
    assert both.see("vllm_step_interval_seconds_count", **ENGINE) == 2
    assert both.see("vllm_step_interval_seconds_sum", **ENGINE) == pytest.approx(0.2)


def test_a_process_that_is_behind_is_not_waited_for_long(clock: Clock) -> None:
    both = Deployment().join("a", "b")
    both.merger.take("a", [step(99.9, 3)], 99.95)
    assert both.running() == 0
    clock.now += LONGEST_HOLD + 0.2
    both.merger.take("a", [], clock.now)
    assert both.running() == 3


def test_what_comes_after_all_counts_but_sets_no_gauge_back() -> None:
    both = Deployment().join("a", "b")
    both.merger.take("a", [step(50.0, 3)], 60.0)
    both.merger.take("b", [step(40.0, 9, iterated=True, generation_tokens=2)], 60.0)
    assert both.running() == 3
    assert both.see("vllm_tokens_generation_total", **ENGINE) == 2


def test_an_engine_is_gone_with_the_last_of_its_processes() -> None:
    both = Deployment().join("a", "b")
    both.merger.take("a", [step(99.0, 3)], 99.5)
    both.merger.take("b", [], 99.5)
    assert (both.running(), both.see(UP, **ENGINE)) == (3, 1)
    both.merger.leave("a")
    assert (both.running(), both.see(UP, **ENGINE)) == (3, 1)
    both.merger.leave("b")
    assert (both.running(), both.see(UP, **ENGINE)) == (None, 0)


def test_what_a_dead_process_told_counts() -> None:
    both = Deployment().join("a", "b")
    both.merger.take("a", [step(99.9, 3, iterated=True, generation_tokens=5)], 99.95)
    both.merger.leave("b")
    both.merger.leave("a")
    assert both.see("vllm_tokens_generation_total", **ENGINE) == 5


def test_an_engine_that_comes_back_goes_on_where_its_counters_were() -> None:
    one = Deployment().join("a")
    one.merger.take("a", [step(99.0, 3, iterated=True, generation_tokens=5)], 99.5)
    one.merger.leave("a")
    one.join("b")
    one.merger.take("b", [step(99.7, 1, iterated=True, generation_tokens=2)], 99.8)
    assert (one.running(), one.see(UP, **ENGINE)) == (1, 1)
    assert one.see("vllm_tokens_generation_total", **ENGINE) == 7


def test_the_facts_of_one_engine_are_told_once() -> None:
    both = Deployment().join("a", "b", startup=20.0)
    assert both.see("vllm_engine_startup_duration_seconds", **ENGINE) == 20.0


def test_a_process_that_ends_in_order_takes_its_engines_along() -> None:
    both = Deployment().join("a", "b")
    both.merger.take("a", [Gone(MODEL, "0")], 99.0)
    assert both.see(UP, **ENGINE) == 1
    both.merger.take("b", [Gone(MODEL, "0")], 99.0)
    assert both.see(UP, **ENGINE) == 0


def test_a_process_that_joins_does_not_wake_an_engine_up() -> None:
    one = Deployment().join("a")
    one.merger.take("a", [Sleep(MODEL, "0", "discard_all", 1.0)], 99.0)
    one.join("b")
    assert one.see("vllm_engine_sleep", **ENGINE, state="discard_all") == 1
    one.merger.take("b", [Sleep(MODEL, "0", "awake", 2.0)], 99.0)
    one.merger.take("a", [Sleep(MODEL, "0", "discard_all", 1.0)], 99.0)  # told again after a reconnect
    assert one.see("vllm_engine_sleep", **ENGINE, state="awake") == 1


def test_what_a_process_says_of_itself_is_told_apart() -> None:
    both = Deployment().join("a", "b")
    both.merger.take("a", [Health(dropped=2, process="0")], 99.0)
    both.merger.take("b", [Health(dropped=3, process="1")], 99.0)
    assert [both.see("vitals_steps_dropped_total", process=process) for process in "01"] == [2, 3]


def test_what_waits_when_it_ends_counts(clock: Clock) -> None:
    one = Deployment().join("a")
    one.merger.take("a", [step(clock.now - 0.02, 3, iterated=True, generation_tokens=5)], clock.now - 0.05)
    assert one.see("vllm_tokens_generation_total", **ENGINE) in (None, 0)
    one.merger.finish()
    assert one.see("vllm_tokens_generation_total", **ENGINE) == 5


def test_a_backlog_that_comes_late_moves_no_interval_and_leaves_an_idle_engine_idle() -> None:
    both = Deployment().join("a", "b")
    first, second = [step(float(at), 1) for at in range(50, 58, 2)], [step(float(at), 1) for at in range(51, 57, 2)]
    both.merger.take("a", [*first, step(58.0, 0)], 60.0)
    both.merger.take("b", second, 60.0)
    assert both.running() == 0
    assert both.see("vllm_step_interval_seconds_sum", **ENGINE) == 8
    assert not both.aggregator._engines[MODEL, "0"].holds_requests


def test_an_engines_last_steps_come_before_its_end(clock: Clock) -> None:
    one = Deployment().join("a")
    last = step(clock.now - 0.02, 3, iterated=True, generation_tokens=5)
    one.merger.take("a", [last, Gone(MODEL, "0")], clock.now - 0.05)
    assert (one.running(), one.see(UP, **ENGINE)) == (None, 0)
    assert one.see("vllm_tokens_generation_total", **ENGINE) == 5


def test_the_last_steps_of_an_engine_that_is_cut_off_come_before_its_end(clock: Clock) -> None:
    both = Deployment().join("a")
    both.join("b", engines=("1",))
    last = step(clock.now - 0.01, 3, iterated=True, generation_tokens=5)
    both.merger.take("a", [last], clock.now)  # waits: `b` may have something older to tell
    both.merger.leave("a")
    assert (both.running(), both.see(UP, **ENGINE)) == (None, 0)
    assert both.see("vllm_tokens_generation_total", **ENGINE) == 5


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, 1e300, 1e9])
def test_a_step_of_no_moment_that_can_be_counts_and_holds_nobody_up(nonsense: float, clock: Clock) -> None:
    both = Deployment().join("a")
    both.join("b", engines=("1",))
    both.merger.take("b", [Step(MODEL, "1", EPOCH, nonsense, AGE, running=1, generation_tokens=7)], clock.now)
    for _ in range(3):
        clock.now += 1.5
        both.merger.take("a", [step(clock.now - 0.5, 3, iterated=True, generation_tokens=5)], clock.now)
        both.merger.take("b", [], clock.now)
    assert both.see(GENERATED, **ENGINE) == 15
    assert both.running() == 3
    assert both.see.of_engine(GENERATED, "1") == 7
    assert both.merger._held == []
    both.merger.take("b", [Step(MODEL, "1", EPOCH, clock.now - 0.1, AGE, running=2)], clock.now)
    both.merger.take("a", [], clock.now)
    assert both.see.of_engine(RUNNING, "1") == 2, "what its engine does later is no news of the past"


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, 1e9])
def test_a_sleep_of_the_future_does_not_keep_an_engine_asleep(nonsense: float, clock: Clock) -> None:
    one = Deployment().join("a")
    one.merger.take("a", [Sleep(MODEL, "0", "discard_all", nonsense)], clock.now)
    one.merger.take("a", [Sleep(MODEL, "0", "awake", clock.now)], clock.now)
    assert one.see("vllm_engine_sleep", **ENGINE, state="awake") == 1
