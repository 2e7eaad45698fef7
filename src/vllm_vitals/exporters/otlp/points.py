"""The store as OpenTelemetry `MetricsData`, cumulative or as the difference to what was acknowledged."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from opentelemetry.sdk.metrics._internal.exemplar import Exemplar as OtelExemplar
from opentelemetry.sdk.metrics._internal.point import Buckets
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    HistogramDataPoint,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.metrics.export import Gauge as GaugePoints
from opentelemetry.sdk.metrics.export import Histogram as HistogramPoints
from opentelemetry.sdk.metrics.export import Metric as OtelMetric

from vllm_vitals.catalog.metric import Key, Metric
from vllm_vitals.collector.cells import Cell, Exemplar, HistogramCell
from vllm_vitals.collector.exponential import Exponential
from vllm_vitals.collector.store import Family, Store

NANO = 1_000_000_000
Pause = Callable[[], None]
T = TypeVar("T")


class Paced(list[T], Generic[T]):
    """A list that gives the interpreter up while it is read: the encoder reads it point by point."""

    def __init__(self, items: list[T], pause: Pause) -> None:
        super().__init__(items)
        self._pause = pause

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            self._pause()
            yield item


class State(NamedTuple):
    """What a cell held when it was read."""

    value: float
    counts: tuple[int, ...] = ()
    exponential: Exponential | None = None
    least: float = math.inf
    greatest: float = -math.inf


@dataclass
class Window:
    """What a receiver has acknowledged of one cell, and the extremes of values that it has not seen."""

    state: State
    since: int
    """Nanoseconds of the acknowledged push."""
    cell: Cell


@dataclass
class Push:
    """Metrics to send, and what is acknowledged with them."""

    metrics: list[OtelMetric]
    time: int
    states: dict[tuple[Metric[Any], Key], tuple[Cell, State]] = field(default_factory=dict)
    points: int = 0


class PointBuilder:
    """Builds pushes from one store and remembers what was acknowledged; for one thread."""

    def __init__(self, store: Store, *, temporality: str, exponential: bool, started: float, fresh: float) -> None:
        """Take note of how to build.

        `temporality`: cumulative, delta or lowmemory. `started`: Unix seconds. `fresh`: how many seconds the
        observation time of a gauge of the moment stands; an older one was confirmed by silence.
        """
        self._store = store
        # Delta and lowmemory differ for asynchronous counters only, of which there are none here.
        self._delta = temporality != "cumulative"
        self._exponential = exponential
        self._started = int(started * NANO)
        self._fresh = fresh
        self._acknowledged: dict[tuple[Metric[Any], Key], Window] = {}
        self._attributes: dict[tuple[Metric[Any], Key], dict[str, str]] = {}

    def build(self, pause: Pause) -> Push:
        """Return what is to be sent now."""
        push = Push([], time.time_ns())
        for family in self._store:
            made = self._metric(family, push, pause)
            if made is not None:
                push.metrics.append(made)
        return push

    def acknowledge(self, push: Push) -> None:
        """Take note that a receiver has a push: only now do differences start anew."""
        if self._delta:
            self._acknowledged = {place: Window(state, push.time, cell) for place, (cell, state) in push.states.items()}
        held = push.states.keys()
        for place in [place for place in self._attributes if place not in held]:
            del self._attributes[place]

    def _metric(self, family: Family, push: Push, pause: Pause) -> OtelMetric | None:
        metric = family.metric
        with self._store.lock:
            cells = list(family.cells.items())
        points: list[Any] = []
        for key, cell in cells:
            with self._store.lock:
                state = _read(cell)
                exemplars = dict(cell.exemplars) if isinstance(cell, HistogramCell) else {}
            push.states[metric, key] = (cell, state)
            point = self._point(metric, key, cell, state, exemplars, push.time)
            if point is not None:
                points.append(point)
            pause()
        if not points:
            return None
        push.points += len(points)
        return OtelMetric(metric.name, metric.help, metric.unit, self._data(metric, Paced(points, pause)))

    def _data(self, metric: Metric[Any], points: Any) -> Any:
        temporality = AggregationTemporality.DELTA if self._delta else AggregationTemporality.CUMULATIVE
        if metric.kind == "counter":
            return Sum(points, temporality, is_monotonic=True)
        if metric.kind == "gauge":
            return GaugePoints(points)
        return (ExponentialHistogram if self._exponential else HistogramPoints)(points, temporality)

    def _point(
        self, metric: Metric[Any], key: Key, cell: Cell, state: State, exemplars: dict[int, Exemplar], now: int
    ) -> Any:
        attributes = self._attributes.get((metric, key))
        if attributes is None:
            pairs = zip(metric.labelnames, key, strict=True)
            attributes = self._attributes[metric, key] = {name: value for name, value in pairs if value}
        if metric.kind == "gauge":
            return NumberDataPoint(attributes, 0, self._observed(metric, cell, now), state.value)
        window = self._acknowledged.get((metric, key))
        start = self._started
        if window is not None and window.cell is cell:
            start, state = window.since, _difference(state, window.state)
            if not (any(state.counts) if metric.kind == "histogram" else state.value):
                return None
        if metric.kind == "counter":
            return NumberDataPoint(attributes, start, now, state.value)
        return self._histogram(attributes, start, now, cell, state, exemplars)

    def _observed(self, metric: Metric[Any], cell: Cell, now: int) -> int:
        """Return when a gauge was observed: the step's time while steps come, else now."""
        seen = int(getattr(cell, "time", 0.0) * NANO)
        momentary = getattr(metric, "momentary", False)
        return seen if momentary and 0 <= now - seen < self._fresh * NANO else now

    def _histogram(
        self, attributes: dict[str, str], start: int, now: int, cell: Any, state: State, exemplars: dict[int, Exemplar]
    ) -> Any:
        count = sum(state.counts)
        known = count and math.isfinite(state.least)
        # The encoder leaves out extremes that are None, though the type does not say so.
        least: Any = state.least if known else None
        greatest: Any = state.greatest if known else None
        shown = [_exemplar(each) for each in exemplars.values() if each.time * NANO >= start]
        if self._exponential and state.exponential is not None:
            buckets = state.exponential
            positive = Buckets(buckets.offset, buckets.counts.tolist())
            return ExponentialHistogramDataPoint(
                attributes, start, now, count, state.value, buckets.scale, buckets.zeros, positive, Buckets(0, []), 0,
                least, greatest, shown,
            )  # fmt: skip
        return HistogramDataPoint(
            attributes, start, now, count, state.value, list(state.counts), cell.bounds, least, greatest, shown
        )


def _read(cell: Cell) -> State:
    """Return what a cell holds; with the store's lock."""
    if not isinstance(cell, HistogramCell):
        return State(cell.value)
    cell.settle()
    exponential = cell.exponential.copy() if cell.exponential is not None else None
    return State(cell.total, tuple(cell.counts), exponential, cell.least, cell.greatest)


def _difference(state: State, before: State) -> State:
    """Return what came after an earlier state; the extremes of that part are not known."""
    counts = tuple(now - then for now, then in zip(state.counts, before.counts, strict=True))
    exponential = None
    if state.exponential is not None and before.exponential is not None:
        exponential = state.exponential.since(before.exponential)
    # A sum over many values can differ in its last digits; a difference must not be less than nothing.
    return State(max(state.value - before.value, 0.0), counts, exponential)


def _exemplar(exemplar: Exemplar) -> OtelExemplar:
    return OtelExemplar({"request_id": exemplar.request_id}, exemplar.value, int(exemplar.time * NANO))
