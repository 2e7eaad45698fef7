"""Pushes are, byte for byte of their content, those that OpenTelemetry's own encoder makes of the same series."""

import math
import random
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.sdk.metrics import Exemplar as OfficialExemplar
from opentelemetry.sdk.metrics import export as official
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import vllm_vitals
from tests.unit.exporters.prometheus.test_text import full_collector
from tests.unit.otlp import decoded, metrics
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.exporters.otlp.encode import METRICS, PushBuilder, encode_request, varint
from vllm_vitals.exporters.otlp.resource import encode_resource
from vllm_vitals.exporters.otlp.series import NANOSECONDS, MetricInfo, Series
from vllm_vitals.store.series import Exemplar, Exponential, Reading
from vllm_vitals.store.store import Store, snapshot

STARTED = 1_700_000_000
RESOURCE = Resource({"service.name": "vllm", "process.pid": 7, "\N{SNOWMAN}": "\N{PILE OF POO}"})


def series_of(aggregator: Aggregator) -> Iterator[Series]:
    """Yield the series of a store, whose gauges of the moment are too old to have a time of their own."""
    for metric, shown in snapshot(aggregator.store):
        info = MetricInfo(metric.name, metric.help, metric.unit, metric.kind)
        for key, cell, reading in shown:
            assert reading is not None
            labels = tuple(pair for pair in zip(metric.labelnames, key, strict=True) if pair[1])
            yield Series(info, labels, reading, getattr(cell, "bounds", ()))


def encoded_officially(series: Iterable[Series], now: int, *, exponential: bool) -> Any:
    """Return series as OpenTelemetry's encoder writes them."""
    found = []
    for info, same in groupby(series, lambda each: each.metric):
        points = [point(each, now, exponential=exponential) for each in same]
        data: Any
        if info.kind == "counter":
            data = official.Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        elif info.kind == "gauge":
            data = official.Gauge(points)
        elif exponential:
            data = official.ExponentialHistogram(points, AggregationTemporality.CUMULATIVE)
        else:
            data = official.Histogram(points, AggregationTemporality.CUMULATIVE)
        found.append(official.Metric(info.name, info.help, info.unit, data))
    scope = InstrumentationScope("vllm_vitals", vllm_vitals.__version__)
    scopes = [official.ScopeMetrics(scope, found, "")]
    return encode_metrics(MetricsData([official.ResourceMetrics(RESOURCE, scopes, "")]))


def point(series: Series, now: int, *, exponential: bool) -> Any:
    reading, attributes, start = series.reading, dict(series.labels), STARTED * NANOSECONDS
    if series.metric.kind != "histogram":
        gauge = series.metric.kind == "gauge"
        return official.NumberDataPoint(attributes, 0 if gauge else start, now, reading.value)
    count = sum(reading.counts)
    some = count and math.isfinite(reading.least)
    extremes: Any = (reading.least, reading.greatest) if some else (None, None)
    exemplars = [
        OfficialExemplar({"request_id": each.request_id}, each.value, int(each.time * NANOSECONDS))
        for each in reading.exemplars.values()
        if each.time >= STARTED
    ]
    buckets = reading.exponential
    if exponential and buckets is not None:
        positive, negative = official.Buckets(buckets.offset, buckets.counts.tolist()), official.Buckets(0, [])
        return official.ExponentialHistogramDataPoint(
            attributes, start, now, count, reading.value, buckets.scale, buckets.zeros, positive, negative, 0, *extremes,
            exemplars,
        )  # fmt: skip
    return official.HistogramDataPoint(
        attributes, start, now, count, reading.value, list(reading.counts), series.bounds, *extremes, exemplars
    )


def build(store: Store, series: Iterable[Series] = (), *, exponential: bool) -> tuple[Any, int]:
    """Return a push as a receiver decodes it, and its time."""
    more = list(series)
    builder = PushBuilder(
        store, temporality="cumulative", exponential=exponential, started=STARTED, fresh=0.0, more=lambda: more
    )
    push = builder.build()
    return ExportMetricsServiceRequest.FromString(encode_request(encode_resource(RESOURCE), push.metrics)), push.time


@pytest.mark.versions
@pytest.mark.parametrize("exponential", [False, True])
def test_a_store_is_encoded_as_officially(*, exponential: bool) -> None:
    aggregator = full_collector(exemplars=True, otlp={"histograms": "exponential" if exponential else "explicit"})
    aggregator.refresh()
    got, now = build(aggregator.store, exponential=exponential)
    assert got == encoded_officially(series_of(aggregator), now, exponential=exponential)
    assert len(metrics(got)) > 50


@pytest.mark.versions
@pytest.mark.parametrize("exponential", [False, True])
def test_series_of_all_sizes_are_encoded_as_officially(*, exponential: bool) -> None:
    """Lengths of one to four bytes, numbers at their ends, many points."""
    rng = random.Random(5)
    series = list(odd_series(rng))
    got, now = build(Store([]), series, exponential=exponential)
    assert got == encoded_officially(series, now, exponential=exponential)
    assert got.ByteSize() > 2**21


def odd_series(rng: random.Random) -> Iterator[Series]:
    numbers = (0.0, -0.0, 5e-324, 1e308, 2.0**63, 0.1, math.inf, -math.inf)
    for size in (0, 1, 126, 127, 128, 16_000, 17_000):
        for kind in ("counter", "gauge", "histogram"):
            info = MetricInfo(f"{kind}.{size}", "h" * size, "\N{MICRO SIGN}s", kind)
            for place in range(20):
                labels = (("place", str(place)), ("long", "\N{SNOWMAN}" * size))
                if kind != "histogram":
                    yield Series(info, labels, Reading(0, rng.choice(numbers)))
                    continue
                counts = [rng.choice((0, 1, 127, 128, 2**32, 2**53)) for _ in range(rng.randrange(1, 40))]
                bounds = tuple(float(bound) for bound in range(len(counts) - 1))
                buckets = Exponential()
                if place:
                    buckets.add(_array(rng))
                exemplars = {
                    0: Exemplar("r-1", 0.5, STARTED + 5.0),
                    1: Exemplar("before the start", 0.5, STARTED - 5.0),
                }
                yield Series(info, labels, Reading(0, 2.5, counts, exemplars, buckets, 0.0, 7.0), bounds)


def _array(rng: random.Random) -> Any:
    import numpy as np

    return np.array([rng.choice((0.0, 1e-9, 0.5, 300.0, 1e9)) for _ in range(30)])


def test_a_push_of_nothing_is_a_request_without_metrics() -> None:
    got, _ = build(Store([]), exponential=False)
    assert got == encoded_officially([], 0, exponential=False)
    assert decoded(PushBuilder(Store([]), temporality="delta", exponential=False, started=1.0, fresh=0.0).build())


def test_lengths_are_written_as_protobuf_does() -> None:
    for number in (0, 1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**31):
        assert pb.NumberDataPoint(flags=number).SerializeToString() == (b"\x40" + varint(number) if number else b"")
    for size in (0, 127, 128, 20_000):
        metric = pb.Metric(name="n" * size)
        assert METRICS.wrap(metric.SerializeToString()) == pb.ScopeMetrics(metrics=[metric]).SerializeToString()
