"""Requests whose client left: what is missing in the sum of those that started."""

import random

from tests.unit.builders import ENGINE, Sight, collect, feed, step
from vllm_vitals.collector.abandoned import SKEW, Abandoned
from vllm_vitals.step import Finished, Floats, Step

ABANDONED = "vllm_requests_abandoned_total"


def at(clock: float, running: int | None, *, started: int = 0, ended: int = 0, waiting: int = 0) -> Step:
    """Return a step in which requests get their first token and requests end."""
    firsts = Floats("d", [0.1] * started) if started else None
    over = tuple(Finished("stop", output_tokens=5) for _ in range(ended))
    return step(clock, running=running, waiting=waiting, first_token_latencies=firsts, finished=over)


def counted(steps: list[Step], told: float) -> int:
    mine = Abandoned()
    for each in steps:
        mine.step(each)
    return mine.new(told)


def test_all_that_end_are_accounted_for() -> None:
    assert counted([at(1.0, 3, started=3), at(2.0, 0, ended=3)], told=10.0) == 0


def test_those_that_are_missing_when_the_engine_is_idle_were_abandoned() -> None:
    assert counted([at(1.0, 3, started=3), at(2.0, 1), at(3.0, 0, ended=1)], told=10.0) == 2


def test_nothing_is_said_of_the_latest_second() -> None:
    steps = [at(1.0, 3, started=3), at(3.0, 0)]
    assert counted(steps, told=3.0 + SKEW - 0.01) == 0
    assert counted(steps, told=3.0 + SKEW) == 3


def test_each_is_counted_once_and_while_it_is_busy_too() -> None:
    mine = Abandoned()
    mine.step(at(1.0, 10, started=10))
    mine.step(at(2.0, 7, waiting=1))  # two left, one was preempted
    assert mine.new(3.0) == 2
    assert mine.new(9.0) == 0
    mine.step(at(10.0, 0, ended=5))
    assert mine.new(11.0) == 3


def test_an_end_that_another_process_tells_a_little_later_is_no_leaving() -> None:
    mine = Abandoned()
    mine.step(at(1.0, 1, started=1))
    mine.step(at(2.0, 0))  # its end was sent to another server
    assert mine.new(2.9) == 0
    mine.late(at(2.0, None, ended=1))
    assert mine.new(10.0) == 0


def test_requests_that_started_before_anybody_listened_hide_nothing_later() -> None:
    mine = Abandoned()
    mine.step(at(1.0, 0, ended=4))
    assert mine.new(5.0) == 0
    mine.step(at(6.0, 2, started=2))
    mine.step(at(7.0, 0))
    assert mine.new(10.0) == 2


def test_a_request_without_a_token_never_started() -> None:
    mine = Abandoned()
    mine.step(step(1.0, running=0, finished=(Finished("abort", output_tokens=0), Finished("error"))))
    mine.step(at(2.0, 1, started=1))
    mine.step(at(3.0, 0))
    assert mine.new(10.0) == 1


def test_it_is_a_lower_bound_at_all_times_and_exact_when_idle() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        mine, held, gone, said, clock = Abandoned(), 0, 0, 0, 0.0
        for _ in range(300):
            clock += chance.uniform(0.01, 0.5)
            started = chance.randrange(4)
            ended = chance.randint(0, held)
            left = chance.randint(0, held - ended) if chance.random() < 0.3 else 0
            held += started - ended - left
            gone += left
            mine.step(at(clock, held, started=started, ended=ended))
            said += mine.new(clock)
            assert said <= gone
        mine.step(at(clock + 1, 0, ended=held))
        assert said + mine.new(clock + 10) == gone


def test_memory_stays_bounded() -> None:
    mine = Abandoned()
    for index in range(10_000):
        mine.step(at(index / 100, 1))
        mine.new(index / 100)
    assert len(mine._moments) < 200


def test_the_collector_shows_it() -> None:
    mine = collect(at(101.0, 3, started=3), at(102.0, 0, ended=1))
    assert Sight(mine)(ABANDONED, **ENGINE) in (None, 0.0)
    mine.flush(110.0)
    assert Sight(mine)(ABANDONED, **ENGINE) == 2
    feed(mine, at(111.0, 0))
    mine.flush(120.0)
    assert Sight(mine)(ABANDONED, **ENGINE) == 2
