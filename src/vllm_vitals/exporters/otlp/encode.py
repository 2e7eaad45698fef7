"""A push as bytes: series encoded as OTLP, cumulative or as the difference to the last acknowledged push.

The messages are encoded piece by piece, so that no other thread waits for the interpreter until a whole push is
encoded: protobuf allows to concatenate the encoded fields of a message. Fields that never change are encoded once.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb

import vllm_vitals
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.exporters.otlp.series import (
    NANOSECONDS,
    Labels,
    MetricInfo,
    Series,
    SeriesId,
    StoreReader,
    unicode_text,
)
from vllm_vitals.store.series import Cell, Reading
from vllm_vitals.store.store import Store

K = TypeVar("K")

LENGTH_DELIMITED = 2
"""Protobuf's wire type of a field that holds a message."""
TIME_LENGTH = len(pb.NumberDataPoint(time_unix_nano=1).SerializeToString())
"""Bytes of the time of a point."""
MAX_TIMES_ENCODED = 1024
"""Observation times of gauges whose encoding is kept: one for each engine or GPU."""
PUSHES_REMEMBERED = 32
"""Pushes after which an encoded field that was not needed is forgotten; at most twice as many."""
MAX_BOUNDS_ENCODED = 256
"""Sets of bucket bounds whose encoding is kept."""


class Nested:
    """A field that holds a message. Adds the field's key and length to the bytes of the message."""

    def __init__(self, outer: type[Message], name: str) -> None:
        self._key = varint(outer.DESCRIPTOR.fields_by_name[name].number << 3 | LENGTH_DELIMITED)

    def head(self, length: int) -> bytes:
        """Return the bytes before a message of a length."""
        return self._key + varint(length)

    def wrap(self, message: bytes) -> bytes:
        """Return the field with an encoded message."""
        return self.head(len(message)) + message


def varint(number: int) -> bytes:
    """Return a number as protobuf writes keys and lengths."""
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - the seven bits of a byte that hold a number
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


RESOURCE_METRICS = Nested(ExportMetricsServiceRequest, "resource_metrics")
SCOPE_METRICS = Nested(pb.ResourceMetrics, "scope_metrics")
METRICS = Nested(pb.ScopeMetrics, "metrics")
SCOPE = pb.ScopeMetrics(scope=InstrumentationScope(name="vllm_vitals", version=vllm_vitals.__version__))


def encode_request(resource: bytes, metrics: Iterable[bytes]) -> bytes:
    """Return an export request; `resource` is an encoded `ResourceMetrics`, each metric a field of `ScopeMetrics`."""
    scope = b"".join([SCOPE.SerializeToString(), *metrics])
    checkpoint()
    message = b"".join([resource, SCOPE_METRICS.head(len(scope)), scope])
    checkpoint()
    return RESOURCE_METRICS.wrap(message)


def encode_attributes(attributes: Mapping[str, Any]) -> list[KeyValue]:
    """Return attributes as messages; each value is text or a whole number."""
    return [KeyValue(key=unicode_text(key), value=_value(value)) for key, value in attributes.items()]


def _value(value: Any) -> AnyValue:
    return AnyValue(int_value=value) if isinstance(value, int) else AnyValue(string_value=unicode_text(str(value)))


class Recent(Generic[K]):
    """Encoded fields that the latest pushes needed. A series that does not change needs none for a while."""

    def __init__(self, encode: Callable[[K], bytes]) -> None:
        self._encode = encode
        self._pushes = 0
        self._now: dict[K, bytes] = {}
        self._before: dict[K, bytes] = {}

    def begin(self) -> None:
        """Begin a push: once in a while forget the fields that were not needed for long."""
        self._pushes += 1
        if self._pushes % PUSHES_REMEMBERED == 0:
            self._before, self._now = self._now, {}

    def get(self, key: K) -> bytes:
        """Return the encoding of something."""
        encoded = self._now.get(key)
        if encoded is None:
            encoded = self._now[key] = self._before.get(key) or self._encode(key)
        return encoded


class Shape:
    """The encoding of one kind of metric. For one thread: a message is used again for every point."""

    def __init__(self, name: str, data: Message, point: Any) -> None:
        """`name`: the field of `Metric`; `data`: its message without points; `point`: the message of a point."""
        self.point = point
        self._points = Nested(type(data), "data_points")
        self._data = Nested(pb.Metric, name)
        self._fixed = data.SerializeToString()
        self.attributes = Recent[Labels](self._encode_attributes)
        self._heads = Recent[MetricInfo](_head)

    def begin(self) -> None:
        """Begin a push."""
        self.attributes.begin()
        self._heads.begin()

    def metric(self, info: MetricInfo, points: list[bytes]) -> bytes:
        """Return a metric with its points as a field of `ScopeMetrics`."""
        data = b"".join([self._fixed, *points])
        return METRICS.wrap(b"".join([self._heads.get(info), self._data.head(len(data)), data]))

    def point_without_time(self, fields: bytes) -> bytes:
        """Return a point as a field of its metric's data; the field of its time has to follow."""
        return self._points.head(len(fields) + TIME_LENGTH) + fields

    def _encode_attributes(self, labels: Labels) -> bytes:
        return _serialized(type(self.point)(attributes=encode_attributes(dict(labels))))


