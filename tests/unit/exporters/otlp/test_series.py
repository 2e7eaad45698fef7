"""vLLM's own metrics, pushed: every sample of a registry under the name that scraping would give it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from tests.unit.otlp import decoded, metrics
from vllm_vitals.exporters.otlp.encode import Push, PushBuilder
from vllm_vitals.exporters.otlp.series import MetricInfo, Series, native_series
from vllm_vitals.store.series import Reading
from vllm_vitals.store.store import Store

pytestmark = pytest.mark.versions

ENGINE = ("engine",)


def registry() -> tuple[CollectorRegistry, Counter, Histogram]:
    made = CollectorRegistry()
    counter = Counter("vllm:prompt_tokens", "Prompts.", ENGINE, registry=made)
    counter.labels("0").inc(7)
    counter.labels("1").inc(2)
    Gauge("vllm:num_requests_running", "Running.", ENGINE, registry=made).labels("0").set(3)
    histogram = Histogram("vllm:e2e_seconds", "Time.", ENGINE, registry=made, buckets=(1, 5))
    for seconds in (0.5, 1.0, 4.0, 9.0):
        histogram.labels("0").observe(seconds)
    Summary("http_size", "Size.", registry=made).observe(10)
    return made, counter, histogram


def series(made: Any, apart: Callable[[str], bool] = lambda _: False) -> dict[tuple[str, str], Series]:
    read = native_series(made, apart)
    return {(each.metric.name, dict(each.labels).get("engine", "")): each for each in read}


def builder(made: Any, temporality: str) -> PushBuilder:
    def more() -> Iterable[Series]:
        return native_series(made, lambda _: False)

    return PushBuilder(Store([]), temporality=temporality, exponential=False, started=1.0, fresh=60.0, more=more)


def points(push: Push, name: str) -> Iterator[Any]:
    metric = metrics(decoded(push))[name]
    return iter(getattr(metric, metric.WhichOneof("data")).data_points)


def test_names_kinds_and_values_are_the_samples() -> None:
    found = series(registry()[0])
    assert {name for name, _ in found} == {
        "vllm:prompt_tokens_total", "vllm:num_requests_running", "vllm:e2e_seconds", "http_size_sum", "http_size_count",
    }  # fmt: skip
    assert found["vllm:prompt_tokens_total", "0"].reading.value == 7
    assert found["vllm:prompt_tokens_total", "1"].metric.kind == "counter"
    assert found["vllm:num_requests_running", "0"].metric.kind == "gauge"
    assert (found["http_size_sum", ""].reading.value, found["http_size_sum", ""].metric.kind) == (10, "counter")


def test_histograms_are_counted_by_bucket() -> None:
    found = series(registry()[0])["vllm:e2e_seconds", "0"]
    assert (found.bounds, found.reading.counts, found.reading.value) == ((1.0, 5.0), (2, 1, 1), 14.5)


def test_families_set_apart_are_left_out() -> None:
    assert ("vllm:e2e_seconds", "0") not in series(registry()[0], "vllm:e2e_seconds".__eq__)


def test_differences_start_at_what_was_acknowledged() -> None:
    made, counter, histogram = registry()
    build = builder(made, "delta")
    first = build.build()
    assert [point.as_double for point in points(first, "vllm:prompt_tokens_total")] == [7, 2]
    build.acknowledge(first)
    counter.labels("0").inc(3)
    histogram.labels("0").observe(2.0)
    lost, second = build.build(), build.build()
    for push in (lost, second):
        assert [point.as_double for point in points(push, "vllm:prompt_tokens_total")] == [3]
        (point,) = points(push, "vllm:e2e_seconds")
        assert (point.count, point.sum, list(point.bucket_counts)) == (1, 2.0, [0, 1, 0])


def test_a_counter_that_began_anew_is_sent_whole() -> None:
    made, _, _ = registry()
    build = builder(made, "delta")
    before = build.build()
    build.acknowledge(before)
    fresh = CollectorRegistry()
    Counter("vllm:prompt_tokens", "Prompts.", ENGINE, registry=fresh).labels("0").inc(4)
    made.collect = fresh.collect  # type: ignore[method-assign]
    (point,) = points(build.build(), "vllm:prompt_tokens_total")
    # The times of both points do not overlap.
    assert (point.as_double, point.start_time_unix_nano) == (4, before.time)


def test_only_gauges_have_the_time_of_their_reading() -> None:
    """The differences of a counter adjoin: each begins at the time of the push before."""
    made, _, _ = registry()

    def more() -> Iterable[Series]:
        return (each._replace(observed=1000.5) for each in native_series(made, lambda _: False))

    build = PushBuilder(Store([]), temporality="delta", exponential=False, started=1.0, fresh=60.0, more=more)
    push = build.build()
    assert {point.time_unix_nano for point in points(push, "vllm:num_requests_running")} == {1_000_500_000_000}
    for name in ("vllm:prompt_tokens_total", "vllm:e2e_seconds"):
        assert {point.time_unix_nano for point in points(push, name)} == {push.time}


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_a_number_that_cannot_be_encoded_costs_no_other(temporality: str) -> None:
    made, counter, _ = registry()
    odd = Series(MetricInfo("odd", "", "", "histogram"), (), Reading(0, 1.0, (2**64, 1)), (1.0,))

    def more() -> Iterable[Series]:
        yield odd
        yield from native_series(made, lambda _: False)

    build = PushBuilder(Store([]), temporality=temporality, exponential=False, started=1.0, fresh=60.0, more=more)
    # Nothing is acknowledged, so a difference grows as a total does.
    for value in (7, 8):
        push = build.build()
        assert push.unencodable == 1
        assert next(points(push, "vllm:prompt_tokens_total")).as_double == value
        assert "odd" not in metrics(decoded(push))
        counter.labels("0").inc(1)
