"""Cells: bucket counts like `prometheus_client`'s, and nothing that cannot be true."""

import math
from collections import Counter

import prometheus_client
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals._util.amounts import LARGEST
from vllm_vitals.store.series import (
    MAX_PENDING,
    MAX_PENDING_REPEATED,
    Exemplar,
    HistogramCell,
    NumberCell,
    rejection_reason,
)

LIMIT = 1e6
BOUNDS = (0.1, 1.0, 2.5, 10.0)
bounds_of_any_kind = st.lists(
    st.floats(-10, 100, allow_nan=False), min_size=1, max_size=12, unique=True
).map(lambda bounds: tuple(sorted(bounds)))  # fmt: skip


def cell(bounds: tuple[float, ...] = BOUNDS, *, exponential: bool = False) -> HistogramCell:
    return HistogramCell("m", LIMIT, Counter(), bounds, exponential=exponential)


def number() -> NumberCell:
    return NumberCell("m", LIMIT, Counter())


def believed(values: list[float]) -> list[float]:
    return [value for value in values if math.isfinite(value) and 0 <= value <= LIMIT]


def expected_counts(bounds: tuple[float, ...], values: list[float]) -> list[int]:
    """Return what `prometheus_client` makes of the values, bucket by bucket."""
    histogram = prometheus_client.Histogram("h", "h", buckets=bounds, registry=None)
    for value in values:
        histogram.observe(value)
    (family,) = histogram.collect()
    cumulated = [int(sample.value) for sample in family.samples if sample.name == "h_bucket"]
    return [high - low for low, high in zip([0, *cumulated], cumulated, strict=False)]


@st.composite
def bounds_and_values(draw: st.DrawFn) -> tuple[tuple[float, ...], list[float]]:
    bounds = draw(bounds_of_any_kind)
    anything = st.one_of(st.sampled_from(bounds), st.floats(), st.floats(0, 110), st.just(LIMIT))
    return bounds, draw(st.lists(anything, max_size=60))


@given(bounds_and_values())
@examples(150)
def test_buckets_are_those_of_prometheus_client(case: tuple[tuple[float, ...], list[float]]) -> None:
    bounds, values = case
    histogram = cell(bounds)
    histogram.extend(values)
    histogram.settle()
    true = believed(values)
    assert histogram.counts == expected_counts(bounds, true)
    assert histogram.total == pytest.approx(math.fsum(true))
    assert histogram.least == min(true, default=math.inf)
    assert histogram.greatest == max(true, default=-math.inf)
    assert sum(histogram._rejects.values()) == len(values) - len(true)


@given(bounds_and_values(), st.integers(2, 1000))
@examples(80)
def test_repeated_values_count_each_time(case: tuple[tuple[float, ...], list[float]], times: int) -> None:
    bounds, values = case
    repeated, each = cell(bounds, exponential=True), cell(bounds, exponential=True)
    repeated.extend(values, None, times)
    each.extend(values * times)
    for histogram in (repeated, each):
        histogram.settle()
    assert repeated.counts == each.counts
    assert repeated.total == pytest.approx(each.total)
    assert (repeated.least, repeated.greatest) == (each.least, each.greatest)
    assert repeated._rejects == each._rejects
    assert repeated.exponential is not None
    assert each.exponential is not None
    assert repeated.exponential.scale == each.exponential.scale
    assert repeated.exponential.zeros == each.exponential.zeros
    assert repeated.exponential.counts.tolist() == each.exponential.counts.tolist()


def test_many_repeated_values_do_not_pile_up() -> None:
    histogram = cell()
    for _ in range(MAX_PENDING_REPEATED - 1):
        histogram.extend((0.5,), None, 7)
    assert sum(histogram.counts) == 0
    histogram.extend((0.5,), None, 7)
    assert histogram.counts == [0, 7 * MAX_PENDING_REPEATED, 0, 0, 0]
    assert histogram.total == pytest.approx(0.5 * 7 * MAX_PENDING_REPEATED)


def test_repeated_values_are_checked_like_others() -> None:
    histogram = cell()
    histogram.extend((3.0, 5.0), 4.0, 10)
    histogram.settle()
    assert (sum(histogram.counts), histogram._rejects) == (10, {("m", "absurd"): 10})


@given(bounds_and_values(), st.integers(1, 20))
@examples(80)
def test_bulk_one_by_one_and_in_parts_are_the_same(case: tuple[tuple[float, ...], list[float]], size: int) -> None:
    bounds, values = case
    bulk, single, parts = cell(bounds), cell(bounds), cell(bounds)
    bulk.extend(values)
    for value in values:
        single.observe(value)
    for start in range(0, len(values), size):
        parts.extend(values[start : start + size])
        parts.settle()
    for histogram in (bulk, single, parts):
        histogram.settle()
    assert bulk.counts == single.counts == parts.counts
    assert bulk._rejects == single._rejects == parts._rejects
    assert single.total == bulk.total == pytest.approx(parts.total)
    assert (bulk.least, bulk.greatest) == (single.least, single.greatest) == (parts.least, parts.greatest)


