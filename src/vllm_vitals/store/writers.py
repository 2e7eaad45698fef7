"""Write the values that metrics read from records into the store: one writer per metric and scope."""

import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from vllm_vitals.catalog.metric import Gauge, Histogram, Key, Metric, Scope, reader
from vllm_vitals.records.request_batch import Floats, Requests
from vllm_vitals.records.step import Finished
from vllm_vitals.store.series import Exemplar, HistogramCell
from vllm_vitals.store.store import Family

_UNFIT = re.compile(r'["\\{}]').search
"""Characters that some parsers refuse in an exemplar, even escaped. A request id with one gets no exemplar."""


class Writer:
    """Reads one metric from records and writes it into the series of one scope."""

    def __init__(self, family: Family, scope: Key, read: Callable[[Any], Any] | str) -> None:
        self.family = family
        self.scope = scope
        self.read = reader(read)

    def take(self, records: Sequence[Any], time: float) -> None:
        """Write records, oldest first: all, or none if it raises. `time`: Unix time of the latest."""
        raise NotImplementedError


class CounterWriter(Writer):
    """Adds a number. Zero makes no series."""

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: ARG002, D102
        if values := list(filter(None, map(self.read, records))):
            self.family.number(self.scope).add(*values)


class LabelledCounterWriter(Writer):
    """Adds a number for each label value."""

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: ARG002, D102
        values: defaultdict[Any, list[float]] = defaultdict(list)
        for read in filter(None, map(self.read, records)):
            for labels, value in read.items():
                values[labels].append(value)
        for labels, each in values.items():
            if any(each):
                self.family.number(self.scope, _labels(labels)).add(*each)


class GaugeWriter(Writer):
    """Sets a gauge to the value of the latest record that has one."""

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: D102
        for record in reversed(records):
            value = self.read(record)
            if value is not None:
                self._set(value, time)
                return

    def _set(self, value: Any, time: float) -> None:
        self.family.put(self.scope, (), value, time)


class LabelledGaugeWriter(GaugeWriter):
    """Sets all label values at once, and removes the others."""

    def _set(self, value: Any, time: float) -> None:
        self.family.replace(self.scope, value, time)


class HistogramWriter(Writer):
    """Observes a value, or an array of values, of each record."""

    def __init__(self, family: Family, scope: Key, read: Callable[[Any], Any] | str, bounds: tuple[float, ...]) -> None:
        super().__init__(family, scope, read)
        metric: Histogram[Any] = family.metric  # type: ignore[assignment]
        self._bounds = bounds
        self._max_from_record = reader(metric.max_from_record) if metric.max_from_record else None
        self._cells: dict[Any, HistogramCell] = {}

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: ARG002, D102
        values = [value for value in map(self.read, records) if value is not None]
        if not values:
            return
        if observed := array("d", b"".join(values) if isinstance(values[0], array) else values):
            self._cell(()).extend(observed, self._max_from_record(records[-1]) if self._max_from_record else None)

    def _cell(self, labels: Key) -> HistogramCell:
        cell = self._cells.get(labels)
        if cell is None:
            cell = self._cells[labels] = self.family.histogram(self.scope, labels, self._bounds)
        return cell


class RepeatedWriter(HistogramWriter):
    """Observes an array of values of each record, each value several times."""

    def __init__(self, family: Family, *args: Any) -> None:
        super().__init__(family, *args)
        metric: Histogram[Any] = family.metric  # type: ignore[assignment]
        self._repeats = reader(metric.repeats)  # type: ignore[arg-type]

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: ARG002, D102
        observed = [(values, self._repeats(record)) for record in records if (values := self.read(record))]
        if observed:
            max_value = self._max_from_record(records[-1]) if self._max_from_record else None
            cell = self._cell(())
            for values, times in observed:
                cell.extend(values, max_value, times)


class RequestWriter(HistogramWriter):
    """Observes a value of each finished request that has one, by label value if the metric has labels."""

    def __init__(self, *args: Any, exemplars: int = 0, **kwargs: Any) -> None:
        """`exemplars`: maximum length of the id in an exemplar, 0 for none."""
        super().__init__(*args, **kwargs)
        self._exemplars = exemplars if self.family.metric.unit == "s" else 0

    def take(self, records: Sequence[Requests], time: float) -> None:  # noqa: ARG002, D102
        for requests in records:
            read = self.read(requests)
            for labels, values in read.items() if isinstance(read, Mapping) else [((), read)]:
                self._observe(_labels(labels), values, requests)

    def _observe(self, labels: Key, values: Floats, requests: Requests) -> None:
        kept = values == values  # noqa: PLR0124 - false for NaN: vLLM did not report it
        if self._max_from_record:
            absurd = values > self._max_from_record(requests)
            if absurd.any():
                self.family.rejects[self.family.metric.name, "absurd"] += int(absurd.sum())
                kept &= ~absurd
        if not kept.any():
            return
        cell = self._cell(labels)
        cell.extend(values[kept])
        for index in np.flatnonzero(kept).tolist() if self._exemplars else ():
            request = requests.requests[index]
            if (
                request.request_id
                and (name := request.request_id[: self._exemplars]).isprintable()
                and not _UNFIT(name)
            ):
                cell.attach(Exemplar(name, float(values[index]), request.time))


def writers(
    family: Family, scope: Key, bounds: Mapping[str, tuple[float, ...]], *, exemplars: int = 0
) -> Iterator[Writer]:
    """Yield the writers of a family for one scope; none if no record holds the metric.

    `exemplars`: maximum length of the id in an exemplar, 0 for none.
    """
    metric = family.metric
    if metric.record is None or metric.read is None:
        return
    if not isinstance(metric, Histogram):
        yield _PLAIN[metric.kind, bool(metric.labels)](family, scope, metric.read)
        return
    edges = bounds[metric.buckets]
    if metric.record is Finished:
        yield RequestWriter(family, scope, metric.read, edges, exemplars=exemplars)
    elif metric.repeats:
        yield RepeatedWriter(family, scope, metric.read, edges)
    else:
        yield HistogramWriter(family, scope, metric.read, edges)


_PLAIN = {
    ("counter", False): CounterWriter,
    ("counter", True): LabelledCounterWriter,
    ("gauge", False): GaugeWriter,
    ("gauge", True): LabelledGaugeWriter,
}


def _labels(label: Any) -> Key:
    return label if isinstance(label, tuple) else (label,)


def prepare(family: Family, scope: Key, bounds: Mapping[str, tuple[float, ...]], source: Any = None) -> None:
    """Create the series that are known in advance, so that a rate over them has a start.

    `source`: the record, or the settings, that `Label.values_from` reads.
    """
    metric: Metric[Any] = family.metric
    if isinstance(metric, Gauge) and metric.initial is None:
        return
    for labels in product(*(each.initial_values(source) for each in metric.labels)):
        if isinstance(metric, Histogram):
            family.histogram(scope, labels, bounds[metric.buckets])
        else:
            family.number(scope, labels)


def scope_key(scope: Scope, model: str, engine: str, convention: tuple[str, str]) -> Key:
    """Return the label values of a scope."""
    return {
        Scope.ENGINE: (model, engine),
        Scope.MODEL: (model,),
        Scope.CONVENTION: (*convention, model),
        Scope.PROCESS: (),
    }[scope]
