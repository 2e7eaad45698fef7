"""The families of a registry or a page as series: one for each number, one for each histogram."""

import math
from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import NamedTuple

from prometheus_client.core import Metric as NativeMetric

from vllm_vitals._util.labels import fit

Labels = tuple[tuple[str, str], ...]
GROWING = {"counter": ("_total",), "summary": ("_sum", "_count")}
"""The endings of the samples that only grow."""


class NativeSeries(NamedTuple):
    """One series of somebody else's; a histogram's value is its sum, its counts are not cumulated."""

    name: str
    """That of the sample, or the family of a histogram."""
    kind: str
    labels: Labels
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    created: float | None = None
    """Unix time at which it began to count, where that is told."""


def read(family: NativeMetric) -> Iterator[NativeSeries]:
    """Yield the series of a family, `_created` times as a part of theirs."""
    return _histograms(family) if family.type == "histogram" else _numbers(family)


def _numbers(family: NativeMetric) -> Iterator[NativeSeries]:
    """Yield a series for each sample: counters of what only grows, gauges of the rest."""
    created = _created(family)
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            kind = "counter" if sample.name.endswith(GROWING.get(family.type, ())) else "gauge"
            labels = _labels(sample.labels)
            yield NativeSeries(sample.name, kind, labels, float(sample.value), created=created.get(labels))


def _histograms(family: NativeMetric) -> Iterator[NativeSeries]:
    """Yield a series for each label set whose buckets are those of a histogram."""
    within: dict[Labels, dict[float, float]] = {}
    for sample in family.samples:
        edge = _edge(sample.labels.get("le", "")) if sample.name.endswith("_bucket") else None
        if edge is not None:
            own = {name: value for name, value in sample.labels.items() if name != "le"}
            within.setdefault(_labels(own), {})[edge] = sample.value
    sums = {_labels(sample.labels): sample.value for sample in family.samples if sample.name.endswith("_sum")}
    created = _created(family)
    for labels, buckets in within.items():
        edges = sorted(buckets)
        counts = tuple(high - low for low, high in pairwise(chain([0], map(buckets.__getitem__, edges))))
        if edges[-1] == math.inf and all(0 <= count < math.inf for count in counts):
            whole = tuple(map(int, counts))
            total = float(sums.get(labels, 0.0))
            yield NativeSeries(family.name, "histogram", labels, total, tuple(edges[:-1]), whole, created.get(labels))


def _edge(text: str) -> float | None:
    """Return the upper bound of a bucket, `None` where it tells none: any library may have written the page."""
    try:
        edge = float(text)
    except ValueError:
        return None
    return None if math.isnan(edge) else edge


def _created(family: NativeMetric) -> dict[Labels, float]:
    return {_labels(sample.labels): sample.value for sample in family.samples if sample.name.endswith("_created")}


def _labels(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, fit(value)) for name, value in labels.items()))
