"""The state behind every exporter: a family per metric, a cell per label set, both bounded."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from vllm_vitals._util.labels import label as safe_label
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog.metric import Gauge, Histogram, Key, Label, Metric
from vllm_vitals.records.step import OTHER
from vllm_vitals.store.series import Cell, HistogramCell, NumberCell, Reading, Rejects, rejection_reason

MAX_SCOPES = 1024
"""Distinct (model, engine) pairs. Beyond, something invents labels."""

Series = tuple[Key, Cell, Reading | None]
"""One series. The reading is `None` if the cell still has the version that the caller knows."""
Snapshot = list[tuple[Metric[Any], list[Series]]]
"""Each metric with its series, in the order of the store."""


class Family:
    """All series of one metric."""

    def __init__(self, metric: Metric[Any], rejects: Rejects, *, exponential: bool = False) -> None:
        self.metric = metric
        self._exponential = exponential
        self.cells: dict[Key, Cell] = {}
        self.rejects = rejects
        self._seen: list[set[str]] = [set(label.values) for label in metric.labels]
        self._scopes: set[Key] = set()

    def number(self, scope: Key, labels: Sequence[str] = ()) -> NumberCell:
        """Return the cell of a counter or gauge, made if new. Past the cap of a label it is the cell of `_other`."""
        return cast("NumberCell", self.cells.get((*scope, *labels)) or self._new(scope, labels, ()))

    def put(self, scope: Key, labels: Sequence[str], value: float, time: float) -> None:
        """Set a gauge. An impossible value is rejected and counted, and makes no series."""
        if self.accepts(value):
            self.number(scope, labels).set(value, time)

    def histogram(self, scope: Key, labels: Sequence[str], bounds: tuple[float, ...]) -> HistogramCell:
        """Return the cell of a histogram, made if new. Past the cap of a label it is the cell of `_other`."""
        return cast("HistogramCell", self.cells.get((*scope, *labels)) or self._new(scope, labels, bounds))

    def settle(self) -> None:
        """Sort the pending values of histograms into their buckets."""
        for cell in self.cells.values():
            if isinstance(cell, HistogramCell):
                cell.settle()

    def _new(self, scope: Key, labels: Sequence[str], bounds: tuple[float, ...]) -> Cell:
        return self._at(self._key(scope, labels), bounds)

    def _key(self, scope: Key, labels: Sequence[str]) -> Key:
        """Return the key of a series. Past a cap it is shared with others."""
        scope = _safe(scope)
        if scope not in self._scopes and len(self._scopes) >= MAX_SCOPES:
            scope = tuple(OTHER for _ in scope)
        self._scopes.add(scope)
        admitted = zip(self._seen, self.metric.labels, labels, strict=True)
        return (*scope, *(self._admit(seen, label, value) for seen, label, value in admitted))

    def _at(self, key: Key, bounds: tuple[float, ...] = ()) -> Cell:
        if key not in self.cells:
            self.cells[key] = self._make(bounds)
        return self.cells[key]

    def accepts(self, value: float) -> bool:
        """Return whether a value is possible. An impossible one is counted."""
        if reason := rejection_reason(value, self.metric.limit):
            self.rejects[self.metric.name, reason] += 1
        return not reason

    @staticmethod
    def _admit(seen: set[str], label: Label, value: str) -> str:
        value = safe_label(value)
        if value not in seen:
            if len(seen) >= label.cap + len(label.values):
                return OTHER
            seen.add(value)
        return value

    def _make(self, bounds: tuple[float, ...]) -> Cell:
        if isinstance(self.metric, Histogram):
            exponential = self._exponential
            return HistogramCell(self.metric.name, self.metric.limit, self.rejects, bounds, exponential=exponential)
        return NumberCell(self.metric.name, self.metric.limit, self.rejects)

    def replace(self, scope: Key, values: Mapping[Any, float], time: float) -> None:
        """Set every series of a scope at once, and remove the others. Values beyond a cap add up.

        An impossible value is rejected and counted: an existing series keeps its value, and no series is made.
        """
        scope = _safe(scope)
        named = {labels if isinstance(labels, tuple) else (labels,): value for labels, value in values.items()}
        self.drop(scope, keep=named)
        merged: dict[Key, float] = {}
        for labels, value in named.items():
            if self.accepts(value):
                key = (*scope, *labels) if (*scope, *labels) in self.cells else self._key(scope, labels)
                merged[key] = merged.get(key, 0.0) + value
        for key, value in merged.items():
            if self.accepts(value):
                cast("NumberCell", self._at(key)).set(value, time)

    def drop(self, scope: Key, keep: Collection[Key] = ()) -> None:
        """Remove the series of a scope, except those to keep. Label values without a series do not count any more."""
        scope, first = _safe(scope), len(scope)
        removed = [key for key in self.cells if key[:first] == scope and key[first:] not in keep]
        for key in removed:
            del self.cells[key]
        if removed and isinstance(self.metric, Gauge):
            for index, label in enumerate(self.metric.labels):
                used = {key[first + index] for key in self.cells} | {safe_label(labels[index]) for labels in keep}
                self._seen[index] = self._seen[index] & used - {OTHER} | set(label.values)


def _safe(scope: Key) -> Key:
    return tuple(map(safe_label, scope))


class Store:
    """All families. Writers and readers hold `lock`; vLLM's event loop never does."""

    def __init__(self, metrics: Iterable[Metric[Any]], *, exponential: bool = False) -> None:
        """`exponential`: histograms also have base-2 exponential buckets."""
        self.lock = threading.RLock()
        self.rejects: Rejects = Rejects()
        self._families = {metric: Family(metric, self.rejects, exponential=exponential) for metric in metrics}
        self._histograms = [family for family in self if isinstance(family.metric, Histogram)]

    def settle(self) -> None:
        """Sort the pending values of all histograms into their buckets, releasing the lock between histograms."""
        for family in self._histograms:
            with self.lock:
                family.settle()
            checkpoint()

    def __getitem__(self, metric: Metric[Any]) -> Family:
        return self._families[metric]

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())


def snapshot(
    store: Store,
    wanted: Callable[[Metric[Any]], bool] = lambda _: True,
    known: Mapping[Cell, int] | None = None,
) -> Snapshot:
    """Return all series of the wanted metrics at one moment, between two records.

    The lock is held throughout, so that no record is added meanwhile. Writers wait for it; vLLM's event loop never
    does. `known`: versions of cells that need no reading.
    """
    have = known or {}
    found: Snapshot = []
    with store.lock:
        for family in store:
            if not (family.cells and wanted(family.metric)):
                continue
            series: list[Series] = []
            for key, cell in family.cells.items():
                if have.get(cell) == cell.version:
                    series.append((key, cell, None))
                else:
                    series.append((key, cell, cell.read()))
                    checkpoint()
            found.append((family.metric, series))
            checkpoint()
    return found
