"""What a receiver gets: every metric with its name, unit, kind, attributes, times and numbers."""

import math
import os
import time
import uuid
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1 import metrics_pb2

import vllm_vitals
from tests.unit.builders import AGE, EPOCH, MODEL, examples, facts, feed, finished, step
from tests.unit.exporters.prometheus.test_text import full_collector
from tests.unit.otlp import AGE as PROCESS_AGE
from tests.unit.otlp import (
    RECEIVERS,
    VERSION,
    HttpReceiver,
    Pusher,
    Receiver,
    attributes,
    decoded,
    identity,
    metrics,
    of,
)
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog import CATALOG, Gauge, Histogram, Metric
from vllm_vitals.catalog.engine import RUNNING
from vllm_vitals.config.settings import Settings
from vllm_vitals.exporters.otlp import encode as encode_module
from vllm_vitals.exporters.otlp.encode import PushBuilder
from vllm_vitals.exporters.otlp.resource import process_resource
from vllm_vitals.records.step import Finished, Step
from vllm_vitals.store.series import HistogramCell
from vllm_vitals.store.writers import scope_key

pytestmark = pytest.mark.versions

DELTA = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE
NANO = 10**9
BOUNDS = {
    "gen_ai.server.request.duration": [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96,
                                       81.92],
    "gen_ai.server.time_to_first_token": [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5,
                                          5.0, 7.5, 10.0],
    "gen_ai.server.time_per_output_token": [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5],
}  # fmt: skip
"""The convention's own words, not ours."""
GEN_AI = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": MODEL}

kinds = pytest.mark.parametrize("kind", RECEIVERS)


def label_values(metric: Metric[Any]) -> tuple[str, ...]:
    return tuple(next(filter(None, label.values), f"some {label.name}") for label in metric.labels)


def fill(pusher: Pusher) -> None:
    """Give every metric of the catalogue a series with something in it."""
    for metric in CATALOG:
        scope = scope_key(metric.scope, MODEL, "0", ("chat", "vllm"))
        family = pusher.aggregator.store[metric]
        if isinstance(metric, Histogram):
            bounds = pusher.aggregator._bounds[metric.buckets]
            family.histogram(scope, label_values(metric), bounds).extend([bounds[0], bounds[-1] * 2])
        elif isinstance(metric, Gauge):
            family.number(scope, label_values(metric)).set(0.5, time.time())
        else:
            family.number(scope, label_values(metric)).add(3)


def the(receiver: Receiver, name: str, **more: str) -> Any:
    """Return the point of a metric whose attributes include these."""
    found = [
        point
        for (metric, held), point in receiver.last.items()
        if metric == name
        and {each.replace("__", "."): value for each, value in more.items()}.items() <= dict(held).items()
    ]
    assert len(found) == 1
    return found[0]


def data(metric: Any) -> Any:
    return getattr(metric, metric.WhichOneof("data"))


@kinds
@pytest.mark.parametrize("temporality", ["cumulative", "delta", "lowmemory"])
@pytest.mark.parametrize("histograms", ["explicit", "exponential"])
def test_every_metric_arrives_as_it_is_declared(kind: Any, temporality: str, histograms: str) -> None:
    with kind().serve() as receiver:
        pusher = of(receiver, temporality=temporality, histograms=histograms)
        fill(pusher)
        assert pusher.push().ok
        pusher.close()
    got = metrics(receiver.received[-1].message)
    assert set(got) == {metric.name for metric in CATALOG}
    shape = {"counter": "sum", "gauge": "gauge",
             "histogram": "histogram" if histograms == "explicit" else "exponential_histogram"}  # fmt: skip
    for metric in CATALOG:
        made = got[metric.name]
        assert (made.name, made.unit, made.description) == (metric.name, metric.unit, metric.help)
        assert made.WhichOneof("data") == shape[metric.kind]
        if metric.kind != "gauge":
            assert data(made).aggregation_temporality == (CUMULATIVE if temporality == "cumulative" else DELTA)
        if metric.kind == "counter":
            assert made.sum.is_monotonic


