"""An expression that yields an instant vector, and the arithmetic of such."""

from collections.abc import Collection
from dataclasses import dataclass, field

from vllm_vitals.mixin.promql.matchers import TARGET_LABELS


def number(value: float) -> str:
    """Return a number as PromQL writes it, without a needless fraction."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))  # noqa: PLR2004


@dataclass(frozen=True)
class Vector:
    """PromQL that yields an instant vector.

    `labels` are those that its series may have. Two vectors are combined when they have the same; else say `on` which
    they are matched, and `group_left` for many series on the left to one on the right.
    """

    text: str
    labels: frozenset[str] = field(default_factory=frozenset)
    compound: bool = False
    """Whether an operator is outermost, so that it needs parentheses inside another expression."""

    def __str__(self) -> str:
        return self.text

    @property
    def nested(self) -> str:
        """Return the text as it may stand inside a larger expression."""
        return f"({self.text})" if self.compound else self.text

    def __add__(self, other: "Vector | float") -> "Vector":
        return self.combined("+", other)

    def __sub__(self, other: "Vector | float") -> "Vector":
        return self.combined("-", other)

    def __rsub__(self, other: float) -> "Vector":
        return Vector(f"{number(other)} - {self.nested}", self.labels, compound=True)

    def __mul__(self, other: "Vector | float") -> "Vector":
        return self.combined("*", other)

    def __truediv__(self, other: "Vector | float") -> "Vector":
        return self.combined("/", other)

    def __rtruediv__(self, other: float) -> "Vector":
        return Vector(f"{number(other)} / {self.nested}", self.labels, compound=True)

    def __gt__(self, other: "Vector | float") -> "Vector":
        return self.combined(">", other)

    def __ge__(self, other: "Vector | float") -> "Vector":
        return self.combined(">=", other)

    def __lt__(self, other: "Vector | float") -> "Vector":
        return self.combined("<", other)

    def __le__(self, other: "Vector | float") -> "Vector":
        return self.combined("<=", other)

    def is_(self, other: "Vector | float") -> "Vector":
        """Return the series that equal another, or a number."""
        return self.combined("==", other)

    def is_not(self, other: "Vector | float") -> "Vector":
        """Return the series that differ from another, or from a number."""
        return self.combined("!=", other)

    def and_(self, other: "Vector", on: Collection[str] | None = None) -> "Vector":
        """Return the series that have a counterpart in another vector."""
        return self.combined("and", other, on=on)

    def or_(self, other: "Vector", on: Collection[str] | None = None) -> "Vector":
        """Return the series, and those of another vector that have no counterpart here."""
        made = self.combined("or", other, on=on, alike=False)
        return Vector(made.text, self.labels | other.labels, compound=True)

    def unless(self, other: "Vector", on: Collection[str] | None = None) -> "Vector":
        """Return the series that have no counterpart in another vector."""
        return self.combined("unless", other, on=on)

    def or_zero(self) -> "Vector":
        """Return 0 without labels where there is no series at all; for vectors that have no labels."""
        if self.labels:
            raise ValueError(f"0 would be one series beside those by {_listed(self.labels)}: {self.text}")
        return Vector(f"{self.nested} or vector(0)", compound=True)

    def combined(
        self,
        operator: str,
        other: "Vector | float",
        *,
        on: Collection[str] | None = None,
        group_left: Collection[str] | None = None,
        alike: bool = True,
    ) -> "Vector":
        """Return this and another vector, or a number, under a binary operator."""
        if not isinstance(other, Vector):
            return Vector(f"{self.nested} {operator} {number(other)}", self.labels, compound=True)
        if on is None and alike and self.labels != other.labels:
            raise ValueError(
                f"{self.text} has the labels {_listed(self.labels)} and {other.text} has {_listed(other.labels)}: "
                "say on which they are matched"
            )
        matched = "" if on is None else f" on ({', '.join(on)})"
        for label in on or ():
            if label not in self.labels or label not in other.labels:
                raise ValueError(f"{label!r} is not on both sides of {operator}: {self.text}; {other.text}")
        if group_left is not None:
            matched += f" group_left ({', '.join(group_left)})"
        labels = self.labels if on is None or group_left is not None or operator in SETS else frozenset(on)
        return Vector(
            f"{self.nested} {operator}{matched} {other.nested}", labels | frozenset(group_left or ()), compound=True
        )


SETS = ("and", "or", "unless")


def _listed(labels: Collection[str]) -> str:
    own = sorted(set(labels) - set(TARGET_LABELS))
    return ", ".join(own + ["those of the target"] * (set(TARGET_LABELS) <= set(labels))) or "none"
