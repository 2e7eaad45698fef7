"""A real vLLM that pushes to a real collector, which is away for a while: everything arrives, once."""

import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.collector import Rotel, Sink
from tests.live.conftest import put_load
from tests.live.pages import TIMED, eventually, settled
from tests.live.server import VllmServer, free_port
from tests.parity import Samples, value
from vllm_vitals.catalog import CATALOG, itself

KINDS = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}
CASES = [("grpc", "delta", "explicit"), ("http/protobuf", "cumulative", "exponential")]
"""The other way round than in `test_outages.py`."""
MOVING = {metric.name for metric in (*itself.ITSELF, *TIMED)}
"""Metrics that move while nothing happens: those on the exports themselves."""

# Put into the server's processes by Python itself, before vLLM is there.
HANGING = """
import os, threading, time
from prometheus_client import REGISTRY


class Hanging:
    def describe(self):
        return []

    def collect(self):
        while threading.current_thread().name.startswith("vitals") and os.path.exists(os.environ["HANG"]):
            time.sleep(0.05)
        return []


REGISTRY.register(Hanging())
"""


@pytest.fixture(scope="module", params=CASES, ids=["-".join(case) for case in CASES])
def pushed(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Give sink, page and log of a server whose collector was absent, came, was killed under load, and came back."""
    protocol, temporality, histograms = request.param
    sink = Sink()
    rotel = Rotel(sink, tmp_path_factory.mktemp("rotel"))
    aggregation = "base2_exponential_bucket_histogram" if histograms == "exponential" else "explicit_bucket_histogram"
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": rotel.endpoint(protocol),
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": temporality,
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": aggregation,
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    try:
        with VllmServer(model, env=environment) as server:
            put_load(server, count=30)
            assert eventually(lambda: " failed: " in server.log.read_text())
            rotel.start()
            put_load(server, count=30, seed=1)
            assert eventually(lambda: sink.pushes > 0)
            rotel.kill()
            put_load(server, count=30, seed=2)
            time.sleep(3)
            rotel.start()
            _, page = settled(server)
            generated = value(page, "vllm_tokens_generation_total")
            assert eventually(lambda: sink.total("vllm.tokens.generation") == generated), (
                sink.total("vllm.tokens.generation"), generated,
            )  # fmt: skip
            yield sink, page, server, request.param
    finally:
        rotel.kill()
        sink.close()


def test_every_number_arrives_and_none_twice(pushed: tuple[Sink, Samples, VllmServer, Any]) -> None:
    sink, page, _, _ = pushed
    for metric in CATALOG:
        if metric.name in MOVING or metric.kind == "gauge":
            continue
        shown = value(page, metric.prometheus if metric.kind == "counter" else f"{metric.prometheus}_sum")
        if math.isnan(shown):
            continue
        assert math.isclose(sink.total(metric.name), shown, rel_tol=1e-9, abs_tol=1e-9), metric.name
        if metric.kind == "histogram":
            assert sum(sink.counts[metric.name].values()) == value(page, f"{metric.prometheus}_count"), metric.name


def test_kinds_and_units_are_the_catalogues(pushed: tuple[Sink, Samples, VllmServer, Any]) -> None:
    sink, page, _, (_, _, histograms) = pushed
    exposed = [metric for metric in CATALOG if any(name.startswith(metric.prometheus) for name in page)]
    assert len(exposed) > 40
    for metric in exposed:
        kind = KINDS[metric.kind]
        kind = "exponential_histogram" if kind == "histogram" and histograms == "exponential" else kind
        assert sink.described[metric.name] == (kind, metric.unit), metric.name


def test_gauges_are_those_of_the_idle_engine(pushed: tuple[Sink, Samples, VllmServer, Any]) -> None:
    sink, page, _, _ = pushed
    assert sink.total("vllm.engine.requests.running") == 0
    assert sink.total("vllm.kv_cache.capacity") == value(page, "vllm_kv_cache_capacity")


def test_one_identity_for_one_process(pushed: tuple[Sink, Samples, VllmServer, Any]) -> None:
    sink, _, server, _ = pushed
    (resource,) = sink.resources
    told = dict(resource)
    assert told["service.name"] == "vllm"
    assert told["deployment.environment.name"] == "test"
    assert told["process.pid"] == str(server.pid)
    assert len(told["service.instance.id"]) == 36


def test_the_log_tells_the_outage_once_and_its_end(pushed: tuple[Sink, Samples, VllmServer, Any]) -> None:
    _, _, server, _ = pushed
    assert eventually(lambda: server.log.read_text().count("succeeds again") >= 2)  # said after the answer
    lines = [line for line in server.log.read_text().splitlines() if "vllm-vitals: OTLP" in line]
    assert sum("OTLP push:" in line for line in lines) == 1
    assert sum("succeeds again" in line for line in lines) == 2
    assert 2 <= sum(" failed: " in line for line in lines) <= 4, lines
    assert "opentelemetry" not in "".join(lines)


def test_a_registry_that_hangs_costs_neither_requests_nor_pushes(model: Path, tmp_path: Path) -> None:
    sink, hang = Sink(), tmp_path / "hang"
    (tmp_path / "sitecustomize.py").write_text(HANGING)
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "VITALS_OTLP__INCLUDE_NATIVE": "true",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])),
        "HANG": str(hang),
    }
    theirs, ours = "vllm:generation_tokens_total", "vllm.tokens.generation"
    late = "vLLM's own metrics take long to be read"
    try:
        with VllmServer(model, env=environment) as server:
            put_load(server, count=13, disconnects=False)
            before = value(settled(server)[0], theirs)
            assert eventually(lambda: sink.total(theirs) == before), (sink.total(theirs), before)
            hang.touch()
            assert eventually(lambda: late in server.log.read_text())
            pushes = sink.pushes
            put_load(server, count=20, seed=1, disconnects=False)
            native, page = settled(server)
            generated = value(page, "vllm_tokens_generation_total")
            assert eventually(lambda: sink.total(ours) == generated), (sink.total(ours), generated)
            assert eventually(lambda: sink.pushes > pushes + 5)
            assert sink.total(theirs) == before < value(native, theirs)
            hang.unlink()
            assert eventually(lambda: sink.total(theirs) == value(native, theirs)), sink.total(theirs)
            assert server.log.read_text().count(late) == 1
    finally:
        sink.close()


@pytest.mark.parametrize("source", ["registry", "url"])
def test_vllms_own_metrics_are_pushed_too(source: str, model: Path) -> None:
    sink, port = Sink(), free_port()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "VITALS_OTLP__INCLUDE_NATIVE": "true",
    }
    if source == "url":
        environment["VITALS_NATIVE__URL"] = f"http://127.0.0.1:{port}/metrics"
    try:
        with VllmServer(model, env=environment, port=port) as server:
            put_load(server, count=20, disconnects=False)
            native, ours = settled(server)
            for name in ("vllm:generation_tokens_total", "vllm:prompt_tokens_total"):
                expected = value(native, name)
                assert eventually(lambda: sink.total(name) == expected), (name, sink.total(name), expected)  # noqa: B023
            latency = "vllm:e2e_request_latency_seconds"
            assert sum(sink.counts[latency].values()) == value(native, f"{latency}_count")
            assert sink.total("vllm.tokens.generation") == value(ours, "vllm_tokens_generation_total")
            assert "could not be read" not in server.log.read_text()
    finally:
        sink.close()
