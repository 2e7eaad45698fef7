"""`vllm-vitals metrics`: the catalogue as a table, as JSON and as the page of the documentation."""

import json
from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from vllm_vitals.catalog import GROUPS, Gauge, Histogram, Label, Metric
from vllm_vitals.catalog.buckets import plan
from vllm_vitals.catalog.names import prometheus_label
from vllm_vitals.cli.metrics_page import FEATURES, page
from vllm_vitals.cli.output import console


def as_json() -> str:
    """Return every metric as one JSON array."""
    return json.dumps([_entry(group, metric) for group, metrics in GROUPS.items() for metric in metrics], indent=2)


def as_markdown() -> str:
    """Return `docs/metrics.md`."""
    return page()


def show() -> None:
    """Print a table for each group."""
    out = console()
    for group, metrics in GROUPS.items():
        out.print(_table(group, metrics))
        out.print()


def _entry(group: str, metric: Metric[Any]) -> dict[str, Any]:
    return {
        "group": group,
        "name": metric.name,
        "kind": metric.kind,
        "unit": metric.unit,
        "prometheus": metric.prometheus,
        "labels": [_label(label) for label in metric.labels],
        "scope_labels": [{"name": name, "prometheus": prometheus_label(name)} for name in metric.scope.value],
        "help": metric.help,
        "momentary": isinstance(metric, Gauge) and metric.expires,
        "buckets": _buckets(metric),
        "native": metric.vllm_name or None,
        "needs": {"feature": metric.needs, "switch": FEATURES[metric.needs]} if metric.needs else None,
        "since": metric.since or None,
    }


def _label(label: Label) -> dict[str, Any]:
    return {
        "name": label.name,
        "prometheus": prometheus_label(label.name),
        "values": list(label.values),
        "help": label.help,
    }


def _buckets(metric: Metric[Any]) -> dict[str, Any] | None:
    if not isinstance(metric, Histogram):
        return None
    return {"family": metric.buckets, "bounds": list(plan(None)[metric.buckets])}


def _table(group: str, metrics: Iterable[Metric[Any]]) -> Table:
    table = Table(title=group, title_justify="left", title_style="bold", expand=True, show_lines=True)
    table.add_column("metric, Prometheus name", overflow="fold", ratio=5)
    table.add_column("kind, unit", width=12)
    table.add_column("meaning", ratio=6)
    for metric in metrics:
        name = Text.assemble((metric.name, "bold"), "\n", (metric.prometheus, "cyan"))
        table.add_row(name, f"{metric.kind}\n{metric.unit}", _meaning(metric))
    return table


def _meaning(metric: Metric[Any]) -> Text:
    text = Text(metric.help)
    plain = [prometheus_label(label.name) for label in metric.labels if not _said(label)]
    if plain:
        text.append(f"\n{', '.join(plain)}", "green")
    for label in metric.labels:
        if said := _said(label):
            text.append(f"\n{prometheus_label(label.name)}", "green").append(f": {said}")
    for name, value in _facts(metric).items():
        text.append(f"\n{name}: {value}", "dim")
    return text


def _said(label: Label) -> str:
    values = ", ".join(value for value in label.values if value)
    return "; ".join(part for part in (values, label.help) if part)


def _facts(metric: Metric[Any]) -> dict[str, str]:
    facts = {
        "switched on by": FEATURES[metric.needs] if metric.needs else "",
        "since vLLM": metric.since,
        "vLLM's counterpart": metric.vllm_name,
    }
    return {name: value for name, value in facts.items() if value}
