"""The state behind every exporter: a family for each metric, a cell for each label set, all bounded."""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from vllm_vitals.catalog.metric import Gauge, Histogram, Key, Label, Metric
from vllm_vitals.collector.cells import Cell, HistogramCell, NumberCell, Rejects
from vllm_vitals.step import OTHER

LONGEST_LABEL = 256
MOST_SCOPES = 1024
"""Distinct (model, engine) pairs; beyond that something makes labels up."""


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

    def histogram(self, scope: Key, own: Sequence[str], bounds: tuple[float, ...]) -> HistogramCell:
        """Return a histogram's cell, new when there is none; past a label's cap it is that of `_other`."""
        return cast("HistogramCell", self.cells.get((*scope, *own)) or self._new(scope, own, bounds))

    def settle(self) -> None:
        """Sort what the histograms have pending into their buckets."""
        for cell in self.cells.values():
            if isinstance(cell, HistogramCell):
                cell.settle()

    def _new(self, scope: Key, own: Sequence[str], bounds: tuple[float, ...]) -> Cell:
        if scope not in self._scopes and len(self._scopes) >= MOST_SCOPES:
            scope = tuple(OTHER for _ in scope)
        self._scopes.add(scope)
        places = zip(self._seen, self.metric.labels, own, strict=True)
        labels = [self._admit(seen, label, value) for seen, label, value in places]
        key = (*scope, *labels)
        if key not in self.cells:
            self.cells[key] = self._make(bounds)
        return self.cells[key]

    @staticmethod
    def _admit(seen: set[str], label: Label, value: str) -> str:
        value = value[:LONGEST_LABEL]
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
        """Set every series of a scope at once; series that are not named go away. Values beyond a cap add up."""
        named = {own if isinstance(own, tuple) else (own,): value for own, value in values.items()}
        self.drop(scope, keep=named)
        merged: dict[int, tuple[NumberCell, float]] = {}
        for own, value in named.items():
            cell = self.number(scope, own)
            merged[id(cell)] = (cell, merged.get(id(cell), (cell, 0.0))[1] + value)
        for cell, value in merged.values():
            cell.set(value, time)

    def drop(self, scope: Key, keep: Collection[Key] = ()) -> None:
        """Remove the series of a scope, except those of label values to keep, and free the places of values in neither."""
        first = len(scope)
        gone = [key for key in self.cells if key[:first] == scope and key[first:] not in keep]
        for key in gone:
            del self.cells[key]
        if gone and isinstance(self.metric, Gauge):
            for place, label in enumerate(self.metric.labels):
                used = {key[first + place] for key in self.cells} | {own[place][:LONGEST_LABEL] for own in keep}
                self._seen[place] = self._seen[place] & used - {OTHER} | set(label.values)


class Store:
    """Every family. Writers and readers hold `lock`; vLLM's event loop never does."""

    def __init__(self, metrics: Iterable[Metric[Any]], *, exponential: bool = False) -> None:
        """`exponential`: histograms keep base-2 exponential buckets too."""
        self.lock = threading.RLock()
        self.rejects: Rejects = Rejects()
        self._families = {metric: Family(metric, self.rejects, exponential=exponential) for metric in metrics}
        self._histograms = [family for family in self if isinstance(family.metric, Histogram)]

    def settle(self, pause: Callable[[], None]) -> None:
        """Sort what the histograms have pending into their buckets, giving the lock up between them."""
        for family in self._histograms:
            with self.lock:
                family.settle()
            pause()

    def __getitem__(self, metric: Metric[Any]) -> Family:
        return self._families[metric]

    def __iter__(self) -> Iterator[Family]:
        return iter(self._families.values())