def test_attributes_are_the_label_names_and_values() -> None:
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver)
        fill(pusher)
        pusher.push()
        pusher.close()
    for metric in CATALOG:
        scope = scope_key(metric.scope, MODEL, "0", ("chat", "vllm"))
        wanted = dict(zip(metric.labelnames, (*scope, *label_values(metric)), strict=True))
        wanted = {name: value for name, value in wanted.items() if value}
        given = [attributes(point) for point in data(metrics(receiver.received[-1].message)[metric.name]).data_points]
        assert wanted in given, metric.name


def test_an_empty_label_is_no_attribute() -> None:
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver)
        feed(pusher.aggregator, facts(info={"dtype": "bfloat16"}))
        pusher.push()
        pusher.close()
    assert attributes(the(receiver, "vllm.engine.info")) == {"model_name": MODEL, "engine": "0", "dtype": "bfloat16"}
    assert all(value for _, held in receiver.last for _, value in held)


def ended(reason: str) -> Step:
    return finished(Finished(reason, duration=1.0, decode=0.5, output_tokens=3, time_per_output_token=0.25))


def test_the_conventions_metrics_have_its_attributes_and_bounds() -> None:
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver)
        feed(pusher.aggregator, facts(), ended("stop"), ended("error"))
        pusher.push()
        pusher.close()
    got = metrics(receiver.received[-1].message)
    for name, bounds in BOUNDS.items():
        assert got[name].unit == "s"
        for point in got[name].histogram.data_points:
            assert list(point.explicit_bounds) == bounds
            assert attributes(point) in (GEN_AI, {**GEN_AI, "error.type": "error"})
    by_error = {attributes(point).get("error.type"): point.count for point in
                got["gen_ai.server.request.duration"].histogram.data_points}  # fmt: skip
    assert by_error == {None: 1, "error": 1}
    for name in ("gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token"):
        assert [(attributes(point), point.count) for point in got[name].histogram.data_points] == [(GEN_AI, 1)]


@kinds
def test_what_arrives_is_what_the_store_holds(kind: Any) -> None:
    with kind().serve() as receiver:
        pusher = of(receiver)
        pusher.aggregator = pusher.exporter._aggregator = full_collector()
        pusher.exporter._builder = PushBuilder(
            pusher.aggregator.store, temporality="cumulative", exponential=False, started=1.0, fresh=60.0
        )
        pusher.push()
        pusher.close()
    got, series = receiver.last, 0
    for family in pusher.aggregator.store:
        if family.metric.name.startswith("vitals.export"):
            continue  # counted when the push is over
        for key, cell in family.cells.items():
            pairs = zip(family.metric.labelnames, key, strict=True)
            point = got[family.metric.name, frozenset((name, value) for name, value in pairs if value)]
            series += 1
            if not isinstance(cell, HistogramCell):
                assert point.as_double == cell.value
                continue
            assert list(point.explicit_bounds) == list(cell.bounds)
            assert list(point.bucket_counts) == cell.counts
            assert (point.count, point.sum) == (sum(cell.counts), cell.total)
            if point.count:
                assert (point.min, point.max) == (cell.least, cell.greatest)
            else:
                assert not point.HasField("min")
                assert not point.HasField("max")
    assert series == sum(not name.startswith("vitals.export") for name, _ in got)


