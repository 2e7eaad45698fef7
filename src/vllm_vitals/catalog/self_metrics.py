"""The plugin itself: its input, losses, rejected values, errors and costs."""

from collections.abc import Iterator
from typing import Any

from vllm_vitals.catalog.metric import Counter, Gauge, Group, Histogram, Label, Scope
from vllm_vitals.records.step import Health, Step


def _exporters(settings: Any) -> Iterator[str]:
    """Yield the exporters that the settings enable."""
    if settings.prometheus.enabled:
        yield "prometheus"
    if settings.otlp.enabled and settings.otlp.endpoint:
        yield "otlp"


PROCESS = Label(
    "process",
    ("0",),
    cap=64,
    open=True,
    help="number of the serving process; `sidecar` for the sidecar itself",
    values_from=lambda health: (health.process,),
)
EXPORTER = Label("exporter", help="prometheus, otlp", values_from=_exporters)

SELF = Group("itself", "The plugin itself", "The input, losses, rejected values and costs of the plugin.")

INFO: Gauge[Any] = SELF.add(
    Gauge(
        "vitals.info",
        "",
        "Always 1; the labels are the versions of vllm-vitals and Python, and the source of the metrics.",
        scope=Scope.PROCESS,
        labels=(
            Label("version"),
            Label("python_version"),
            Label("source", help="plugin, or native: mapped from vLLM's own metrics"),
        ),
    )
)
STEPS = SELF.add(
    Counter(
        "vitals.steps",
        "{step}",
        "Processed engine steps: those with scheduler stats or tokens.",
        record=Step,
        read=lambda s: float(s.counts),
    )
)
DROPPED = SELF.add(
    Counter(
        "vitals.steps.dropped",
        "{step}",
        "Dropped steps. A queue was full (in the serving process, or on the way to a collector outside of it), or "
        "that collector could not read them.",
        record=Health,
        read=lambda h: {h.process: h.dropped},
        scope=Scope.PROCESS,
        labels=(PROCESS,),
    )
)
REJECTED: Counter[Any] = SELF.add(
    Counter(
        "vitals.values.rejected",
        "{value}",
        "Impossible values that were left out of a metric, or clamped to its maximum.",
        scope=Scope.PROCESS,
        labels=(
            Label("metric", cap=200),
            Label("reason", cap=4, help="not_finite, negative, absurd (above the maximum of the metric)"),
        ),
    )
)
UNKNOWN_CONNECTORS: Counter[Any] = SELF.add(
    Counter(
        "vitals.connectors.unknown",
        "{connector}",
        "KV connectors whose stats are not shown, each counted once.",
        labels=(Label("connector"),),
    )
)
ERRORS = SELF.add(
    Counter(
        "vitals.errors",
        "{error}",
        "Errors that the plugin caught so that serving goes on. The log shows each kind once.",
        record=Health,
        read=lambda h: {(h.process, stage): count for stage, count in h.errors.items()},
        scope=Scope.PROCESS,
        labels=(
            PROCESS,
            Label(
                "stage",
                ("hook", "read", "wire", "collect", "export"),
                help="hook: a call from vLLM. read: a vLLM object of an unexpected shape. wire: a message over the "
                "socket. collect: adding a step to the totals. export: answering a scrape or sending a push",
            ),
        ),
    )
)
HOOK_TIME = SELF.add(
    Counter(
        "vitals.hook.duration",
        "s",
        "Time that vLLM's event loop spent in the hooks of this plugin.",
        record=Health,
        read=lambda h: {h.process: h.hook_time},
        scope=Scope.PROCESS,
        labels=(PROCESS,),
    )
)
DETACHED = SELF.add(
    Gauge(
        "vitals.plugin.detached",
        "",
        "1 if vLLM generates tokens but no longer calls this plugin, else 0.",
        record=Health,
        read=lambda h: None if h.detached is None else {h.process: float(h.detached)},
        initial=0.0,
        scope=Scope.PROCESS,
        labels=(PROCESS,),
    )
)
STEP_AGE: Gauge[Any] = SELF.add(
    Gauge(
        "vitals.step.age",
        "s",
        "Time since the latest step with scheduler stats, or since the start of the engine.",
    )
)
EXPORTS: Counter[Any] = SELF.add(
    Counter(
        "vitals.exports",
        "{export}",
        "Successful exports: answered scrapes and accepted pushes.",
        scope=Scope.PROCESS,
        labels=(EXPORTER,),
    )
)
EXPORTS_FAILED: Counter[Any] = SELF.add(
    Counter("vitals.exports.failed", "{export}", "Failed exports.", scope=Scope.PROCESS, labels=(EXPORTER,))
)
POINTS_REFUSED: Counter[Any] = SELF.add(
    Counter(
        "vitals.exports.refused_points",
        "{data_point}",
        "Data points that a receiver refused from pushes that it accepted.",
        scope=Scope.PROCESS,
        labels=(EXPORTER,),
    )
)
EXPORT_DURATION: Histogram[Any] = SELF.add(
    Histogram(
        "vitals.export.duration",
        "s",
        "Time to build and deliver one export.",
        scope=Scope.PROCESS,
        labels=(EXPORTER,),
        buckets="export",
    )
)
SERIES: Gauge[Any] = SELF.add(
    Gauge(
        "vitals.series", "{series}", "Number of series held. A histogram counts once.", initial=0.0, scope=Scope.PROCESS
    )
)
