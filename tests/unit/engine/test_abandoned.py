"""Requests whose client left: what is missing in the sum of those that started."""

import random

from tests.unit.builders import ENGINE, Sight, collect, feed, step
from vllm_vitals.engine.abandoned import MAX_SERVER_SKEW, MAX_SLOTS, SLOT_SECONDS, Abandoned
from vllm_vitals.records.step import Finished, Floats, Step

ABANDONED = "vllm_requests_abandoned_total"


def at(clock: float, running: int | None, *, started: int = 0, ended: int = 0, waiting: int = 0) -> Step:
    """Return a step in which requests get their first token and requests end."""
    firsts = Floats("d", [0.1] * started) if started else None
    over = tuple(Finished("stop", output_tokens=5) for _ in range(ended))
    return step(clock, running=running, waiting=waiting, first_token_latencies=firsts, finished=over)


def counted(steps: list[Step], told: float) -> int:
    mine = Abandoned()
    for each in steps:
        mine.add_step(each)
    return mine.take_new(told)


def test_finished_requests_are_not_abandoned() -> None:
    assert counted([at(1.0, 3, started=3), at(2.0, 0, ended=3)], told=10.0) == 0


def test_requests_missing_from_an_idle_engine_are_abandoned() -> None:
    assert counted([at(1.0, 3, started=3), at(2.0, 1), at(3.0, 0, ended=1)], told=10.0) == 2


def test_the_count_is_exact_once_all_steps_of_an_idle_engine_are_known() -> None:
    steps = [at(1.0, 3, started=3), at(3.0, 0)]
    assert counted(steps, told=2.99) == 0
    assert counted(steps, told=3.0) == 3


def test_with_several_servers_the_count_is_exact_after_the_maximum_skew() -> None:
    mine = Abandoned()
    for each in (at(1.0, 3, started=3), at(3.0, 0)):
        mine.add_step(each)
    assert mine.take_new(3.0 + MAX_SERVER_SKEW - 0.01, MAX_SERVER_SKEW) == 0
    # From here on all three are known to have started before the engine was empty.
    assert mine.take_new(3.0 + MAX_SERVER_SKEW, MAX_SERVER_SKEW) == 3


def test_each_request_counts_once_also_in_a_busy_engine() -> None:
    mine = Abandoned()
    mine.add_step(at(1.0, 10, started=10))
    mine.add_step(at(2.0, 7, waiting=1))  # two left, one was preempted
    assert mine.take_new(3.0) == 2
    assert mine.take_new(9.0) == 0
    mine.add_step(at(10.0, 0, ended=5))
    assert mine.take_new(10.0) == 3


def test_an_end_reported_later_by_another_process_is_not_abandonment() -> None:
    mine = Abandoned()
    mine.add_step(at(1.0, 1, started=1))
    mine.add_step(at(2.0, 0))  # its end was sent to another server, which hears of it later
    assert mine.take_new(2.9, MAX_SERVER_SKEW) == 0
    mine.add_step(at(2.8, None, ended=1))
    assert mine.take_new(10.0, MAX_SERVER_SKEW) == 0


def test_requests_started_after_the_watermark_are_not_abandoned() -> None:
    mine = Abandoned()
    mine.add_step(at(10.0, 1, started=1))
    mine.add_step(at(10.5, 0))  # of a step before that: this process heard of it half a second late
    assert mine.take_new(11.6, MAX_SERVER_SKEW) == 0
    mine.add_step(at(12.0, 0, ended=1))
    assert mine.take_new(20.0, MAX_SERVER_SKEW) == 0


def test_requests_that_start_and_end_in_a_partly_known_step_hide_no_abandonment() -> None:
    mine = Abandoned()
    mine.add_step(at(10.0, 0))
    assert mine.take_new(99.9, MAX_SERVER_SKEW) == 0
    mine.add_step(at(100.0, None, started=1, ended=1))  # the other process tells how many are in the engine
    assert mine.take_new(100.1, MAX_SERVER_SKEW) == 0
    mine.add_step(at(100.2, 0))
    assert mine.take_new(110.0, MAX_SERVER_SKEW) == 0
    mine.add_step(at(111.0, 1, started=1))
    mine.add_step(at(112.0, 0))
    assert mine.take_new(120.0, MAX_SERVER_SKEW) == 1


def test_an_engine_without_its_latest_step_does_not_count_as_idle() -> None:
    mine = Abandoned()
    mine.add_step(at(10.0, 0))
    mine.add_step(at(20.0, None, started=1))  # how many are in the engine only somebody knows who has not come yet
    assert mine.take_new(30.0) == 0
    mine.add_step(at(20.0, 1))
    mine.add_step(at(21.0, 0))
    assert mine.take_new(30.0) == 1


