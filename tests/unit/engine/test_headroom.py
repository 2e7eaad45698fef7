"""How much more an engine can take: values worked out by hand."""

import math
import random
from pathlib import Path

import numpy as np
import pytest

from tests.unit.builders import ENGINE, Clock, Sight, facts, feed, step
from vllm_vitals.aggregation import aggregator as module
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.engine.headroom import (
    AVERAGING_SECONDS,
    MIN_POINTS,
    POINT_INTERVAL,
    PrefillSpeed,
    Saturation,
    Trend,
    TypicalRequest,
    fill_level,
)
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.records.step import Finished

PAGE = Path(__file__).parents[3] / "docs" / "headroom.md"
FREE = "vllm_kv_cache_free_sequences"
FULL = "vllm_kv_cache_time_to_full_seconds"
SATURATION = "vllm_engine_saturation_ratio"


def request(given: int | None, made: int | None, cached: int | None = 0) -> Finished:
    return Finished("stop", input_tokens=given, output_tokens=made, cached_tokens=cached)


# --- What is typical


def test_the_first_requests_are_typical() -> None:
    typical = TypicalRequest()
    typical.update(Requests([request(100, 50, 20), request(300, 150, 0)]))
    assert (typical.uncached_prompt_tokens, typical.total_tokens) == ((80 + 300) / 2, (150 + 450) / 2)


def test_later_requests_weigh_by_their_number() -> None:
    typical = TypicalRequest()
    typical.update(Requests([request(100, 100)]))
    typical.update(Requests([request(200, 200)] * 100))
    assert typical.uncached_prompt_tokens == pytest.approx(100 + (1 - math.exp(-0.5)) * 100)
    assert typical.total_tokens == pytest.approx(200 + (1 - math.exp(-0.5)) * 200)


@pytest.mark.parametrize("useless", [request(None, 5), request(5, None), request(5, 0)])
def test_requests_without_known_tokens_are_left_out(useless: Finished) -> None:
    typical = TypicalRequest()
    typical.update(Requests([useless]))
    assert typical.uncached_prompt_tokens is None
    typical.update(Requests([useless, request(10, 10, None)]))
    assert (typical.uncached_prompt_tokens, typical.total_tokens) == (10, 20)


# --- What cached tokens spare


def prefilled(given: int, cached: int | None, prefill: float | None) -> Finished:
    return Finished("stop", duration=100.0, input_tokens=given, cached_tokens=cached, prefill=prefill)


def test_cached_tokens_save_the_time_to_compute_them() -> None:
    mine = PrefillSpeed()
    cold = [prefilled(1000, 0, 0.5), prefilled(3000, 0, 1.5)]  # 2 s for 4000 tokens
    assert mine.saved_seconds(Requests(cold)) == 0.0
    assert mine.saved_seconds(Requests([prefilled(1000, 990, 0.02)])) == pytest.approx(990 * 0.0005)


def test_the_speed_is_that_of_the_tokens_left_to_compute() -> None:
    mine = PrefillSpeed()
    assert mine.saved_seconds(Requests([prefilled(500, 400, 0.2)])) == pytest.approx(400 * 0.2 / 100)


@pytest.mark.parametrize(
    "useless",
    [prefilled(1000, 990, 0.02), prefilled(1000, 0, None), prefilled(1000, 0, 0.0), prefilled(1000, 0, 1e9)],
    ids=["few left", "no time", "no time at all", "longer than it lived"],
)
def test_no_speed_is_learned_from_unsuitable_requests(useless: Finished) -> None:
    mine = PrefillSpeed()
    assert mine.saved_seconds(Requests([useless])) == 0.0
    assert mine.seconds_per_token is None


def test_unknown_cached_tokens_save_nothing() -> None:
    mine = PrefillSpeed()
    mine.saved_seconds(Requests([prefilled(1000, 0, 1.0)]))
    assert mine.saved_seconds(Requests([prefilled(1000, None, 1.0)])) == 0.0


# --- Where the KV cache is heading


def trend(usages: list[float]) -> Trend:
    """Return what is known after these shares in use, one each second."""
    made = Trend()
    for second, usage in enumerate(usages):
        made.add(float(second), usage)
    return made


