"""A long list of floats is read quickly, and comes out as it went in, to the last bit."""

import math
import struct
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from tests.unit.builders import examples
from vllm_vitals.vllm.float_lists import MANY, only_number, packed, unpacked


def repeats(values: Any) -> tuple[float, int] | None:
    content = packed(values)
    return None if content is None else only_number(content)


@pytest.mark.parametrize("length", [1, 15, 16, MANY, MANY + 1, 65535, 65536, 100_000])
@pytest.mark.parametrize("value", [0.0, -0.0, 0.025, math.inf, math.nan, 5e-324, struct.unpack(">d", b"\xcb" * 8)[0]])
def test_a_number_that_repeats_is_found(value: float, length: int) -> None:
    number, times = repeats([value] * length) or (0.5, 0)
    assert struct.pack(">d", number) == struct.pack(">d", value)
    assert times == length


@examples(300)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 1, True, 203.0]), max_size=MANY + 3))
def test_other_lists_repeat_nothing(values: list[Any]) -> None:
    same = len({(type(value), str(value)) for value in values}) == 1 and type(values[0]) is float
    assert (repeats(values) is not None) == same


@pytest.mark.parametrize("length", [MANY, 65535, 65536])
@pytest.mark.parametrize("first", [b"", b"\x3f\xf8\0\0\0\0", b"\xcb\x3f\xf8" + bytes(6), "0123456", [1.5], 2**63, -1])
def test_what_is_no_number_is_not_taken_for_the_last(first: Any, length: int) -> None:
    values = [first] + [1.5] * (length - 1)
    assert repeats(values) is None
    assert unpacked(msgpack.encode(values)) is None


@examples(300)
@given(st.lists(st.floats(), max_size=2 * MANY))
def test_floats_come_out_to_the_last_bit(values: list[float]) -> None:
    assert (unpacked(packed(values) or b"") or array("d")).tobytes() == array("d", values).tobytes()


@pytest.mark.parametrize("values", [None, (1.5,) * MANY, [object()] * MANY, "x" * 99, 1.5, {1: 2}])
def test_anything_else_is_not_packed(values: Any) -> None:
    assert packed(values) is None


@pytest.mark.parametrize("content", [b"", b"\xc0", b"\xdc\xff", b"\xdd\xff\xff\xff\xff", b"\x91\xcb"])
def test_what_is_no_packed_list_is_none(content: bytes) -> None:
    assert unpacked(content) is None
    assert only_number(content) is None
