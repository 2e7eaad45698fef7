"""vLLM's page, again and again, into a collector of ours."""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client.core import Metric as NativeMetric

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.http import DownloadError, shown
from vllm_vitals._util.log import LOGGER, log_once
from vllm_vitals._util.pacing import checkpoint, paced
from vllm_vitals._util.trust import Trust
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog import CATALOG, Gauge, Metric, engine
from vllm_vitals.catalog.metric import Key
from vllm_vitals.config.settings import NativeSettings
from vllm_vitals.store.series import HistogramCell
from vllm_vitals.store.store import Store
from vllm_vitals.vllm_page.counterparts import COUNTERPARTS
from vllm_vitals.vllm_page.mapping import Mapped, Place, Totals, mapped, missing, relevant
from vllm_vitals.vllm_page.parse import LONGEST_REASON, Page, PageError

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


MOST_REASONS = 10
"""Of one outage that are logged: a peer may find a new one each time."""


class Poller:
    """Fetches on a thread of its own; of an outage each reason is told once, and its end."""

    def __init__(self, aggregator: Aggregator, url: str, settings: NativeSettings) -> None:
        self._aggregator = aggregator
        self._shown = shown(url)
        self._interval = settings.interval
        self._page = Page(url, settings.timeout, Trust(settings.tls_ca, settings.tls_cert, settings.tls_key))
        self._source = NativeSource(aggregator.store)
        self._engines: set[Key] = set()
        self._failures = 0
        self._reason = ""
        """Of the latest failure."""
        self._said: set[str] = set()
        """The reasons of this outage that are in the log."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitals-native", daemon=True)

    def start(self) -> None:
        """Begin to fetch, at once for the first time."""
        had = {native.ours for native in COUNTERPARTS}
        lacking = [metric for metric, _ in missing(CATALOG)]
        LOGGER.info(
            "vLLM's own metrics of %s are shown under our names; they do not tell: %s; of these not all: %s",
            self._shown,
            ", ".join(sorted(metric.name for metric in lacking if metric not in had)),
            ", ".join(sorted(metric.name for metric in lacking if metric in had)),
        )
        self._thread.start()

    def stop(self) -> None:
        """End, after the fetch in progress or its timeout."""
        self._stopped.set()
        self._thread.join(1.0)

    def problem(self) -> str:
        """Return why nothing comes in, `""` when all is well."""
        if ended := self.ended():
            return ended
        if self._failures:
            return f"{self._shown} could not be fetched and read {self._failures} times in a row: {self._reason}"
        return "" if self._page.time else f"{self._shown} has not been fetched yet"

    def ended(self) -> str:
        """Return why nothing will ever come in, `""` while that is not so."""
        return "" if self._thread.is_alive() else f"the thread that fetches {self._shown} has ended"

    @paced()
    def poll(self) -> None:
        """Fetch once and take in what came; gauges go while nothing comes."""
        try:
            self._page.refresh()
            self._source.take(self._page.collect(), self._page.time)
        except (DownloadError, PageError) as error:
            self._fail(error)
        else:
            self._succeed()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.poll()
            except Exception as error:  # noqa: BLE001 - the thread must go on
                log_once(logging.ERROR, "vLLM's own metrics could not be taken in", key="native-poll", traceback=True)
                self._fail(PageError(f"{self._shown}: {type(error).__name__}: {error}"))
            self._stopped.wait(self._interval)

    def _fail(self, error: Exception) -> None:
        self._reason = clean(str(error), LONGEST_REASON)
        if self._reason not in self._said and len(self._said) <= MOST_REASONS:
            self._said.add(self._reason)
            if len(self._said) <= MOST_REASONS:
                LOGGER.warning(
                    "vLLM's own metrics cannot be had, trying again every %g s: %s", self._interval, self._reason
                )
            else:
                LOGGER.warning(
                    "No further reasons are logged until vLLM's own metrics can be had again; /readyz has the latest"
                )
        self._failures += 1
        self._aggregator.count_error("read")
        self._source.take((), time.time())
        self._say(set())

    def _succeed(self) -> None:
        if self._failures:
            LOGGER.info("vLLM's own metrics can be had again after %d failures", self._failures)
        self._failures = 0
        self._said.clear()
        with self._aggregator.store.lock:
            present = set(self._aggregator.store[engine.RUNNING].cells)
        self._engines |= present
        self._say(present)

    def _say(self, present: set[Key]) -> None:
        """Tell which of the engines that were ever on the page are there."""
        with self._aggregator.store.lock:
            for scope in self._engines:
                self._aggregator.store[engine.UP].number(scope).set(float(scope in present), time.time())
