"""What every group of rules is made with: the configuration, and what follows from its labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from vllm_vitals.mixin.promql import Queries, Recording, Vector
from vllm_vitals.mixin.rules.config import Alert as Settings
from vllm_vitals.mixin.rules.config import Burn, Group, RulesConfig
from vllm_vitals.mixin.rules.rule import Alert, Record
from vllm_vitals.mixin.rules.windows import duration

Labels = tuple[str, ...]
ROUNDED = '{{ $value | printf "%.0f" }}'
"""A template of the value of an alert without its fraction."""


@dataclass(frozen=True)
class Maker:
    """Makes rules by a configuration."""

    config: RulesConfig

    @property
    def service(self) -> Labels:
        """Return the labels of one service."""
        return tuple(self.config.labels.service)

    @property
    def replica(self) -> Labels:
        """Return the labels of one replica of a service, or of one endpoint."""
        return tuple(dict.fromkeys((*self.service, *self.config.labels.replica)))

    @property
    def engine(self) -> Labels:
        """Return the labels of one engine."""
        return (*self.replica, "model_name", "engine")

    @property
    def model(self) -> Labels:
        """Return the labels of one model of a service."""
        return (*self.service, "model_name")

    @property
    def shared(self) -> Labels:
        """Return the labels of a model that vLLM's own metrics have as well."""
        return (*self.config.labels.shared, "model_name")

    @cached_property
    def queries(self) -> Queries:
        """Return what makes queries of our own series."""
        targets = tuple(dict.fromkeys((*self.replica, *self.config.labels.shared)))
        return Queries(histograms=self.config.histograms, targets=targets)

    def over(self, window: int) -> Queries:
        """Return what makes queries over so many seconds."""
        return self.queries.over(duration(window))

    def record(self, made: Recording, expr: Vector, about: str, **fixed: str) -> Record:
        """Return a recording rule; raise `ValueError` when its series have other labels than it says."""
        if expr.labels | set(fixed) != made.labels:
            raise ValueError(
                f"{made.name} has the labels {sorted(expr.labels | set(fixed))}, not {sorted(made.labels)}"
            )
        return Record(made, expr, about, fixed)

    def alert(
        self, name: str, key: str, settings: Settings | Burn, expr: Vector, summary: str, meaning: str,
        checks: Sequence[str], labels: Labels, **more: str,
    ) -> Alert:  # fmt: skip
        """Return an alert of the group that `key` begins with; `summary` is completed by where it is, told by `labels`."""
        group: Group = getattr(self.config, key.partition(".")[0])
        severity = group.severity or settings.severity
        return Alert(name, key, expr, settings.for_, severity, summary + _where(labels), meaning, checks, more)


def _where(labels: Labels) -> str:
    """Return a template that names those of some labels that are there."""
    return "".join(f"{{{{ with $labels.{label} }}}}, {label} {{{{ . }}}}{{{{ end }}}}" for label in labels)