def test_a_steady_rise_gives_the_time_to_full() -> None:
    rising = trend([0.2 + 0.01 * second for second in range(20)])
    assert rising.seconds_to_full(19.0) == pytest.approx((1 - 0.39) / 0.01)
    assert rising.seconds_to_full(24.0) == pytest.approx((1 - 0.44) / 0.01)


@pytest.mark.parametrize(
    "usages",
    [
        [0.5] * 30,
        [0.9 - 0.01 * second for second in range(30)],
        [0.5 + 0.2 * math.sin(second) for second in range(60)],
        [0.1 + 1e-7 * second for second in range(60)],  # full in months
        [0.2 + 0.01 * second for second in range(int(POINT_INTERVAL * (MIN_POINTS - 1)))],
        [],
    ],
    ids=["flat", "falling", "waves", "slow", "few", "none"],
)
def test_no_forecast_without_a_rise_or_enough_points(usages: list[float]) -> None:
    assert trend(usages).seconds_to_full(float(len(usages))) is None


def test_noise_and_outliers_do_not_mislead() -> None:
    chance = random.Random(5)
    usages = [0.2 + 0.005 * second + chance.uniform(-0.02, 0.02) for second in range(60)]
    usages[10] = usages[30] = 0.99
    assert trend(usages).seconds_to_full(59.0) == pytest.approx((1 - 0.495) / 0.005, rel=0.1)


def test_noise_around_a_level_is_no_rise() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        assert trend([0.5 + chance.uniform(-0.2, 0.2) for _ in range(60)]).seconds_to_full(60.0) is None


def test_a_rise_that_ended_is_forgotten() -> None:
    rising = trend([0.2 + 0.01 * second for second in range(20)])
    assert rising.seconds_to_full(75.0) is None


def test_a_full_cache_is_full_now() -> None:
    assert trend([min(0.5 + 0.03 * second, 1.0) for second in range(20)]).seconds_to_full(30.0) == 0.0


def test_no_forecast_after_many_requests_left() -> None:
    rising = trend([0.2 + 0.03 * second for second in range(20)])
    assert rising.seconds_to_full(19.0) == pytest.approx((1 - 0.77) / 0.03)
    rising.add(19.1, 0.7)
    assert rising.seconds_to_full(19.2) == pytest.approx((1 - 0.776) / 0.03)
    rising.add(19.3, 0.0)
    assert rising.seconds_to_full(19.4) is None
    full = trend([min(0.5 + 0.03 * second, 1.0) for second in range(20)])
    assert full.seconds_to_full(30.0) == 0.0
    full.add(30.5, 0.85)
    assert full.seconds_to_full(31.0) is None


def test_steps_between_two_points_do_not_count() -> None:
    made = Trend()
    for index in range(100_000):
        made.add(index / 1000, index / 200_000)
    assert made.seconds_to_full(100.0) == pytest.approx(100.0, rel=0.01)


# --- How saturated it is


@pytest.mark.parametrize(
    ("running", "usage", "limited", "expected"),
    [(0, 0.0, "idle", 0.0), (3, 0.1, "none", 0.75), (1, 0.6, "none", 0.6), (3, 0.5, "kv_cache", 1.0),
     (4, 0.5, "max_num_seqs", 1.0), (1, 0.1, "token_budget", 1.0), (1, 0.1, "deferred", 0.25), (9, None, "none", 1.0)],
)  # fmt: skip
def test_an_engine_is_as_full_as_the_fuller_of_its_limits(
    running: int, usage: float | None, limited: str, expected: float
) -> None:
    assert fill_level(step(running=running, kv_cache_usage=usage), 4, limited) == expected


def test_saturation_decays_with_its_time_constant() -> None:
    mine = Saturation(0.0)
    mine.set_level(0.0, 1.0)
    assert mine.at(AVERAGING_SECONDS) == pytest.approx(1 - math.exp(-1))
    mine.set_level(AVERAGING_SECONDS, 0.0)
    assert mine.at(3 * AVERAGING_SECONDS) == pytest.approx((1 - math.exp(-1)) * math.exp(-2))
    assert mine.at(2 * AVERAGING_SECONDS) == mine.at(3 * AVERAGING_SECONDS)  # time does not run backwards