def test_exponential_points_hold_every_value() -> None:
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, histograms="exponential")
        for duration in (0.0, 0.5, 2.0, 300.0):
            feed(pusher.aggregator, finished(Finished("stop", duration=duration)))
        pusher.push()
        pusher.close()
    point = the(receiver, "vllm.request.duration")
    assert (point.count, point.sum, point.zero_count, point.min, point.max) == (4, 302.5, 1, 0.0, 300.0)
    assert sum(point.positive.bucket_counts) == 3
    assert len(point.negative.bucket_counts) == 0
    base = 2.0 ** (2.0**-point.scale)
    ends = [base ** (point.positive.offset + place + 1) for place, n in enumerate(point.positive.bucket_counts) if n]
    assert ends == pytest.approx([0.5, 2.0, 300.0], rel=base - 1)


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_start_times(temporality: str) -> None:
    born = time.time() - PROCESS_AGE
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, temporality=temporality)
        for clock in (10.0, 11.0, 12.0):
            feed(pusher.aggregator, step(clock, running=1))
            pusher.push()
        pusher.close()
    each = []
    for push in receiver.received:
        got = metrics(push.message)
        each.append(got["vitals.steps"].sum.data_points[0])
        ages = [point for metric in got.values() for point in data(metric).data_points]
        assert all(point.start_time_unix_nano <= point.time_unix_nano for point in ages)
        assert all(abs(point.time_unix_nano / NANO - time.time()) < 60 for point in [each[-1]])
    starts = [point.start_time_unix_nano for point in each]
    assert starts[0] / NANO == pytest.approx(born, abs=2)
    if temporality == "cumulative":
        assert len(set(starts)) == 1
        assert [point.as_double for point in each] == [1, 2, 3]
    else:
        assert starts[1:] == [point.time_unix_nano for point in each[:-1]]
        assert [point.as_double for point in each] == [1, 1, 1]


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_no_point_starts_after_its_time_though_the_clock_is_set_back(
    temporality: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, temporality=temporality)
        for late in (0, 3600):
            monkeypatch.setattr(time, "time_ns", lambda: now - late * NANO)  # noqa: B023
            feed(pusher.aggregator, step(10.0 + late, running=1))
            assert pusher.push().ok
        pusher.close()
    (point,) = metrics(receiver.received[-1].message)["vitals.steps"].sum.data_points
    assert point.start_time_unix_nano <= point.time_unix_nano == now - 3600 * NANO
    assert point.as_double == (2 if temporality == "cumulative" else 1)


class Clocks:
    """The system's clock, which may be set, and the one that only goes on."""

    def __init__(self) -> None:
        self.system, self.steady = 1_800_000_000 * NANO, 50_000 * NANO

    def time_ns(self) -> int:
        return self.system

    def monotonic_ns(self) -> int:
        return self.steady

    def go_on(self, seconds: float) -> None:
        self.system += int(seconds * NANO)
        self.steady += int(seconds * NANO)


# Seconds that pass, by how much the clock is set then, and whether the receiver takes the push.
turns = st.lists(
    st.tuples(
        st.floats(1e-6, 1e4),
        st.sampled_from([0.0, 0.0, 0.0, 1.0, -1e-6, -0.5, -30.0, -3600.0, -1e8, 1e8]) | st.floats(-1e5, 1e5),
        st.booleans(),
    ),
    max_size=12,
)


@examples(60)
@given(turns=turns)
@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_times_when_the_clock_is_set(temporality: str, turns: list[tuple[float, float, bool]]) -> None:
    clocks, aggregator = Clocks(), Aggregator(Settings())
    with patch.object(encode_module, "time", clocks):
        builder = PushBuilder(
            aggregator.store, temporality=temporality, exponential=False, started=clocks.system / NANO - 10, fresh=60.0
        )
        starts: list[int] = []
        acknowledged = 0
        for seconds, jump, taken in turns:
            clocks.go_on(seconds)
            clocks.system += int(jump * NANO)
            feed(aggregator, step(running=1))
            push = builder.build()
            (point,) = metrics(decoded(push))["vitals.steps"].sum.data_points
            assert 0 <= point.start_time_unix_nano < point.time_unix_nano == clocks.system
            starts.append(point.start_time_unix_nano)
            if temporality == "cumulative":
                # Lowered where it would lie in the future, and kept then.
                before = starts[-2] if len(starts) > 1 else starts[0]
                assert starts[-1] <= before
                assert starts[-1] == before or before >= clocks.system
            elif 0 < acknowledged < clocks.system:
                assert starts[-1] == acknowledged
            if taken:
                builder.acknowledge(push)
                acknowledged = push.time


