"""Exporters that push over OTLP when told to, to where the standard variables say."""

import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from .engine import vllm_config
from .stats import StepMaker

RUNNING = 256
STEPS = 100
TIMEOUT = 30.0

Touch = Callable[[], None]


class Pusher(Protocol):
    """Something that pushes."""

    def change(self) -> None:
        """Let something new happen in every series that a step of each engine would change."""

    def aggregate(self) -> None:
        """Aggregate what changed, where that was put off until somebody reads."""

    def push(self) -> None:
        """Push everything, and return when it was taken."""


class Ours:
    """The push of this project, for engines that have been running for a while."""

    def __init__(self, engines: int) -> None:
        from vllm_vitals.deployment.runtime import runtime
        from vllm_vitals.plugin import OtlpVitals

        os.environ["VITALS_STRICT"] = "true"
        self._logger = OtlpVitals(vllm_config=vllm_config(), engine_indexes=list(range(engines)))
        self._makers = [StepMaker(RUNNING, seed=engine) for engine in range(engines)]
        self._feed = runtime().drainer
        self._aggregator = runtime().aggregator
        self._exporter: Any = runtime().exporters[OtlpVitals.name]
        for _ in range(STEPS):
            self.change()

    def change(self) -> None:
        """Let every engine make a step, and take it in."""
        for engine, make in enumerate(self._makers):
            self._logger.record(*make(), mm_cache_stats=None, engine_idx=engine)
        self._feed.drain()

    def aggregate(self) -> None:
        """Sort recorded values into buckets, which a push does first otherwise."""
        self._aggregator.refresh()

    def push(self) -> None:
        """Push as the exporter's thread does.

        Raises:
            RuntimeError: when it was not taken.
        """
        answer = self._exporter.push(TIMEOUT)
        if not answer.ok:
            raise RuntimeError(answer.error)


class Sdk:
    """The OpenTelemetry SDK, with the same series as somebody else's push."""

    def __init__(self, push: bytes) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        self._reader = PeriodicExportingMetricReader(_exporter(), export_interval_millis=math.inf)
        self._random = random.Random(1)
        meter = MeterProvider([self._reader]).get_meter("bench")
        touches = [
            touch
            for metric in metrics(ExportMetricsServiceRequest.FromString(push))
            for touch in self._fill(meter, metric)
        ]
        self._touches = touches

    def change(self) -> None:
        """Write once into every series."""
        for touch in self._touches:
            touch()

    def aggregate(self) -> None:
        """Do nothing: the SDK aggregates each value when it is recorded, in `change`."""

    def push(self) -> None:
        """Collect and push as the reader's thread does."""
        self._reader.force_flush(TIMEOUT * 1e3)

    def _fill(self, meter: Any, metric: Any) -> Iterator[Touch]:
        """Make an instrument with a metric's series and what is in their buckets, and yield how to touch each."""
        kind, named = metric.WhichOneof("data"), (metric.name, metric.unit, metric.description)
        points = getattr(metric, kind).data_points
        if kind == "sum":
            counter = meter.create_counter(*named)
            yield from (partial(counter.add, self._random.random(), attributes(point)) for point in points)
        elif kind == "gauge":
            gauge = meter.create_gauge(*named)
            yield from (partial(gauge.set, self._random.random(), attributes(point)) for point in points)
        else:
            bounds = list(points[0].explicit_bounds) if kind == "histogram" else None
            histogram = meter.create_histogram(*named, explicit_bucket_boundaries_advisory=bounds)
            for point in points:
                values = [self._random.uniform(*edges) for edges in occupied(point)] or [self._random.random()]
                for value in values:
                    histogram.record(value, attributes(point))
                yield partial(histogram.record, values[0], attributes(point))


def _exporter() -> Any:
    """Return the SDK's exporter for the protocol that the variables name."""
    if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc":
        from grpc import Compression
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        # It takes no "none" from the variable.
        zipped = os.environ["OTEL_EXPORTER_OTLP_COMPRESSION"] == "gzip"
        return GrpcExporter(insecure=True, compression=Compression.Gzip if zipped else Compression.NoCompression)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

    return HttpExporter()


def metrics(request: Any) -> list[Any]:
    """Return the metrics of a push."""
    scopes = [scope for resource in request.resource_metrics for scope in resource.scope_metrics]
    return [metric for scope in scopes for metric in scope.metrics]


def attributes(point: Any) -> dict[str, str]:
    """Return the attributes of a point."""
    return {each.key: each.value.string_value for each in point.attributes}


def occupied(point: Any) -> Sequence[tuple[float, float]]:
    """Return the edges of a histogram's buckets that hold values."""
    if hasattr(point, "explicit_bounds"):
        edges = [0.0, *point.explicit_bounds, 2 * point.explicit_bounds[-1]]
        counts = point.bucket_counts
    else:
        first, counts = point.positive.offset, point.positive.bucket_counts
        edges = [2 ** ((first + index) / 2**point.scale) for index in range(len(counts) + 1)]
    return [each for each, count in zip(pairwise(edges), counts, strict=True) if count]