def test_a_value_on_a_bound_belongs_to_that_bucket() -> None:
    histogram = cell((1.0, 2.0))
    histogram.extend([0.0, 1.0, math.nextafter(1.0, 2.0), 2.0, math.nextafter(2.0, 3.0)])
    histogram.settle()
    assert histogram.counts == [2, 2, 1]


def test_sum_minimum_and_maximum() -> None:
    histogram = cell()
    histogram.extend([0.5, 2.0, 1.0])
    histogram.settle()
    assert (histogram.total, histogram.least, histogram.greatest) == (3.5, 0.5, 2.0)


def test_rejections_are_counted_by_reason() -> None:
    histogram = cell()
    histogram.extend([math.nan, math.inf, -math.inf, -0.001, LIMIT + 1, 1.0])
    histogram.settle()
    assert histogram._rejects == {("m", "not_finite"): 3, ("m", "negative"): 1, ("m", "absurd"): 1}
    assert sum(histogram.counts) == 1
    assert histogram.total == 1.0


def test_rejected_values_alone_do_not_change_a_histogram() -> None:
    histogram = cell()
    histogram.extend([-1.0, math.nan])
    histogram.settle()
    assert histogram.counts == [0] * 5
    assert (histogram.total, histogram.least, histogram.greatest) == (0.0, math.inf, -math.inf)


@pytest.mark.parametrize(
    ("number", "settled"), [(MAX_PENDING - 1, 0), (MAX_PENDING, MAX_PENDING), (MAX_PENDING + 1, MAX_PENDING + 1)]
)
def test_values_wait_until_there_are_enough(number: int, settled: int) -> None:
    histogram = cell()
    histogram.extend([0.5] * number)
    assert sum(histogram.counts) == settled
    histogram.settle()
    assert histogram.counts == [0, number, 0, 0, 0]


def test_single_values_do_not_pile_up_without_reads() -> None:
    histogram = cell()
    for _ in range(3 * MAX_PENDING):
        histogram.observe(0.5)
    assert len(histogram._pending) <= MAX_PENDING


def test_a_new_value_changes_the_version_and_nothing_does_not() -> None:
    histogram = cell()
    histogram.extend([])
    histogram.settle()
    assert histogram.version == 0
    histogram.observe(1.0)
    one = histogram.version
    histogram.extend([1.0, 2.0])
    assert 0 < one < histogram.version


@pytest.mark.parametrize(("value", "bucket"), [(0.0, 0), (0.1, 0), (0.11, 1), (10.0, 3), (10.1, 4), (LIMIT, 4)])
def test_an_exemplar_lands_in_the_bucket_of_its_value(value: float, bucket: int) -> None:
    histogram = cell()
    histogram.observe(value)
    histogram.attach(Exemplar("r", value, 5.0))
    histogram.settle()
    assert histogram.exemplars == {bucket: Exemplar("r", value, 5.0)}
    assert histogram.counts[bucket] == 1


def test_the_latest_exemplar_of_a_bucket_stays() -> None:
    histogram = cell()
    for request, value in (("a", 0.5), ("b", 0.7), ("c", 2.0)):
        histogram.attach(Exemplar(request, value, 5.0))
    assert {bucket: each.request_id for bucket, each in histogram.exemplars.items()} == {1: "b", 2: "c"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, LIMIT * 2])
def test_a_rejected_value_is_no_exemplar(value: float) -> None:
    histogram = cell()
    histogram.attach(Exemplar("r", value, 5.0))
    assert histogram.exemplars == {}


@pytest.mark.parametrize(
    ("value", "reason"),
    [(0.0, ""), (LIMIT, ""), (LIMIT + 1, "absurd"), (-1e-9, "negative"), (math.nan, "not_finite"),
     (math.inf, "not_finite"), (-math.inf, "not_finite")],
)  # fmt: skip
def test_rejection_reasons(value: float, reason: str) -> None:
    assert rejection_reason(value, LIMIT) == reason


@given(st.lists(st.one_of(st.floats(), st.integers(-5, 5)), max_size=40))
@examples(100)
def test_a_counter_adds_possible_values_and_never_decreases(values: list[float]) -> None:
    counter, before = number(), 0.0
    for value in values:
        counter.add(value)
        assert counter.value >= before
        before = counter.value
    assert counter.value == pytest.approx(math.fsum(believed(values)))
    assert sum(counter._rejects.values()) == len(values) - len(believed(values))