def test_gauges_of_the_moment_have_the_time_of_their_step_while_it_is_fresh() -> None:
    now = time.time()
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, stale_after=60.0)
        feed(pusher.aggregator, Step(MODEL, "fresh", now - 5, 1.0, AGE, running=1))
        feed(pusher.aggregator, Step(MODEL, "quiet", now - 500, 1.0, AGE, running=0))
        feed(pusher.aggregator, facts(max_num_seqs=8))
        pusher.push()
        pusher.close()
    fresh, quiet = (the(receiver, "vllm.engine.requests.running", engine=engine) for engine in ("fresh", "quiet"))
    assert fresh.time_unix_nano / NANO == pytest.approx(now - 5, abs=0.01)
    assert quiet.time_unix_nano / NANO == pytest.approx(now, abs=5)
    fixed = the(receiver, "vllm.engine.requests.limit")
    assert fixed.time_unix_nano / NANO == pytest.approx(now, abs=5)
    assert {fresh.start_time_unix_nano, quiet.start_time_unix_nano, fixed.start_time_unix_nano} == {0}


def test_a_step_of_the_future_does_not_date_a_gauge() -> None:
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver)
        pusher.aggregator.store[RUNNING].number((MODEL, "0")).set(1, time.time() + 3600)
        pusher.push()
        pusher.close()
    assert the(receiver, "vllm.engine.requests.running").time_unix_nano / NANO == pytest.approx(time.time(), abs=5)


@pytest.mark.parametrize("histograms", ["explicit", "exponential"])
def test_exemplars_bring_the_request_id(histograms: str) -> None:
    now = time.time()
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, exemplars=True, histograms=histograms)
        request = Finished("stop", time=now, duration=1.25, request_id="r-1")
        feed(pusher.aggregator, finished(request))
        pusher.push()
        pusher.close()
    (exemplar,) = the(receiver, "vllm.request.duration").exemplars
    assert [(each.key, each.value.string_value) for each in exemplar.filtered_attributes] == [("request_id", "r-1")]
    assert exemplar.as_double == 1.25
    assert exemplar.time_unix_nano / NANO == pytest.approx(now, abs=0.01)
    assert (exemplar.trace_id, exemplar.span_id) == (b"", b"")


def test_a_difference_has_the_exemplars_of_its_time_only() -> None:
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, exemplars=True, temporality="delta")
        for name, duration in (("old", 0.1), ("new", 30.0)):
            feed(pusher.aggregator, finished(Finished("stop", time=time.time(), duration=duration, request_id=name)))
            pusher.push()
        pusher.close()
    (exemplar,) = the(receiver, "vllm.request.duration").exemplars
    assert exemplar.filtered_attributes[0].value.string_value == "new"


def test_without_the_setting_there_are_no_exemplars() -> None:
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver)
        feed(pusher.aggregator, finished(Finished("stop", time=EPOCH, duration=1.25, request_id="r-1")))
        pusher.push()
        pusher.close()
    assert list(the(receiver, "vllm.request.duration").exemplars) == []


@pytest.mark.parametrize(
    "name", ["\ud800", "a\x00b", "\N{PILE OF POO}", "x" * 5000], ids=["surrogate", "nul", "poo", "long"]
)
def test_a_strange_name_costs_nothing_but_itself(name: str, caplog: pytest.LogCaptureFixture) -> None:
    request = Finished("stop", time=time.time(), duration=1.25, request_id=name)
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, exemplars=True)
        feed(pusher.aggregator, finished(request, running=1, lora_running={name: 1}))
        assert pusher.push().ok
        pusher.close()
    assert the(receiver, "vllm.request.duration").count == 1
    (adapter,) = (dict(held)["adapter"] for metric, held in receiver.last if metric == "vllm.lora.requests")
    assert adapter
    assert caplog.records == []


# --- Who pushes


