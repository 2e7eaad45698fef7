"""Reading many fields, and long lists, the quick way gives what the careful way gives."""

import math
import struct
from array import array
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals.vllm.fields import Fields, Table
from vllm_vitals.vllm.float_lists import MANY, quickly

NUMBERS, COUNTS, OTHERS = ("a", "b"), ("c", "d"), ("e",)
NAMES = (*NUMBERS, *COUNTS, *OTHERS)
LENGTHS = (16, 17, 63, 64, 65, 255, 256, 65535, 65536, 65537)
"""Around every length at which a list's head, or the way to read it, changes."""


class Text(str):
    __slots__ = ()


class Real(float):
    __slots__ = ()


class Whole(int):
    __slots__ = ()


odd = st.sampled_from(
    [Real(1.5), Whole(2), np.float64(2.5), np.float32(0.5), np.int64(3), np.array(4), np.array([1, 2]), Decimal("1.5"),
     Text("x"), 10**400, 2**62, -(2**62), 2**62 - 1, math.nan, math.inf, -0.0, [], {}, object()]
)  # fmt: skip
values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3), odd
)
objects = st.dictionaries(st.sampled_from(NAMES), values, max_size=len(NAMES)) | st.fixed_dictionaries(
    {**dict.fromkeys(NUMBERS, st.floats()), **dict.fromkeys(COUNTS, st.integers(0, 99)), "e": values}
)


def fields(complaints: list[Any] | None = None) -> Fields:
    def complain(field: str, value: Any, expected: str) -> None:
        if complaints is not None:
            complaints.append((field, type(value), expected))

    return Fields(complain)


def one_by_one(source: Any, complaints: list[Any]) -> list[Any]:
    careful = fields(complaints)
    numbers = [careful.number(source, name) for name in NUMBERS]
    counts = [careful.count(source, name) for name in COUNTS]
    return [*numbers, *counts, *(careful.any(source, name) for name in OTHERS)]


def same(one: Any, other: Any) -> bool:
    """Tell whether two values are equal and of the same type, or both numbers; NaN equals itself."""
    if type(one) is not type(other):
        return type(one) is int and type(other) is float and float(one) == other
    return one is other or (isinstance(one, float) and struct.pack("d", one) == struct.pack("d", other)) or one == other


@examples(300)
@given(st.lists(objects, max_size=6))
def test_a_table_reads_what_the_fields_give_one_by_one(given_: list[dict[str, Any]]) -> None:
    told: list[Any] = []
    expected_told: list[Any] = []
    table = Table(fields(told), NUMBERS, COUNTS, OTHERS)
    sources = [SimpleNamespace(**each) for each in given_]
    for some in (sources[:1], sources, sources[1:]):  # at first by one object, then by the shape that was learned
        expected = [one_by_one(source, expected_told) for source in some]
        for row, right in zip(table.read(some), expected, strict=True):
            assert all(map(same, row, right))
    assert told == expected_told


def test_one_that_does_not_fit_costs_only_itself() -> None:
    table = Table(fields(), (), ("c", "d"))
    rows = table.read([SimpleNamespace(c=1, d=1), SimpleNamespace(c=2**70, d=1), SimpleNamespace(c=None, d=2)])
    assert list(map(list, rows)) == [[1, 1], [None, 1], [None, 2]]


def test_a_whole_number_is_as_good_as_a_float_if_it_fits() -> None:
    table = Table(fields(), ("a", "b"))
    assert table.read([SimpleNamespace(a=1.5, b=0)]) == [(1.5, 0)]
    assert table.read([SimpleNamespace(a=1.5, b=10**400)]) == [[1.5, math.inf]]


