"""These metrics themselves: whether they are complete, whether they arrive, whether vLLM still feeds them."""

from collections.abc import Iterator
from dataclasses import replace

from vllm_vitals.catalog import requests, self_metrics
from vllm_vitals.mixin.promql import count_by
from vllm_vitals.mixin.rules.maker import ROUNDED, Maker
from vllm_vitals.mixin.rules.rule import Alert, RuleGroup
from vllm_vitals.mixin.rules.windows import duration


def groups(make: Maker) -> Iterator[RuleGroup]:
    """Yield the rules on the plugin itself."""
    makers = _dropped, _errors, _export_failing, _points_refused, _step_age, _detached, _missing
    yield RuleGroup("vllm-telemetry.alerts", [each(make) for each in makers])


def _dropped(make: Maker) -> Alert:
    settings = make.config.telemetry.dropped
    lost = make.over(settings.window).increase(self_metrics.DROPPED, (*make.replica, "process"))
    return make.alert(
        "VllmVitalsStepsDropped", "telemetry.dropped", settings, lost > settings.floor,
        f"{ROUNDED} engine steps of serving process {{{{ $labels.process }}}} were lost in the last "
        f"{duration(settings.window)}: counters are too low by what they held",
        f"More than {settings.floor:g} steps found a full queue: vLLM made them faster than they were taken in.",
        (
            "Whether the process has processor time: a CPU limit that throttles, a busy host.",
            "Where steps go to a sidecar: whether it is there, and keeps up (its log, its processor time).",
            "The limits: VITALS_QUEUE_SIZE, VITALS_WIRE__BUFFER.",
        ),
        make.replica,
    )  # fmt: skip


def _errors(make: Maker) -> Alert:
    settings = make.config.telemetry.errors
    errors = make.over(settings.window).increase(self_metrics.ERRORS, (*make.replica, "stage"))
    return make.alert(
        "VllmVitalsErrors", "telemetry.errors", settings, errors > settings.floor,
        f"vllm-vitals swallowed {ROUNDED} errors ({{{{ $labels.stage }}}}) in the last "
        f"{duration(settings.window)}; serving is not affected, numbers may be",
        f"More than {settings.floor:g} errors of one stage: an object of vLLM of an unexpected shape, a record that could not be added up, a page that could not be made.",
        (
            "vLLM's log for vllm_vitals: it has each kind of error once, with its traceback.",
            "Whether vLLM was upgraded (stage read or hook): vllm_engine_info by vllm_version, vitals_info by version.",
            "vllm-vitals doctor, in the environment of vLLM.",
        ),
        make.replica,
    )  # fmt: skip


def _export_failing(make: Maker) -> Alert:
    """Return the alert on exports that fail; what never succeeded has no series of its successes."""
    settings, by = make.config.telemetry.export_failing, (*make.replica, "exporter")
    over = make.over(settings.window)
    failed = over.increase(self_metrics.EXPORTS_FAILED, by)
    enough = over.increase(self_metrics.EXPORTS, by) * (settings.above / (1 - settings.above))
    most = failed.unless(enough.combined(">=", failed))
    return make.alert(
        "VllmVitalsExportFailing", "telemetry.export_failing", settings, most.and_(failed > settings.floor),
        f"{ROUNDED} exports over {{{{ $labels.exporter }}}} failed in the last {duration(settings.window)}, "
        f"more than {settings.above:.0%} of all",
        f"More than {settings.floor:g} exports failed, and more than {settings.above:.0%} of all. Nothing is lost while a receiver is away; it comes with the next push that is taken.",
        (
            "vLLM's log for vllm_vitals: it names the receiver and its answer.",
            "Whether the receiver can be reached from there, and takes what is sent: its log, its certificate, its key.",
            "vllm-vitals doctor, in the environment of vLLM: it sends an empty push.",
        ),
        make.replica,
    )  # fmt: skip


