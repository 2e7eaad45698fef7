"""What pushes add up to, beside what a page shows."""

import math
from collections.abc import Iterable
from typing import Any

from tests.live.collector import Totals
from tests.live.pages import TIMED
from tests.parity import Samples
from tests.unit.otlp import Received
from vllm_vitals.catalog import CATALOG, self_metrics

INTERVAL, TIMEOUT = 0.5, 2.0
"""Seconds between pushes, and seconds that one may take."""
PACE = {"OTEL_METRIC_EXPORT_INTERVAL": f"{INTERVAL * 1000:g}", "OTEL_EXPORTER_OTLP_TIMEOUT": f"{TIMEOUT * 1000:g}"}
MOVING = {self_metrics.EXPORTS, self_metrics.EXPORT_DURATION, *TIMED}
"""What moves while nothing happens: pushes and scrapes are counted, and so is time."""


def added(pushes: Iterable[Received]) -> Totals:
    totals = Totals()
    for push in pushes:
        totals.take(push.message)
    return totals


def contradictions(totals: Totals, page: Samples) -> list[str]:
    """Return a line for each counter, sum and count of a page that is not what pushes add up to."""
    found = []
    for metric in CATALOG:
        if metric.kind == "gauge" or metric in MOVING:
            continue
        parts: dict[str, Any] = (
            {"": totals.totals} if metric.kind == "counter" else {"_sum": totals.totals, "_count": totals.counts}
        )
        for suffix, pushed in parts.items():
            name = metric.prometheus + suffix
            got = {
                frozenset((label.replace(".", "_"), text) for label, text in labels): number
                for labels, number in dict(pushed.get(metric.name, {})).items()
            }
            shown = page.get(name, {})
            for labels in got.keys() | shown.keys():
                ours, theirs = got.get(labels, math.nan), shown.get(labels, math.nan)
                if not math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9):
                    found.append(f"{name}{dict(labels)}: {ours} arrived, the page shows {theirs}")
    return found
