"""Whether a query is PromQL, and asks for nothing that there is not."""

from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser as promql

from tests.unit.catalog.test_catalog import vllm_sample_names
from vllm_vitals.catalog import CATALOG
from vllm_vitals.mixin.promql import TARGET_LABELS
from vllm_vitals.vllm_page.counterparts import RENAMED

PROMETHEUS = {
    "ALERTS": {"alertname", "alertstate", "severity", "namespace", "cluster", "instance", "model_name", "engine"}
}
"""Series that Prometheus makes itself."""


def ours() -> dict[str, set[str]]:
    """Return the labels of every series of ours, by the name of its samples."""
    found: dict[str, set[str]] = {}
    for metric in CATALOG:
        labels = {*metric.prometheus_labels, *TARGET_LABELS}
        if metric.kind == "histogram":
            found |= {f"{metric.prometheus}_{end}": labels for end in ("sum", "count")}
            found[f"{metric.prometheus}_bucket"] = labels | {"le"}
        else:
            found[metric.prometheus] = labels
    return found | PROMETHEUS


def vllms() -> dict[str, set[str]]:
    """Return the labels of every series of vLLM's, as its source names them: those of ours under vLLM's names."""
    labels = {name for metric in CATALOG for name in metric.prometheus_labels} - set(RENAMED.values())
    every = {*labels, *RENAMED, *TARGET_LABELS, "le"}
    return {name.replace("vllm_", "vllm:", 1): every for name in vllm_sample_names()} | PROMETHEUS


def nodes(expression: Any) -> Iterator[Any]:
    """Yield every node of a parsed query."""
    found: list[Any] = []
    promql.walk(expression, pre_visit=found.append)
    yield from found


def complaints(text: str, known: Mapping[str, set[str]]) -> list[str]:
    """Return what is wrong with a query: its syntax or types, a metric or a label that does not exist."""
    try:
        parsed = promql.parse(text)
    except ValueError as error:
        return [str(error)]
    selectors = [node for node in nodes(parsed) if isinstance(node, promql.VectorSelector)]
    wrong = [f"there is no metric {each.name}" for each in selectors if each.name not in known]
    for each in selectors:
        asked = {matcher.name for matcher in each.matchers.matchers}
        wrong += [f"{each.name} has no label {label}" for label in sorted(asked - known.get(each.name or "", asked))]
    has = {label for each in selectors for label in known.get(each.name or "", ())} | _made(parsed)
    wrong += [f"nothing in it has a label {label}" for label in sorted(_needed(parsed) - has)]
    return wrong


def selectors(text: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the name of each metric that a query selects, and the labels that it is narrowed by."""
    for node in nodes(promql.parse(text)):
        if isinstance(node, promql.VectorSelector):
            yield node.name or "", {matcher.name for matcher in node.matchers.matchers}


def _made(parsed: Any) -> set[str]:
    """Return the labels that a query gives to series itself."""
    calls = [node for node in nodes(parsed) if isinstance(node, promql.Call) and node.func.name == "label_replace"]
    return {call.args[1].val for call in calls}


def _needed(parsed: Any) -> set[str]:
    """Return the labels that a query sums, matches or joins by."""
    needed: set[str] = set()
    for node in nodes(parsed):
        modifier = getattr(node, "modifier", None)
        if isinstance(node, promql.AggregateExpr) and modifier:
            needed |= set(modifier.labels)
        if isinstance(node, promql.BinaryExpr) and modifier:
            needed |= set(modifier.matching.labels if modifier.matching else ()) | set(modifier.group_labels or ())
    return needed
