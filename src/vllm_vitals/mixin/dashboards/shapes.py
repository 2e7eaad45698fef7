"""What several boards ask in the same way."""

from collections.abc import Callable, Sequence
from typing import Any

from vllm_vitals.catalog import Metric, slo
from vllm_vitals.mixin.dashboards.board import Context
from vllm_vitals.mixin.dashboards.query import Query, optional
from vllm_vitals.mixin.dashboards.tables import Column
from vllm_vitals.mixin.dashboards.theme import ORANGE, SKY, VERMILION, colours
from vllm_vitals.mixin.promql import Vector, Wanted

ENGINE = ("instance", "model_name", "engine")
"""The labels that tell an engine from all others of a namespace."""
ANYWHERE = ("cluster", "namespace", *ENGINE)
ENGINE_NAME = "{{instance}} engine {{engine}}"
PERCENT, SECONDS, TOKENS, TOKENS_PER_SECOND = "percentunit", "s", "si:tok", "si:tok/s"
P99 = 0.99
RANKS = ((0.5, "p50", SKY), (0.9, "p90", ORANGE), (P99, "p99", VERMILION))


def quantiles(context: Context, metric: Metric[Any], *, exemplars: bool = False, **wanted: Wanted) -> list[Query]:
    """Return the median, the 90th and the 99th percentile of a histogram."""
    return [
        Query(
            context.queries.quantile(rank, metric, (), **wanted),
            name,
            {name: colour},
            exemplars=exemplars and rank == P99,
        )
        for rank, name, colour in RANKS
    ]


def by_label(vector: Vector, label: str, values: Sequence[str] = ()) -> Query:
    """Return a query whose series are called by a label; each of the values that are known has its colour."""
    return Query(vector, f"{{{{{label}}}}}", colours(values))


def column(make: Callable[[], Vector], title: str, unit: str = "short", *, bar: bool = False) -> list[Column]:
    """Return a column of a table, or none where the source has no such metric."""
    return [Column(query, unit, bar=bar) for query in optional(lambda: Query(make(), title))]


def bad_share(context: Context, window: str) -> Vector:
    """Return the share of bad requests of each SLO in a window."""
    return context.queries.over(window).share(slo.REQUESTS, {"outcome": "bad"}, ("slo",))


def burn_rate(context: Context, window: str) -> Vector:
    """Return how many times as fast as its target allows each SLO used its error budget up in a window."""
    allowed = 1 - context.queries.max(slo.TARGET, ("slo",))
    return bad_share(context, window).combined("/", allowed, on=("slo",))


def limits(context: Context, objective: str) -> list[Query]:
    """Return the limits that SLOs set on a latency, for a dashed line each."""
    return optional(
        lambda: Query(context.queries.max(slo.THRESHOLD, ("slo",), objective=objective), "limit of {{slo}}", limit=True)
    )
