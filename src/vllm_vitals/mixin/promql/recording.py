"""Series that a recording rule makes of others."""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_vitals.mixin.promql.matchers import TARGET_LABELS, Wanted, match
from vllm_vitals.mixin.promql.vector import Vector


@dataclass(frozen=True)
class Recording:
    """What a recording rule makes: its name, and the labels of its series."""

    name: str
    labels: frozenset[str]

    def select(self, **wanted: Wanted) -> Vector:
        """Return its series; raise `ValueError` for a label that they do not have."""
        return Vector(self._selector(wanted), self.labels)

    def over_time(self, function: str, window: str, **wanted: Wanted) -> Vector:
        """Return a function such as `avg_over_time` of each series over a window."""
        return Vector(f"{function}({self._selector(wanted)}[{window}])", self.labels)

    def _selector(self, wanted: Mapping[str, Wanted]) -> str:
        for label in wanted:
            if label not in self.labels:
                raise ValueError(f"{self.name} has no label {label!r}; it has: {', '.join(sorted(self.labels))}")
        inside = ", ".join(match(value).text(label) for label, value in wanted.items())
        return f"{self.name}{{{inside}}}" if inside else self.name


def of_target(*labels: str) -> frozenset[str]:
    """Return labels and those of the target."""
    return frozenset((*labels, *TARGET_LABELS))
