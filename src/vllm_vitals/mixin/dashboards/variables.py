"""The variables of every board: which data source, and which part of the fleet."""

from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableOption, VariableRefresh, VariableSort

from vllm_vitals.catalog import Metric
from vllm_vitals.mixin.dashboards.query import DATASOURCE
from vllm_vitals.mixin.promql import Match, Queries, matching

SCOPE = {
    "cluster": "cluster",
    "namespace": "namespace",
    "model_name": "model",
    "instance": "instance",
    "engine": "engine",
}
"""The labels that a board can be narrowed by, from the widest to the narrowest, and the variable for each."""


def scope() -> dict[str, Match]:
    """Return the matchers of every query.

    All is `.*`, which a label that is absent matches too.
    """
    return {label: matching(f"${variable}") for label, variable in SCOPE.items()}


def datasource(uid: str) -> dashboard.DatasourceVariable:
    """Return the variable for the data source; `uid` is the one to begin with, `""` for Grafana's default."""
    made = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    return made.current(VariableOption(text=uid, value=uid, selected=True)) if uid else made


def narrowing(queries: Queries, metric: Metric[Any]) -> list[dashboard.QueryVariable]:
    """Return a variable for each label of the scope, whose values are those of a metric, given the wider ones."""
    made = []
    wider: dict[str, Match] = {}
    for label, variable in SCOPE.items():
        text = f"label_values({Queries(source=queries.source, scope=wider).select(metric)}, {label})"
        made.append(
            dashboard.QueryVariable(variable)
            .label(variable.capitalize())
            .datasource(DATASOURCE)
            .query({"qryType": 1, "query": text, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.NATURAL_ASC)
            .multi(multi=True)
            .include_all(include_all=True)
            .all_value(".*")
            .current(VariableOption(text="All", value="$__all", selected=True))
        )
        wider[label] = matching(f"${variable}")
    return made
