"""vLLM's page, again and again, into a collector of ours."""

import logging
import threading
import time

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.http import DownloadError, shown
from vllm_vitals._util.log import LOGGER, log_once
from vllm_vitals._util.pacing import paced
from vllm_vitals._util.trust import Trust
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog import CATALOG, engine
from vllm_vitals.catalog.metric import Key
from vllm_vitals.config.settings import NativeSettings
from vllm_vitals.vllm_page.counterparts import COUNTERPARTS
from vllm_vitals.vllm_page.mapping import missing
from vllm_vitals.vllm_page.page import LONGEST_REASON, Page, PageError
from vllm_vitals.vllm_page.source import NativeSource

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
