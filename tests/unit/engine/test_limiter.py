"""An engine's time, all of it, by what kept requests out of its batch."""

import math
from typing import Any

import pytest

from tests.unit.builders import ENGINE, MODEL, Clock, Sight, facts, feed, step
from vllm_vitals.aggregation import aggregator as module
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog.engine import LIMITED
from vllm_vitals.config.settings import Settings
from vllm_vitals.engine.limiter import EndedRequests, Limiter, limiter
from vllm_vitals.records.step import Finished, Floats, Gone, Sleep

LIMITERS = LIMITED.labels[0].values


@pytest.mark.parametrize(
    ("fields", "free", "need", "expected"),
    [
        ({"running": 0}, 1000.0, 100.0, "idle"),
        ({"running": 3}, 1000.0, 100.0, "none"),
        ({"running": 4}, 0.0, 100.0, "none"),  # full, but nobody is kept out
        ({"running": 4, "waiting": 1}, 1000.0, 100.0, "max_num_seqs"),
        ({"running": 5, "waiting": 1}, 0.0, 100.0, "max_num_seqs"),
        ({"running": 3, "waiting": 1}, 1000.0, 100.0, "token_budget"),
        ({"running": 3, "waiting": 1}, 100.0, 100.0, "token_budget"),  # room for exactly one prompt
        ({"running": 3, "waiting": 1}, 99.0, 100.0, "kv_cache"),
        ({"running": 4, "waiting": 1, "preempted": 1}, 1000.0, 100.0, "kv_cache"),
        ({"running": 3, "waiting": 1, "deferred": 2}, 1000.0, 100.0, "token_budget"),
        ({"running": 3, "deferred": 2}, 1000.0, 100.0, "deferred"),
        ({"running": 0, "deferred": 2}, 1000.0, 100.0, "deferred"),
        ({"running": 3, "waiting": 1, "kv_cache_usage": 0.94}, 10.0, None, "token_budget"),
        ({"running": 3, "waiting": 1, "kv_cache_usage": 0.95}, 10.0, None, "kv_cache"),
        ({"running": 3, "waiting": 1, "kv_cache_usage": 0.95}, None, 100.0, "kv_cache"),
        ({"running": 3, "waiting": 1}, None, None, "token_budget"),
    ],
)
def test_the_limiter_follows_from_waiting_requests_and_full_resources(
    fields: dict[str, Any], free: float | None, need: float | None, expected: str
) -> None:
    assert limiter(step(**fields), 4, free, need) == expected


def test_without_a_known_limit_the_batch_is_never_full() -> None:
    assert limiter(step(running=10_000, waiting=1), None, 1000.0, 100.0) == "token_budget"


@pytest.mark.parametrize(
    ("running", "ended", "expected"),
    [
        (3, EndedRequests(1, 0), "max_num_seqs"),  # four were in the batch
        (0, EndedRequests(4, 0), "max_num_seqs"),
        (2, EndedRequests(1, 0), "token_budget"),
        (2, EndedRequests(1, 401), "kv_cache"),  # of 500 tokens that are free now, 99 were
        (2, EndedRequests(1, 400), "token_budget"),
    ],
)
def test_requests_that_ended_in_a_step_were_in_its_batch(running: int, ended: EndedRequests, expected: str) -> None:
    assert limiter(step(running=running, waiting=1), 4, 500.0, 100.0, ended) == expected


def test_ended_requests_held_their_uncached_tokens() -> None:
    ended = [
        Finished("stop", input_tokens=300, cached_tokens=100, output_tokens=50),
        Finished("length", input_tokens=None, output_tokens=7),
        Finished("stop", input_tokens=5, cached_tokens=9, output_tokens=1),
        Finished("abort", input_tokens=1000, output_tokens=0),  # never in a batch
        Finished("error", input_tokens=1000),
        Finished("stop", input_tokens=20, output_tokens=-3),
        Finished("stop", prefill=0.1, input_tokens=40, output_tokens=0),  # it pools
    ]
    assert EndedRequests(2, 10).plus(ended) == EndedRequests(2 + 5, 10 + 250 + 7 + 1 + 20 + 40)


def test_each_second_belongs_to_the_state_before_it() -> None:
    mine = Limiter(10.0)
    mine.set_state(12.0, "none")
    mine.set_state(12.5, "kv_cache")
    mine.settle(14.0)
    mine.settle(13.0)  # nothing is taken back
    mine.set_state(15.0, "idle")
    mine.settle(20.0)
    assert mine.seconds == {"idle": 2.0 + 5.0, "none": 0.5, "kv_cache": 2.5}


