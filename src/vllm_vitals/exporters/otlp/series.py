"""The series that a push holds: those of the store, and vLLM's own under the names that scraping would give them."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vllm_vitals._util.labels import fit
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog.metric import Key, Metric
from vllm_vitals.store.series import Cell, HistogramCell, Reading
from vllm_vitals.store.store import Store, snapshot
from vllm_vitals.vllm_page.parse import read

NANOSECONDS = 1_000_000_000
"""Nanoseconds of a second."""

Labels = tuple[tuple[str, str], ...]
SeriesId = tuple[str, Labels]
"""Metric name and labels."""


class MetricInfo(NamedTuple):
    """The description of a metric in OTLP; `kind` is counter, gauge or histogram."""

    name: str
    help: str
    unit: str
    kind: str


class Series(NamedTuple):
    """One series at one moment."""

    metric: MetricInfo
    labels: Labels
    reading: Reading
    bounds: tuple[float, ...] = ()
    cell: Cell | None = None
    """Distinguishes a series from a later one with the same labels."""
    observed: float | None = None
    """Unix time at which a gauge was observed; `None` stands for now."""

    @property
    def id(self) -> SeriesId:
        """Return metric name and labels."""
        return self.metric.name, self.labels


class StoreReader:
    """Reads the series of a store. A series that did not change since the previous push is not read again."""

    def __init__(self, store: Store, fresh: float) -> None:
        """`fresh`: seconds for which the observation time of a gauge that expires is used."""
        self._store = store
        self._fresh = fresh
        self._series: dict[Cell, Series] = {}
        self._versions: dict[Cell, int] = {}
        self._metrics = {
            family.metric: MetricInfo(family.metric.name, family.metric.help, family.metric.unit, family.metric.kind)
            for family in store
        }

    def read(self, now: int) -> Iterator[Series]:
        """Yield all series as they are between two records; `now` is Unix time in nanoseconds."""
        before, self._series = self._series, {}
        known, self._versions = self._versions, {}
        for metric, shown in snapshot(self._store, known=known):
            info = self._metrics[metric]
            expires = getattr(metric, "expires", False)
            for key, cell, reading in shown:
                series = before.get(cell)
                if reading is not None:
                    labels = _labels(metric, key) if series is None else series.labels
                    bounds = cell.bounds if isinstance(cell, HistogramCell) else ()
                    series = Series(info, labels, reading, bounds, cell)
                if series is not None:
                    self._series[cell] = series
                    self._versions[cell] = series.reading.version
                    yield series._replace(observed=self._observed(cell, now)) if expires else series
            checkpoint()

    def _observed(self, cell: Cell, now: int) -> float | None:
        """Return the time of the step that set a gauge while it is recent; an older gauge was confirmed by silence."""
        observed: float = getattr(cell, "time", 0.0)
        return observed if 0 <= now / NANOSECONDS - observed < self._fresh else None


def native_series(registry: Any, excluded: Callable[[str], bool]) -> Iterator[Series]:
    """Yield the series of a registry, or of a page, except families with an `excluded` name."""
    for family in registry.collect():
        if not excluded(family.name):
            for each in read(family):
                info = MetricInfo(each.name, fit(family.documentation), family.unit, each.kind)
                yield Series(info, each.labels, Reading(0, each.value, each.counts), bounds=each.bounds)
        checkpoint()


def unicode_text(text: str) -> str:
    """Return text that UTF-8 can encode: a lone surrogate, from bytes that are not UTF-8, is replaced."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _labels(metric: Metric[Any], key: Key) -> Labels:
    """Return the labels of a series; an empty label is no attribute."""
    return tuple((name, unicode_text(value)) for name, value in zip(metric.labelnames, key, strict=True) if value)