def test_requests_that_may_have_ended_in_lost_steps_are_never_counted() -> None:
    mine = Abandoned()
    mine.add_step(at(1.0, 3, started=3))
    mine.mark_lost(2.5)  # one end is in what was lost, say
    mine.add_step(at(3.0, 1))
    assert mine.take_new(2.0) == 0
    mine.add_step(at(4.0, 0, ended=1))
    assert mine.take_new(5.0) == 0
    mine.add_step(at(6.0, 2, started=2))
    mine.add_step(at(7.0, 0, ended=1))
    assert mine.take_new(8.0) == 1


def test_a_lost_start_hides_no_abandonment_after_its_end() -> None:
    mine = Abandoned()
    mine.add_step(at(1.0, 0))
    mine.mark_lost(2.0)
    mine.add_step(at(3.0, 0, ended=4))
    assert mine.take_new(5.0) == 0
    mine.add_step(at(6.0, 2, started=2))
    mine.add_step(at(7.0, 0))
    assert mine.take_new(8.0) == 2


def test_requests_of_a_new_process_hide_no_later_abandonment() -> None:
    mine = Abandoned()
    mine.add_step(at(1.0, 0))
    assert mine.take_new(2.0) == 0
    mine.add_server()
    mine.add_step(at(3.0, 1, started=1, ended=2))  # two of a process that comes late
    mine.add_step(at(4.0, 0))
    assert mine.take_new(5.0) == 0  # one has left, or one of the two did not start before
    mine.add_step(at(6.0, 1, started=1))
    mine.add_step(at(7.0, 0))
    assert mine.take_new(8.0) == 1


def test_a_pooling_request_has_ended_when_it_is_answered() -> None:
    pooled = Finished("stop", prefill=0.1, output_tokens=0)
    steps = [step(1.0, running=1), step(2.0, running=0, first_token_latencies=Floats("d", [0.2]), finished=(pooled,))]
    assert counted(steps, told=10.0) == 0


def test_requests_started_before_the_plugin_hide_no_later_abandonment() -> None:
    mine = Abandoned()
    assert mine.take_new(0.5) == 0
    mine.add_step(at(1.0, 0, ended=4))
    assert mine.take_new(5.0) == 0
    mine.add_step(at(6.0, 2, started=2))
    mine.add_step(at(7.0, 0))
    assert mine.take_new(10.0) == 2


def test_a_request_without_a_token_never_started() -> None:
    mine = Abandoned()
    mine.add_step(step(1.0, running=0, finished=(Finished("abort", output_tokens=0), Finished("error"))))
    mine.add_step(at(2.0, 1, started=1))
    mine.add_step(at(3.0, 0))
    assert mine.take_new(10.0) == 1


def test_the_count_is_always_a_lower_bound_and_exact_when_idle() -> None:
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
            mine.add_step(at(clock, held, started=started, ended=ended))
            said += mine.take_new(clock)
            assert said <= gone
            assert held or said == gone
        mine.add_step(at(clock + 1, 0, ended=held))
        assert said + mine.take_new(clock + 1) == gone


def test_memory_stays_bounded() -> None:
    mine = Abandoned()
    for index in range(10_000):
        mine.add_step(at(index / 100, 1))
        mine.take_new(index / 100, MAX_SERVER_SKEW)
    assert len(mine._slots) < 4 * MAX_SERVER_SKEW / SLOT_SECONDS


def test_waiting_for_a_slow_process_uses_bounded_memory() -> None:
    mine = Abandoned()
    for index in range(2 * MAX_SLOTS):
        mine.add_step(at(index * SLOT_SECONDS, 1, started=1))
        assert mine.take_new(0.0, MAX_SERVER_SKEW) == 0
        assert len(mine._slots) <= MAX_SLOTS
    end = 2 * MAX_SLOTS * SLOT_SECONDS
    mine.add_step(at(end, 0, ended=2 * MAX_SLOTS))
    assert mine.take_new(end + 10, MAX_SERVER_SKEW) == 0
    mine.add_step(at(end + 11, 1, started=1))
    mine.add_step(at(end + 12, 0))
    assert mine.take_new(end + 20, MAX_SERVER_SKEW) == 1


def test_the_aggregator_shows_the_count() -> None:
    mine = collect(at(101.0, 3, started=3), at(102.0, 0, ended=1))
    assert Sight(mine)(ABANDONED, **ENGINE) in (None, 0.0)
    mine.flush(110.0)
    assert Sight(mine)(ABANDONED, **ENGINE) == 2
    feed(mine, at(111.0, 0))
    mine.flush(120.0)
    assert Sight(mine)(ABANDONED, **ENGINE) == 2
