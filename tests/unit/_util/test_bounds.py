"""What comes from outside, as it is shown: on one line, bounded, at a cost that does not depend on its size."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vitals._util.bounds import clean, shown

LIMIT = 40
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
)


class Counting(list[Any]):
    """A list that counts how many of its items were looked at."""

    seen = 0

    def __iter__(self) -> Any:
        for item in super().__iter__():
            self.seen += 1
            yield item

    def __repr__(self) -> str:
        raise AssertionError("the whole was written down")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("two\r\nlines", "two lines"),
        ("  much \t room ", "much room"),
        ("a\x00b\x1b[31mc", "a b [31mc"),
        ("half a \ud800 pair", "half a pair"),
        ("turned \u202e round", "turned round"),
        (b"bytes \xff\n", "bytes \ufffd"),
        ("x" * 40, "x" * 40),
        ("x" * 41, "x" * 37 + "..."),
        (b"x" * 41, "x" * 37 + "..."),
        ("", ""),
    ],
)
def test_a_text_becomes_one_bounded_line(text: str | bytes, expected: str) -> None:
    assert clean(text, LIMIT) == expected


@given(st.text() | st.binary(), st.integers(0, 60))
def test_any_text_becomes_one_bounded_line(text: str | bytes, limit: int) -> None:
    line = clean(text, limit)
    assert len(line) <= limit
    assert line.isprintable()
    assert clean(line, limit) == line


def test_a_value_that_fits_is_shown_as_python_writes_it() -> None:
    for value in ({"a": [1, 2.5, None]}, ("x", True), "it's", b"\x00", [], {}):
        assert shown(value, 200) == repr(value)


@given(values, st.integers(0, 60))
def test_any_value_becomes_one_bounded_line(value: Any, limit: int) -> None:
    line = shown(value, limit)
    assert len(line) <= limit
    assert line.isprintable()


def test_of_a_large_value_only_what_is_shown_is_looked_at() -> None:
    items = Counting(range(1_000_000))
    assert shown(items, LIMIT) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11..."
    assert items.seen < LIMIT


def test_a_value_that_holds_itself_ten_times_nine_levels_deep() -> None:
    bomb: list[Any] = ["x"]
    for _ in range(9):
        bomb = [bomb] * 10
    assert len(shown(bomb, LIMIT)) <= LIMIT
    circle: list[Any] = []
    circle.append(circle)
    assert shown(circle, LIMIT) == "[" * 13 + "..." + "]" * 13
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(shown(deep, 1000)) < LIMIT


def test_what_cannot_be_written_down_is_named_by_its_type() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(Odd(), LIMIT) == "<Odd>"
    assert shown(10**5000, LIMIT) == "an integer of 16610 bits"
    assert shown(-(10**5), LIMIT) == "-100000"


def test_each_text_is_redacted_as_a_whole_before_it_is_cut() -> None:
    seen: list[str] = []

    def redact(text: str) -> str:
        seen.append(text)
        return "***"

    assert shown({"key": ["s3cret" * 100]}, LIMIT, redact) == "{'***': ['***']}"
    assert seen == ["key", "s3cret" * 100]


class Sliced(str):
    """A text that may only be looked at in part."""

    __slots__ = ()

    def isprintable(self) -> bool:
        raise AssertionError("the whole was looked at")

    def split(self, *_: Any) -> Any:
        raise AssertionError("the whole was split")

    def __iter__(self) -> Any:
        raise AssertionError("the whole was walked")


def test_a_text_is_cut_before_anything_else_is_done_with_it() -> None:
    assert clean(Sliced("x\n" * 1000), LIMIT) == "x " * 18 + "x..."