def test_asleep_lasts_until_the_engine_wakes_up_or_makes_a_step() -> None:
    mine = Limiter(0.0)
    mine.set_state(1.0, "none")
    mine.set_asleep(2.0, asleep=True)
    mine.set_asleep(3.0, asleep=True)  # from one level to another
    mine.set_state(1.5, "none")  # told late
    mine.set_asleep(10.0, asleep=False)
    mine.set_state(11.0, "none")
    mine.settle(12.0)
    assert mine.seconds == {"idle": 1.0 + 1.0, "none": 1.0 + 1.0, "asleep": 8.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def seconds(aggregator: Aggregator) -> dict[str, float]:
    see = Sight(aggregator)
    found = {name: see("vllm_engine_limited_duration_seconds_total", **ENGINE, limiter=name) for name in LIMITERS}
    return {name: value for name, value in found.items() if value}


def test_all_time_is_counted_up_to_the_watermark(clock: Clock) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(max_num_seqs=2, kv_cache_tokens=1000))
    feed(mine, step(101.0, running=1), step(102.0, running=2, waiting=3), step(104.5, running=2, waiting=3))
    mine.flush(105.0)
    assert seconds(mine) == {"idle": 1.0, "none": 1.0, "max_num_seqs": 3.0}
    feed(mine, Sleep(MODEL, "0", "discard_all", 106.0))
    mine.flush(110.0)
    assert seconds(mine) == {"idle": 1.0, "none": 1.0, "max_num_seqs": 4.0, "asleep": 4.0}
    feed(mine, Sleep(MODEL, "0", "awake", 112.0))
    clock.now = 120.0
    mine.flush(118.0)
    assert sum(seconds(mine).values()) == pytest.approx(18.0)


def test_the_typical_request_decides_whether_the_cache_has_room(clock: Clock) -> None:
    mine = Aggregator(Settings())
    ended = tuple(Finished("stop", input_tokens=400, cached_tokens=100, output_tokens=50) for _ in range(3))
    feed(mine, facts(max_num_seqs=8, kv_cache_tokens=1000), step(101.0, running=1, finished=ended))
    mine.refresh()
    feed(mine, step(102.0, running=1, waiting=1, kv_cache_usage=0.71))  # room for 290 of 300 tokens
    feed(mine, step(104.0, running=1, waiting=1, kv_cache_usage=0.69))  # room for 310
    mine.flush(105.0)
    assert seconds(mine) == {"idle": 1.0, "none": 1.0, "kv_cache": 2.0, "token_budget": 1.0}
    assert clock.now == 100.0


def test_a_batch_that_requests_leave_at_every_step_is_full(clock: Clock) -> None:
    mine = Aggregator(Settings())
    one = Finished("stop", input_tokens=300, cached_tokens=0, output_tokens=150)
    feed(mine, facts(max_num_seqs=3, kv_cache_tokens=1000), step(101.0, running=1, finished=(one,)))
    mine.refresh()
    feed(mine, step(102.0, running=2, waiting=9, kv_cache_usage=0.1, finished=(one,)))
    feed(mine, step(104.0, running=0, waiting=9, kv_cache_usage=0.1, finished=(one, one, one)))
    feed(mine, step(108.5, finished=(one,)), step(109.0, running=2, waiting=9, kv_cache_usage=0.1))  # another server's
    # Of 1000 tokens 600 are free now, 150 were while it was there, and the next one needs 300.
    feed(mine, step(111.0, running=1, waiting=9, kv_cache_usage=0.4, finished=(one,)))
    feed(mine, step(112.0, running=1, waiting=9, kv_cache_usage=0.4))
    mine.flush(116.0)
    assert seconds(mine) == {"idle": 1.0, "none": 1.0, "max_num_seqs": 9.0, "kv_cache": 1.0, "token_budget": 4.0}
    assert clock.now == 100.0


def test_preempted_requests_need_room_for_their_generated_tokens_too(clock: Clock) -> None:
    mine = Aggregator(Settings())
    ended = (Finished("stop", input_tokens=300, cached_tokens=0, output_tokens=300),)
    feed(mine, facts(max_num_seqs=8, kv_cache_tokens=1000), step(101.0, running=2, finished=ended))
    mine.refresh()
    feed(mine, step(102.0, running=1, waiting=1, preempted=1, kv_cache_usage=0.5))  # room for 500: less than 600
    feed(mine, step(104.0, running=1, waiting=1, kv_cache_usage=0.5))
    feed(mine, step(107.0, running=2, waiting=0, kv_cache_usage=0.9))
    feed(mine, step(108.0, running=2, waiting=1, kv_cache_usage=0.5))  # a new one: needs 300
    mine.flush(110.0)
    assert seconds(mine) == {"idle": 1.0, "none": 1.0 + 1.0, "kv_cache": 5.0, "token_budget": 2.0}
    assert clock.now == 100.0


@pytest.mark.parametrize("limiter_", LIMITERS)
def test_every_limiter_has_a_series_from_the_start(limiter_: str) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts())
    assert Sight(mine)("vllm_engine_limited_duration_seconds_total", **ENGINE, limiter=limiter_) == 0


def answered(clock: float, *, took: float, **fields: Any) -> Any:
    """Make a step that left nothing in the engine, and in which a request got its first and only token."""
    ended = (Finished("stop", duration=took, prefill=took, input_tokens=50, output_tokens=1),)
    return step(clock, running=0, first_token_latencies=floats([took]), finished=ended, **fields)


