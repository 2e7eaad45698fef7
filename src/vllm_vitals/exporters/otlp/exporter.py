"""The thread that pushes: at every interval what there is, with nothing lost while nobody takes it."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from opentelemetry.sdk.resources import Resource

from vllm_vitals._util.background import Apart, Outcome
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
from vllm_vitals.vllm_page.page import LONGEST_REASON, PageError

NAME = "otlp"
LONGEST_PAUSE = 300.0
"""Seconds that a peer can make us wait at most."""
GRACE = 2.0
"""Seconds beyond its timeout after which a push that has not come back is given up: a name server's answer has no
deadline of ours."""
PATIENCE = 2.0
"""Seconds that a push waits for vLLM's own metrics at most; those that come later are in the next."""
MOST_KINDS = 5
"""Kinds of failure that are logged in one outage, and of remarks on pushes that were taken."""

Connect = Callable[[Target, float], Transport]


class OtlpExporter:
    """Pushes one collector's store to one target."""

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
        """Take note of what to push where.

        `resource` says who pushes, as far as that is known at the start. `started` is Unix seconds, for `fresh` see
        `PushBuilder`. `native` gives a registry to be pushed too.
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
            more=self._more if native else tuple,
        )
        keep_out(target.redactor)
        self._native = Apart(partial(_read, native), "vitals-bridge") if native else None
        self._transport: Transport | None = None
        self._sender: threading.Thread | None = None
        """What makes the latest push, or still waits for it to come back."""
        self._stopped = threading.Event()
        self._end = math.inf
        """Monotonic seconds by which the last push has to be done."""
        self._thread: threading.Thread | None = None
        self._failures = 0
        self._said: set[str] = set()
        """The kinds of failure that were logged since the latest success."""
        self._remarks: set[str] = set()
        """The kinds of remarks on pushes that were taken, as far as they were logged."""
        self._whole = True
        """Whether all series could be read for the latest push."""

    def start(self) -> None:
        """Begin pushing on another thread, the first time after one interval."""
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
        """Push once more, and hold the process no longer than the bound, whatever the peer does."""
        bound = self._settings.shutdown_timeout
        self._end = time.monotonic() + bound
        self._stopped.set()
        if self._thread is not None:
            # A thread cannot be started any more when an interpreter ends: the running one makes the last push.
            self._thread.join(bound)

    def abandon(self) -> None:
        """Do nothing: no thread of ours survives a fork, and a lock may be held for ever in its child."""

    @paced()
    def push(self, timeout: float) -> PushResult:
        """Build one push, send it, and take note of what came of it."""
        start = time.perf_counter()
        self._whole = True
        try:
            self._aggregator.refresh()
            push = self._builder.build()
            answer = self._send(push, timeout)
        except Exception as error:  # noqa: BLE001 - the next interval tries again
            self._aggregator.error("export", "A push could not be built", key="otlp-build")
            answer, push = from_exception(error), None
        answer = redacted(answer, self._target.redactor)
        if answer.ok and push is not None:
            self._builder.acknowledge(push, whole=self._whole)
            answer.rejected = min(answer.rejected, push.points)
        self._aggregator.export(NAME, time.perf_counter() - start if answer.ok else None, answer.rejected)
        self._tell(answer)
        return answer

    def _more(self) -> Iterator[Series]:
        """Yield vLLM's own series; a registry that cannot be read, or that takes long, does not cost ours."""
        found = self._native.latest(self._bear_with) if self._native else Outcome[Series]()
        if found is None:
            self._whole = False
            late = (
                "vLLM's own metrics take long to be read: ours are pushed without them, they as soon as they are there"
            )
            log_once(logging.WARNING, late, key="otlp-native-late")
            self._aggregator.count_error("export")
            return
        yield from found.items
        try:
            found.check()
        except (DownloadError, PageError) as error:  # vLLM may just start: it pushes before it answers requests
            self._whole = False
            unread = "vLLM's own metrics could not be read, trying again at every push: %s"
            log_once(logging.WARNING, unread, clean(str(error), LONGEST_REASON))
            self._aggregator.count_error("export")
        except Exception:  # noqa: BLE001 - a broken multiprocess directory, say
            self._whole = False
            self._aggregator.error("export", "vLLM's own metrics could not be read", key="otlp-native")

    def _bear_with(self, native: Callable[[float], bool]) -> None:
        self._await(native, min(PATIENCE, self._settings.interval / 2))

    def _run(self) -> None:
        wait = self._settings.interval
        while not self._stopped.wait(wait):
            begun = time.monotonic()
            answer = self.push(self._settings.timeout)
            left = self._settings.interval - (time.monotonic() - begun)
            wait = max(left, min(answer.retry_after, LONGEST_PAUSE), 0.0)
        self._close()
        left = self._end - time.monotonic()
        if left > 0:
            self.push(left)
            self._close()
        if self._native:
            self._native.end()

    def _send(self, push: Push, timeout: float) -> PushResult:
        """Send on a thread of its own, of which there is never another: a name server outlasts every timeout."""
        message = encode_request(self._resource.encoded(), push.metrics)
        answers: list[PushResult] = []
        last = self._stopped.is_set()
        if not last and self._sender is not None and self._sender.is_alive():
            return PushResult(error="an earlier push still waits, for the name of the receiver perhaps", kind="stuck")
        try:
            transport = self._transport = self._transport or self._connect(self._target, timeout)
        except (OSError, EndpointError) as error:  # a file of a certificate that is gone
            return from_exception(error)
        if last:
            _deliver(
                transport, message, answers, threading.Event()
            )  # whoever stops us does not wait longer than the bound
            return answers[0]
        begun, given_up = time.monotonic(), threading.Event()
        given = (transport, message, answers, given_up)
        sender = threading.Thread(target=_deliver, args=given, daemon=True, name="vitals-push")
        self._sender = sender
        sender.start()
        self._await(partial(_ended, sender), timeout + GRACE)
        if not answers:
            given_up.set()
            self._transport = None
            return PushResult(error=f"no answer within {time.monotonic() - begun:.1f} s", kind="timeout")
        if not answers[0].ok:
            self._close()  # and connect anew: the peer may have moved, or have a new certificate
        return answers[0]

    def _await(self, over: Callable[[float], bool], timeout: float) -> None:
        """Wait for something to be over; once we are stopped, leave half of the time for what comes after."""
        end, halved = time.monotonic() + timeout, False
        while True:
            now = time.monotonic()
            if self._stopped.is_set() and not halved:
                end, halved = min(end, (now + self._end) / 2), True
            left = max(end - now, 0.0)
            if over(min(left, 0.1)) or not left:
                return

    def _close(self) -> None:
        transport, self._transport = self._transport, None
        try:
            if transport is not None:
                transport.close()
        except Exception:  # noqa: BLE001 - it is gone either way
            LOGGER.debug("closing a connection failed", exc_info=True)

    def _tell(self, answer: PushResult) -> None:
        """Log each kind of failure once, and its end."""
        shown = self._target.shown
        if not answer.ok:
            self._failures += 1
            if self._stopped.is_set() or (answer.kind not in self._said and len(self._said) < MOST_KINDS):
                self._said.add(answer.kind)
                level = logging.ERROR if answer.permanent else logging.WARNING
                LOGGER.log(level, "OTLP push to %s failed: %s. %s", shown, answer.error, self._outlook(answer))
            return
        if self._failures:
            times = "1 failure" if self._failures == 1 else f"{self._failures} failures"
            LOGGER.info("OTLP push to %s succeeds again after %s", shown, times)
            self._failures = 0
            self._said.clear()
        if answer.rejected or answer.warning:
            self._tell_remark(answer)

    def _tell_remark(self, answer: PushResult) -> None:
        """Log what a receiver says of a push that it took, each kind of remark once.

        Of differences a point comes when it changed, so what a receiver always leaves out comes and goes.
        """
        kind = failure_kind(answer.warning)
        if kind in self._remarks or len(self._remarks) >= MOST_KINDS:
            return
        self._remarks.add(kind)
        left_out = f" without {answer.rejected} of its points" if answer.rejected else ", but has something to say"
        reason = answer.warning or "it does not say why"
        LOGGER.warning("OTLP receiver %s took a push%s: %s", self._target.shown, left_out, reason)

    def _outlook(self, answer: PushResult) -> str:
        """Return what comes after a failure."""
        if self._stopped.is_set():
            return "This process ends: what was not pushed before is lost"
        if answer.permanent:
            then = "It will fail until the setting or the receiver is changed; trying on at every interval"
        elif answer.retry_after > self._settings.interval:
            then = f"Trying again in {min(answer.retry_after, LONGEST_PAUSE):.0f} s, as it asks"
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
    """Return the exporter that settings describe, for a vLLM of a version in a process of an age in seconds.

    `native_registry` gives the registry behind vLLM's own /metrics.

    Raises:
        ValueError: without an endpoint.
    """
    target = resolve(settings.otlp)
    if target is None:
        raise ValueError("otlp.endpoint is not set")
    otlp = settings.otlp
    own = process_resource(os.environ, service=otlp.service_name, version=version, attributes=otlp.resource)
    return OtlpExporter(
        aggregator,
        otlp,
        target,
        own,
        started=time.time() - age,
        fresh=settings.stale_after,
        native=native_registry if otlp.include_native else None,
    )


def _read(registry: Callable[[], Any]) -> Iterator[Series]:
    """Yield the series of vLLM's registry, each gauge with the time at which it was read: it may have to wait."""
    own = {name for metric in CATALOG for name in (metric.prometheus, metric.prometheus.removesuffix("_total"))}
    with paced():
        for series in native_series(registry(), own.__contains__):
            yield series._replace(observed=time.time())


def _ended(thread: threading.Thread, seconds: float) -> bool:
    thread.join(seconds)
    return not thread.is_alive()


@paced()
def _deliver(transport: Transport, message: bytes, answers: list[PushResult], given_up: threading.Event) -> None:
    try:
        answers.append(transport.send(message))
    except Exception as error:  # noqa: BLE001 - told as the push's failure
        answers.append(from_exception(error))
    if given_up.is_set():
        transport.close()
