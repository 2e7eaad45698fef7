"""Pushes everything at every interval, on a thread of its own. Nothing is lost while the receiver does not answer."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from opentelemetry.sdk.resources import Resource

from vllm_vitals._util.background import BackgroundCall, Outcome
from vllm_vitals._util.bounds import clean
from vllm_vitals._util.http import DownloadError
from vllm_vitals._util.log import LOGGER, keep_out, log_once
from vllm_vitals._util.pacing import paced
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog import CATALOG
from vllm_vitals.config.settings import OtlpSettings, Settings
from vllm_vitals.exporters.otlp.encode import Push, PushBuilder, encode_request
from vllm_vitals.exporters.otlp.resource import PushResource, process_resource
from vllm_vitals.exporters.otlp.response import PushResult, failure_kind, from_exception, redacted
from vllm_vitals.exporters.otlp.series import Series, native_series
from vllm_vitals.exporters.otlp.target import EndpointError, Target, resolve
from vllm_vitals.exporters.otlp.transport import Transport, connect
from vllm_vitals.vllm_page.parse import LONGEST_REASON, PageError

NAME = "otlp"
MAX_PAUSE_SECONDS = 300.0
"""The longest pause that a receiver can ask for."""
GRACE_SECONDS = 2.0
"""Time beyond its timeout that a push gets before it is given up: no deadline bounds the lookup of a name."""
NATIVE_WAIT_SECONDS = 2.0
"""Time that a push waits for vLLM's own metrics; later ones are in the next push."""
MAX_LOGGED_KINDS = 5
"""Kinds of failures that are logged in one outage, and kinds of warnings of a receiver."""

Connect = Callable[[Target, float], Transport]


