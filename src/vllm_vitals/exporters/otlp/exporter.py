"""The thread that pushes: at every interval what there is, with nothing lost while nobody takes it."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

import vllm_vitals
from vllm_vitals.collector.collector import Collector
from vllm_vitals.exporters.otlp.identity import resource
from vllm_vitals.exporters.otlp.points import Paced, PointBuilder, Push
from vllm_vitals.exporters.otlp.target import Target, resolve
from vllm_vitals.exporters.otlp.transport import Answer, Transport, connect
from vllm_vitals.feed.pace import Pace
from vllm_vitals.logs import LOGGER
from vllm_vitals.settings import OtlpSettings, Settings

NAME = "otlp"
LONGEST_PAUSE = 300.0
"""Seconds that a peer can make us wait at most."""
GRACE = 2.0
"""Seconds beyond its timeout after which a push that has not come back is given up."""
MOST_STUCK = 3
"""Pushes that may be stuck with a peer that answers byte by byte; then no more until one comes back."""

Connect = Callable[[Target, float], Transport]


class OtlpExporter:
    """Pushes one collector's store to one target."""

    def __init__(
        self,
        collector: Collector,
        settings: OtlpSettings,
        target: Target,
        identity: Resource,
        *,
        started: float,
        fresh: float,
        make: Connect = connect,
    ) -> None:
        """Take note of what to push where; `started` is Unix seconds, for `fresh` see `PointBuilder`."""
        self._collector = collector
        self._settings = settings
        self._target = target
        self._resource = identity
        self._connect = make
        self._points = PointBuilder(
            collector.store,
            temporality=settings.temporality,
            exponential=settings.histograms == "exponential",
            started=started,
            fresh=fresh,
        )
        self._transport: Transport | None = None
        self._stuck: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._pushing = threading.Lock()
        self._failures = 0
        self._said = ""

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
        threading.Thread(target=self._run, name="vitals-otlp", daemon=True).start()

    def stop(self) -> None:
        """Push once more, and hold the process no longer than the bound, whatever the peer does."""
        self._stopped.set()
        bound = self._settings.shutdown_timeout
        if bound <= 0:
            return
        last = threading.Thread(target=self._last_push, args=(bound,), name="vitals-otlp-last", daemon=True)
        last.start()
        last.join(bound)

    def abandon(self) -> None:
        """Send nothing: this is the child of a fork."""
        self._stopped.set()

    def push(self, timeout: float) -> Answer:
        """Build one push, send it, and take note of what came of it."""
        start = time.perf_counter()
        pause = Pace().breathe
        try:
            self._collector.refresh(pause)
            push = self._points.build(pause)
            answer = self._send(push, timeout)
        except Exception as error:  # noqa: BLE001 - the next interval tries again
            self._collector.error("export", "A push could not be built", key="otlp-build")
            answer, push = Answer(error=f"{type(error).__name__}: {error}"), None
        if answer.ok and push is not None:
            self._points.acknowledge(push)
        self._collector.export(NAME, time.perf_counter() - start if answer.ok else None)
        self._tell(answer)
        return answer

    def _run(self) -> None:
        wait = self._settings.interval
        while not self._stopped.wait(wait):
            begun = time.monotonic()
            with self._pushing:
                answer = self.push(self._settings.timeout)
            left = self._settings.interval - (time.monotonic() - begun)
            wait = max(left, min(answer.retry_after, LONGEST_PAUSE), 0.0)

    def _last_push(self, bound: float) -> None:
        end = time.monotonic() + bound
        # A push in progress has what there was at its start; wait for it only as long as one more can be made.
        if self._pushing.acquire(timeout=bound / 2):
            self._transport = None
            self.push(max(end - time.monotonic(), 0.1))

    def _send(self, push: Push, timeout: float) -> Answer:
        """Send on a thread of its own: a peer that answers byte by byte outlasts every timeout."""
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= MOST_STUCK:
            return Answer(error=f"{MOST_STUCK} earlier pushes still wait for their answers to end")
        answers: list[Answer] = []
        data = self._data(push)
        transport = self._transport = self._transport or self._connect(self._target, timeout)
        thread = threading.Thread(target=_deliver, args=(transport, data, answers), daemon=True, name="vitals-push")
        thread.start()
        thread.join(timeout + GRACE)
        if not answers:
            self._stuck.append(thread)
            self._transport = None
            return Answer(error=f"no answer within {timeout + GRACE:g} s")
        if not answers[0].ok:
            self._drop(transport)
        return answers[0]

    def _drop(self, transport: Transport) -> None:
        """Connect anew after a failure: the peer may have moved, or have a new certificate."""
        self._transport = None
        try:
            transport.close()
        except Exception:  # noqa: BLE001 - it is gone either way
            LOGGER.debug("closing a connection failed", exc_info=True)

    def _data(self, push: Push) -> MetricsData:
        scope = InstrumentationScope("vllm_vitals", vllm_vitals.__version__)
        metrics: Any = Paced(push.metrics, Pace().breathe)
        return MetricsData([ResourceMetrics(self._resource, [ScopeMetrics(scope, metrics, "")], "")])

    def _tell(self, answer: Answer) -> None:
        """Log each kind of failure once, and its end."""
        if not answer.ok:
            self._failures += 1
            if answer.error != self._said:
                level = logging.ERROR if answer.permanent else logging.WARNING
                LOGGER.log(
                    level,
                    "OTLP push to %s failed: %s. %s; nothing is lost meanwhile",
                    self._target.shown,
                    answer.error,
                    "It will fail until the setting or the receiver is changed; trying on at every interval"
                    if answer.permanent
                    else "Trying again at every interval",
                )
                self._said = answer.error
            return
        if self._failures:
            LOGGER.info("OTLP push to %s succeeds again after %d failures", self._target.shown, self._failures)
        self._failures, said = 0, self._said
        self._said = ""
        if answer.rejected or answer.warning:
            self._said = f"{answer.rejected} {answer.warning}"
            if self._said != said:
                LOGGER.warning(
                    "OTLP receiver %s took a push without %d of its points: %s",
                    self._target.shown,
                    answer.rejected,
                    answer.warning or "it does not say why",
                )


def otlp_exporter(collector: Collector, settings: Settings, version: str, age: float) -> OtlpExporter:
    """Return the exporter that settings describe, for a vLLM of a version in a process of an age in seconds.

    Raises:
        ValueError: without an endpoint.
    """
    target = resolve(settings.otlp)
    if target is None:
        raise ValueError("otlp.endpoint is not set")
    identity = resource(
        os.environ, service=settings.otlp.service_name, version=version, attributes=settings.otlp.resource
    )
    return OtlpExporter(
        collector, settings.otlp, target, identity, started=time.time() - age, fresh=settings.stale_after
    )


def _deliver(transport: Transport, data: MetricsData, answers: list[Answer]) -> None:
    try:
        answers.append(transport.send(data))
    except Exception as error:  # noqa: BLE001 - told as the push's failure
        answers.append(Answer(error=f"{type(error).__name__}: {error}"))
