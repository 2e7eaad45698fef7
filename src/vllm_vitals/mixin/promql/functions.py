"""PromQL's functions and aggregations, as far as dashboards and rules need them."""

from collections.abc import Collection

from vllm_vitals.mixin.promql.matchers import quoted
from vllm_vitals.mixin.promql.vector import Vector, number


def sum_by(vector: Vector, *labels: str) -> Vector:
    """Return sums over the series that agree in some labels; in none: one sum over all."""
    return aggregated("sum", vector, labels)


def max_by(vector: Vector, *labels: str) -> Vector:
    """Return the largest value among series that agree in some labels."""
    return aggregated("max", vector, labels)


def min_by(vector: Vector, *labels: str) -> Vector:
    """Return the smallest value among series that agree in some labels."""
    return aggregated("min", vector, labels)


def avg_by(vector: Vector, *labels: str) -> Vector:
    """Return the mean over the series that agree in some labels."""
    return aggregated("avg", vector, labels)


def count_by(vector: Vector, *labels: str) -> Vector:
    """Return how many series there are that agree in some labels."""
    return aggregated("count", vector, labels)


def topk(most: int, vector: Vector) -> Vector:
    """Return the series with the largest values."""
    return Vector(f"topk({most}, {vector})", vector.labels)


def bottomk(most: int, vector: Vector) -> Vector:
    """Return the series with the smallest values."""
    return Vector(f"bottomk({most}, {vector})", vector.labels)


def clamp(vector: Vector, least: float, most: float) -> Vector:
    """Return the values, no smaller than `least` and no larger than `most`."""
    return call("clamp", vector, least, most)


def absent(vector: Vector) -> Vector:
    """Return 1 where a vector has no series."""
    return Vector(f"absent({vector})")


def call(function: str, vector: Vector, *arguments: float) -> Vector:
    """Return a vector under a function that takes it first, and then numbers."""
    return Vector(f"{function}({', '.join((str(vector), *map(number, arguments)))})", vector.labels)


def over_time(function: str, vector: Vector, window: str, step: str = "") -> Vector:
    """Return a function such as `max_over_time` of what an expression was over a window (a subquery)."""
    return Vector(f"{function}({vector.nested}[{window}:{step}])", vector.labels)


def ratio(
    part: Vector, whole: Vector, *, on: Collection[str] | None = None, group_left: Collection[str] | None = None
) -> Vector:
    """Return one vector by another; nothing, and not NaN, where the other is 0."""
    return part.combined("/", whole > 0, on=on, group_left=group_left)


def joined(vector: Vector, facts: Vector, on: Collection[str], labels: Collection[str]) -> Vector:
    """Return a vector with more labels: those of a vector of ones that is matched on others."""
    return vector.combined("*", facts, on=on, group_left=labels)


def relabelled(vector: Vector, label: str, source: str = "", pattern: str = "(.*)", value: str = "$1") -> Vector:
    """Return a vector whose `label` is `value`, in which `$1` is what a pattern finds in another label."""
    texts = ", ".join(map(quoted, (label, value, source, pattern)))
    return Vector(f"label_replace({vector}, {texts})", vector.labels | {label})


def aggregated(operator: str, vector: Vector, labels: Collection[str]) -> Vector:
    """Return an aggregation; raise `ValueError` for a label that the vector does not have."""
    for label in labels:
        if label not in vector.labels:
            raise ValueError(f"there is no label {label!r} to {operator} by in {vector}")
    by = f" by ({', '.join(labels)})" if labels else ""
    return Vector(f"{operator}{by} ({vector})" if by else f"{operator}({vector})", frozenset(labels))
