"""How what a metric reads from a record reaches the store: one writer for each metric and scope."""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress, product
from operator import gt
from typing import Any

from vllm_vitals.catalog.metric import Gauge, Histogram, Key, Metric, Scope, reader
from vllm_vitals.collector.cells import Exemplar, HistogramCell
from vllm_vitals.collector.columns import Columns, Floats
from vllm_vitals.collector.store import Family
from vllm_vitals.step import Finished


class Writer:
    """Reads one metric from records and writes it into the series of one scope."""

    def __init__(self, family: Family, scope: Key, read: Callable[[Any], Any] | str) -> None:
        self.family = family
        self.scope = scope
        self.read = reader(read)

    def take(self, records: Sequence[Any], time: float) -> None:
        """Take records in, oldest first, all of them or, if it raises, none; `time` is the latest's Unix time."""
        raise NotImplementedError


class CounterWriter(Writer):
    """Adds; what is nothing makes no series."""

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: ARG002, D102
        if values := list(filter(None, map(self.read, records))):
            self.family.number(self.scope).add(*values)


class LabelledCounterWriter(Writer):
    """Adds for each label value."""

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: ARG002, D102
        values: dict[Any, list[float]] = {}
        for read in filter(None, map(self.read, records)):
            for label, value in read.items():
                if value:
                    values.setdefault(label, []).append(value)
        for label, each in values.items():
            self.family.number(self.scope, _own(label)).add(*each)


class GaugeWriter(Writer):
    """Sets to what the latest record says that says anything."""

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: D102
        for record in reversed(records):
            value = self.read(record)
            if value is not None:
                self.family.number(self.scope).set(value, time)
                return


class LabelledGaugeWriter(Writer):
    """Sets all label values at once: those that are not named any more go away."""

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: D102
        for record in reversed(records):
            values = self.read(record)
            if values is not None:
                self.family.replace(self.scope, values, time)
                return


class HistogramWriter(Writer):
    """Observes: a value of each record, or an array of them."""

    def __init__(
        self,
        family: Family,
        scope: Key,
        read: Callable[[Any], Any] | str,
        bounds: tuple[float, ...],
        exemplars: int,
        label: Key = (),
    ) -> None:
        metric: Histogram[Any] = family.metric  # type: ignore[assignment]
        super().__init__(family, scope, read)
        self._field = read if isinstance(read, str) else ""
        self._most = metric.ceiling if isinstance(metric.ceiling, str) else ""
        self._label = label
        self._bounds = bounds
        self._ceiling = reader(metric.ceiling) if metric.ceiling else None
        self._exemplars = exemplars if metric.of is Finished and metric.unit == "s" else 0
        self._cells: dict[Any, HistogramCell] = {}

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: ARG002, D102
        if self._field and not self._exemplars and isinstance(records, Columns):
            self._observe_column(*records.column(self._field), records)
            return
        values = list(map(self.read, records))
        if None in values:
            records = [record for record, value in zip(records, values, strict=True) if value is not None]
            values = [value for value in values if value is not None]
        if not values:
            return
        if isinstance(values[0], array):
            self._extend(values, records[-1])
        else:
            self._observe(self._label, values, records)

    def _observe_column(self, values: Floats, present: Any, records: Columns) -> None:
        if self._most:
            most, _ = records.column(self._most)
            absurd = values > (most if present is None else most[present])
            if absurd.any():
                self.family.rejects[self.family.metric.name, "absurd"] += int(absurd.sum())
                values = values[~absurd]
        if values.size:
            self._cell(self._label).extend(values)

    def _extend(self, values: Sequence["array[float]"], latest: Any) -> None:
        if any(values):
            most = self._ceiling(latest) if self._ceiling else None
            cell = self._cell(self._label)
            for each in values:
                cell.extend(each, most)

    def _observe(self, label: Any, values: Sequence[float], records: Sequence[Any]) -> None:
        if self._ceiling and any(map(gt, values, map(self._ceiling, records))):
            honest = [not value > most for value, most in zip(values, map(self._ceiling, records), strict=True)]
            self.family.rejects[self.family.metric.name, "absurd"] += honest.count(False)
            values, records = list(compress(values, honest)), list(compress(records, honest))
        cell = self._cell(label)
        cell.extend(array("d", values))
        for value, record in zip(values, records, strict=True) if self._exemplars else ():
            if record.request_id:
                cell.attach(Exemplar(record.request_id[: self._exemplars], value, record.time))

    def _cell(self, label: Any) -> HistogramCell:
        cell = self._cells.get(label)
        if cell is None:
            cell = self._cells[label] = self.family.histogram(self.scope, _own(label), self._bounds)
        return cell


class LabelledHistogramWriter(HistogramWriter):
    """Observes a value of each record for each label value."""

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: ARG002, D102
        found: dict[Any, tuple[list[float], list[Any]]] = {}
        for record in records:
            for label, value in (self.read(record) or {}).items():
                values, own = found.setdefault(label, ([], []))
                values.append(value)
                own.append(record)
        for label, (values, own) in found.items():
            self._observe(label, values, own)


def writers(
    family: Family, scope: Key, bounds: Mapping[str, tuple[float, ...]], *, exemplars: int = 0
) -> Iterator[Writer]:
    """Yield the writers of a family for one scope, none if the collector keeps the metric itself.

    `exemplars` is the most characters of one, 0 for none.
    """
    metric = family.metric
    if metric.of is None or metric.read is None:
        return
    if not isinstance(metric, Histogram):
        yield _PLAIN[metric.kind, bool(metric.labels)](family, scope, metric.read)
        return
    edges = bounds[metric.buckets]
    if isinstance(metric.read, Mapping):
        for label, read in metric.read.items():
            yield HistogramWriter(family, scope, read, edges, exemplars, (label,))
    else:
        kind = LabelledHistogramWriter if metric.labels else HistogramWriter
        yield kind(family, scope, metric.read, edges, exemplars)


_PLAIN = {
    ("counter", False): CounterWriter,
    ("counter", True): LabelledCounterWriter,
    ("gauge", False): GaugeWriter,
    ("gauge", True): LabelledGaugeWriter,
}


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