def floats(values: list[float]) -> Floats:
    return Floats("d", values)


@pytest.mark.usefixtures("clock")
def test_an_idle_engine_works_before_its_first_step_has_ended() -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(max_num_seqs=4))
    feed(mine, step(103.0, running=1, first_token_latencies=floats([2.0, 1.5])), step(104.0, running=0))
    mine.flush(105.0)
    assert seconds(mine) == {"idle": 1.0, "none": 3.0}  # what has been since 103 may be another such step
    mine.flush(110.0)
    assert seconds(mine) == {"idle": 1.0 + 4.0, "none": 3.0}
    feed(mine, Gone(MODEL, "0"))
    assert seconds(mine) == {"idle": 1.0 + 6.0, "none": 3.0}


@pytest.mark.usefixtures("clock")
def test_single_step_work_counts_although_time_was_settled_meanwhile() -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(max_num_seqs=4), answered(102.0, took=1.0))
    mine.flush(102.75)
    assert seconds(mine) == {"idle": 1.0, "none": 1.0}
    feed(mine, answered(103.0, took=0.75))
    mine.flush(110.0)
    held = 0.99  # a hundredth less than the longest
    assert seconds(mine) == pytest.approx({"idle": 1.0 + 0.25 + (7.0 - held), "none": 1.0 + 0.75})


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("others", "busy"), [([], 0.25), ([1.0], 3.25)])
def test_time_in_the_api_server_is_no_work_of_the_engine(others: list[float], busy: float) -> None:
    """Three seconds for an image, say; only of what goes on it is not known how long it was in the engine."""
    mine = Aggregator(Settings())
    one = Finished("length", duration=3.25, queue=0.0625, prefill=0.1875, inference=0.1875, output_tokens=1)
    feed(mine, facts(), step(105.0, running=0, first_token_latencies=floats([3.25, *others]), finished=(one,)))
    mine.flush(105.0)
    feed(mine, Gone(MODEL, "0"))
    assert seconds(mine) == {"idle": 5.0 - busy, "none": busy}


@pytest.mark.usefixtures("clock")
def test_a_pooling_engine_works_although_no_step_leaves_requests() -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(max_num_seqs=32))
    ended = tuple(Finished("stop", duration=0.5, prefill=0.5, input_tokens=50, output_tokens=0) for _ in range(8))
    for place in range(20):
        feed(mine, step(100.5 + place / 2, running=0, finished=ended))
        mine.flush(100.625 + place / 2)
    assert seconds(mine) == {"none": 10.0}
    mine.refresh()
    saturation = Sight(mine)("vllm_engine_saturation_ratio", **ENGINE)
    assert saturation == pytest.approx(8 / 32 * (1 - math.exp(-10 / 30)), rel=0.05)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("interval", [0.5, 20.0])
@pytest.mark.parametrize("apart", [-0.001, 0.001])
def test_outputs_of_another_server_belong_to_the_nearest_step(apart: float, interval: float) -> None:
    mine, rounds = Aggregator(Settings()), 20
    feed(mine, facts(max_num_seqs=4))
    for clock in (100.0 + interval * number for number in range(1, rounds + 1)):
        ended = (Finished("stop", duration=0.125, prefill=0.125, input_tokens=50, output_tokens=0),)
        told = [step(clock, running=0, finished=ended), step(clock + apart, running=None, finished=ended)]
        feed(mine, *sorted(told, key=lambda each: each.clock))
        mine.flush(clock + interval / 4)
    feed(mine, Gone(MODEL, "0"))
    idle = (0.25 + rounds) * interval - rounds * 0.125
    assert seconds(mine) == pytest.approx({"idle": idle, "none": rounds * 0.125}, abs=rounds * 0.0011)


@pytest.mark.usefixtures("clock")
def test_ended_requests_are_in_the_batch_of_the_nearest_step_only() -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(max_num_seqs=4))
    ended = tuple(Finished("stop", duration=0.5, prefill=0.5, input_tokens=5, output_tokens=9) for _ in range(2))
    feed(mine, step(101.0, running=2, waiting=1), step(101.001, running=None, finished=ended))  # two of four ended
    feed(mine, step(102.0, running=2, waiting=1), step(103.0, running=0))
    mine.flush(103.25)
    assert seconds(mine) == {"idle": 1.25, "token_budget": 2.0}
    feed(mine, step(103.999, running=None, finished=ended), step(104.0, running=2, waiting=1), step(105.0, running=0))
    mine.flush(105.0)
    assert seconds(mine) == {"idle": 2.0, "token_budget": 2.0, "max_num_seqs": 1.0}


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("took", [float("nan"), -1.0, 0.0, 1e9, float("inf")])
def test_no_impossible_latency_makes_an_idle_engine_busy(took: float) -> None:
    mine = Aggregator(Settings())
    feed(mine, facts(), step(103.0, running=0, first_token_latencies=floats([took])))
    mine.flush(105.0)
    assert seconds(mine) == {"idle": 5.0}
