"""An engine's time, all of it, by what kept requests out of its batch."""

from typing import Any

import pytest

from tests.unit.builders import ENGINE, MODEL, Clock, Sight, facts, feed, step
from vllm_vitals.catalog.engine import LIMITED
from vllm_vitals.collector import collector as module
from vllm_vitals.collector.collector import Collector
from vllm_vitals.collector.limiter import Limiter, limiter
from vllm_vitals.settings import Settings
from vllm_vitals.step import Finished, Sleep

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
def test_what_limits_is_told_from_what_waits_and_what_is_full(
    fields: dict[str, Any], free: float | None, need: float | None, expected: str
) -> None:
    assert limiter(step(**fields), 4, free, need) == expected


def test_without_a_known_limit_the_batch_is_never_full() -> None:
    assert limiter(step(running=10_000, waiting=1), None, 1000.0, 100.0) == "token_budget"


def test_each_second_belongs_to_what_was_said_before_it() -> None:
    mine = Limiter(10.0)
    mine.step(12.0, "none")
    mine.step(12.5, "kv_cache")
    mine.settle(14.0)
    mine.settle(13.0)  # nothing is taken back
    mine.step(15.0, "idle")
    mine.settle(20.0)
    assert mine.seconds == {"idle": 2.0 + 5.0, "none": 0.5, "kv_cache": 2.5}


def test_asleep_lasts_until_it_is_woken_or_makes_a_step() -> None:
    mine = Limiter(0.0)
    mine.step(1.0, "none")
    mine.sleep(2.0, asleep=True)
    mine.sleep(3.0, asleep=True)  # from one level to another
    mine.step(1.5, "none")  # told late
    mine.sleep(10.0, asleep=False)
    mine.step(11.0, "none")
    mine.settle(12.0)
    assert mine.seconds == {"idle": 1.0 + 1.0, "none": 1.0 + 1.0, "asleep": 8.0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def seconds(collector: Collector) -> dict[str, float]:
    see = Sight(collector)
    found = {name: see("vllm_engine_limited_duration_seconds_total", **ENGINE, limiter=name) for name in LIMITERS}
    return {name: value for name, value in found.items() if value}


def test_all_time_since_the_start_is_counted_up_to_what_was_told(clock: Clock) -> None:
    mine = Collector(Settings())
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


def test_what_finished_requests_needed_tells_whether_the_cache_has_room(clock: Clock) -> None:
    mine = Collector(Settings())
    ended = tuple(Finished("stop", input_tokens=400, cached_tokens=100, output_tokens=50) for _ in range(3))
    feed(mine, facts(max_num_seqs=8, kv_cache_tokens=1000), step(101.0, running=1, finished=ended))
    mine.refresh()
    feed(mine, step(102.0, running=1, waiting=1, kv_cache_usage=0.71))  # room for 290 of 300 tokens
    feed(mine, step(104.0, running=1, waiting=1, kv_cache_usage=0.69))  # room for 310
    mine.flush(105.0)
    assert seconds(mine) == {"idle": 1.0, "none": 1.0, "kv_cache": 2.0, "token_budget": 1.0}
    assert clock.now == 100.0


def test_preempted_requests_need_room_for_what_they_generated_too(clock: Clock) -> None:
    mine = Collector(Settings())
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
    mine = Collector(Settings())
    feed(mine, facts())
    assert Sight(mine)("vllm_engine_limited_duration_seconds_total", **ENGINE, limiter=limiter_) == 0
