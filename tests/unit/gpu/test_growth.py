"""Differences of counters that may begin anew, integrals of rates, and whose processes are whose."""

import math
import os

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals.gpu.growth import Elapsed, Growth, Integral, Residency
from vllm_vitals.gpu.processes import Family, parent


def test_counter_grows_by_differences():
    growth = Growth(math.inf)
    assert [growth(value, clock) for clock, value in enumerate([700.0, 700.0, 850.0])] == [0.0, 0.0, 150.0]


def test_counter_that_fell_began_anew():
    growth = Growth(math.inf)
    growth(1000.0, 0.0)
    assert growth(30.0, 1.0) == 30.0
    assert growth(50.0, 2.0) == 20.0


def test_counter_is_silent_for_a_while():
    growth = Growth(math.inf)
    growth(1000.0, 0.0)
    assert growth(None, 1.0) is None
    assert growth(1500.0, 9.0) == 500.0


def test_counter_cannot_grow_faster_than_the_device_can():
    growth = Growth(100.0)
    growth(1000.0, 0.0)
    assert growth(1100.0, 1.0) == 100.0
    assert growth(2**63, 2.0) == 0.0
    assert growth(1200.0, 3.0) == 0.0  # what looks like a new beginning was a glitch
    assert growth(1250.0, 4.0) == 50.0
    assert growth(1650.0, 8.0) == 400.0


@examples(100)
@given(st.lists(st.one_of(st.none(), st.floats(0, 1e12))))
def test_growth_is_never_negative(values):
    growth = Growth(1e9)
    assert all(grown is None or grown >= 0 for grown in (growth(v, float(i)) for i, v in enumerate(values)))


def test_integral_is_the_area_between_two_readings():
    integral = Integral()
    assert integral(100.0, 10.0) == 0.0
    assert integral(300.0, 12.0) == 400.0  # a mean of 200 over 2 s
    assert integral(None, 13.0) is None
    assert integral(300.0, 14.0) == 600.0


def test_integral_does_not_guess_over_a_long_gap_or_backwards():
    integral = Integral()
    integral(100.0, 0.0)
    assert integral(100.0, 11.0) == 0.0
    assert integral(100.0, 21.0) == 1000.0
    assert integral(100.0, 21.0) == 0.0


def test_elapsed_time():
    elapsed = Elapsed()
    assert [elapsed(clock) for clock in (5.0, 6.5, 20.0, 21.0)] == [0.0, 1.5, 0.0, 1.0]


PARENTS = {50: 40, 40: 30, 30: 20, 60: 1, 70: 0, 80: 80}


def test_family_is_what_descends():
    family = Family([30], parent=lambda pid: PARENTS.get(pid, 0))
    assert family.members([50, 40, 30, 20, 60, 70, 80, 90, 1, 0]) == {50, 40, 30}


def test_family_looks_at_a_process_once_while_it_is_there():
    asked = []
    family = Family([30], parent=lambda pid: asked.append(pid) or PARENTS.get(pid, 0))
    for pids in ([50], [50], [], [50]):
        family.members(pids)
    assert asked == [50, 40] * 2


def test_family_of_this_process():
    assert parent(os.getpid()) == os.getppid()
    assert parent(2**30) == 0
    assert Family().members([os.getpid(), os.getppid(), 1]) == {os.getpid()}
    assert os.getpid() in Family([os.getppid()]).members([os.getpid()])


def test_residency_is_the_share_of_the_cycles_in_the_time_that_went_by():
    residency = Residency()
    assert residency(500.0, 1000.0, 10.0) == 0.0
    assert residency(600.0, 1400.0, 12.0) == 0.5  # 100 of 400 cycles in 2 s
    assert residency(600.0, 1400.0, 13.0) == 0.0  # the counters stand still
    assert residency(1600.0, 2400.0, 113.0) == 100.0  # counted over a gap too
    assert residency(2700.0, 2500.0, 114.0) == 1.0  # never more than all the time


def test_residency_of_counters_that_began_anew_is_nothing():
    residency = Residency()
    residency(500.0, 1000.0, 10.0)
    assert residency(20.0, 100.0, 11.0) == 0.0
    assert residency(30.0, 200.0, 13.0) == 0.2


NONE = (math.nan, math.inf, -math.inf, -1.0)


def test_what_cannot_be_a_reading_is_none_and_the_next_counts_from_the_one_before():
    for odd in NONE:
        growth, integral, residency = Growth(math.inf), Integral(), Residency()
        assert [growth(value, clock) for clock, value in enumerate([700.0, odd, 850.0])] == [0.0, None, 150.0]
        assert [integral(rate, clock) for clock, rate in enumerate([10.0, odd, 20.0])] == [0.0, None, 30.0]
        read = [(0.0, 0.0), (odd, 10.0), (5.0, odd), (5.0, 10.0)]
        assert [residency(held, cycles, float(clock)) for clock, (held, cycles) in enumerate(read)] == [
            0.0,
            0.0,
            0.0,
            1.5,
        ]


@examples(60)
@given(
    st.lists(
        st.tuples(st.sampled_from([5e-324, 1e308, 0.0, 3.0, *NONE]), st.sampled_from([0.0, 5e-324, 1.0, -5.0])),
        max_size=9,
    )
)
def test_no_reading_makes_an_amount_that_cannot_be(readings):
    kinds, clock = (Growth(1e4), Growth(math.inf), Integral()), 100.0
    residency, elapsed = Residency(), Elapsed()
    for value, passed in readings:
        clock += passed
        amounts = [*(kind(value, clock) for kind in kinds), residency(value, value, clock), elapsed(clock)]
        assert all(0 <= amount < math.inf for amount in amounts if amount is not None)