def test_a_property_that_raises_costs_only_itself() -> None:
    class Source:
        a, b, c = 1.0, 2.0, 3

        @property
        def d(self) -> int:
            raise RuntimeError

        e = "x"

    told: list[Any] = []
    assert list(Table(fields(told), NUMBERS, COUNTS, OTHERS).read([Source()])[0]) == [1.0, 2.0, 3, None, "x"]
    assert [field for field, *_ in told] == ["Source.d"]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_list_of_floats_is_taken_whole(length: int) -> None:
    values = [number / 7 for number in range(length)]
    values[0], values[-1] = -0.0, math.inf
    assert quickly(values) == array("d", values)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_list_of_anything_else_is_not(length: int) -> None:
    for item in (7, 2**40, True, None, "1.5", "12345678", b"1234567", Decimal("1.5"), [1.0], (), {}):
        for place in (0, 8, -1):
            values: list[Any] = [1.0] * length
            values[place] = item
            assert quickly(values) is None, (item, place)


@examples(300)
@given(st.lists(st.one_of(st.floats(), values), max_size=3), st.integers(0, 2 * MANY), st.integers(0, 2 * MANY))
def test_only_lists_of_nothing_but_floats_are(some: list[Any], before: int, after: int) -> None:
    given_ = [0.5] * before + some + [0.25] * after
    quick = quickly(given_)
    if quick is not None:
        assert all(type(value) is float for value in given_)
        assert quick.tobytes() == array("d", given_).tobytes()


@pytest.mark.parametrize("length", [0, 1, 15, 16, MANY - 1, MANY, MANY + 1, 65535, 65536])
@pytest.mark.parametrize("make", [list, tuple, np.array, lambda values: array("d", values)])
def test_numbers_of_any_container_and_length_are_read(length: int, make: Any) -> None:
    values = [number / 3 for number in range(length)]
    assert fields().floats(make(values), "f") == array("d", values)


@pytest.mark.parametrize("length", [3, MANY + 3])
def test_items_that_are_no_numbers_are_left_out_and_told_of(length: int) -> None:
    told: list[Any] = []
    values: list[Any] = [0.5] * length
    values[1] = "1.5"
    assert fields(told).floats(values, "f") == array("d", [0.5] * (length - 1))
    assert told == [("f", str, "a number")]


@pytest.mark.parametrize("length", [3, MANY + 3])
def test_whole_numbers_among_floats_are_numbers(length: int) -> None:
    values: list[Any] = [0.5] * length
    values[1] = 2
    assert fields().floats(values, "f") == array("d", values)


@examples(300)
@given(st.lists(st.lists(st.floats() | values, max_size=3) | st.none() | st.just((1, 2.5)), max_size=4))
def test_many_lists_are_read_as_each_of_them(lists: list[Any]) -> None:
    together, apart = [], []
    read = fields(together).lists(lists, "f")
    assert repr(read) == repr([fields(apart).floats(each, "f") or None for each in lists])
    assert together == apart


@pytest.mark.parametrize("length", [1, MANY - 1, MANY, 8192])
def test_lists_keep_their_numbers_however_many_there_are(length: int) -> None:
    first, last = [0.5] * length, [1.5, 2.5] * (length // 2)
    assert fields().lists([first, [], last], "f") == [array("d", first), None, array("d", last) or None]


repeats = st.builds(lambda value, length: [value] * length, st.floats(), st.integers(0, 2 * MANY))


@examples(300)
@given(st.lists(repeats | st.lists(st.floats() | values, max_size=3) | st.none(), max_size=4))
def test_a_number_that_repeats_is_read_once(lists: list[Any]) -> None:
    read = fields().repeated(lists, "f")
    every = [array("d", list(found or ()) * times) for found, times in read]
    assert [each.tobytes() for each in every] == [fields().floats(each, "f").tobytes() for each in lists]
    assert all(found is None or len(found) == 1 for found, times in read if times != 1)


@pytest.mark.parametrize("odd", [1, True, "1.5", None, Decimal(1), -0.0])
def test_a_long_list_that_is_not_of_one_number_is_read_as_ever(odd: Any) -> None:
    told: list[Any] = []
    given_ = [0.0] * (2 * MANY) + [odd]
    ((found, times),) = fields(told).repeated([given_], "f")
    assert (found, times) == (fields().floats(given_, "f"), 1)
