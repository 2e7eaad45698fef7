"""The store as a collector in somebody's registry."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tests.unit.builders import ENGINE, Clock, Sight, collect, facts, feed, finished, step
from vllm_vitals.catalog import CATALOG
from vllm_vitals.exporters.prometheus.registry import VitalsCollector
from vllm_vitals.records.step import Finished

KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def test_every_metric_becomes_a_family_of_its_kind() -> None:
    made = list(VitalsCollector(collect(facts())).collect())
    assert len(made) == len(CATALOG)
    for metric, family in zip(CATALOG, made, strict=True):
        assert isinstance(family, KINDS[metric.kind])
        assert family.name == metric.prometheus.removesuffix("_total")
        assert (family.documentation, family.unit) == (metric.help, metric.prometheus_unit)


def test_a_histogram_is_cumulated() -> None:
    requests = [Finished("stop", duration=value) for value in (0.1, 0.4, 0.5, 1e4)]
    see = Sight(collect(finished(*requests)))
    bucket = "vllm_request_duration_seconds_bucket"
    counts = [see(bucket, **ENGINE, le=le) for le in ("0.3", "0.5", "0.8", "7680.0", "+Inf")]
    assert counts == [1, 3, 3, 3, 4]
    assert see("vllm_request_duration_seconds_sum", **ENGINE) == pytest.approx(1e4 + 1.0)


def test_each_collection_shows_the_numbers_as_they_are_then(clock: Clock) -> None:
    aggregator = collect(step(clock.now, running=1))
    see = Sight(aggregator)
    assert see("vllm_engine_requests_running", **ENGINE) == 1
    feed(aggregator, step(clock.now, running=2))
    assert see("vllm_engine_requests_running", **ENGINE) == 2
    clock.now += 30
    assert see("vitals_step_age_seconds", **ENGINE) == 30


def test_registering_does_not_collect() -> None:
    aggregator = collect()
    aggregator.refresh = lambda *_: pytest.fail("collected")  # type: ignore[method-assign]
    CollectorRegistry(auto_describe=True).register(VitalsCollector(aggregator))


def test_families_are_there_only_once_in_a_registry_with_others() -> None:
    registry = Sight(collect(facts())).registry
    names = [family.name for family in registry.collect()]
    assert len(names) == len(set(names))
    assert generate_latest(registry).startswith(b"# HELP ")