def test_adding_nothing_changes_nothing() -> None:
    counter = number()
    counter.add(0)
    assert (counter.value, counter._rejects) == (0.0, {})


@given(st.lists(st.one_of(st.floats(), st.integers(-5, 5)), min_size=1, max_size=8))
@example([1.0, math.nan])
@example([math.nan, 1.0])
@example([2.0, math.inf, -1.0, 0.0])
@examples(100)
def test_adding_several_values_at_once_is_adding_each(values: list[float]) -> None:
    together, apart = number(), number()
    together.add(*values)
    for value in values:
        apart.add(value)
    assert together.value == pytest.approx(apart.value)
    assert together._rejects == apart._rejects


def test_a_rejected_value_does_not_change_a_gauge() -> None:
    gauge = number()
    gauge.set(3, 10.0)
    for value in (math.nan, math.inf, -1.0, LIMIT + 1):
        gauge.set(value, 20.0)
    assert (gauge.value, gauge.time) == (3.0, 10.0)
    assert gauge._rejects == {("m", "not_finite"): 2, ("m", "negative"): 1, ("m", "absurd"): 1}


def test_the_same_value_again_is_newer_but_no_new_version() -> None:
    gauge = number()
    gauge.set(3, 10.0)
    version = gauge.version
    gauge.set(3, 20.0)
    assert (gauge.version, gauge.time) == (version, 20.0)
    gauge.set(4, 30.0)
    assert gauge.version > version


# --- Sums that a float cannot hold

HUGE = (1e308, 1e308, 5.0, math.nan, math.inf, -1.0, 1e308, 10**400)


def test_a_sum_never_overflows_and_the_value_is_rejected_and_counted() -> None:
    for add in (lambda c, v: c.add(v), lambda c, v: c.merge(v)):
        sum_ = NumberCell("m", math.inf, Counter())
        for value in HUGE:
            add(sum_, value)
        assert sum_.value == 1e308 + 5.0
        assert sum_._rejects == {("m", "absurd"): 3, ("m", "not_finite"): 2, ("m", "negative"): 1}
    together = NumberCell("m", math.inf, Counter())
    together.add(*HUGE)
    assert (together.value, together._rejects) == (sum_.value, sum_._rejects)


@pytest.mark.parametrize("times", [1, 3])
def test_the_sum_of_a_histogram_never_overflows(times: int) -> None:
    histogram = HistogramCell("m", math.inf, Counter(), BOUNDS, exponential=True)
    for _ in range(4):
        histogram.extend([8e307 / times, 5.0], None, times)
        histogram.settle()
    histogram.extend([math.inf, math.nan], None, times)
    histogram.settle()
    assert histogram.total == pytest.approx(1.6e308)
    assert sum(histogram.counts) == 6 * times
    assert histogram._rejects == {("m", "absurd"): 2 * times, ("m", "not_finite"): 2 * times}
    histogram.extend([1.7e308] * 30, None, times)
    assert histogram.read().value == pytest.approx(1.6e308)
    histogram.merge([1] * (len(BOUNDS) + 1), 1e308)
    histogram.merge([-1] * (len(BOUNDS) + 1), 0.0)
    histogram.merge([1] * (len(BOUNDS) + 1), math.nan)
    assert sum(histogram.counts) == 6 * times
    assert math.isfinite(histogram.total)


@given(st.lists(st.floats(), max_size=30))
@examples(100)
def test_a_histogram_holds_the_possible_ones_of_any_values(values: list[float]) -> None:
    histogram = HistogramCell("m", math.inf, Counter(), BOUNDS, exponential=True)
    histogram.extend(values)
    reading = histogram.read()
    assert 0 <= reading.value < math.inf
    assert sum(reading.counts) + sum(histogram._rejects.values()) == len(values)
    assert reading.exponential is not None
    assert reading.exponential.zeros + reading.exponential.counts.sum() == sum(reading.counts)


def test_nan_is_no_limit() -> None:
    histogram = cell()
    histogram.extend((3.0,), math.nan)
    histogram.settle()
    assert (sum(histogram.counts), histogram._rejects) == (1, {})


def test_values_that_fit_one_by_one_do_not_overflow_the_sum_of_a_histogram_together() -> None:
    histogram = HistogramCell("m", math.inf, Counter(), BOUNDS)
    histogram.extend([LARGEST])
    histogram.settle()
    histogram.extend([2.0**969] * 8)  # each is less than half of the last digit of the sum, all of them are more
    assert histogram.read().value == LARGEST
    assert sum(histogram.counts) == 9