def _head(info: MetricInfo) -> bytes:
    name, description, unit = map(unicode_text, (info.name, info.help, info.unit))
    return pb.Metric(name=name, description=description, unit=unit).SerializeToString()


@lru_cache(MAX_BOUNDS_ENCODED)
def _bounds(bounds: tuple[float, ...]) -> bytes:
    return pb.HistogramDataPoint(explicit_bounds=bounds).SerializeToString()


class Window(NamedTuple):
    """The state of a series in the latest acknowledged push, and the time of that push in nanoseconds."""

    series: Series
    since: int


@dataclass
class Push:
    """Encoded metrics, and the series to acknowledge with them."""

    time: int
    monotonic: int = 0
    metrics: list[bytes] = field(default_factory=list)
    series: list[Series] = field(default_factory=list)
    """Empty where totals are pushed: nothing has to be acknowledged."""
    points: int = 0
    unencodable: int = 0
    """Series of vLLM's own that were left out."""


class PushBuilder:
    """Builds the pushes of one store and remembers which were acknowledged; for one thread."""

    def __init__(
        self,
        store: Store,
        *,
        temporality: str,
        exponential: bool,
        started: float,
        fresh: float,
        more: Callable[[], Iterable[Series]] = tuple,
    ) -> None:
        """Prepare to build.

        `temporality`: cumulative, delta or lowmemory. `started`: Unix seconds. `fresh`: see `StoreReader`. `more`:
        returns further series to push.
        """
        # Delta and lowmemory differ for asynchronous counters only, and there are none here.
        self._delta = temporality != "cumulative"
        self._exponential = exponential
        self._reader = StoreReader(store, fresh)
        self._more = more
        self._started = int(started * NANOSECONDS)
        self._started_monotonic = time.monotonic_ns() - max(time.time_ns() - self._started, 0)
        self._acknowledged: dict[SeriesId, Window] = {}
        self._encoded: dict[Cell, tuple[Reading, bytes]] = {}
        """Totals and gauges: what was read for the latest push, and the point without its time."""
        self._before: dict[Cell, tuple[Reading, bytes]] = {}
        """The same of the push before."""
        self._latest = self._started_monotonic
        """Monotonic nanoseconds of the latest acknowledged push."""
        self._floor = 0
        """Start of a difference whose start by the system's clock lies in the future."""
        how = pb.AGGREGATION_TEMPORALITY_DELTA if self._delta else pb.AGGREGATION_TEMPORALITY_CUMULATIVE
        number = pb.NumberDataPoint()
        self._sum = Shape("sum", pb.Sum(aggregation_temporality=how, is_monotonic=True), number)
        self._gauge = Shape("gauge", pb.Gauge(), number)
        self._explicit = Shape("histogram", pb.Histogram(aggregation_temporality=how), pb.HistogramDataPoint())
        self._base2 = Shape(
            "exponential_histogram",
            pb.ExponentialHistogram(aggregation_temporality=how),
            pb.ExponentialHistogramDataPoint(),
        )

    def build(self) -> Push:
        """Return what is to be sent now."""
        push = Push(time.time_ns(), time.monotonic_ns())
        self._adjust_starts(push)
        for shape in (self._sum, self._gauge, self._explicit, self._base2):
            shape.begin()
        self._before, self._encoded = self._encoded, {}
        now = _time_field(push.time)
        groups: dict[tuple[MetricInfo, Shape], list[bytes]] = {}
        metric, kind, group = None, None, list[bytes]()
        for series in chain(self._reader.read(push.time), self._more()):
            shape = self._shape(series)
            if series.metric is not metric or shape is not kind:
                metric, kind = series.metric, shape
                group = groups.setdefault((metric, shape), [])
            try:
                point = self._point(shape, series, push.time)
            except ValueError:
                if series.cell is not None:
                    raise
                push.unencodable += 1  # a number of vLLM's page can be larger than OTLP can hold
                continue
            if self._delta:
                push.series.append(series)
            if point is not None:
                dated = shape is self._gauge and series.observed is not None
                group.append(point + (_time_field_of(series.observed or 0.0) if dated else now))
                push.points += 1
            checkpoint()
        for (info, shape), points in groups.items():
            if points:
                push.metrics.append(shape.metric(info, points))
                checkpoint()
        return push

    def acknowledge(self, push: Push, *, complete: bool = True) -> None:
        """Record that the receiver has a push: differences start anew only now.

        `complete`: the push was built from all series. If not, earlier acknowledgements of missing series stay.
        """
        if self._delta:
            windows = {} if complete else self._acknowledged
            for series in push.series:
                windows[series.id] = Window(series, push.time)
                checkpoint()
            self._acknowledged = windows
            self._latest = push.monotonic

    def _adjust_starts(self, push: Push) -> None:
        """Lower start times that lie in the future after the clock was set back, to the true age of their start."""
        if push.time <= self._started:
            self._started = push.time - max(push.monotonic - self._started_monotonic, 1)
            self._encoded = {}
        self._floor = push.time - max(push.monotonic - self._latest, 1)

    def _shape(self, series: Series) -> Shape:
        if series.metric.kind == "counter":
            return self._sum
        if series.metric.kind == "gauge":
            return self._gauge
        return self._base2 if self._exponential and series.reading.exponential is not None else self._explicit

    def _point(self, shape: Shape, series: Series, now: int) -> bytes | None:
        """Return a point without its time, `None` for a difference of nothing."""
        if self._delta and shape is not self._gauge:
            return self._difference_point(shape, series, now)
        cell = series.cell
        if cell is None:
            return self._encode(shape, series, series.reading, self._started)
        kept = self._before.get(cell)
        if kept is None or kept[0] is not series.reading:
            kept = series.reading, self._encode(shape, series, series.reading, self._started)
        # An unchanged series allocates nothing that the garbage collector would have to look through.
        self._encoded[cell] = kept
        return kept[1]

    def _difference_point(self, shape: Shape, series: Series, now: int) -> bytes | None:
        start, reading = self._started, series.reading
        window = self._acknowledged.get(series.id)
        if window is not None:
            start = window.since  # a series that began anew did so after that push
            before = window.series
            if before.reading is reading:
                return None
            if before.cell is series.cell and _follows(reading, before.reading):
                reading = _difference(reading, before.reading)
                if not (any(reading.counts) if series.metric.kind == "histogram" else reading.value):
                    return None
        return self._encode(shape, series, reading, self._floor if start >= now else start)

    def _encode(self, shape: Shape, series: Series, reading: Reading, start: int) -> bytes:
        """Return a point as a field of its metric's data, but for its time, which is to be appended."""
        message = shape.point
        message.Clear()
        fixed = shape.attributes.get(series.labels)
        if shape is self._sum or shape is self._gauge:
            message.as_double = reading.value
        else:
            self._set_histogram(message, series, reading, start)
            if shape is self._explicit:
                fixed += _bounds(series.bounds)
        if shape is not self._gauge:
            message.start_time_unix_nano = start
        return shape.point_without_time(fixed + _serialized(message))

    def _set_histogram(self, message: Any, series: Series, reading: Reading, start: int) -> None:
        count = sum(reading.counts)
        message.count = count
        message.sum = reading.value
        if count and math.isfinite(reading.least):
            message.min, message.max = reading.least, reading.greatest
        for exemplar in series.reading.exemplars.values():
            if exemplar.time * NANOSECONDS >= start:
                message.exemplars.add(
                    filtered_attributes=encode_attributes({"request_id": exemplar.request_id}),
                    as_double=exemplar.value,
                    time_unix_nano=int(exemplar.time * NANOSECONDS),
                )
        buckets = reading.exponential if self._exponential else None
        if buckets is None:
            message.bucket_counts.extend(reading.counts)
            return
        message.scale, message.zero_count = buckets.scale, buckets.zeros
        if len(buckets.counts):
            message.positive.offset = buckets.offset
            message.positive.bucket_counts.extend(buckets.counts.tolist())