@kinds
def test_the_resource_says_who_pushes(kind: Any) -> None:
    with kind().serve() as receiver:
        pusher = of(receiver, service_name="chat", resource={"team": "a", "host.name": "mine"})
        pusher.push()
        pusher.push()
        pusher.close()
    first, second = (identity(push.message) for push in receiver.received)
    assert first == second
    assert uuid.UUID(first["service.instance.id"])
    expected = {"service.name": "chat", "service.version": VERSION, "team": "a", "host.name": "mine",
                "process.pid": os.getpid()}  # fmt: skip
    assert expected.items() <= first.items()
    assert first["host.arch"] in ("amd64", os.uname().machine, "arm64")
    (scope,) = receiver.received[-1].message.resource_metrics[0].scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("vllm_vitals", vllm_vitals.__version__)


def test_a_restart_is_another_instance_with_a_start_of_its_own() -> None:
    with HttpReceiver().serve() as receiver:
        for _ in range(2):
            pusher = of(receiver)
            feed(pusher.aggregator, step(10.0, running=1))
            pusher.push()
            pusher.close()
    before, after = receiver.received
    assert identity(before.message)["service.instance.id"] != identity(after.message)["service.instance.id"]
    starts = [metrics(each.message)["vitals.steps"].sum.data_points[0].start_time_unix_nano for each in (before, after)]
    assert starts[0] < starts[1]


def test_a_pod_is_named_by_the_downward_api() -> None:
    environ = {
        "KUBERNETES_SERVICE_HOST": "x",
        "POD_NAME": "p-0",
        "POD_NAMESPACE": "ns",
        "NODE_NAME": "n",
        "K8S_POD_UID": "",
    }
    found = process_resource(environ, service="vllm", version="1", attributes={}).attributes
    named = {"k8s.pod.name": "p-0", "k8s.namespace.name": "ns", "k8s.node.name": "n"}
    assert {name: value for name, value in found.items() if name.startswith("k8s.")} == named
    del environ["KUBERNETES_SERVICE_HOST"]
    found = process_resource(environ, service="vllm", version="1", attributes={}).attributes
    assert not any(name.startswith("k8s.") for name in found)


def test_every_value_is_a_number() -> None:
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver)
        fill(pusher)
        pusher.push()
        pusher.close()
    numbers = [point.as_double for point in receiver.last.values() if hasattr(point, "as_double")]
    assert numbers
    assert all(map(math.isfinite, numbers))


def test_encoded_fields_are_made_once_and_forgotten_when_nobody_needs_them() -> None:
    made: list[str] = []

    def encode(key: str) -> bytes:
        made.append(key)
        return key.encode()

    recent = encode_module.Recent[str](encode)
    for push in range(10 * encode_module.PUSHES_REMEMBERED):
        recent.begin()
        assert recent.get("always") == b"always"
        assert recent.get(f"only {push}") == f"only {push}".encode()
    assert made.count("always") == 1
    assert len(recent._now) + len(recent._before) <= 2 * encode_module.PUSHES_REMEMBERED + 2


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_a_series_that_did_not_change_is_not_encoded_again(temporality: str, monkeypatch: pytest.MonkeyPatch) -> None:
    aggregator = full_collector()
    builder = PushBuilder(aggregator.store, temporality=temporality, exponential=False, started=1.0, fresh=60.0)
    first = builder.build()
    builder.acknowledge(first)
    encoded: list[str] = []
    plain = builder._encode
    monkeypatch.setattr(
        builder,
        "_encode",
        lambda shape, series, *more: encoded.append(series.metric.name) or plain(shape, series, *more),
    )
    second = builder.build()
    assert encoded == []
    aggregator.store[RUNNING].number((MODEL, "0")).set(77, time.time())
    third = builder.build()
    assert encoded == [RUNNING.name]
    before, after = metrics(decoded(second)), metrics(decoded(third))
    assert set(before) == set(after)
    lasting = {metric.name for metric in CATALOG if not getattr(metric, "expires", False)} & set(after)
    assert lasting
    assert all(point.time_unix_nano == third.time for name in lasting for point in data(after[name]).data_points)
    assert 77 in [point.as_double for point in after[RUNNING.name].gauge.data_points]
    for message in (*before.values(), *after.values()):
        for point in data(message).data_points:
            point.ClearField("time_unix_nano")
    changed = [name for name in after if data(after[name]) != data(before[name])]
    assert changed == [RUNNING.name]
