"""The telemetry itself: whether what the other boards show can be believed."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from vllm_vitals.catalog import self_metrics
from vllm_vitals.mixin.dashboards.board import Board, Context, Row
from vllm_vitals.mixin.dashboards.panels import THIRD, figure, lines
from vllm_vitals.mixin.dashboards.query import Query
from vllm_vitals.mixin.dashboards.shapes import ENGINE, ENGINE_NAME, SECONDS, by_label, column, quantiles
from vllm_vitals.mixin.dashboards.tables import rows
from vllm_vitals.mixin.dashboards.theme import BAD, GOOD, ORANGE, SKY, VERMILION
from vllm_vitals.mixin.promql import count_by, max_by, ratio

SILENT = "no plugin reports"
NONE_WRONG = ((None, GOOD), (1, BAD))
PROCESS_NAME = "{{instance}} process {{process}}"


def taken_in(c: Context) -> Builder[Panel]:
    return figure(
        "Steps taken in", "Engine steps per second that the plugins counted. Zero while tokens are generated: the plugin is "
        "detached, or not loaded; run `vllm-vitals doctor`.",
        "suffix:/s", Query(c.queries.rate(self_metrics.STEPS), "steps"), decimals=0, none=SILENT,
    )  # fmt: skip


def dropped(c: Context) -> Builder[Panel]:
    return figure(
        "Steps dropped", "Steps of the time shown that were lost. Above 0 the counts are too low: if a queue was full, raise queue_size, or "
        "wire.buffer where a collector is elsewhere; of steps that it could not read, its log says why.",
        "short", Query(c.queries.over("$__range").increase(self_metrics.DROPPED), "dropped"), steps=NONE_WRONG, decimals=0, none=SILENT,
    )  # fmt: skip


def swallowed(c: Context) -> Builder[Panel]:
    return figure(
        "Errors swallowed", "Errors of the time shown that were kept from serving. Above 0: vLLM's log has each kind once, with "
        "what it was about.",
        "short", Query(c.queries.over("$__range").increase(self_metrics.ERRORS), "errors"), steps=NONE_WRONG, decimals=0, none=SILENT,
    )  # fmt: skip


def failing(c: Context) -> Builder[Panel]:
    return figure(
        "Exports failed", "Exports of the time shown that failed. Growing: the receiver is away or refuses; its name and answer are "
        "in vLLM's log.",
        "short", Query(c.queries.over("$__range").increase(self_metrics.EXPORTS_FAILED), "failed"), steps=NONE_WRONG, decimals=0,
        none="none failed",
    )  # fmt: skip


def oldest(c: Context) -> Builder[Panel]:
    return figure(
        "Oldest last step", "Of all engines, the longest time since a step. Fine for an idle engine; with requests waiting it is a "
        "stall.",
        SECONDS, Query(c.queries.max(self_metrics.STEP_AGE), "ago"), none=SILENT,
    )  # fmt: skip


def detached(c: Context) -> Builder[Panel]:
    return figure(
        "Plugins detached", "Serving processes whose vLLM generates tokens and does not call the plugin any more, as after an "
        "elastic scale-up. Restart them: until then their numbers stand still.",
        "short", Query(c.queries.sum(self_metrics.DETACHED), "detached"), steps=NONE_WRONG, decimals=0, none=SILENT,
    )  # fmt: skip


def steps(c: Context) -> Builder[Panel]:
    return lines(
        "Steps by engine", "Engine steps per second. An engine without steps beside others with: no work is routed to it, or it "
        "hangs.",
        "suffix:/s", Query(c.queries.rate(self_metrics.STEPS, ENGINE), ENGINE_NAME), width=THIRD, none=SILENT,
    )  # fmt: skip


def ages(c: Context) -> Builder[Panel]:
    return lines(
        "Time since the last step", "Rises while an engine is idle. A rising line with requests waiting is a stall.",
        SECONDS, Query(c.queries.max(self_metrics.STEP_AGE, ENGINE), ENGINE_NAME), width=THIRD, none=SILENT,
    )  # fmt: skip


def hook(c: Context) -> Builder[Panel]:
    per_step = ratio(c.queries.rate(self_metrics.HOOK_TIME), c.queries.rate(self_metrics.STEPS))
    return lines(
        "Cost to serving per step", "Time of vLLM's event loop that the plugin took for a step: about a microsecond. More than 10: "
        "the machine swaps or is out of CPU.",
        SECONDS, Query(per_step, "per step", {"per step": SKY}), width=THIRD, none=SILENT,
    )  # fmt: skip


def losses(c: Context) -> Builder[Panel]:
    return lines(
        "Steps dropped by process", "Steps lost in the window: a queue was full, or a collector elsewhere could not read them.",
        "short", Query(c.queries.increase(self_metrics.DROPPED, ("instance", "process")), PROCESS_NAME), width=THIRD, none=SILENT,
    )  # fmt: skip


def errors(c: Context) -> Builder[Panel]:
    stages = ("hook", "read", "wire", "collect", "export")
    return lines(
        "Errors by stage", "hook: a call from vLLM. read: a vLLM object of an unexpected shape, as after an upgrade. wire: what came "
        "over the socket. collect: adding a step up. export: serving or sending.",
        "short", by_label(c.queries.increase(self_metrics.ERRORS, ("stage",)), "stage", stages), stacked=True, width=THIRD, none=SILENT,
    )  # fmt: skip


def rejected(c: Context) -> Builder[Panel]:
    return lines(
        "Values left out", "Values that cannot be true, by metric and reason. Single ones come of aborted requests; many of one "
        "metric are a defect of that vLLM release.",
        "short", Query(c.queries.increase(self_metrics.REJECTED, ("metric", "reason")), "{{metric}}: {{reason}}"), width=THIRD,
        none="none was left out",
    )  # fmt: skip


def exports(c: Context) -> Builder[Panel]:
    q = c.queries
    return lines(
        "Exports", "Scrapes answered and pushes taken per second, and those that failed.",
        "suffix:/s", by_label(q.rate(self_metrics.EXPORTS, ("exporter",)), "exporter", ("prometheus", "otlp")),
        Query(q.rate(self_metrics.EXPORTS_FAILED, ("exporter",)), "{{exporter}} failed",
              {"prometheus failed": VERMILION, "otlp failed": ORANGE}), width=THIRD, none=SILENT,
    )  # fmt: skip


def refused(c: Context) -> Builder[Panel]:
    return lines(
        "Points refused", "Points that a receiver left out of pushes that it took: too old, of the wrong kind, beyond a quota. Its "
        "own words are in vLLM's log.",
        "short", by_label(c.queries.increase(self_metrics.POINTS_REFUSED, ("exporter",)), "exporter", ("otlp",)), width=THIRD,
        none="none was refused",
    )  # fmt: skip


def export_time(c: Context) -> Builder[Panel]:
    return lines(
        "Time of an export", "To build and hand over a page or a push. Near the scrape's timeout or the push's interval: fewer "
        "series, or a sidecar.",
        SECONDS, *quantiles(c, self_metrics.EXPORT_DURATION), width=THIRD, none=SILENT,
    )  # fmt: skip


def series(c: Context) -> Builder[Panel]:
    return lines(
        "Series held", "Label sets by endpoint. Grows with LoRA adapters, SLOs and engines, each within a cap.",
        "short", Query(c.queries.max(self_metrics.SERIES, ("instance",)), "{{instance}}"), width=THIRD, none=SILENT,
    )  # fmt: skip


def connectors(c: Context) -> Builder[Panel]:
    seen = max_by(c.queries.select(self_metrics.UNKNOWN_CONNECTORS), "instance", "connector")
    return lines(
        "Unknown KV connectors", "KV connectors whose stats are not shown. Harmless; tell us of them.",
        "short", Query(seen, "{{instance}}: {{connector}}"), width=THIRD, none="all are known",
    )  # fmt: skip


def skew(c: Context) -> Builder[Panel]:
    facts = ("version", "python_version", "source")
    inside = c.queries.max(self_metrics.INFO, ("cluster", "namespace", "instance", *facts))
    return rows(
        "Versions of the plugin", "How many endpoints run which version. More than one: a rollout is under way, and metrics may "
        "differ between them. source=native: mapped from vLLM's own metrics, where no plugin runs.",
        facts, *column(lambda: count_by(inside, *facts), "endpoints"), worst="endpoints", none=SILENT,
    )  # fmt: skip


BOARD = Board(
    "telemetry", "Telemetry health", "Can what the other boards show be believed?",
    (
        Row("Can it be believed?", (taken_in, dropped, swallowed, failing, oldest, detached)),
        Row("Steps", (steps, ages, hook)),
        Row("Losses", (losses, errors, rejected)),
        Row("Exports", (exports, export_time, refused)),
        Row("Size and versions", (series, connectors, skew)),
    ),
)  # fmt: skip
