"""Pages of vLLM's in a store of ours, for every exporter to show."""

from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.core import Metric as NativeMetric

from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog import Gauge, Metric
from vllm_vitals.catalog.metric import Key
from vllm_vitals.store.series import HistogramCell
from vllm_vitals.store.store import Store
from vllm_vitals.vllm_page.corrections import Mapped, Place
from vllm_vitals.vllm_page.mapping import mapped, relevant
from vllm_vitals.vllm_page.totals import Totals

Scoped = tuple[Metric[Any], Key]


class NativeSource:
    """Writes page after page of one vLLM into a store that nobody else writes these metrics to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._totals = Totals()
        self._counted: dict[Place, Mapped] = {}
        """What the cell of each counter and histogram was made to hold."""
        self._gauges: set[Scoped] = set()

    def take(self, families: Iterable[NativeMetric], time: float) -> None:
        """Take in a page of this Unix time; no families when there is none any more.

        Counters and histograms never fall, and stay when they are gone from the page; gauges go.
        """
        totals = (self._totals.total(each) for each in relevant(families))
        found = mapped(each for each in totals if each is not None)
        gauges: dict[Scoped, dict[Key, float]] = {}
        with self._store.lock:  # nobody sees a part of a page: what is on it together belongs together
            for (metric, key), each in found.items():
                if isinstance(metric, Gauge):
                    scope, own = _split(metric, key)
                    gauges.setdefault((metric, scope), {})[own] = each.value
                else:
                    self._count(metric, key, each)
                    checkpoint()
            self._show(gauges, time)

    def _show(self, gauges: dict[Scoped, dict[Key, float]], time: float) -> None:
        for (metric, scope), values in gauges.items():
            self._store[metric].replace(scope, values, time)
        for metric, scope in self._gauges - gauges.keys():
            self._store[metric].drop(scope)
        self._gauges = set(gauges)

    def _count(self, metric: Metric[Any], key: Key, now: Mapped) -> None:
        """Add to a cell what it lacks."""
        before = self._counted.get((metric, key))
        if before is None or before.bounds != now.bounds:
            before = Mapped(0.0, now.bounds, (0,) * len(now.counts))
        # What was corrected falls by a little where the page was written while requests ended; ours must not.
        held = Mapped(max(now.value, before.value), now.bounds, tuple(map(max, now.counts, before.counts)))
        self._counted[metric, key] = held
        more = [high - low for high, low in zip(held.counts, before.counts, strict=True)]
        if metric.kind == "histogram":
            self._add_histogram(metric, key, now.bounds, more, held.value - before.value)
        else:
            self._store[metric].number(*_split(metric, key)).merge(held.value - before.value)

    def _add_histogram(
        self, metric: Metric[Any], key: Key, bounds: tuple[float, ...], counts: Sequence[int], total: float
    ) -> None:
        family = self._store[metric]
        cell = family.cells.get(key)
        if isinstance(cell, HistogramCell) and cell.bounds != bounds:
            # vLLM was started with other buckets, into which what these have counted cannot be sorted.
            del family.cells[key]
        family.histogram(*_split(metric, key), bounds).merge(counts, total)


def _split(metric: Metric[Any], key: Key) -> tuple[Key, Key]:
    """Return the label values of a series' scope, and its own."""
    first = len(metric.scope.value)
    return key[:first], key[first:]
