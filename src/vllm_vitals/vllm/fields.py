"""Reading fields of objects that promise nothing: absent, renamed, `None`, raising, or of another type.

Whatever an object raises is caught, even what is no `Exception`: nobody interrupts this thread.
"""

import math
import operator
from array import array
from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any

from vllm_vitals._util.labels import named
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.vllm.float_lists import MANY, only_number, packed, quickly, unpacked

MOST_INT = 2**62
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
        except BaseException as error:  # noqa: BLE001 - a property of vLLM's raised
            self._complain(f"{type(source).__name__}.{name}", error, "a value")
            return None

    def count(self, source: Any, name: str) -> int | None:
        """Return a whole number, or `None`. Negative ones pass: the collector counts them as rejected."""
        return self.as_count(self.any(source, name), f"{type(source).__name__}.{name}")

    def as_count(self, value: Any, field: str) -> int | None:
        """Return a value as a whole number, or `None`."""
        if type(value) is int and -MOST_INT < value < MOST_INT:
            return value
        return None if value is None else self._whole(value, field)

    def _whole(self, value: Any, field: str) -> int | None:
        try:
            whole = int(value) if isinstance(value, float) else operator.index(value)
        except BaseException:  # noqa: BLE001 - whatever the object does when asked for its number
            whole = None
        if whole is None or not -MOST_INT < whole < MOST_INT:
            self._complain(field, value, "a whole number of at most 62 bits")
            return None
        return whole

    def number(self, source: Any, name: str) -> float | None:
        """Return a float, or `None`. Infinite and negative ones pass: the collector counts them as rejected."""
        return self.as_number(self.any(source, name), f"{type(source).__name__}.{name}")

    def as_number(self, value: Any, field: str) -> float | None:
        """Return a value as a float, or `None`."""
        if type(value) is float:
            return value
        return None if value is None else self._real(value, field)

    def _real(self, value: Any, field: str) -> float | None:
        try:
            if isinstance(value, str | bytes):
                raise TypeError  # noqa: TRY301 - "1.5" is no number here
            return float(value)
        except OverflowError:
            return math.inf
        except BaseException:  # noqa: BLE001 - whatever the object does when asked for its number
            self._complain(field, value, "a number")
            return None

    def numbers(self, source: Any, name: str) -> "array[float]":
        """Return a list of numbers as float64; items that are none are left out."""
        return self.floats(self.any(source, name), f"{type(source).__name__}.{name}")

    def floats(self, values: Any, field: str) -> "array[float]":
        """Return an iterable of numbers as float64; items that are none are left out."""
        if not self.is_empty(values):
            if type(values) is list and len(values) >= MANY and (quick := quickly(values)) is not None:
                return quick
            try:
                return array("d", values if isinstance(values, list) else list(values))
            except BaseException:  # noqa: BLE001 - look at the items one by one
                return self._each(values, field)
        return array("d")

    def lists(self, lists: Sequence[Any], field: str) -> "list[array[float] | None]":
        """Return many iterables of numbers as `floats` does, `None` for one in which there is none.

        Short lists are read as one.
        """
        if _are_short(lists):
            joined = quickly(list(chain.from_iterable(lists)))
            if joined is not None:
                ends = list(accumulate(map(len, lists)))
                return [joined[begin:end] or None for begin, end in zip([0, *ends], ends)]  # noqa: B905 - one more begin
        read = []
        for each in lists:
            read.append(self.floats(each, field) or None)
            checkpoint()
        return read

    def repeated(self, lists: Sequence[Any], field: str) -> "list[tuple[array[float] | None, int]]":
        """Return the same, each with how many times its numbers count: of a long list of one number it is there once."""
        if _are_short(lists):
            return [(each, 1) for each in self.lists(lists, field)]
        read = []
        for each in lists:
            read.append(self._repeated(each, field))
            checkpoint()
        return read

    def _repeated(self, values: Any, field: str) -> "tuple[array[float] | None, int]":
        content = packed(values) if type(values) is list and len(values) >= MANY else None
        if content is None:
            return self.floats(values, field) or None, 1
        if (found := only_number(content)) is not None:
            number, count = found
            return array("d", (number,)), count
        return unpacked(content) or self.floats(values, field) or None, 1

    def _each(self, values: Any, field: str) -> "array[float]":
        try:
            items = list(values)
        except BaseException:  # noqa: BLE001 - no iterable at all
            self._complain(field, values, "a list of numbers")
            return array("d")
        return array("d", [real for item in items if (real := self._real(item, field)) is not None])

    @staticmethod
    def is_empty(values: Any) -> bool:
        """Tell whether there is nothing in a collection."""
        try:
            return values is None or len(values) == 0
        except BaseException:  # noqa: BLE001 - has no length
            return False

    def counts(self, source: Any, name: str) -> dict[str, int]:
        """Return a mapping of names to whole numbers; entries that are none are left out."""
        return self.mapping(self.any(source, name), f"{type(source).__name__}.{name}")

    def mapping(self, values: Any, field: str) -> dict[str, int]:
        """Return a mapping of label values to whole numbers; entries that are none are left out."""
        if self.is_empty(values):
            return {}
        try:
            items = list(values.items())
        except BaseException:  # noqa: BLE001 - no mapping
            self._complain(field, values, "a mapping of names to numbers")
            return {}
        read: dict[str, int] = {}
        for key, value in items:
            if (whole := self._whole(value, field)) is not None:
                label = named(key)
                read[label] = read.get(label, 0) + whole  # several may have no name that can be shown
        return read


