"""How what a metric reads from a record reaches the store: one writer for each metric and scope."""

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
"""Finds what not every parser takes in an exemplar, escaped or not: such an id, which a client chose, has none."""


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
        values: defaultdict[Any, list[float]] = defaultdict(list)
        for read in filter(None, map(self.read, records)):
            for own, value in read.items():
                values[own].append(value)
        for own, each in values.items():
            if any(each):
                self.family.number(self.scope, _own(own)).add(*each)


class GaugeWriter(Writer):
    """Sets to what the latest record says that says anything."""

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: D102
        for record in reversed(records):
            value = self.read(record)
            if value is not None:
                self._set(value, time)
                return

    def _set(self, value: Any, time: float) -> None:
        self.family.put(self.scope, (), value, time)


class LabelledGaugeWriter(GaugeWriter):
    """Sets all label values at once: those that are not named any more go away."""

    def _set(self, value: Any, time: float) -> None:
        self.family.replace(self.scope, value, time)


class HistogramWriter(Writer):
    """Observes: a value of each record, or an array of them."""

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
        if told := array("d", b"".join(values) if isinstance(values[0], array) else values):
            self._cell(()).extend(told, self._max_from_record(records[-1]) if self._max_from_record else None)

    def _cell(self, own: Key) -> HistogramCell:
        cell = self._cells.get(own)
        if cell is None:
            cell = self._cells[own] = self.family.histogram(self.scope, own, self._bounds)
        return cell


class RepeatedWriter(HistogramWriter):
    """Observes an array of values of each record, each of them as many times as the record says."""

    def __init__(self, family: Family, *args: Any) -> None:
        super().__init__(family, *args)
        metric: Histogram[Any] = family.metric  # type: ignore[assignment]
        self._repeats = reader(metric.repeats)  # type: ignore[arg-type]

    def take(self, records: Sequence[Any], time: float) -> None:  # noqa: ARG002, D102
        told = [(values, self._repeats(record)) for record in records if (values := self.read(record))]
        if told:
            most = self._max_from_record(records[-1]) if self._max_from_record else None
            cell = self._cell(())
            for values, times in told:
                cell.extend(values, most, times)


class RequestWriter(HistogramWriter):
    """Observes a value of each finished request that has one, for each label value if there are any."""

    def __init__(self, *args: Any, exemplars: int = 0, **kwargs: Any) -> None:
        """`exemplars` is the most characters of one, 0 for none."""
        super().__init__(*args, **kwargs)
        self._exemplars = exemplars if self.family.metric.unit == "s" else 0

    def take(self, records: Sequence[Requests], time: float) -> None:  # noqa: ARG002, D102
        for requests in records:
            read = self.read(requests)
            for own, values in read.items() if isinstance(read, Mapping) else [((), read)]:
                self._observe(_own(own), values, requests)

    def _observe(self, own: Key, values: Floats, requests: Requests) -> None:
        kept = values == values  # noqa: PLR0124 - false where it is NaN: vLLM did not say
        if self._max_from_record:
            absurd = values > self._max_from_record(requests)
            if absurd.any():
                self.family.rejects[self.family.metric.name, "absurd"] += int(absurd.sum())
                kept &= ~absurd
        if not kept.any():
            return
        cell = self._cell(own)
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
    """Yield the writers of a family for one scope, none if the collector keeps the metric itself.

    `exemplars` is the most characters of one, 0 for none.
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


def _own(label: Any) -> Key:
    return label if isinstance(label, tuple) else (label,)


def prepare(family: Family, scope: Key, bounds: Mapping[str, tuple[float, ...]], source: Any = None) -> None:
    """Create the series that are known in advance, so that a rate over them has a start.

    `source`: the record, or the settings, that `Label.values_from` reads.
    """
    metric: Metric[Any] = family.metric
    if isinstance(metric, Gauge) and metric.initial is None:
        return
    for own in product(*(each.initial_values(source) for each in metric.labels)):
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
