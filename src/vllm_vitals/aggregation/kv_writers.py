"""Write the reports of KV connectors into the store."""

import math
from collections.abc import Mapping, Sequence

from vllm_vitals.catalog.connectors import CONNECTORS, IO
from vllm_vitals.catalog.metric import Counter, Histogram, Key
from vllm_vitals.catalog.self_metrics import UNKNOWN_CONNECTORS
from vllm_vitals.records.step import Reported, Step
from vllm_vitals.store.store import Family, Store
from vllm_vitals.store.writers import Writer

FAMILIES = {metric.name: metric for metric in CONNECTORS}


class ConnectorWriter(Writer):
    """Writes all connector metrics of one engine: most steps have none, and one check for all costs the least."""

    def __init__(self, store: Store, scope: Key, bounds: Mapping[str, tuple[float, ...]]) -> None:
        super().__init__(store[IO], scope, "connectors")
        self._store = store
        self._bounds = bounds
        self._latest = -math.inf
        """Monotonic seconds of the latest step with a report."""

    def take(self, records: Sequence[Step], time: float) -> None:  # noqa: D102
        for step in records:
            if step.connectors:
                self._take(step, time)
            if step.unknown_connectors:
                self._count_unknown(step.unknown_connectors)

    def _take(self, step: Step, time: float) -> None:
        late = step.clock < self._latest
        self._latest = max(self._latest, step.clock)
        for reported in step.connectors:
            metric = FAMILIES.get(reported.metric)
            # Unknown metrics and labels come from a process with another release of this plugin.
            if metric is not None and len(reported.labels) == len(metric.labels):
                self._write(self._store[metric], reported, time, late=late)

    def _count_unknown(self, connectors: Sequence[str]) -> None:
        """Count each class once for its engine, however many readers, processes and starts report it."""
        for connector in connectors:
            number = self._store[UNKNOWN_CONNECTORS].number(self.scope, (connector,))
            if not number.value:
                number.add(1)

    def _write(self, family: Family, reported: Reported, time: float, *, late: bool) -> None:
        """Add the reported values. Without values, the series starts at 0."""
        metric, labels, values = family.metric, reported.labels, reported.values
        if isinstance(metric, Histogram):
            family.histogram(self.scope, labels, self._bounds[metric.buckets]).extend(values)
        elif isinstance(metric, Counter):
            number = family.number(self.scope, labels)
            if values:
                number.add(*values)
        elif values and not late:
            family.put(self.scope, labels, values[-1], time)
