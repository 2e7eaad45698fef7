"""Somebody else's OpenTelemetry in the same process: neither side sees, replaces or ends what is the other's."""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tests.unit.builders import MODEL
from tests.unit.fake_vllm import QUIET
from tests.unit.otlp import GrpcReceiver, HttpReceiver, metrics, of, points
from vllm_vitals.catalog import CATALOG

STEPS = ("vitals.steps", frozenset({("model_name", MODEL), ("engine", "0")}))
OTHER = {HttpReceiver: GrpcReceiver, GrpcReceiver: HttpReceiver}

PROCESS = """
import atexit, json, sys
from types import SimpleNamespace

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.unit.fake_vllm import FakeVllm

reader, spans, ended = InMemoryMetricReader(), InMemorySpanExporter(), []


class Meters(MeterProvider):
    def shutdown(self, *args, **kwargs):
        ended.append("meters")
        super().shutdown(*args, **kwargs)


class Tracers(TracerProvider):
    def shutdown(self, *args, **kwargs):
        ended.append("tracers")
        super().shutdown(*args, **kwargs)


meters, tracers = Meters([reader]), Tracers()
tracers.add_span_processor(SimpleSpanProcessor(spans))


def work(name):
    metrics.get_meter(name).create_counter(f"theirs.{name}").add(1)
    with trace.get_tracer(name).start_as_current_span(f"theirs.{name}"):
        pass


def theirs():
    metrics.set_meter_provider(meters)
    trace.set_tracer_provider(tracers)
    work("first")


def ours():
    global logger
    vllm = FakeVllm()
    sys.modules.update(vllm.modules)
    (logger,) = vllm.start("otlp")
    push()


def push():
    from vllm_vitals.deployment import runtime
    logger.record(SimpleNamespace(num_running_reqs=1), None, None, 0)
    assert runtime.runtime().exporters["vitals_otlp"].push(5.0).ok


@atexit.register  # before ours is, so after ours has ended
def tell():
    work("last")
    found = [metric for each in reader.get_metrics_data().resource_metrics for scope in each.scope_metrics
             for metric in scope.metrics]
    print(json.dumps({
        "kept": [metrics.get_meter_provider() is meters, trace.get_tracer_provider() is tracers],
        "metrics": {metric.name: [point.value for point in metric.data.data_points] for metric in found},
        "spans": [span.name for span in spans.get_finished_spans()],
        "ended": ended,
    }))


for begin in (theirs, ours) if sys.argv[1] == "theirs" else (ours, theirs):
    begin()
work("later")
push()
logger.record(SimpleNamespace(num_running_reqs=1), None, None, 0)
"""


def run(first: str, environment: dict[str, str]) -> Any:
    """Return what the others tell at the end of a process in which they, or we, came first."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROCESS, first],
        env={**QUIET, "NO_PROXY": "*", "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("first", "kind"), [("theirs", HttpReceiver), ("theirs", GrpcReceiver), ("ours", HttpReceiver)]
)
def test_global_providers_and_ours_have_nothing_to_do_with_each_other(first: str, kind: Any) -> None:
    with kind().serve() as receiver, OTHER[kind]().serve() as tracing:
        told = run(
            first,
            {
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{receiver.endpoint}/v1/metrics",
                "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": kind.protocol,
                "OTEL_METRIC_EXPORT_INTERVAL": "3600000",
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_TRACES_SAMPLER": "always_on",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": tracing.endpoint,
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": tracing.protocol,
                "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=theirs",
                "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1",
            },
        )
    names = ["theirs.first", "theirs.last", "theirs.later"]
    assert told["kept"] == [True, True]
    assert told["metrics"] == {name: [1] for name in names}
    assert sorted(told["spans"]) == names
    assert told["ended"] == []
    assert [points(push.message)[STEPS].as_double for push in receiver.received] == [1, 2, 3]
    pushed = {name for push in receiver.received for name in metrics(push.message)}
    assert pushed <= {metric.name for metric in CATALOG}
    assert not [push for push in receiver.received if "authorization" in push.headers]
    assert tracing.received == []


def test_a_client_that_somebody_instruments_is_asked_to_leave_pushes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for opentelemetry-instrumentation, which is loaded wherever a client is instrumented."""
    suppressed, seen = threading.local(), list[bool]()

    @contextlib.contextmanager
    def suppress_instrumentation() -> Iterator[None]:
        suppressed.active = True
        yield
        suppressed.active = False

    plain = grpc.insecure_channel

    def instrumented(*args: Any, **kwargs: Any) -> Any:
        channel = plain(*args, **kwargs)

        def unary_unary(method: str) -> Callable[..., Any]:
            call = channel.unary_unary(method)

            def export(*args: Any, **kwargs: Any) -> Any:
                seen.append(suppressed.active)
                return call(*args, **kwargs)

            return export

        return SimpleNamespace(unary_unary=unary_unary, close=channel.close)

    utils = SimpleNamespace(suppress_instrumentation=suppress_instrumentation)
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.utils", utils)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(grpc, "insecure_channel", instrumented)
    with GrpcReceiver().serve() as receiver:
        pusher = of(receiver)
        assert pusher.push().ok
        pusher.close()
    assert seen == [True]
