"""How what a metric reads from a record reaches the store: one writer for each metric and engine."""

from array import array
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np

from vllm_vitals.catalog.metric import Gauge, Histogram, Key, Metric, Scope
from vllm_vitals.collector.cells import Exemplar
from vllm_vitals.collector.store import Family
from vllm_vitals.step import Finished

Write = Callable[[Any, Any, float], None]
"""Takes what was read, the record it was read from, and the record's Unix time."""


def writer(family: Family, scope: Key, bounds: Mapping[str, tuple[float, ...]], *, exemplars: int = 0) -> Write:
    """Return the writer of a family for one scope; `exemplars` is the most characters of one, 0 for none."""
    metric = family.metric
    if isinstance(metric, Histogram):
        return _Histogram(family, metric, scope, bounds[metric.buckets], exemplars)
    return _gauge(family, scope) if isinstance(metric, Gauge) else _counter(family, scope)


def _own(label: Any) -> Key:
    return label if isinstance(label, tuple) else (label,)


def _counter(family: Family, scope: Key) -> Write:
    def add(value: Any, record: Any, time: float) -> None:  # noqa: ARG001
        if value:
            family.number(scope).add(value)

    def add_each(values: Mapping[Any, float], record: Any, time: float) -> None:  # noqa: ARG001
        for label, value in values.items():
            if value:
                family.number(scope, _own(label)).add(value)

    return add_each if family.metric.labels else add


def _gauge(family: Family, scope: Key) -> Write:
    def put(value: Any, record: Any, time: float) -> None:  # noqa: ARG001
        family.number(scope).set(value, time)

    def put_all(values: Mapping[Any, float], record: Any, time: float) -> None:  # noqa: ARG001
        family.replace(scope, values, time)

    return put_all if family.metric.labels else put


class _Histogram:
    """Writes a histogram's values: one, one for each label value, or an array of them."""

    def __init__(
        self, family: Family, metric: Histogram[Any], scope: Key, bounds: tuple[float, ...], exemplars: int
    ) -> None:
        self._family = family
        self._scope = scope
        self._bounds = bounds
        self._ceiling = metric.ceiling
        self._name = metric.name
        self._exemplars = exemplars if metric.of is Finished and metric.unit == "s" else 0

    def __call__(self, value: Any, record: Any, time: float) -> None:
        if isinstance(value, array):
            if value:
                self._extend(value, record)
        elif isinstance(value, dict):
            for label, each in value.items():
                self._observe(each, record, time, _own(label))
        else:
            self._observe(value, record, time, ())

    def _observe(self, value: float, record: Any, time: float, own: Key) -> None:
        most = self._ceiling(record) if self._ceiling else None
        if most is not None and value > most:
            self._family.rejects[self._name, "absurd"] += 1
            return
        cell = self._family.histogram(self._scope, own, self._bounds)
        cell.observe(value)
        if self._exemplars and record.request_id:
            cell.attach(Exemplar(record.request_id[: self._exemplars], value, time))

    def _extend(self, values: "array[float]", record: Any) -> None:
        most = self._ceiling(record) if self._ceiling else None
        if most is not None:
            given = np.frombuffer(values)
            believable = ~(given > most)
            if not believable.all():
                self._family.rejects[self._name, "absurd"] += int((~believable).sum())
                values = array("d", given[believable].tobytes())
        self._family.histogram(self._scope, (), self._bounds).extend(values)


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
