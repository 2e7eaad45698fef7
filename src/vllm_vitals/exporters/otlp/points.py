"""The store as OpenTelemetry `MetricsData`, cumulative or as the difference to what was acknowledged."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, NamedTuple, TypeVar

from opentelemetry.sdk.metrics import Exemplar as OtelExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Gauge as GaugePoints
from opentelemetry.sdk.metrics.export import Histogram as HistogramPoints
from opentelemetry.sdk.metrics.export import Metric as OtelMetric

from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog.metric import Metric
from vllm_vitals.store.series import Cell, Exemplar, Exponential, HistogramCell
from vllm_vitals.store.store import Store, snapshot

NANO = 1_000_000_000
T = TypeVar("T")


class Paced(list[T], Generic[T]):
    """A list that gives the interpreter up while it is read: the encoder reads it point by point."""

    def __init__(self, items: list[T]) -> None:
        super().__init__(items)

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            checkpoint()
            yield item


class State(NamedTuple):
    """What a series held when it was read."""

    value: float
    counts: tuple[int, ...] = ()
    exponential: Exponential | None = None
    least: float = math.inf
    greatest: float = -math.inf


class Described(NamedTuple):
    """What OTLP says of a metric; `kind` is counter, gauge or histogram."""

    name: str
    help: str
    unit: str
    kind: str


class Series(NamedTuple):
    """One series as it is pushed."""

    metric: Described
    labels: tuple[tuple[str, str], ...]
    state: State
    bounds: tuple[float, ...] = ()
    cell: Cell | None = None
    """Tells a series from another that came after it under the same labels."""
    seen: float | None = None
    """Unix time at which a gauge was observed; `None` stands for now."""
    exemplars: Sequence[Exemplar] = ()


Place = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Window:
    """What a receiver has acknowledged of one series, and the nanoseconds of that push."""

    series: Series
    since: int


@dataclass
class Push:
    """Metrics to send, and the series that are acknowledged with them."""

    metrics: list[OtelMetric]
    time: int
    monotonic: int = 0
    series: dict[Place, Series] = field(default_factory=dict)
    points: int = 0


class PointBuilder:
    """Builds pushes from one store and remembers what was acknowledged; for one thread."""

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
        """Take note of how to build.

        `temporality`: cumulative, delta or lowmemory. `started`: Unix seconds. `fresh`: how many seconds the
        observation time of a gauge of the moment stands; an older one was confirmed by silence. `more`: gives
        series from elsewhere to be pushed too.
        """
        self._store = store
        # Delta and lowmemory differ for asynchronous counters only, of which there are none here.
        self._delta = temporality != "cumulative"
        self._exponential = exponential
        self._started = int(started * NANO)
        self._born = time.monotonic_ns() - max(time.time_ns() - self._started, 0)
        """Monotonic nanoseconds of the same moment."""
        self._fresh = fresh
        self._more = more
        self._acknowledged: dict[Place, Window] = {}
        self._latest = self._born
        """Monotonic nanoseconds of the latest push that was acknowledged."""
        self._floor = 0
        """Where a difference begins whose beginning by the system's clock is yet to come."""

    def build(self) -> Push:
        """Return what is to be sent now."""
        push = Push([], time.time_ns(), time.monotonic_ns())
        self._set_back(push)
        points: dict[Described, list[Any]] = {}
        for series in chain(self._own(push.time), self._more()):
            push.series[series.metric.name, series.labels] = series
            point = self._point(series, push.time)
            if point is not None:
                points.setdefault(series.metric, []).append(point)
                push.points += 1
            checkpoint()
        for metric, made in points.items():
            data = self._data(metric.kind, made[0], Paced(made))
            push.metrics.append(OtelMetric(metric.name, metric.help, metric.unit, data))
        return push

    def acknowledge(self, push: Push, *, whole: bool = True) -> None:
        """Take note that a receiver has a push: only now do differences start anew.

        `whole`: every series that there is was read for it; of one that was not, what was acknowledged before stands.
        """
        if self._delta:
            before = {} if whole else self._acknowledged
            now = {place: Window(series, push.time) for place, series in push.series.items()}
            self._acknowledged = {**before, **now}
            self._latest = push.monotonic

    def _set_back(self, push: Push) -> None:
        """Lower the starts that a clock which was set back has left in the future, by how long ago they really were."""
        if push.time <= self._started:
            self._started = push.time - max(push.monotonic - self._born, 1)
        self._floor = push.time - max(push.monotonic - self._latest, 1)

    def _own(self, now: int) -> Iterator[Series]:
        """Yield the store's series as they are at this moment."""
        for metric, shown in snapshot(self._store):
            described = Described(metric.name, metric.help, metric.unit, metric.kind)
            for key, cell, read in shown:
                reading: Any = read  # with nothing known before, all are read
                pairs = zip(metric.labelnames, key, strict=True)
                labels = tuple((name, _unicode(value)) for name, value in pairs if value)
                bounds = cell.bounds if isinstance(cell, HistogramCell) else ()
                state = State(
                    reading.value, tuple(reading.counts), reading.exponential, reading.least, reading.greatest
                )
                exemplars = tuple(reading.exemplars.values())
                yield Series(described, labels, state, bounds, cell, self._seen(metric, cell, now), exemplars)
            checkpoint()

    def _seen(self, metric: Metric[Any], cell: Cell, now: int) -> float | None:
        """Return when a gauge was observed: the step's time while steps come, else now."""
        seen: float = getattr(cell, "time", 0.0)
        return seen if getattr(metric, "expires", False) and 0 <= now / NANO - seen < self._fresh else None

    def _data(self, kind: str, first: Any, points: Any) -> Any:
        temporality = AggregationTemporality.DELTA if self._delta else AggregationTemporality.CUMULATIVE
        if kind == "counter":
            return Sum(points, temporality, is_monotonic=True)
        if kind == "gauge":
            return GaugePoints(points)
        exponential = isinstance(first, ExponentialHistogramDataPoint)
        return (ExponentialHistogram if exponential else HistogramPoints)(points, temporality)

    def _point(self, series: Series, now: int) -> Any:
        attributes = dict(series.labels)
        if series.metric.kind == "gauge":
            seen = now if series.seen is None else int(series.seen * NANO)
            return NumberDataPoint(attributes, 0, seen, series.state.value)
        start, state = self._started, series.state
        window = self._acknowledged.get((series.metric.name, series.labels))
        if window is not None:
            start = window.since  # what began anew did so after it
            if window.series.cell is series.cell and _follows(state, window.series.state):
                state = _difference(state, window.series.state)
                if not (any(state.counts) if series.metric.kind == "histogram" else state.value):
                    return None
        if start >= now:
            start = self._floor
        if series.metric.kind == "counter":
            return NumberDataPoint(attributes, start, now, state.value)
        return self._histogram(series, attributes, start, now, state)

    def _histogram(self, series: Series, attributes: dict[str, str], start: int, now: int, state: State) -> Any:
        count = sum(state.counts)
        known = count and math.isfinite(state.least)
        # The encoder leaves out extremes that are None, though the type does not say so.
        least: Any = state.least if known else None
        greatest: Any = state.greatest if known else None
        shown = [_exemplar(each) for each in series.exemplars if each.time * NANO >= start]
        if self._exponential and state.exponential is not None:
            buckets = state.exponential
            positive = Buckets(buckets.offset, buckets.counts.tolist())
            return ExponentialHistogramDataPoint(
                attributes, start, now, count, state.value, buckets.scale, buckets.zeros, positive, Buckets(0, []), 0,
                least, greatest, shown,
            )  # fmt: skip
        return HistogramDataPoint(
            attributes, start, now, count, state.value, list(state.counts), series.bounds, least, greatest, shown
        )


def _follows(state: State, before: State) -> bool:
    """Tell whether a state can have grown out of an earlier one; a counter of vLLM's may have begun anew."""
    if not before.counts:
        return state.value >= before.value
    same = len(state.counts) == len(before.counts)
    return same and all(now >= then for now, then in zip(state.counts, before.counts, strict=True))


def _difference(state: State, before: State) -> State:
    """Return what came after an earlier state; the extremes of that part are not known."""
    counts = tuple(now - then for now, then in zip(state.counts, before.counts, strict=True))
    exponential = None
    if state.exponential is not None and before.exponential is not None:
        exponential = state.exponential.since(before.exponential)
    # A sum over many values can differ in its last digits; a difference must not be less than nothing.
    return State(max(state.value - before.value, 0.0), counts, exponential)


def _exemplar(exemplar: Exemplar) -> OtelExemplar:
    return OtelExemplar({"request_id": _unicode(exemplar.request_id)}, exemplar.value, int(exemplar.time * NANO))


def _unicode(text: str) -> str:
    """Return text that can be encoded: a lone surrogate, from bytes that are no UTF-8, cannot."""
    return text if text.isascii() else text.encode(errors="replace").decode()