class OtlpExporter:
    """Pushes one aggregator's store to one target."""

    def __init__(
        self,
        aggregator: Aggregator,
        settings: OtlpSettings,
        target: Target,
        resource: Resource,
        *,
        started: float,
        fresh: float,
        native: Callable[[], Any] | None = None,
        make: Connect = connect,
    ) -> None:
        """Prepare to push.

        `resource`: the attributes of this process. `started`: Unix seconds. `fresh`: see `StoreReader`. `native`:
        returns a registry whose metrics are pushed too.
        """
        self._aggregator = aggregator
        self._settings = settings
        self._target = target
        self._resource = PushResource(resource, aggregator.store)
        self._connect = make
        self._builder = PushBuilder(
            aggregator.store,
            temporality=settings.temporality,
            exponential=settings.histograms == "exponential",
            started=started,
            fresh=fresh,
            more=self._native_series if native else tuple,
        )
        keep_out(target.redactor)
        self._native = BackgroundCall(partial(_read, native), "vitals-bridge") if native else None
        self._transport: Transport | None = None
        self._sender: threading.Thread | None = None
        """The thread of the latest push; it may still run after the push was given up."""
        self._stopped = threading.Event()
        self._end = math.inf
        """Monotonic seconds by which the last push has to end."""
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._logged_failures: set[str] = set()
        """Kinds of failures that were logged since the latest success."""
        self._logged_warnings: set[str] = set()
        """Kinds of warnings that were logged."""
        self._complete = True
        """Whether all series could be read for the latest push."""

    def start(self) -> None:
        """Start the thread. The first push leaves after one interval."""
        target, settings = self._target, self._settings
        LOGGER.info(
            "OTLP push: %s, %s, TLS %s, every %g s, %s, %s histograms, timeout %g s",
            target.shown,
            target.protocol,
            "on" if target.tls else "off",
            settings.interval,
            settings.temporality,
            settings.histograms,
            settings.timeout,
        )
        if self._native:
            self._native.start()
        self._thread = threading.Thread(target=self._run, name="vitals-otlp", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Push once more. The wait is bounded, whatever the receiver does."""
        bound = self._settings.shutdown_timeout
        self._end = time.monotonic() + bound
        self._stopped.set()
        if self._thread is not None:
            # No thread can be started while the interpreter ends, so the running one makes the last push.
            self._thread.join(bound)

    def after_fork_in_child(self) -> None:
        """Do nothing: no thread of ours survives a fork, and a lock may stay locked in the child."""

    @paced()
    def push(self, timeout: float) -> PushResult:
        """Build one push, send it, and record and log the result."""
        start = time.perf_counter()
        self._complete = True
        try:
            self._aggregator.refresh()
            push = self._builder.build()
            if push.unencodable:
                odd = "%d series of vLLM's own metrics hold numbers that OTLP cannot hold, and are not pushed"
                log_once(logging.WARNING, odd, push.unencodable, key="otlp-unencodable")
            result = self._send(push, timeout)
        except Exception as error:  # noqa: BLE001 - the next interval tries again
            self._aggregator.error("export", "A push could not be built", key="otlp-build")
            result, push = from_exception(error), None
        result = redacted(result, self._target.redactor)
        if result.ok and push is not None:
            self._builder.acknowledge(push, complete=self._complete)
            result.rejected = min(result.rejected, push.points)
        self._aggregator.export(NAME, time.perf_counter() - start if result.ok else None, result.rejected)
        self._log(result)
        return result

    def _native_series(self) -> Iterator[Series]:
        """Yield vLLM's own series. If they cannot be read, or not in time, the push leaves without them."""
        found = self._native.result(self._wait_for_native) if self._native else Outcome[Series]()
        if found is None:
            self._complete = False
            late = "vLLM's own metrics take long to be read: this push leaves without them, a later one has them"
            log_once(logging.WARNING, late, key="otlp-native-late")
            self._aggregator.count_error("export")
            return
        yield from found.items
        try:
            found.check()
        except (DownloadError, PageError) as error:  # vLLM may just start: it pushes before it answers requests
            self._complete = False
            unread = "vLLM's own metrics could not be read, trying again at every push: %s"
            log_once(logging.WARNING, unread, clean(str(error), LONGEST_REASON))
            self._aggregator.count_error("export")
        except Exception:  # noqa: BLE001 - for example a broken multiprocess directory
            self._complete = False
            self._aggregator.error("export", "vLLM's own metrics could not be read", key="otlp-native")

    def _wait_for_native(self, done: Callable[[float], bool]) -> None:
        self._wait(done, min(NATIVE_WAIT_SECONDS, self._settings.interval / 2))

    def _run(self) -> None:
        wait = self._settings.interval
        while not self._stopped.wait(wait):
            begun = time.monotonic()
            result = self.push(self._settings.timeout)
            left = self._settings.interval - (time.monotonic() - begun)
            wait = max(left, min(result.retry_after, MAX_PAUSE_SECONDS), 0.0)
        self._close()
        left = self._end - time.monotonic()
        if left > 0:
            self.push(left)
            self._close()
        if self._native:
            self._native.end()

    def _send(self, push: Push, timeout: float) -> PushResult:
        """Send on a thread of its own, because the lookup of a name can outlast every timeout. One thread at a time."""
        message = encode_request(self._resource.encoded(), push.metrics)
        results: list[PushResult] = []
        last = self._stopped.is_set()
        if not last and self._sender is not None and self._sender.is_alive():
            return PushResult(error="the previous push has not ended: the lookup of the name may hang", kind="stuck")
        try:
            transport = self._transport = self._transport or self._connect(self._target, timeout)
        except (OSError, EndpointError) as error:  # for example a file of a certificate that is gone
            return from_exception(error)
        if last:
            # The caller of stop() does not wait longer than its bound.
            _deliver(transport, message, results, threading.Event())
            return results[0]
        begun, given_up = time.monotonic(), threading.Event()
        arguments = (transport, message, results, given_up)
        sender = threading.Thread(target=_deliver, args=arguments, daemon=True, name="vitals-push")
        self._sender = sender
        sender.start()
        self._wait(partial(_ended, sender), timeout + GRACE_SECONDS)
        if not results:
            given_up.set()
            self._transport = None
            return PushResult(error=f"no answer within {time.monotonic() - begun:.1f} s", kind="timeout")
        if not results[0].ok:
            self._close()  # the next push connects anew: the receiver may have moved, or have a new certificate
        return results[0]

    def _wait(self, done: Callable[[float], bool], timeout: float) -> None:
        """Wait until something is done. After `stop` half of the remaining time is left for the last push."""
        end, halved = time.monotonic() + timeout, False
        while True:
            now = time.monotonic()
            if self._stopped.is_set() and not halved:
                end, halved = min(end, (now + self._end) / 2), True
            left = max(end - now, 0.0)
            if done(min(left, 0.1)) or not left:
                return

    def _close(self) -> None:
        transport, self._transport = self._transport, None
        try:
            if transport is not None:
                transport.close()
        except Exception:  # noqa: BLE001 - the connection is gone either way
            LOGGER.debug("closing a connection failed", exc_info=True)

    def _log(self, result: PushResult) -> None:
        """Log each kind of failure once, and the end of an outage."""
        shown = self._target.shown
        if not result.ok:
            self._failures += 1
            new = result.kind not in self._logged_failures and len(self._logged_failures) < MAX_LOGGED_KINDS
            if new or self._stopped.is_set():
                self._logged_failures.add(result.kind)
                level = logging.ERROR if result.permanent else logging.WARNING
                LOGGER.log(level, "OTLP push to %s failed: %s. %s", shown, result.error, self._outlook(result))
            return
        if self._failures:
            times = "1 failure" if self._failures == 1 else f"{self._failures} failures"
            LOGGER.info("OTLP push to %s succeeds again after %s", shown, times)
            self._failures = 0
            self._logged_failures.clear()
        if result.rejected or result.warning:
            self._log_warning(result)

    def _log_warning(self, result: PushResult) -> None:
        """Log the warning of a receiver that accepted a push, each kind once.

        With delta a point is pushed only when it changed, so a point that is always rejected comes and goes.
        """
        kind = failure_kind(result.warning)
        if kind in self._logged_warnings or len(self._logged_warnings) >= MAX_LOGGED_KINDS:
            return
        self._logged_warnings.add(kind)
        how = f"without {result.rejected} of its points" if result.rejected else "with a remark"
        reason = result.warning or "no reason given"
        LOGGER.warning("OTLP receiver %s accepted a push %s: %s", self._target.shown, how, reason)

    def _outlook(self, result: PushResult) -> str:
        """Return what happens after a failure."""
        if self._stopped.is_set():
            return "The process ends: metrics since the last successful push are lost"
        if result.permanent:
            then = "Every push will fail until the setting or the receiver is changed. Trying again at every interval"
        elif result.retry_after > self._settings.interval:
            then = f"Trying again in {min(result.retry_after, MAX_PAUSE_SECONDS):.0f} s, as the receiver asks"
        else:
            then = "Trying again at every interval"
        return f"{then}; nothing is lost meanwhile"


def otlp_exporter(
    aggregator: Aggregator,
    settings: Settings,
    version: str,
    age: float,
    native_registry: Callable[[], Any] | None = None,
) -> OtlpExporter:
    """Return the exporter for the settings, vLLM's version and the age of the process in seconds.

    `native_registry` returns the registry behind vLLM's own /metrics.

    Raises:
        ValueError: without an endpoint.
    """
    target = resolve(settings.otlp)
    if target is None:
        raise ValueError("otlp.endpoint is not set")
    otlp = settings.otlp
    resource = process_resource(os.environ, service=otlp.service_name, version=version, attributes=otlp.resource)
    return OtlpExporter(
        aggregator,
        otlp,
        target,
        resource,
        started=time.time() - age,
        fresh=settings.stale_after,
        native=native_registry if otlp.include_native else None,
    )


def _read(registry: Callable[[], Any]) -> Iterator[Series]:
    """Yield the series of vLLM's registry. Each has the time at which it was read: the push may leave later."""
    own = {name for metric in CATALOG for name in (metric.prometheus, metric.prometheus.removesuffix("_total"))}
    with paced():
        for series in native_series(registry(), own.__contains__):
            yield series._replace(observed=time.time())


def _ended(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()


@paced()
def _deliver(transport: Transport, message: bytes, results: list[PushResult], given_up: threading.Event) -> None:
    try:
        results.append(transport.send(message))
    except Exception as error:  # noqa: BLE001 - reported as the push's failure
        results.append(from_exception(error))
    if given_up.is_set():
        transport.close()
