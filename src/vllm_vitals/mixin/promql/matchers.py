"""Label matchers, and whether a metric has what they ask for."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_vitals.catalog import Label, Metric
from vllm_vitals.catalog.names import prometheus_label

TARGET_LABELS = ("cluster", "namespace", "pod", "node", "job", "instance")
"""What a scrape or a receiver adds to each series: any of them may be absent."""


def quoted(text: str) -> str:
    """Return a PromQL string."""
    return json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True)
class Match:
    """What the value of a label shall be: `operator` is one of PromQL's four."""

    operator: str
    pattern: str
    literals: tuple[str, ...] = ()
    """The values that are named, when no pattern of one's own is."""

    def text(self, label: str) -> str:
        """Return the matcher as PromQL."""
        return f"{label}{self.operator}{quoted(self.pattern)}"

    def accepts(self, value: str) -> bool:
        """Return whether a value matches; what holds a variable of Grafana's accepts any."""
        if "$" in self.pattern:
            return True
        if self.operator in {"=", "!="}:
            return (value == self.pattern) is (self.operator == "=")
        return bool(re.fullmatch(self.pattern, value)) is (self.operator == "=~")


Wanted = str | Match
"""The one value of a label that is wanted, or a matcher."""


def match(wanted: Wanted) -> Match:
    """Return the matcher that is meant."""
    return wanted if isinstance(wanted, Match) else Match("=", wanted, (wanted,))


def is_not(value: str) -> Match:
    """Match every value but one."""
    return Match("!=", value, (value,))


def any_of(*values: str) -> Match:
    """Match some values."""
    return Match("=~", "|".join(map(re.escape, values)), values)


def none_of(*values: str) -> Match:
    """Match every value but some."""
    return Match("!~", "|".join(map(re.escape, values)), values)


def matching(pattern: str) -> Match:
    """Match a regular expression, which may be a variable such as `$model`."""
    return Match("=~", pattern)


def not_matching(pattern: str) -> Match:
    """Match what does not match a regular expression."""
    return Match("!~", pattern)


def check_labels(metric: Metric[Any], names: Iterable[str], targets: Collection[str] = TARGET_LABELS) -> None:
    """Raise `ValueError` for a label that the series of a metric cannot have."""
    for name in names:
        if name not in (*metric.prometheus_labels, *targets):
            own = ", ".join(metric.prometheus_labels) or "none"
            raise ValueError(f"{metric.name} has no label {name!r}; its own: {own}; its target's: {', '.join(targets)}")


def check_values(metric: Metric[Any], wanted: Mapping[str, Match]) -> None:
    """Raise `ValueError` for a value that a label of a metric cannot have."""
    labels: dict[str, Label] = {prometheus_label(label.name): label for label in metric.labels}
    for name, asked in wanted.items():
        label = labels.get(name)
        if label is None or not label.values or label.open:
            continue
        for value in asked.literals:
            if value not in label.values:
                raise ValueError(f"{metric.name} has no {name}={value!r}; there are: {', '.join(label.values)}")
