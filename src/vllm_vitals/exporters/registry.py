"""The store as a `prometheus_client` collector, for whoever wants our metrics in a registry of theirs."""

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector as RegistryCollector
from prometheus_client.utils import floatToGoString

from vllm_vitals.collector.cells import HistogramCell
from vllm_vitals.collector.collector import Collector
from vllm_vitals.collector.store import Family
from vllm_vitals.exporters.exposition import read


class VitalsCollector(RegistryCollector):
    """Yields every family of a collector's store as `prometheus_client` metrics."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.closed = False
        """Set in the child of a fork: it takes no lock, and then nothing is shown."""

    def describe(self) -> list[Metric]:
        """Return nothing: it spares the registry a collection when this is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the families as they are now."""
        if self.closed:
            return
        self._collector.refresh()
        for family in self._collector.store:
            with self._collector.store.lock:
                made = _family(family)
            yield made


def _family(family: Family) -> Metric:
    metric = family.metric
    names, unit = metric.prometheus_labels, metric.prometheus_unit
    if metric.kind == "histogram":
        made = HistogramMetricFamily(metric.prometheus, metric.help, labels=names, unit=unit)
        for key, cell in family.cells.items():
            if isinstance(cell, HistogramCell):
                reading = read(cell)
                edges = [*map(floatToGoString, cell.bounds), "+Inf"]
                made.add_metric(key, list(zip(edges, accumulate(reading.counts), strict=True)), reading.value)
        return made
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    plain = kind(metric.prometheus.removesuffix("_total"), metric.help, labels=names, unit=unit)
    for key, cell in family.cells.items():
        plain.add_metric(key, read(cell).value)
    return plain
