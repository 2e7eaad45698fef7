"""The time from a step's outputs to our hook, between two clocks of which one may be set; by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.builders import AGE, EPOCH, MODEL, Sight
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.vllm.reader import Reader

NOW = 5000.0
"""Monotonic seconds of the first step."""


def stats(begun: Any) -> SimpleNamespace:
    return SimpleNamespace(num_generation_tokens=1, iteration_timestamp=begun)


class Clocks:
    """A host's two clocks, and a reader of what happens on it."""

    def __init__(self) -> None:
        self.reader = Reader(MODEL, lambda *_: None, born=NOW - AGE)
        self.epoch = EPOCH
        self.now = NOW

    def outputs_come(self) -> float:
        """Return the host's time, as vLLM notes it."""
        return self.epoch + self.now

    def read(self, *begun: Any) -> list[float | None]:
        """Record steps at this moment, read them together, and return their processing times."""
        calls = [(self.now, None, stats(each), None, 0) for each in begun]
        return [step.processing for step in self.reader.read(calls, self.epoch)]


@pytest.mark.parametrize("seconds", [0.0, 0.0005, 0.25, 30.0])
def test_processing_is_the_time_since_the_outputs_came(seconds: float) -> None:
    clocks = Clocks()
    begun = clocks.outputs_come()
    clocks.now += seconds
    assert clocks.read(begun) == [pytest.approx(seconds, abs=1e-6)]


def test_steps_read_together_have_their_own_times() -> None:
    clocks = Clocks()
    first = clocks.outputs_come()
    clocks.now += 0.25
    second = clocks.outputs_come()
    clocks.now += 0.5
    assert clocks.read(first, second, clocks.outputs_come()) == [0.75, 0.5, 0.0]


def test_a_clock_that_is_steered_is_no_set_one() -> None:
    clocks = Clocks()
    begun = clocks.outputs_come()
    clocks.epoch -= 0.005
    assert clocks.read(begun) == [0.0]
    clocks.epoch += 0.1
    assert clocks.read(clocks.outputs_come()) == [0.0]


@pytest.mark.parametrize("seconds", [-3600.0, -0.3, 0.3, 5.0, 3600.0, 10 * AGE])
def test_no_processing_time_across_a_clock_change(seconds: float) -> None:
    clocks = Clocks()
    assert clocks.read(clocks.outputs_come()) == [0.0]
    begun = clocks.outputs_come()
    clocks.now += 0.125
    clocks.epoch += seconds
    assert clocks.read(begun, begun) == [None, None]
    clocks.now += 1.0
    begun = clocks.outputs_come()
    clocks.now += 0.125
    assert clocks.read(begun) == [pytest.approx(0.125, abs=1e-6)]


def test_processing_is_not_longer_than_the_life_of_the_process() -> None:
    clocks = Clocks()
    assert clocks.read(clocks.outputs_come() - AGE + 1, clocks.outputs_come() - AGE - 1) == [AGE - 1, None]


@pytest.mark.parametrize("begun", [None, 0, 0.0, -1.0, math.nan, math.inf, -math.inf, "now", [1.0]])
def test_an_impossible_time_of_the_host_gives_no_processing(begun: Any) -> None:
    assert Clocks().read(begun) == [None]


def test_a_step_without_outputs_has_none() -> None:
    reader = Reader(MODEL, lambda *_: None)
    call = (NOW, SimpleNamespace(num_running_reqs=1), None, None, 0)
    bare = (NOW, None, SimpleNamespace(num_generation_tokens=1), None, 0)
    assert [step.processing for step in reader.read([call, bare], EPOCH)] == [None, None]


def test_processing_is_observed_once_per_step_with_outputs() -> None:
    aggregator = Aggregator(Settings())
    reader = Reader(MODEL, lambda *_: None, born=NOW - AGE)
    scheduler = SimpleNamespace(num_running_reqs=1)
    calls: list[Any] = [
        (NOW + number, scheduler, None if number == 2 else stats(EPOCH + NOW + number - taken), None, 0)
        for number, taken in enumerate((0.0005, 0.004, 9.0, 0.25, -1.0))
    ]
    aggregator.add(reader.read(calls, EPOCH))
    see = Sight(aggregator)
    name = "vllm_step_processing_duration_seconds"
    assert see.of_engine(f"{name}_count") == 3
    assert see.of_engine(f"{name}_sum") == pytest.approx(0.2545, abs=1e-5)
    below = {le: see.of_engine(f"{name}_bucket", le=le) for le in ("0.001", "0.0025", "0.005", "0.2", "0.5")}
    assert below == {"0.001": 1, "0.0025": 1, "0.005": 2, "0.2": 2, "0.5": 3}
    assert see.rejected("vllm.step.processing.duration", "negative") == 0
