"""The plugin itself: what it saw, lost, refused, and what it costs."""

from collections.abc import Iterator
from typing import Any

from vllm_vitals.catalog.metric import Counter, Gauge, Histogram, Label, Scope
from vllm_vitals.records.step import Health, Step


def _exporters(settings: Any) -> Iterator[str]:
    """Yield the exporters that the settings switch on."""
    if settings.prometheus.enabled:
        yield "prometheus"
    if settings.otlp.enabled and settings.otlp.endpoint:
        yield "otlp"


PROCESS = Label(
    "process", ("0",), cap=64, open=True, help="the number of the serving process; sidecar for a sidecar itself",
    values_from=lambda health: (health.process,),
)  # fmt: skip
EXPORTER = Label("exporter", help="prometheus, otlp", values_from=_exporters)

INFO: Gauge[Any] = Gauge(
    "vitals.info", "", "Always 1; which vllm-vitals and Python this is, and where its numbers come from.",
    scope=Scope.PROCESS,
    labels=(Label("version"), Label("python_version"),
            Label("source", help="plugin, or native: mapped from vLLM's own metrics")),
)  # fmt: skip
STEPS = Counter(
    "vitals.steps", "{step}", "Engine steps taken in: scheduler stats came or tokens moved.",
    record=Step, read=lambda s: float(s.counts),
)  # fmt: skip
DROPPED = Counter(
    "vitals.steps.dropped", "{step}", "Steps lost because a queue was full, that between vLLM and the feeder or what waits for a collector elsewhere, or because that "
    "collector could not read them.",
    record=Health, read=lambda h: {h.process: h.dropped}, scope=Scope.PROCESS, labels=(PROCESS,),
)  # fmt: skip
REJECTED: Counter[Any] = Counter(
    "vitals.values.rejected", "{value}",
    "Values that cannot be true and were left out of a metric, or clamped to what they can be at most.",
    scope=Scope.PROCESS,
    labels=(Label("metric", cap=200),
            Label("reason", cap=4, help="not_finite, negative, absurd (beyond what the metric can reach)")),
)  # fmt: skip
UNKNOWN_CONNECTORS: Counter[Any] = Counter(
    "vitals.connectors.unknown", "{connector}", "KV connectors whose stats are not shown, each counted once.", labels=(Label("connector"),),
)  # fmt: skip
ERRORS = Counter(
    "vitals.errors", "{error}", "Errors that were swallowed so that serving goes on; the log has each kind once.",
    record=Health, read=lambda h: {(h.process, stage): count for stage, count in h.errors.items()}, scope=Scope.PROCESS,
    labels=(PROCESS,
            Label("stage", ("hook", "read", "wire", "collect", "export"),
                  help="hook: a call from vLLM. read: a vLLM object of an unexpected shape. "
                       "wire: what came over the socket. collect: adding a step up. export: serving or sending")),
)  # fmt: skip
HOOK_TIME = Counter(
    "vitals.hook.duration", "s", "Time that vLLM's event loop spent in the hooks of this plugin.",
    record=Health, read=lambda h: {h.process: h.hook_time}, scope=Scope.PROCESS, labels=(PROCESS,),
)  # fmt: skip
DETACHED = Gauge(
    "vitals.plugin.detached", "", "1 when vLLM generates tokens and does not call this plugin any more, else 0.",
    record=Health, read=lambda h: None if h.detached is None else {h.process: float(h.detached)}, initial=0.0,
    scope=Scope.PROCESS, labels=(PROCESS,),
)  # fmt: skip
STEP_AGE: Gauge[Any] = Gauge(
    "vitals.step.age",
    "s",
    "Time since the latest step whose scheduler stats came, or since the engine was started.",
)
EXPORTS: Counter[Any] = Counter(
    "vitals.exports", "{export}", "Exports that succeeded: scrapes answered, pushes taken.",
    scope=Scope.PROCESS, labels=(EXPORTER,),
)  # fmt: skip
EXPORTS_FAILED: Counter[Any] = Counter(
    "vitals.exports.failed", "{export}", "Exports that failed.", scope=Scope.PROCESS, labels=(EXPORTER,)
)
POINTS_REFUSED: Counter[Any] = Counter(
    "vitals.exports.refused_points", "{data_point}", "Points that a receiver left out of pushes that it took.",
    scope=Scope.PROCESS, labels=(EXPORTER,),
)  # fmt: skip
EXPORT_DURATION: Histogram[Any] = Histogram(
    "vitals.export.duration", "s", "Time to build and hand over one export.",
    scope=Scope.PROCESS, labels=(EXPORTER,), buckets="export",
)  # fmt: skip
SERIES: Gauge[Any] = Gauge(
    "vitals.series", "{series}", "Label sets held, a histogram's counted once.", initial=0.0, scope=Scope.PROCESS
)

SELF = (
    INFO, STEPS, DROPPED, REJECTED, UNKNOWN_CONNECTORS, ERRORS, HOOK_TIME, DETACHED, STEP_AGE, EXPORTS, EXPORTS_FAILED,
    POINTS_REFUSED, EXPORT_DURATION, SERIES,
)  # fmt: skip
