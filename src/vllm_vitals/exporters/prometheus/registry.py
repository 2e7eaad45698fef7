"""The store as a `prometheus_client` collector, for use in any registry."""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector as RegistryCollector
from prometheus_client.utils import floatToGoString

from vllm_vitals._util.pacing import paced
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog.metric import Metric as CatalogMetric
from vllm_vitals.store.series import HistogramCell
from vllm_vitals.store.store import Series, snapshot


class VitalsCollector(RegistryCollector):
    """Yields every family of a collector's store as `prometheus_client` metrics."""

    def __init__(self, aggregator: Aggregator) -> None:
        self._aggregator = aggregator
        self.closed = False
        """Set in the child of a fork. Then it takes no lock and yields nothing."""

    def describe(self) -> list[Metric]:
        """Return nothing, so that registering this does not collect."""
        return []

    @paced()
    def collect(self) -> Iterator[Metric]:
        """Yield the families with their present values."""
        if self.closed:
            return
        self._aggregator.refresh()
        shown = dict(snapshot(self._aggregator.store))
        for family in self._aggregator.store:
            yield _family(family.metric, shown.get(family.metric, ()))


def _family(metric: CatalogMetric[Any], shown: Iterable[Series]) -> Metric:
    names, unit = metric.prometheus_labels, metric.prometheus_unit
    if metric.kind == "histogram":
        made = HistogramMetricFamily(metric.prometheus, metric.help, labels=names, unit=unit)
        for key, cell, reading in shown:
            if reading is not None and isinstance(cell, HistogramCell):
                edges = [*map(floatToGoString, cell.bounds), "+Inf"]
                made.add_metric(key, list(zip(edges, accumulate(reading.counts), strict=True)), reading.value)
        return made
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = kind(metric.prometheus.removesuffix("_total"), metric.help, labels=names, unit=unit)
    for key, _, reading in shown:
        if reading is not None:
            plain.add_metric(key, reading.value)
    return plain