def _are_short(lists: Sequence[Any]) -> bool:
    return set(map(type, lists)) == {list} and max(map(len, lists)) < MANY


class _Shape:
    """How many fields of a class's objects are read at once."""

    def __init__(self, source: Any, names: Sequence[str]) -> None:
        there = [name for name in names if hasattr(source, name)]
        places = [there.index(name) if name in there else len(there) for name in names]
        self._absent = [name for name in names if name not in there]
        self._get = attrgetter(*there, "__class__", "__class__")  # of two or more it gives a tuple in any case
        self._place = itemgetter(*places, len(there))
        self.read: Callable[[Any], tuple[Any, ...]] = self._read if self._absent else attrgetter(*names)

    def _read(self, source: Any) -> tuple[Any, ...]:
        """Return the fields' values, `None` for one that is not there."""
        for name in self._absent:
            if hasattr(source, name):
                raise AttributeError(name)  # it has other fields than the first of its class
        return self._place((*self._get(source)[:-2], None))[:-1]  # type: ignore[no-any-return]


class Table:
    """Reads two or more fields of many objects: all at once while they are of plain types."""

    def __init__(
        self, fields: Fields, numbers: Sequence[str] = (), counts: Sequence[str] = (), others: Sequence[str] = ()
    ) -> None:
        """Read `numbers` as floats, `counts` as whole numbers, and `others` as they are."""
        row: Any = namedtuple("row", (*numbers, *counts, *others))  # type: ignore[misc] # noqa: PYI024 - names come at run time
        self.row: Callable[[Iterable[Any]], Any] = row._make
        """Names the values of one row, or the columns of many, by vLLM's fields, in the order of the constructor."""
        self._fields = fields
        self._numbers = numbers
        self._counts = counts
        self._others = others
        self._readers: dict[type, Callable[[Any], Sequence[Any]]] = {}

    def named(self, sources: Sequence[Any]) -> list[Any]:
        """Return the values of each object by vLLM's names of the fields."""
        return list(map(self.row, self.read(sources)))

    def read(self, sources: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the values of each object, `None` for what is not there or cannot be used."""
        try:
            rows = self._rows(sources)
        except BaseException:  # noqa: BLE001 - a field is missing, or a property of vLLM's raised
            rows = []
        if rows and self._are_plain(rows):
            return rows
        return list(map(self._one_by_one, sources))

    def _rows(self, sources: Sequence[Any]) -> list[Sequence[Any]]:
        kinds = set(map(type, sources))
        for kind in kinds - self._readers.keys():
            first = next(source for source in sources if type(source) is kind)
            self._readers[kind] = _Shape(first, (*self._numbers, *self._counts, *self._others)).read
        if len(kinds) == 1:
            return list(map(self._readers[kinds.pop()], sources))
        return [self._readers[type(source)](source) for source in sources]

    def _are_plain(self, rows: Sequence[Sequence[Any]]) -> bool:
        """Tell whether all numbers and counts can be taken as they are."""
        columns = list(zip(*rows, strict=True))
        first, last = len(self._numbers), len(self._numbers) + len(self._counts)
        return all(map(_are_numbers, columns[:first])) and all(map(_are_counts, columns[first:last]))

    def _one_by_one(self, source: Any) -> list[Any]:
        numbers = [self._fields.number(source, name) for name in self._numbers]
        counts = [self._fields.count(source, name) for name in self._counts]
        return [*numbers, *counts, *(self._fields.any(source, name) for name in self._others)]


def _are_numbers(column: Sequence[Any]) -> bool:
    """Tell whether values are floats, or whole numbers that make good ones, or `None`."""
    kinds = set(map(type, column))
    if kinds <= {float, type(None)}:
        return True
    return kinds <= {float, int, type(None)} and _fit([value for value in column if type(value) is int])


def _are_counts(column: Sequence[Any]) -> bool:
    """Tell whether values are whole numbers that can be added up, or `None`."""
    kinds = set(map(type, column))
    if kinds == {int}:
        return _fit(column)
    return kinds <= {int, type(None)} and _fit([value for value in column if value is not None])


def _fit(values: Sequence[int]) -> bool:
    return not values or -MOST_INT < min(values) <= max(values) < MOST_INT
