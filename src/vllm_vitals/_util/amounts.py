"""Arithmetic on amounts that somebody else told: a result is finite and not negative, or there is none."""

import sys
from collections.abc import Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
LARGEST = sys.float_info.max


def amount(value: float | None, most: float = LARGEST) -> float | None:
    """Return a value that can be an amount, `None` in place of any other."""
    return value if value is not None and 0 <= value <= most else None


def quotient(part: float, whole: float, most: float = LARGEST) -> float | None:
    """Return one amount over another, `None` where there is no such number or it exceeds `most`."""
    return amount(part / whole, most) if whole > 0 else None


def clamp(value: float | None) -> float:
    """Return a share of 1: the nearest to the value, 0 where that is not a number."""
    return min(value, 1.0) if value is not None and value > 0 else 0.0


def divide(whole: float, weights: Mapping[K, float]) -> dict[K, float]:
    """Return the parts of an amount in proportion to weights, of which one at least is above 0."""
    total = sum(weights.values())
    return {each: whole * (weight / total) for each, weight in weights.items()}
