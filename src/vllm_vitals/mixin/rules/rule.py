"""What rules are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vllm_vitals.mixin.promql import Recording, Vector


@dataclass(frozen=True)
class Record:
    """A recording rule."""

    made: Recording
    expr: Vector
    help: str
    """What its series are."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Alert:
    """An alerting rule."""

    name: str
    key: str
    """Where its settings are."""
    expr: Vector
    hold: int
    """Seconds that the expression must hold."""
    severity: str
    summary: str
    """What, where and how much; a template of Prometheus."""
    meaning: str
    """When it fires, and what that means."""
    checks: Sequence[str]
    """The first three things to look at."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RuleGroup:
    """Rules that Prometheus evaluates one after the other."""

    name: str
    rules: Sequence[Record | Alert]
    interval: int | None = None
    """Seconds between two evaluations, `None` for Prometheus' own."""
