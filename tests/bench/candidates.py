"""The ways of recording a step that are compared, each as a function that returns its `record`."""

import os
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from prometheus_client import REGISTRY, generate_latest
from vllm.v1.metrics.loggers import PrometheusStatLogger

from .engine import vllm_config
from .isolate import until_end
from .naive_otel import NaiveOtelLogger
from .sidecar import Sidecar

Record = Callable[..., None]
"""Called as vLLM calls a stat logger: (scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0)."""

Page = Callable[[], bytes]
"""Renders everything there is, as Prometheus text."""


def none(_engines: int, _port: int) -> Record:
    """Record nothing: what the measurement itself costs."""

    def record(scheduler: Any, iteration: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
        pass

    return record


def builtin(engines: int, _port: int) -> Record:
    """Use the Prometheus logger that vLLM brings along."""
    logger = PrometheusStatLogger(vllm_config(), list(range(engines)))
    logger.log_engine_initialized()
    record: Record = logger.record
    return record


def otel(_engines: int, _port: int) -> Record:
    """Write every value into an instrument of the OpenTelemetry SDK."""
    return NaiveOtelLogger("bench").record


def ours(engines: int, port: int) -> Record:
    """Use the plugin of this project, with its scrape endpoint on `port`."""
    # Imported here: the other candidates are measured without our package in the process.
    from vllm_vitals.plugin import PrometheusVitals

    os.environ["VITALS_STRICT"] = "true"  # a plugin that stays off would cost nothing
    os.environ["OTEL_EXPORTER_PROMETHEUS_HOST"] = "127.0.0.1"
    os.environ["OTEL_EXPORTER_PROMETHEUS_PORT"] = str(port)
    logger = PrometheusVitals(vllm_config=vllm_config(), engine_indexes=list(range(engines)))
    logger.log_engine_initialized()
    return logger.record


def sidecar(engines: int, port: int) -> Record:
    """Use the plugin of this project, which sends to a sidecar with its scrape endpoint on `port`."""
    os.environ["VITALS_WIRE__SIDECAR"] = str(until_end(Sidecar(port)).socket)
    return ours(engines, port)


def settle(name: str) -> Callable[[], object]:
    """Return what does all that a candidate has put off."""
    if name not in ("ours", "sidecar"):
        return int
    from vllm_vitals.deployment.runtime import runtime

    return runtime().drainer.drain


def otel_pushing(_engines: int, _port: int) -> Record:
    """Use the instruments of the SDK, and its exporter, to where the standard variables say."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return NaiveOtelLogger("bench", PeriodicExportingMetricReader(OTLPMetricExporter())).record


def ours_pushing(engines: int, port: int) -> Record:
    """Use both plugins of this project as vLLM does; the push goes to where the standard variables say."""
    scraped = ours(engines, port)
    from vllm_vitals.plugin import OtlpVitals

    pushed = OtlpVitals(vllm_config=vllm_config(), engine_indexes=list(range(engines))).record

    def record(scheduler: Any, iteration: Any, mm_cache_stats: Any = None, engine_idx: int = 0) -> None:
        scraped(scheduler, iteration, mm_cache_stats=mm_cache_stats, engine_idx=engine_idx)
        pushed(scheduler, iteration, mm_cache_stats=mm_cache_stats, engine_idx=engine_idx)

    return record


def builtin_page() -> Page:
    """Return what vLLM runs for a scrape, on its event loop."""
    return lambda: generate_latest(REGISTRY)


def ours_page() -> Page:
    """Return what our endpoint runs for a scrape, without the pauses it makes for the event loop."""
    from vllm_vitals.deployment.runtime import runtime
    from vllm_vitals.exporters.prometheus.text import Renderer

    aggregator = runtime().aggregator
    renderer = Renderer(aggregator.store, openmetrics=False)

    def page() -> bytes:
        aggregator.refresh()
        renderer.forget()
        return b"".join(renderer.render())

    return page


CANDIDATES: dict[str, Callable[[int, int], Record]] = {
    "none": none,
    "builtin": builtin,
    "otel": otel,
    "ours": ours,
    "sidecar": sidecar,
}
PUSHING: dict[str, Callable[[int, int], Record]] = {"otel": otel_pushing, "ours": ours_pushing}
PAGES: dict[str, Callable[[], Page]] = {"builtin": builtin_page, "ours": ours_page}
