"""A process beside vLLM that aggregates and exports, and that outlives vLLM."""

import time
from collections.abc import Callable
from pathlib import Path

from vllm_vitals import __version__
from vllm_vitals._util.log import LOGGER
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.collector_server import CollectorServer
from vllm_vitals.deployment.topology import SIDECAR, Topology
from vllm_vitals.exporters.base import Exporter, stop_all
from vllm_vitals.exporters.prometheus.exporter import PrometheusExporter
from vllm_vitals.vllm_page.poller import Poller

NATIVE = "native"


def sidecar(settings: Settings, topology: Topology) -> "StepSidecar | NativeSidecar":
    """Return the sidecar of a topology."""
    if topology.socket is not None:
        return StepSidecar(settings, topology.socket)
    assert topology.page_url is not None  # noqa: S101 - `of_sidecar` gives one of the two
    return NativeSidecar(settings, topology.page_url)


class StepSidecar:
    """Collects for the serving processes that send their steps to a socket."""

    def __init__(self, settings: Settings, socket: Path) -> None:
        self._aggregator = Aggregator(settings, process=SIDECAR, before_read=self._settle)
        self._settings = settings
        self._server = CollectorServer(self._aggregator, socket, serves=False)

    def start(self) -> None:
        """Begin to listen and to export.

        Raises:
            OSError: when the socket cannot be had; the message names it.
        """
        self._server.start(exporters(self._settings, self._aggregator, self._server.problem, self._server.ended))
        LOGGER.info("Sidecar %s takes steps at %s", __version__, self._server.socket)

    def stop(self) -> None:
        """Take nothing more, push once more, and end in bounded time."""
        self._server.stop()

    def _settle(self) -> None:
        self._server.settle()


class NativeSidecar:
    """Shows vLLM's own metrics under our names, where no plugin can load."""

    def __init__(self, settings: Settings, url: str) -> None:
        self._aggregator = Aggregator(settings, process=SIDECAR, source=NATIVE)
        self._poller = Poller(self._aggregator, url, settings.native)
        marked = {"vitals.source": NATIVE, **settings.otlp.resource}
        settings = settings.model_copy(update={"otlp": settings.otlp.model_copy(update={"resource": marked})})
        makers = exporters(settings, self._aggregator, self._poller.problem, self._poller.ended)
        self._exporters = {name: make() for name, make in makers.items()}

    def start(self) -> None:
        """Begin to fetch and to export."""
        self._poller.start()
        for exporter in self._exporters.values():
            exporter.start()

    def stop(self) -> None:
        """Fetch nothing more, push once more, and end in bounded time."""
        self._poller.stop()
        stop_all(self._exporters)


def exporters(
    settings: Settings, aggregator: Aggregator, problem: Callable[[], str], ended: Callable[[], str] = lambda: ""
) -> dict[str, Callable[[], Exporter]]:
    """Return what makes each exporter that the settings want, by its name.

    `problem` tells why nothing comes in, `ended` what only a restart mends: nothing, unless it is given.
    """
    found: dict[str, Callable[[], Exporter]] = {}
    if settings.prometheus.include_native or settings.prometheus.join_native or settings.otlp.include_native:
        LOGGER.warning("include_native and join_native have no effect in a sidecar: it has no registry of vLLM's")
    if settings.prometheus.enabled:
        found["prometheus"] = lambda: PrometheusExporter(aggregator, settings.prometheus, problem, None, ended)
    if settings.otlp.enabled and settings.otlp.endpoint:
        from vllm_vitals.exporters.otlp.exporter import otlp_exporter  # noqa: PLC0415 - heavy, and only when on

        started = time.monotonic()
        found["otlp"] = lambda: otlp_exporter(aggregator, settings, "", time.monotonic() - started)
    elif settings.otlp.endpoint:
        LOGGER.info("No OTLP push: it is switched off (otlp.enabled, OTEL_SDK_DISABLED, OTEL_METRICS_EXPORTER)")
    if not found:
        LOGGER.warning("Nothing is exported: prometheus.enabled is false, and there is no push")
    elif settings.gpu.enabled:
        from vllm_vitals.gpu.sampler import sampler  # noqa: PLC0415 - only where GPUs are sampled

        found["gpu"] = lambda: sampler(aggregator, settings.gpu.interval, settings.gpu.devices)
    return found
