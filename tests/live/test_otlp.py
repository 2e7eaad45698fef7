"""A real vLLM that pushes to a real collector, which is away for a while: everything arrives, once."""

import math
from typing import NamedTuple

import pytest

from tests.live.collector import Sink
from tests.live.fleet import Fleet
from tests.live.layouts import Shared
from tests.live.load import put_load
from tests.live.pages import TIMED, eventually, settled
from tests.parity import Samples, parse, value
from vllm_vitals.catalog import CATALOG, self_metrics

KINDS = {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}
MOVING = {metric.name for metric in (*self_metrics.SELF, *TIMED)}
"""Metrics that move while nothing happens: those on the exports themselves."""


class Pushed(NamedTuple):
    """A server whose collector was absent, came, was killed under load and came back; and our page at rest then."""

    shared: Shared
    sink: Sink
    page: Samples


@pytest.fixture(scope="module", params=["roomy", "narrow"])
def pushed(request: pytest.FixtureRequest, fleet: Fleet) -> Pushed:
    shared: Shared = fleet.get(request.param)
    server, sink, rotel = shared.server, shared.sink, shared.rotel
    assert sink is not None
    assert rotel is not None
    put_load(server, count=20, seed=1)
    assert eventually(lambda: sink.pushes > 0)
    failures = server.log.read_text().count(" failed: ")
    rotel.kill()
    put_load(server, count=20, seed=2)
    assert eventually(lambda: server.log.read_text().count(" failed: ") > failures)
    rotel.start()
    _, page = settled(server)
    generated = value(page, "vllm_tokens_generation_total")
    assert eventually(lambda: sink.total("vllm.tokens.generation") == generated), (
        sink.total("vllm.tokens.generation"), generated,
    )  # fmt: skip
    return Pushed(shared, sink, page)


def test_every_number_arrives_and_none_twice(pushed: Pushed) -> None:
    shared, sink, page = pushed
    later, compared = parse(shared.server.vitals_text()), 0
    for metric in CATALOG:
        if metric.name in MOVING or metric.kind == "gauge" or metric.name.startswith("hw."):  # a GPU goes on
            continue
        name = metric.prometheus if metric.kind == "counter" else f"{metric.prometheus}_sum"
        shown = value(page, name)
        if math.isnan(shown) or shown != value(later, name):
            continue
        compared += 1
        assert math.isclose(sink.total(metric.name), shown, rel_tol=1e-9, abs_tol=1e-9), metric.name
        if metric.kind == "histogram":
            assert sum(sink.counts[metric.name].values()) == value(page, f"{metric.prometheus}_count"), metric.name
    assert compared > 40


def test_kinds_and_units_are_the_catalogues(pushed: Pushed) -> None:
    shared, sink, page = pushed
    _, _, histograms = shared.way
    exposed = [metric for metric in CATALOG if any(name.startswith(metric.prometheus) for name in page)]
    assert len(exposed) > 40
    for metric in exposed:
        kind = KINDS[metric.kind]
        kind = "exponential_histogram" if kind == "histogram" and histograms == "exponential" else kind
        assert sink.described[metric.name] == (kind, metric.unit), metric.name


def test_gauges_are_those_of_the_idle_engine(pushed: Pushed) -> None:
    _, sink, page = pushed
    assert eventually(lambda: sink.total("vllm.engine.requests.running") == 0)
    assert sink.total("vllm.kv_cache.capacity") == value(page, "vllm_kv_cache_capacity")


def test_one_identity_for_one_process(pushed: Pushed) -> None:
    shared, sink, _ = pushed
    (resource,) = sink.resources
    told = dict(resource)
    assert told["service.name"] == "vllm"
    assert told["deployment.environment.name"] == "test"
    assert told["process.pid"] == str(shared.server.pid)
    assert len(told["service.instance.id"]) == 36


def test_the_log_tells_the_outage_once_and_its_end(pushed: Pushed) -> None:
    server = pushed.shared.server
    assert eventually(lambda: server.log.read_text().count("succeeds again") >= 2)  # said after the answer
    lines = [line for line in server.log.read_text().splitlines() if "vllm-vitals: OTLP" in line]
    assert sum("OTLP push:" in line for line in lines) == 1
    assert sum("succeeds again" in line for line in lines) == 2
    assert 2 <= sum(" failed: " in line for line in lines) <= 4, lines
    assert "opentelemetry" not in "".join(lines)


@pytest.mark.parametrize("layout", ["roomy", "narrow"])
def test_vllms_own_metrics_are_pushed_too(layout: str, fleet: Fleet) -> None:
    """One server reads them from its registry, the other from its page."""
    shared: Shared = fleet.get(layout)
    server, sink = shared.server, shared.sink
    assert sink is not None
    put_load(server, count=20, disconnects=False)
    native, ours = settled(server)
    for name in ("vllm:generation_tokens_total", "vllm:prompt_tokens_total"):
        expected = value(native, name)
        assert eventually(lambda: sink.total(name) == expected), (name, sink.total(name), expected)  # noqa: B023
    latency = "vllm:e2e_request_latency_seconds"
    assert eventually(lambda: sum(sink.counts[latency].values()) == value(native, f"{latency}_count"))
    assert eventually(lambda: sink.total("vllm.tokens.generation") == value(ours, "vllm_tokens_generation_total"))
    # Before the first push that was taken there may have been no page of vLLM's yet.
    assert "could not be read" not in server.log.read_text().partition("succeeds again")[2]


def test_a_registry_that_hangs_costs_neither_requests_nor_pushes(roomy: Shared) -> None:
    server, sink, hang = roomy.server, roomy.sink, roomy.home / "hang"
    assert sink is not None
    theirs, ours = "vllm:generation_tokens_total", "vllm.tokens.generation"
    late = "vLLM's own metrics take long to be read"
    before = value(settled(server)[0], theirs)
    assert eventually(lambda: sink.total(theirs) == before), (sink.total(theirs), before)
    warnings = server.log.read_text().count(late)
    hang.touch()
    try:
        assert eventually(lambda: server.log.read_text().count(late) > warnings)
        pushes = sink.pushes
        put_load(server, count=20, seed=1, disconnects=False)
        native, page = settled(server)
        generated = value(page, "vllm_tokens_generation_total")
        assert eventually(lambda: sink.total(ours) == generated), (sink.total(ours), generated)
        assert eventually(lambda: sink.pushes > pushes + 2)
        assert sink.total(theirs) == before < value(native, theirs)
    finally:
        hang.unlink()
    assert eventually(lambda: sink.total(theirs) == value(native, theirs)), sink.total(theirs)
    assert server.log.read_text().count(late) == warnings + 1
