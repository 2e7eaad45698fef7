"""Energy is divided by what the engine did, and none of it is lost."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from tests.unit.builders import examples
from vllm_vitals.catalog.cost import STATES
from vllm_vitals.engine.limiter import MAX_READINGS, Energy, Limiter, activity


def divided(*readings: tuple[float, dict[str, float]], now: str = "idle") -> dict[str, float]:
    """Return the joules by state of readings that each came after the engine had done things for so many seconds."""
    mine = Energy()
    for clock, (joules, seconds) in enumerate(readings):
        mine.add_reading(float(clock), joules)
        mine.divide_oldest(seconds, now)
    return dict(mine.joules)


@pytest.mark.parametrize(
    ("limiter", "expected"),
    [("none", "busy"), ("max_num_seqs", "busy"), ("token_budget", "busy"), ("kv_cache", "busy"), ("deferred", "busy"),
     ("idle", "idle"), ("asleep", "asleep")],
)  # fmt: skip
def test_an_engine_is_busy_unless_it_is_idle_or_asleep(limiter: str, expected: str) -> None:
    assert activity(limiter) == expected


def test_energy_of_an_unmixed_reading_belongs_to_its_state() -> None:
    assert divided((700.0, {"busy": 1.0}), (100.0, {"idle": 1.0}), (20.0, {"asleep": 0.5})) == {
        "busy": 700.0, "idle": 100.0, "asleep": 20.0,
    }  # fmt: skip


def test_idle_has_its_last_power_and_busy_the_rest() -> None:
    # 100 W idle; then half a second of each and 400 J: 50 J of them idle
    assert divided((100.0, {"idle": 1.0}), (400.0, {"idle": 0.5, "busy": 0.5})) == {"idle": 150.0, "busy": 350.0}


def test_the_latest_idle_power_counts() -> None:
    found = divided((100.0, {"idle": 1.0}), (120.0, {"idle": 2.0}), (400.0, {"idle": 0.5, "busy": 0.5}))
    assert found == {"idle": 100.0 + 120.0 + 30.0, "busy": 370.0}


def test_idle_and_asleep_get_no_more_than_the_reading() -> None:
    found = divided((100.0, {"idle": 1.0}), (20.0, {"asleep": 1.0}), (60.0, {"idle": 0.8, "asleep": 2.0, "busy": 0.2}))
    # they would have drawn 80 J and 40 J: 60 J are half of that
    assert found == {"idle": 100.0 + 40.0, "asleep": 20.0 + 20.0, "busy": 0.0}


def test_until_idle_power_is_known_each_state_has_its_share_by_time() -> None:
    assert divided((400.0, {"idle": 0.25, "busy": 0.75})) == {"idle": 100.0, "busy": 300.0}
    assert divided((100.0, {"idle": 1.0}), (60.0, {"idle": 1.0, "asleep": 2.0})) == {"idle": 120.0, "asleep": 40.0}
    assert divided((0.0, {"idle": 1.0}), (60.0, {"idle": 1.0, "busy": 2.0})) == {"idle": 20.0, "busy": 40.0}


def test_a_late_reading_belongs_to_the_present_state() -> None:
    assert divided((300.0, {}), now="busy") == {"busy": 300.0}


def test_readings_wait_until_the_state_up_to_them_is_known() -> None:
    mine = Energy()
    mine.add_reading(1.0, 10.0)
    mine.add_reading(2.0, 20.0)
    assert (mine.oldest_reading(0.9), mine.oldest_reading(1.0), mine.oldest_reading(5.0)) == (None, 1.0, 1.0)
    mine.divide_oldest({"busy": 1.0}, "busy")
    assert (mine.oldest_reading(1.9), mine.oldest_reading(2.0)) == (None, 2.0)
    mine.divide_oldest({"busy": 1.0}, "busy")
    assert mine.oldest_reading(9.0) is None
    assert dict(mine.joules) == {"busy": 30.0}


def test_waiting_readings_are_bounded() -> None:
    mine = Energy()
    for second in range(10_000):
        mine.add_reading(float(second), 1.0)
    waited = 0
    while mine.oldest_reading(1e9) is not None:
        mine.divide_oldest({"idle": 1.0}, "idle")
        waited += 1
    assert waited == MAX_READINGS
    assert mine.joules["idle"] == pytest.approx(10_000.0)


states = some.sampled_from([*STATES, "none", "kv_cache"])


@examples(100)
@example([(5e-324, "idle", 1e4), (1.0, "busy", 3.0), (1.0, "idle", 2.0), (1.0, "idle", 2.0)])
@example([(5e-324, "idle", 1e4), (5e-324, "busy", 7.0), (5e-324, "asleep", 2.0)])
@example([(1e-300, "asleep", 1e-300), (3.0, "busy", 5e-324)])
@given(some.lists(some.tuples(some.floats(0, 3), states, some.floats(0, 1e4)), max_size=40))
def test_all_energy_is_divided(done: list[tuple[float, str, float]]) -> None:
    clock, mine, limiter = 0.0, Energy(), Limiter(0.0)
    for seconds, state, joules in done:
        clock += seconds
        limiter.set_state(clock, state)
        mine.add_reading(clock + seconds / 2, joules)
        while (due := mine.oldest_reading(clock)) is not None:
            limiter.settle(due)
            mine.divide_oldest(limiter.seconds_by_activity, activity(limiter.state))
            limiter.seconds_by_activity.clear()
    waiting = sum(joules for _, joules in mine._readings)
    assert sum(mine.joules.values()) + waiting == pytest.approx(sum(joules for _, _, joules in done))
    assert all(0 <= part < math.inf for part in mine.joules.values())


def test_a_reading_over_no_time_gives_no_power() -> None:
    assert divided((1e4, {"idle": 5e-324}), (60.0, {"idle": 1.0, "busy": 2.0})) == {"idle": 1e4 + 20.0, "busy": 40.0}
