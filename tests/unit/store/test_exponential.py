"""Base-2 exponential histograms are what the OpenTelemetry SDK makes of the same values."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View

from tests.unit.builders import examples
from vllm_vitals.store.series import MAX_BUCKETS, MAX_SCALE, Exponential

SMALLEST = 2.0**-1022


def filled(*batches: Sequence[float]) -> Exponential:
    made = Exponential()
    for batch in batches:
        made.add(np.array(batch, dtype=np.float64))
    return made


def buckets(histogram: Exponential) -> dict[int, int]:
    """Return the counts of the buckets that hold anything."""
    return {histogram.offset + place: int(count) for place, count in enumerate(histogram.counts) if count}


def of_sdk(values: Sequence[float]) -> tuple[int, int, dict[int, int]]:
    """Return scale, zeros and buckets of the SDK's own histogram."""
    memory = InMemoryMetricReader()
    view = View(instrument_name="*", aggregation=ExponentialBucketHistogramAggregation())
    provider = MeterProvider([memory], views=[view], shutdown_on_exit=False)
    histogram = provider.get_meter("test").create_histogram("h")
    for value in values:
        histogram.record(value)
    data = memory.get_metrics_data()
    assert data is not None
    (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
    provider.shutdown()
    held = {point.positive.offset + place: count for place, count in enumerate(point.positive.bucket_counts) if count}
    return point.scale, point.zero_count, held


def is_clear(value: float) -> bool:
    """Tell whether a value is no bound of a bucket, nor so near that a rounded logarithm takes it for one."""
    place = math.ldexp(math.log2(value), MAX_SCALE)
    return abs(place - round(place)) > 1e-4


# A value within a rounding error of a bound may fall to either side: the SDK rounds a different logarithm.
clear = st.floats(SMALLEST, 1e308, allow_subnormal=False).filter(is_clear)
latencies = st.floats(1e-4, 100.0).filter(is_clear)
values = st.lists(st.one_of(st.just(0.0), latencies), max_size=60) | st.lists(clear, max_size=20)


@examples(80)
@given(values.filter(len))
def test_buckets_equal_those_of_the_opentelemetry_sdk(given_values: list[float]) -> None:
    made = filled(given_values)
    scale, zeros, held = of_sdk(given_values)
    assert (made.zeros, buckets(made)) == (zeros, held)
    assert made.scale == scale or not held  # without positive values the scale means nothing


@pytest.mark.parametrize("exponent", [-1022, -300, -7, -1, 0, 1, 10, 511, 1023])
def test_a_power_of_two_belongs_to_the_bucket_that_it_ends(exponent: int) -> None:
    made = filled([2.0**exponent])
    assert (made.scale, made.zeros, buckets(made)) == of_sdk([2.0**exponent])
    assert buckets(made) == {exponent * 2**MAX_SCALE - 1: 1}


@pytest.mark.parametrize("value", [5e-324, SMALLEST, 1e-9, 0.3, 1.0, 12345.678, 1.7976931348623157e308])
def test_one_value_has_one_bucket_that_holds_it(value: float) -> None:
    made = filled([value])
    (place,) = buckets(made)
    log = math.log2(value) * 2.0**made.scale
    assert (made.scale, list(made.counts), made.zeros) == (MAX_SCALE, [1], 0)
    assert place == pytest.approx(log, abs=1.001)


def test_the_smallest_and_the_largest_value_share_160_buckets() -> None:
    made = filled([5e-324, 1.7976931348623157e308])
    assert sum(buckets(made).values()) == 2
    assert len(made.counts) <= MAX_BUCKETS


def test_zeros_have_their_own_count_and_cost_no_scale() -> None:
    made = filled([0.0, 0.0], [-0.0], [])
    assert (made.scale, made.zeros, buckets(made)) == (MAX_SCALE, 3, {})
    made.add(np.array([0.0, 3.0]))
    assert (made.scale, made.zeros, sum(made.counts)) == (MAX_SCALE, 4, 1)


@examples(150)
@given(st.lists(st.lists(st.one_of(st.just(0.0), st.floats(5e-324, 1.7e308), latencies), max_size=12), max_size=8))
def test_it_keeps_every_value_in_160_buckets_and_never_grows_finer(batches: list[list[float]]) -> None:
    made = Exponential()
    scale, count = MAX_SCALE, 0
    for batch in batches:
        made.add(np.array(batch, dtype=np.float64))
        count += len(batch)
        assert len(made.counts) <= MAX_BUCKETS
        assert made.scale <= scale
        assert int(made.counts.sum()) + made.zeros == count
        assert (made.counts >= 0).all()
        scale = made.scale


@examples(150)
@given(values, values)
def test_batches_give_the_same_as_all_values_at_once(first: list[float], second: list[float]) -> None:
    apart, together = filled(first, second), filled(first + second)
    assert (apart.scale, apart.zeros, buckets(apart)) == (together.scale, together.zeros, buckets(together))


@examples(150)
@given(st.lists(st.tuples(st.one_of(st.just(0.0), latencies), st.integers(1, 9)), max_size=20))
def test_repeated_values_count_each_time(pairs: list[tuple[float, int]]) -> None:
    repeated, each = Exponential(), filled([value for value, times in pairs for _ in range(times)])
    repeated.add(np.array([value for value, _ in pairs]), np.array([times for _, times in pairs], dtype=np.int64))
    assert (repeated.scale, repeated.zeros, buckets(repeated)) == (each.scale, each.zeros, buckets(each))


@examples(150)
@given(values, values)
def test_since_is_the_histogram_of_what_came_later(first: list[float], second: list[float]) -> None:
    made = filled(first)
    before = made.copy()
    made.add(np.array(second, dtype=np.float64))
    later, alone = made.since(before), filled(second).at(made.scale)
    assert (later.scale, later.zeros, buckets(later)) == (alone.scale, alone.zeros, buckets(alone))
    assert later.scale <= before.scale


def test_a_copy_does_not_change_any_more() -> None:
    made = filled([1.5, 3.0])
    kept = made.copy()
    seen = (kept.scale, kept.zeros, buckets(kept))
    made.add(np.array([0.0, 1e-9, 1e9]))
    assert (kept.scale, kept.zeros, buckets(kept)) == seen


@examples(100)
@given(st.lists(clear, min_size=1, max_size=20), st.integers(0, 12))
def test_a_coarser_scale_merges_neighbours(given_values: list[float], coarser: int) -> None:
    made = filled(given_values)
    merged = made.at(made.scale - coarser)
    expected: dict[int, int] = {}
    for place, count in buckets(made).items():
        expected[place // 2**coarser] = expected.get(place // 2**coarser, 0) + count
    assert buckets(merged) == expected