def _time_field(nanoseconds: int) -> bytes:
    """Return the encoded time of a point: the field has one number and one length in points of all kinds."""
    return pb.NumberDataPoint(time_unix_nano=max(nanoseconds, 1)).SerializeToString()  # 0 would be left out


@lru_cache(MAX_TIMES_ENCODED)
def _time_field_of(seconds: float) -> bytes:
    return _time_field(int(seconds * NANOSECONDS))


def _serialized(message: Message) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded


def _follows(reading: Reading, before: Reading) -> bool:
    """Return whether a reading can have grown out of an earlier one; a counter of vLLM's may have begun anew."""
    if not before.counts:
        return reading.value >= before.value
    same = len(reading.counts) == len(before.counts)
    return same and all(now >= then for now, then in zip(reading.counts, before.counts, strict=True))


def _difference(reading: Reading, before: Reading) -> Reading:
    """Return what came after an earlier reading; the extremes of that part are not known."""
    counts: Sequence[int] = [now - then for now, then in zip(reading.counts, before.counts, strict=True)]
    exponential = None
    if reading.exponential is not None and before.exponential is not None:
        exponential = reading.exponential.since(before.exponential)
    # A sum over many values can differ in its last digits; a difference must not be less than nothing.
    value = max(reading.value - before.value, 0.0)
    return Reading(reading.version, value, counts, exponential=exponential)
