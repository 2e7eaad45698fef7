"""How what a metric reads from a record reaches the store: one writer for each metric and scope."""

from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

from vllm_vitals.catalog.metric import Gauge, Histogram, Key, Metric, Scope
from vllm_vitals.collector.cells import Exemplar, HistogramCell
from vllm_vitals.collector.store import Family
from vllm_vitals.step import Finished


class Writer:
    """Reads one metric from records and writes it into the series of one scope."""

    def __init__(self, family: Family, scope: Key, read: Callable[[Any], Any]) -> None:
        self.family = family
        self.scope = scope
        self.read = read

    def take(self, record: Any, time: float) -> None:
        """Take one record in; `time` is its Unix time."""
        raise NotImplementedError

    def take_all(self, requests: Iterable[Finished]) -> None:
        """Take many finished requests in."""
        for request in requests:
            self.take(request, request.time)


class CounterWriter(Writer):
    """Adds; what is nothing makes no series."""

    def take(self, record: Any, time: float) -> None:  # noqa: ARG002, D102
        if value := self.read(record):
            self.family.number(self.scope).add(value)


class LabelledCounterWriter(Writer):
    """Adds for each label value."""

    def take(self, record: Any, time: float) -> None:  # noqa: ARG002, D102
        for label, value in (self.read(record) or {}).items():
            if value:
                self.family.number(self.scope, _own(label)).add(value)


class GaugeWriter(Writer):
    """Sets."""

    def take(self, record: Any, time: float) -> None:  # noqa: D102
        value = self.read(record)
        if value is not None:
            self.family.number(self.scope).set(value, time)


class LabelledGaugeWriter(Writer):
    """Sets all label values at once: those that are not named any more go away."""

    def take(self, record: Any, time: float) -> None:  # noqa: D102
        values = self.read(record)
        if values is not None:
            self.family.replace(self.scope, values, time)


class HistogramWriter(Writer):
    """Observes: one value, one for each label value, or an array of them."""

    def __init__(
        self,
        family: Family,
        scope: Key,
        metric: Histogram[Any],
        bounds: tuple[float, ...],
        exemplars: int,
    ) -> None:
        super().__init__(family, scope, metric.read or (lambda _: None))
        self._bounds = bounds
        self._ceiling = metric.ceiling or (lambda _: None)
        self._name = metric.name
        self._labelled = bool(metric.labels)
        self._exemplars = exemplars if metric.of is Finished and metric.unit == "s" else 0
        self._cells: dict[Any, HistogramCell] = {}

    def take(self, record: Any, time: float) -> None:  # noqa: D102
        value = self.read(record)
        if value is None:
            return
        if isinstance(value, array):
            if value:
                self._cell(()).extend(value, self._ceiling(record))
            return
        most = self._ceiling(record)
        for label, each in value.items() if self._labelled else (((), value),):
            if most is not None and each > most:
                self.family.rejects[self._name, "absurd"] += 1
                continue
            cell = self._cell(label)
            cell.observe(each)
            if self._exemplars and record.request_id:
                cell.attach(Exemplar(record.request_id[: self._exemplars], each, time))

    def take_all(self, requests: Iterable[Finished]) -> None:  # noqa: D102
        if self._labelled or self._exemplars:
            super().take_all(requests)
            return
        read, ceiling = self.read, self._ceiling
        pairs = [(value, ceiling(request)) for request in requests if (value := read(request)) is not None]
        if pairs:
            honest = [value for value, most in pairs if most is None or not value > most]
            self.family.rejects[self._name, "absurd"] += len(pairs) - len(honest)
            self._cell(()).extend(honest)

    def _cell(self, label: Any) -> HistogramCell:
        cell = self._cells.get(label)
        if cell is None:
            cell = self._cells[label] = self.family.histogram(self.scope, _own(label), self._bounds)
        return cell


def writer(family: Family, scope: Key, bounds: Mapping[str, tuple[float, ...]], *, exemplars: int = 0) -> Writer | None:
    """Return the writer of a family for one scope, `None` if the collector keeps the metric itself.

    `exemplars` is the most characters of one, 0 for none.
    """
    metric = family.metric
    if metric.of is None or metric.read is None:
        return None
    if isinstance(metric, Histogram):
        return HistogramWriter(family, scope, metric, bounds[metric.buckets], exemplars)
    if isinstance(metric, Gauge):
        return (LabelledGaugeWriter if metric.labels else GaugeWriter)(family, scope, metric.read)
    return (LabelledCounterWriter if metric.labels else CounterWriter)(family, scope, metric.read)


def _own(label: Any) -> Key:
    return label if isinstance(label, tuple) else (label,)


def prepare(family: Family, scope: Key, bounds: Mapping[str, tuple[float, ...]]) -> None:
    """Make the series that are known beforehand, so that a rate over them has a start."""
    metric: Metric[Any] = family.metric
    if isinstance(metric, Gauge):
        if metric.initial is None:
            return
    elif metric.labels and not all(label.values for label in metric.labels):
        return
    for own in product(*(label.values for label in metric.labels)):
        if isinstance(metric, Histogram):
            family.histogram(scope, own, bounds[metric.buckets])
        else:
            family.number(scope, own)


def scope_key(scope: Scope, model: str, engine: str, convention: tuple[str, str]) -> Key:
    """Return the scope's label values."""
    return {
        Scope.ENGINE: (model, engine),
        Scope.MODEL: (model,),
        Scope.CONVENTION: (*convention, model),
        Scope.PROCESS: (),
    }[scope]
