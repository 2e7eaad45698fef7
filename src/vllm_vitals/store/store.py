"""The state behind every exporter: a family for each metric, a cell for each label set, all bounded."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from vllm_vitals._util.labels import label as fit
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog.metric import Gauge, Histogram, Key, Label, Metric
from vllm_vitals.records.step import OTHER
from vllm_vitals.store.series import Cell, HistogramCell, NumberCell, Reading, Rejects, fault

MAX_SCOPES = 1024
"""Distinct (model, engine) pairs; beyond that something makes labels up."""

Series = tuple[Key, Cell, Reading | None]
"""One series; there is no reading where the cell still has the version that the reader knows."""
Snapshot = list[tuple[Metric[Any], list[Series]]]
"""Each metric with its series, in the store's order."""


class Family:
    """All series of one metric."""

    def __init__(self, metric: Metric[Any], rejects: Rejects, *, exponential: bool = False) -> None:
        self.metric = metric
        self._exponential = exponential
        self.cells: dict[Key, Cell] = {}
        self.rejects = rejects
        self._seen: list[set[str]] = [set(label.values) for label in metric.labels]
        self._scopes: set[Key] = set()

    def number(self, scope: Key, own: Sequence[str] = ()) -> NumberCell:
        """Return a counter's or gauge's cell, new when there is none; past a label's cap it is that of `_other`."""
        return cast("NumberCell", self.cells.get((*scope, *own)) or self._new(scope, own, ()))

    def put(self, scope: Key, own: Sequence[str], value: float, time: float) -> None:
        """Set a gauge; a value that cannot be true is refused and counted, and makes no series."""
        if self.believes(value):
            self.number(scope, own).set(value, time)

    def histogram(self, scope: Key, own: Sequence[str], bounds: tuple[float, ...]) -> HistogramCell:
        """Return a histogram's cell, new when there is none; past a label's cap it is that of `_other`."""
        return cast("HistogramCell", self.cells.get((*scope, *own)) or self._new(scope, own, bounds))

    def settle(self) -> None:
        """Sort what the histograms have pending into their buckets."""
        for cell in self.cells.values():
            if isinstance(cell, HistogramCell):
                cell.settle()

    def _new(self, scope: Key, own: Sequence[str], bounds: tuple[float, ...]) -> Cell:
        return self._at(self._place(scope, own), bounds)

    def _place(self, scope: Key, own: Sequence[str]) -> Key:
        """Return where a series is kept: past a cap together with others."""
        scope = _fitting(scope)
        if scope not in self._scopes and len(self._scopes) >= MAX_SCOPES:
            scope = tuple(OTHER for _ in scope)
        self._scopes.add(scope)
        places = zip(self._seen, self.metric.labels, own, strict=True)
        return (*scope, *(self._admit(seen, label, value) for seen, label, value in places))

    def _at(self, key: Key, bounds: tuple[float, ...] = ()) -> Cell:
        if key not in self.cells:
            self.cells[key] = self._make(bounds)
        return self.cells[key]

    def believes(self, value: float) -> bool:
        """Tell whether a value can be true, and count one that cannot."""
        if reason := fault(value, self.metric.limit):
            self.rejects[self.metric.name, reason] += 1
        return not reason

    @staticmethod
    def _admit(seen: set[str], label: Label, value: str) -> str:
        value = fit(value)
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
        """Set every series of a scope at once; series that are not named go away. Values beyond a cap add up.

        A value that cannot be true is refused and counted: a series that there is stays as it was, and none is made.
        """
        scope = _fitting(scope)
        named = {own if isinstance(own, tuple) else (own,): value for own, value in values.items()}
        self.drop(scope, keep=named)
        merged: dict[Key, float] = {}
        for own, value in named.items():
            if self.believes(value):
                key = (*scope, *own) if (*scope, *own) in self.cells else self._place(scope, own)
                merged[key] = merged.get(key, 0.0) + value
        for key, value in merged.items():
            if self.believes(value):
                cast("NumberCell", self._at(key)).set(value, time)

    def drop(self, scope: Key, keep: Collection[Key] = ()) -> None:
        """Remove the series of a scope, except those of label values to keep, and free the places of values in neither."""
        scope, first = _fitting(scope), len(scope)
        gone = [key for key in self.cells if key[:first] == scope and key[first:] not in keep]
        for key in gone:
            del self.cells[key]
        if gone and isinstance(self.metric, Gauge):
            for place, label in enumerate(self.metric.labels):
                used = {key[first + place] for key in self.cells} | {fit(own[place]) for own in keep}
                self._seen[place] = self._seen[place] & used - {OTHER} | set(label.values)


def _fitting(scope: Key) -> Key:
    return tuple(map(fit, scope))


class Store:
    """Every family. Writers and readers hold `lock`; vLLM's event loop never does."""

    def __init__(self, metrics: Iterable[Metric[Any]], *, exponential: bool = False) -> None:
        """`exponential`: histograms keep base-2 exponential buckets too."""
        self.lock = threading.RLock()
        self.rejects: Rejects = Rejects()
        self._families = {metric: Family(metric, self.rejects, exponential=exponential) for metric in metrics}
        self._histograms = [family for family in self if isinstance(family.metric, Histogram)]

    def settle(self) -> None:
        """Sort what the histograms have pending into their buckets, giving the lock up between them."""
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
    """Return all series of the wanted metrics as they are between two records.

    The lock is held all the time, so that no record is added meanwhile: whoever adds waits for it, which vLLM's event
    loop never does. `known`: versions that need no reading.
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
