"""What changed, marked in every graph: alerts, restarts, configurations."""

from grafana_foundation_sdk.builders.dashboard import AnnotationQuery

from vllm_vitals.catalog import engine, requests, self_metrics
from vllm_vitals.mixin.dashboards.query import DATASOURCE
from vllm_vitals.mixin.dashboards.theme import BLUE, ORANGE, VERMILION
from vllm_vitals.mixin.promql import Queries, Unavailable, Vector, max_by

WHERE = ("namespace", "instance", "model_name", "engine")
ALERTS = 'ALERTS{alertstate="firing", alertname=~"Vllm.+", cluster=~"$cluster", namespace=~"$namespace"}'
"""Prometheus' own series of the alerts of this project that fire; no metric of the catalogue."""


def firing() -> Vector:
    """Return a series for each alert that fires."""
    return Vector(ALERTS, frozenset(("alertname", "severity", "cluster", *WHERE)))


def made(queries: Queries) -> list[AnnotationQuery]:
    """Return the annotations that the source has metrics for."""
    found = [_annotation("Alerts", firing(), VERMILION, "{{alertname}}", "{{severity}} in {{namespace}} {{instance}}")]
    found.append(
        _annotation(
            "Restarts", _restarted(queries), ORANGE, "Restarted", "{{instance}} {{model_name}} engine {{engine}}"
        )
    )
    try:
        change = _changed(queries)
    except Unavailable:
        return found
    found.append(
        _annotation(
            "Changes", change, BLUE, "Version or configuration changed",
            "{{namespace}} {{model_name}}: vLLM {{vllm_version}}, dtype {{dtype}}, "
            "max_model_len {{max_model_len}}, TP {{tensor_parallel_size}}",
        )
    )  # fmt: skip
    return found


def _restarted(queries: Queries) -> Vector:
    """Return 1 where a counter of an engine began anew."""
    try:
        return queries.ranged("resets", self_metrics.STEPS) > 0
    except Unavailable:
        return queries.ranged("resets", requests.GENERATION_TOKENS) > 0


def _changed(queries: Queries) -> Vector:
    """Return the facts that no engine of a model had ten minutes ago, though some engine of it was there."""
    of = ("cluster", "namespace", "model_name")
    now = max_by(queries.select(engine.INFO), *of, *engine.INFO_LABELS)
    before = max_by(queries.select(engine.INFO, offset="10m"), *of, *engine.INFO_LABELS)
    return now.unless(before).and_(before, on=of)


def _annotation(name: str, vector: Vector, colour: str, title: str, text: str) -> AnnotationQuery:
    return (
        AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(enable=True)
        .hide(hide=False)
        .icon_color(colour)
        .expr(str(vector))
        .title_format(title)
        .text_format(text)
        .tag_keys("alertname,instance,engine")
        .step("60s")
    )