def _points_refused(make: Maker) -> Alert:
    settings = make.config.telemetry.points_refused
    refused = make.over(settings.window).increase(self_metrics.POINTS_REFUSED, (*make.replica, "exporter"))
    return make.alert(
        "VllmVitalsPointsRefused", "telemetry.points_refused", settings, refused > settings.floor,
        f"The receiver left {ROUNDED} points out of pushes over {{{{ $labels.exporter }}}} in the last "
        f"{duration(settings.window)}",
        "A receiver took pushes but not all that was in them; those points are lost.",
        (
            "vLLM's log for vllm_vitals: it has the receiver's reason.",
            "The receiver's limits: series, age of samples, kinds of histograms.",
            "Its temporality: OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE, docs/destinations.",
        ),
        make.replica,
    )  # fmt: skip


def _step_age(make: Maker) -> Alert:
    """Return the alert on steps that vLLM makes and these metrics miss; needs vLLM's own metrics to be scraped too.

    An engine that has just become idle still has a rate, for one window: steps must be missed for two.
    """
    settings, by = make.config.telemetry.step_age, make.shared
    theirs = replace(make.over(settings.window), source="native").rate(requests.GENERATION_TOKENS, by) > 0
    ours = make.queries.min(self_metrics.STEP_AGE, by) > 2 * settings.window
    return make.alert(
        "VllmVitalsStepAge", "telemetry.step_age", settings, ours.and_(theirs),
        "vLLM generates tokens of {{ $labels.model_name }}, and vllm-vitals has seen no step for "
        "{{ $value | humanizeDuration }}",
        f"vLLM's own counter of tokens has moved over {duration(settings.window)}, and the plugin has seen no step for twice as long: our numbers stand still.",
        (
            "vLLM's log for vllm_vitals: a reading thread that ended, a plugin that vLLM dropped (elastic scale-up).",
            "Whether our endpoint is well: curl its /readyz.",
            "Whether both are of the same pod: compare the labels of vllm:generation_tokens_total with ours.",
        ),
        tuple(make.config.labels.shared),
    )  # fmt: skip


def _detached(make: Maker) -> Alert:
    gone = make.queries.max(self_metrics.DETACHED, (*make.replica, "process"))
    return make.alert(
        "VllmVitalsDetached", "telemetry.detached", make.config.telemetry.detached, gone > 0,
        "vLLM generates tokens and no longer calls vllm-vitals in serving process {{ $labels.process }}: what is shown "
        "stands still",
        "vLLM generates tokens and does not call the plugin any more: our numbers show the moment when it stopped.",
        (
            "Whether engines were scaled (--enable-elastic-ep): vLLM then drops its plugins.",
            "vLLM's log for vllm_vitals at that time.",
            "When it can be restarted: nothing else brings the plugin back.",
        ),
        make.replica,
    )  # fmt: skip


def _missing(make: Maker) -> Alert:
    by = make.shared
    theirs = replace(make.queries, source="native").select(requests.GENERATION_TOKENS)
    ours = make.queries.select(requests.GENERATION_TOKENS)
    return make.alert(
        "VllmVitalsMissing", "telemetry.missing", make.config.telemetry.missing,
        count_by(theirs, *by).unless(count_by(ours, *by)),
        "vLLM serves {{ $labels.model_name }} and vllm-vitals shows nothing of it",
        "Of a model there are vLLM's own metrics, and none of ours.",
        (
            "Whether the plugin is installed and loads: vllm-vitals doctor, in the environment of vLLM.",
            "Whether VLLM_PLUGINS is set and lacks vitals_prometheus, or VLLM_USE_RUST_FRONTEND keeps plugins out.",
            "Whether its port is scraped: a PodMonitor for it, VITALS_PROMETHEUS__HOST=0.0.0.0, a NetworkPolicy.",
        ),
        tuple(make.config.labels.shared),
    )  # fmt: skip
