"""Reading fields of objects that promise nothing: absent, renamed, `None`, raising, or of another type."""

import math
import operator
from array import array
from collections.abc import Callable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

MOST_INT = 2**62
MANY = 64
"""Numbers in a list from which the way by MessagePack is the quicker one."""
Complain = Callable[[str, Any, str], None]
"""Takes the field, what it held and what was expected."""

_ABSENT = object()


class Fields:
    """Typed reads that return a default instead of raising, and complain of what they could not use."""

    def __init__(self, complain: Complain) -> None:
        self._complain = complain

    def any(self, source: Any, name: str) -> Any:
        """Return an attribute, or `None` where there is none."""
        try:
            return getattr(source, name, None)
        except Exception as error:  # noqa: BLE001 - a property of vLLM's raised
            self._complain(f"{type(source).__name__}.{name}", error, "a value")
            return None

    def count(self, source: Any, name: str) -> int | None:
        """Return a whole number, or `None`. Negative ones pass: the collector counts them as rejected."""
        try:
            value = getattr(source, name, None)
        except Exception:  # noqa: BLE001 - `any` complains of it
            value = self.any(source, name)
        if type(value) is int and -MOST_INT < value < MOST_INT:
            return value
        return None if value is None else self._whole(value, f"{type(source).__name__}.{name}")

    def _whole(self, value: Any, field: str) -> int | None:
        try:
            whole = int(value) if isinstance(value, float) else operator.index(value)
        except Exception:  # noqa: BLE001 - whatever the object does when asked for its number
            whole = None
        if whole is None or not -MOST_INT < whole < MOST_INT:
            self._complain(field, value, "a whole number of at most 62 bits")
            return None
        return whole

    def number(self, source: Any, name: str) -> float | None:
        """Return a float, or `None`. Infinite and negative ones pass: the collector counts them as rejected."""
        try:
            value = getattr(source, name, None)
        except Exception:  # noqa: BLE001 - `any` complains of it
            value = self.any(source, name)
        if type(value) is float:
            return value
        return None if value is None else self._real(value, f"{type(source).__name__}.{name}")

    def _real(self, value: Any, field: str) -> float | None:
        try:
            if isinstance(value, str | bytes):
                raise TypeError  # noqa: TRY301 - "1.5" is no number here
            return float(value)
        except OverflowError:
            return math.inf
        except Exception:  # noqa: BLE001 - whatever the object does when asked for its number
            self._complain(field, value, "a number")
            return None

    def numbers(self, source: Any, name: str) -> "array[float]":
        """Return a list of numbers as float64; items that are none are left out."""
        return self.floats(self.any(source, name), f"{type(source).__name__}.{name}")

    def floats(self, values: Any, field: str) -> "array[float]":
        """Return an iterable of numbers as float64; items that are none are left out."""
        if not self.is_empty(values):
            if type(values) is list and len(values) >= MANY and (quick := _as_floats(values)) is not None:
                return quick
            try:
                return array("d", values if isinstance(values, list) else list(values))
            except Exception:  # noqa: BLE001 - look at the items one by one
                return self._each(values, field)
        return array("d")

    def _each(self, values: Any, field: str) -> "array[float]":
        try:
            items = list(values)
        except Exception:  # noqa: BLE001 - no iterable at all
            self._complain(field, values, "a list of numbers")
            return array("d")
        return array("d", [real for item in items if (real := self._real(item, field)) is not None])

    @staticmethod
    def is_empty(values: Any) -> bool:
        """Tell whether there is nothing in a collection."""
        try:
            return values is None or len(values) == 0
        except Exception:  # noqa: BLE001 - has no length
            return False

    def counts(self, source: Any, name: str) -> dict[str, int]:
        """Return a mapping of names to whole numbers; entries that are none are left out."""
        values = self.any(source, name)
        if self.is_empty(values):
            return {}
        field = f"{type(source).__name__}.{name}"
        try:
            items = list(values.items())
        except Exception:  # noqa: BLE001 - no mapping
            self._complain(field, values, "a mapping of names to numbers")
            return {}
        read = ((text(key), self._whole(value, field)) for key, value in items)
        return {label: whole for label, whole in read if whole is not None}


def _fits(count: int | None) -> bool:
    return count is None or -MOST_INT < count < MOST_INT


class Table:
    """Reads many fields of an object at once: quickly while they are all there and of plain types."""

    def __init__(
        self, fields: Fields, numbers: Sequence[str], counts: Sequence[str], others: Sequence[str] = ()
    ) -> None:
        """Take note of what to read: `numbers` as floats, `counts` as whole numbers, `others` as they are.

        `read` returns them in this order.
        """
        self._fields = fields
        self._numbers = numbers
        self._counts = counts
        self._others = others
        self._get = attrgetter(*numbers, *counts, *others)
        self._first, self._last = len(numbers), len(numbers) + len(counts)
        self._plain: set[tuple[type, ...]] = set()
        """The types that the fields have had together when all of them could be taken as they are."""

    def read(self, source: Any) -> Sequence[Any]:
        """Return the fields' values, `None` for what is not there or cannot be used."""
        try:
            values = self._get(source)
        except Exception:  # noqa: BLE001 - a field is missing, or a property of vLLM's raised
            return self._one_by_one(source)
        types = tuple(map(type, values))
        if types in self._plain and all(map(_fits, values[self._first : self._last])):
            return values
        read = self._one_by_one(source)
        if all(given is taken for given, taken in zip(values, read, strict=True)):
            self._plain.add(types)
        return read

    def _one_by_one(self, source: Any) -> list[Any]:
        numbers = [self._fields.number(source, name) for name in self._numbers]
        counts = [self._fields.count(source, name) for name in self._counts]
        return [*numbers, *counts, *(self._fields.any(source, name) for name in self._others)]


_encode = msgspec.msgpack.Encoder().encode
_ITEM = np.dtype([("type", "u1"), ("value", ">f8")])
_FLOAT = 0xCB
"""How MessagePack marks a float64."""


def _as_floats(values: list[Any]) -> "array[float] | None":
    """Return a list of nothing but floats as an array, `None` when it holds anything else.

    By way of MessagePack, whose encoder walks a list several times faster than an array is filled from one.
    """
    try:
        packed = _encode(values)
    except Exception:  # noqa: BLE001 - something that cannot be encoded
        return None
    start = 3 if len(values) < 65536 else 5  # noqa: PLR2004 - the size of the list's head
    if len(packed) != start + _ITEM.itemsize * len(values):
        return None
    items = np.frombuffer(packed, dtype=_ITEM, offset=start)
    if not (items["type"] == _FLOAT).all():
        return None
    return array("d", items["value"].astype(np.float64).tobytes())


def text(value: Any) -> str:
    """Return the label text of a name: an enum by its value when that is text, else by its name."""
    if isinstance(value, Enum):
        value = value.value if isinstance(value.value, str) else value.name.lower()
    try:
        return value if isinstance(value, str) else str(value)
    except Exception:  # noqa: BLE001 - whatever the object does when asked for its name
        return "unknown"
