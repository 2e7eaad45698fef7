"""Scenarios of series, and what promtool finds that the rules make of them."""

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.live.bootstrap import prometheus_tools
from vllm_vitals.mixin.rules import GROUPS, RulesConfig, as_data, build

Series = Mapping[str, str]
"""Values in promtool's notation by series."""


@dataclass(frozen=True)
class Fires:
    """An alert that is to fire: its labels, without the name, and its summary."""

    labels: Mapping[str, str]
    summary: str


@dataclass(frozen=True)
class Scenario:
    """Series, and which of an alert's instances fire at some times."""

    alert: str
    title: str
    series: Series
    at: Mapping[str, Sequence[Fires]]
    interval: str = "1m"
    config: RulesConfig = field(default_factory=RulesConfig)

    @property
    def fires(self) -> bool:
        return any(self.at.values())


def names(series: Series) -> set[str]:
    """Return the metrics of some series."""
    return {re.match(r"[a-zA-Z0-9_:]+", each)[0] for each in series}  # type: ignore[index]


def run(
    tests: Sequence[Mapping[str, Any]],
    home: Path,
    config: RulesConfig,
    *,
    interval: str = "1m",
    sections: Collection[str] = GROUPS,
) -> str:
    """Run promtool's unit tests over the rules of some sections; return what it complains of, `""` for nothing.

    Alerts have no annotation but their summary: promtool compares all, and the rest has no values in it.
    """
    rules = as_data(
        [group for section, groups in build(config).items() if section in sections for group in groups], config
    )
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "annotations" in rule:
                rule["annotations"] = {"summary": rule["annotations"]["summary"]}
    (home / "rules.yaml").write_text(yaml.safe_dump(rules))
    order = [group["name"] for group in rules["groups"]]  # else it is by chance
    suite = {
        "rule_files": ["rules.yaml"], "evaluation_interval": interval, "group_eval_order": order, "tests": list(tests),
    }  # fmt: skip
    (home / "test.yaml").write_text(yaml.safe_dump(suite, width=1000))
    _, promtool = prometheus_tools()
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"], cwd=home, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def played(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as promtool wants it."""
    return {
        "name": f"{scenario.alert}: {scenario.title}",
        "interval": scenario.interval,
        "input_series": [{"series": series, "values": values} for series, values in scenario.series.items()],
        "alert_rule_test": [
            {
                "eval_time": at,
                "alertname": scenario.alert,
                "exp_alerts": [
                    {"exp_labels": dict(each.labels), "exp_annotations": {"summary": each.summary}} for each in expected
                ],
            }
            for at, expected in scenario.at.items()
        ],
    }


def recorded(
    title: str, series: Series, expressions: Mapping[str, Mapping[str, float]], at: str, interval: str = "1m"
) -> dict[str, Any]:
    """Return a test that expressions have these values, by their series, at a time."""
    return {
        "name": title,
        "interval": interval,
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": at,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
            for expression, expected in expressions.items()
        ],
    }
