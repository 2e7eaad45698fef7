"""A list of one number over and over is folded; what comes out is what went in, to the last bit."""

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, msgpack

from tests.unit.builders import examples
from vllm_vitals.vllm.folded import MANY, fold, unfold


@pytest.mark.parametrize("length", [MANY, MANY + 1, 65535, 65536, 100_000])
@pytest.mark.parametrize("value", [0.0, -0.0, 0.025, math.inf, math.nan, 5e-324, struct.unpack(">d", b"\xcb" * 8)[0]])
def test_one_number_over_and_over_is_folded(value: float, length: int) -> None:
    folded = fold([value] * length)
    number, times = unfold(folded) or (0.5, 0)
    assert struct.pack(">d", number) == struct.pack(">d", value)
    assert times == length
    assert len(bytes(folded)) == 15


def test_it_comes_through_a_decoder_that_knows_nothing_of_it() -> None:
    content = msgpack.encode({"some": fold([1.5] * MANY)})
    assert unfold(msgpack.decode(content)["some"]) == (1.5, MANY)
    assert unfold(msgpack.decode(content, type=dict[str, Raw])["some"]) == (1.5, MANY)


@examples(300)
@given(st.lists(st.sampled_from([0.0, -0.0, 1.0, 1, True, 203.0]), min_size=MANY, max_size=MANY + 3))
def test_other_lists_come_out_as_they_went_in(values: list[Any]) -> None:
    same = len({(type(value), str(value)) for value in values}) == 1 and type(values[0]) is float
    folded = fold(values)
    assert (unfold(folded) is not None) == same
    if not same:
        assert repr(msgpack.decode(bytes(folded))) == repr(values)


@pytest.mark.parametrize("length", [MANY, 65535, 65536])
@pytest.mark.parametrize("first", [b"", b"\x3f\xf8\0\0\0\0", b"\xcb\x3f\xf8" + bytes(6), "0123456", [1.5], 2**63, -1])
def test_what_is_no_number_is_not_taken_for_the_last(first: Any, length: int) -> None:
    values = [first] + [1.5] * (length - 1)
    assert unfold(fold(values)) is None


@pytest.mark.parametrize("values", [None, [], [1.5] * (MANY - 1), (1.5,) * MANY, [object()] * MANY, "x" * 99, 1.5])
def test_short_lists_and_anything_else_stay_what_they_are(values: Any) -> None:
    assert fold(values) is values
    assert unfold(values) is None
