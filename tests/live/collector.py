"""A real OpenTelemetry collector, and the receiver behind it that keeps what it forwards."""

import gzip
import http.server
import math
import subprocess
import threading
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from tests.live.server import free_port

Labels = frozenset[tuple[str, str]]
UNSPECIFIED, DELTA, CUMULATIVE = range(3)
"""Aggregation temporalities as OTLP numbers them; gauges have none."""


class Totals:
    """What pushes add up to, by metric and attributes, whatever the temporality."""

    def __init__(self) -> None:
        self.totals: dict[str, dict[Labels, float]] = defaultdict(dict)
        self.counts: dict[str, dict[Labels, int]] = defaultdict(dict)
        self.described: dict[str, tuple[str, str]] = {}
        self.temporalities: dict[str, int] = {}
        self.resources: set[Labels] = set()
        self.pushes = 0
        self._taking = threading.RLock()
        """Held while a push is taken, so that nobody sees a part of it."""

    def take(self, request: ExportMetricsServiceRequest) -> None:
        with self._taking:
            self._take(request)

    def _take(self, request: ExportMetricsServiceRequest) -> None:
        self.pushes += 1
        for group in request.resource_metrics:
            self.resources.add(_labels(group.resource.attributes))
            for metric in (metric for scope in group.scope_metrics for metric in scope.metrics):
                kind = metric.WhichOneof("data")
                self.described[metric.name] = (kind, metric.unit)
                data = getattr(metric, kind)
                self.temporalities[metric.name] = getattr(data, "aggregation_temporality", UNSPECIFIED)
                for point in data.data_points:
                    self._add(metric.name, point, added=getattr(data, "aggregation_temporality", 0) == DELTA)

    def _add(self, name: str, point: Any, *, added: bool) -> None:
        labels = _labels(point.attributes)
        value = point.sum if hasattr(point, "count") else point.as_double or float(point.as_int)
        self.totals[name][labels] = value + (self.totals[name].get(labels, 0.0) if added else 0.0)
        if hasattr(point, "count"):
            self.counts[name][labels] = point.count + (self.counts[name].get(labels, 0) if added else 0)

    def total(self, name: str) -> float:
        """Return a metric's sum over its series, NaN without any."""
        with self._taking:
            return math.fsum(self.totals[name].values()) if self.totals.get(name) else math.nan


class Sink(Totals):
    """An OTLP/HTTP receiver in this process."""

    def __init__(self) -> None:
        super().__init__()
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                sink.take(ExportMetricsServiceRequest.FromString(body))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _labels(attributes: Any) -> Labels:
    return frozenset((each.key, each.value.string_value or str(each.value.int_value)) for each in attributes)


class Receiver(Protocol):
    """What takes OTLP over HTTP at `endpoint`/v1/metrics."""

    endpoint: str


class Rotel:
    """The collector `rotel` between us and a sink; it can be killed and come back on the same ports."""

    def __init__(self, sink: Receiver, home: Path) -> None:
        self.grpc, self.http = free_port(), free_port()
        self._sink, self._home = sink, home
        self._process: subprocess.Popen[bytes] | None = None

    def endpoint(self, protocol: str) -> str:
        return f"http://127.0.0.1:{self.grpc if protocol == 'grpc' else self.http}"

    def start(self) -> None:
        spec = find_spec("rotel")
        assert spec is not None
        assert spec.origin is not None
        command = [
            str(Path(spec.origin).parent / "rotel-agent"), "start",
            "--otlp-grpc-endpoint", f"127.0.0.1:{self.grpc}", "--otlp-http-endpoint", f"127.0.0.1:{self.http}",
            "--exporter", "otlp", "--otlp-exporter-endpoint", self._sink.endpoint, "--otlp-exporter-protocol", "http",
            "--pid-file", str(self._home / f"rotel-{self.grpc}.pid"),
        ]  # fmt: skip
        with (self._home / "rotel.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.terminate()  # gracefully: what it has taken shall reach the sink
            self._process.wait(timeout=20)
            self._process = None
