"""What vLLM and its connectors export to Prometheus, turned into series that can be pushed beside ours.

Names stay what a collector's Prometheus receiver would give them: those of the samples.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from prometheus_client.core import Metric as NativeMetric

from vllm_vitals.exporters.otlp.points import Described, Series, State

Labels = tuple[tuple[str, str], ...]
Pause = Callable[[], None]


class _Parts(NamedTuple):
    """The samples of one histogram series."""

    bounds: dict[float, float]
    sums: list[float]


def native_series(registry: Any, pause: Pause, apart: Callable[[str], bool]) -> Iterator[Series]:
    """Yield the series of a `prometheus_client` registry, except families whose name is set `apart`."""
    for family in registry.collect():
        if not apart(family.name):
            yield from (_histogram(family) if family.type == "histogram" else _numbers(family))
        pause()


def _numbers(family: NativeMetric) -> Iterator[Series]:
    """Yield a series for each sample: sums of what only grows, gauges of the rest."""
    for sample in family.samples:
        if sample.name.endswith("_created"):
            continue
        grows = family.type == "counter" or (sample.name.endswith(("_sum", "_count")) and family.type == "summary")
        described = Described(sample.name, family.documentation, family.unit, "counter" if grows else "gauge")
        yield Series(described, tuple(sorted(sample.labels.items())), State(float(sample.value)))


def _histogram(family: NativeMetric) -> Iterator[Series]:
    """Yield a series for each label set of a histogram."""
    described = Described(family.name, family.documentation, family.unit, "histogram")
    found: dict[Labels, _Parts] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            found.setdefault(labels, _Parts({}, [])).bounds[float(sample.labels["le"])] = sample.value
        elif sample.name.endswith("_sum"):
            found.setdefault(labels, _Parts({}, [])).sums.append(sample.value)
    for labels, parts in found.items():
        edges = sorted(parts.bounds)
        within = [int(parts.bounds[edge]) for edge in edges]
        counts = tuple(high - low for low, high in zip(chain([0], within), within, strict=False))
        if edges and edges[-1] == float("inf"):
            total = parts.sums[0] if parts.sums else 0.0
            yield Series(described, labels, State(total, counts), bounds=tuple(edges[:-1]))