def test_saturation_does_not_depend_on_the_number_of_steps() -> None:
    often, seldom = Saturation(0.0), Saturation(0.0)
    for clock in np.arange(0, 60, 0.01):
        often.set_level(float(clock), 0.6)
    seldom.set_level(0.0, 0.6)
    assert often.at(60.0) == pytest.approx(seldom.at(60.0))


def test_the_saturation_of_an_idle_engine_reaches_0() -> None:
    mine = Saturation(0.0)
    mine.set_level(0.0, 1.0)
    mine.set_level(1000.0, 0.0)
    assert mine.at(1000.0 + 20 * AVERAGING_SECONDS) == pytest.approx(math.exp(-20))
    assert mine.at(1000.0 + 21 * AVERAGING_SECONDS) == 0.0


def test_an_engine_that_has_little_to_do_keeps_its_saturation() -> None:
    mine = Saturation(0.0)
    for second in range(0, 3600, 60):  # one of 1024 requests, for 10 ms of each minute
        mine.set_level(float(second), 1 / 1024)
        mine.set_level(second + 0.01, 0.0)
        assert mine.at(second + 60.0) > 0


# --- In the aggregator


@pytest.fixture
def aggregator(monkeypatch: pytest.MonkeyPatch) -> Aggregator:
    monkeypatch.setattr(module, "time", Clock())
    made = Aggregator(Settings())
    feed(made, facts(max_num_seqs=4, kv_cache_tokens=1000))
    return made


def test_free_sequences_are_free_tokens_by_typical_tokens(aggregator: Aggregator) -> None:
    ended = tuple(request(150, 50) for _ in range(5))
    feed(aggregator, step(101.0, running=1, kv_cache_usage=0.25, finished=ended))
    assert Sight(aggregator)(FREE, **ENGINE) == 750 / 200


def test_unknown_headroom_has_no_series(aggregator: Aggregator) -> None:
    feed(aggregator, step(101.0, running=1, kv_cache_usage=0.25))
    see = Sight(aggregator)
    assert see(FREE, **ENGINE) is None
    assert see(FULL, **ENGINE) is None


def test_the_time_to_full_disappears_when_the_cache_stops_filling(aggregator: Aggregator) -> None:
    for second in range(20):
        feed(aggregator, step(100.0 + second, running=1, kv_cache_usage=0.2 + 0.01 * second))
    aggregator.flush(119.0)
    see = Sight(aggregator)
    assert see(FULL, **ENGINE) == pytest.approx(61.0)
    for second in range(60):
        feed(aggregator, step(120.0 + second, running=1, kv_cache_usage=0.39))
    aggregator.flush(179.0)
    assert see(FULL, **ENGINE) is None


def test_saturation_is_1_after_long_queueing_and_falls_when_idle(aggregator: Aggregator) -> None:
    see = Sight(aggregator)
    assert see(SATURATION, **ENGINE) == 0.0
    feed(aggregator, step(101.0, running=4, waiting=2, kv_cache_usage=0.3))
    aggregator.flush(401.0)
    assert see(SATURATION, **ENGINE) == pytest.approx(1.0, abs=1e-4)
    feed(aggregator, step(401.0, running=0, kv_cache_usage=0.0))
    aggregator.flush(401.0 + AVERAGING_SECONDS)
    assert see(SATURATION, **ENGINE) == pytest.approx(math.exp(-1), abs=1e-4)


def test_the_shares_of_batch_and_step_follow_from_what_is_shown(aggregator: Aggregator) -> None:
    """As docs/headroom.md has them."""
    feed(aggregator, facts(max_num_seqs=4, max_num_batched_tokens=100, kv_cache_tokens=1000))
    feed(aggregator, step(101.0, running=3, iterated=True, computed_tokens=57, generation_tokens=3))
    feed(aggregator, step(102.0, running=1, iterated=True, computed_tokens=0, generation_tokens=20))
    see = Sight(aggregator)

    def shown(name: str) -> float:
        assert name in PAGE.read_text()
        return see(name, **ENGINE) or 0.0

    assert shown("vllm_engine_requests_running") / shown("vllm_engine_requests_limit") == 0.25
    mean = shown("vllm_step_tokens_sum") / shown("vllm_step_tokens_count")
    assert mean / shown("vllm_engine_step_tokens_limit") == 0.4
