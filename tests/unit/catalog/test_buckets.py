"""Bucket families: vLLM's series, and clear words for bounds that cannot be."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals.catalog.buckets import FAMILIES, MAX_BOUNDS, OURS, TOKENS, VLLM, check, one_two_five, plan

DEFAULT_LENGTH = 131072


def slow_one_two_five(most: float) -> tuple[float, ...]:
    return tuple(sorted(m * 10.0**e for m in (1, 2, 5) for e in range(16) if m * 10**e <= most))


@pytest.mark.parametrize(
    ("most", "bounds"),
    [(0, ()), (1, (1,)), (9, (1, 2, 5)), (10, (1, 2, 5, 10)), (100, (1, 2, 5, 10, 20, 50, 100)),
     (4096, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)), (2.5, (1, 2))],
)  # fmt: skip
def test_one_two_five(most: float, bounds: tuple[float, ...]) -> None:
    assert one_two_five(most) == bounds


@given(st.integers(0, 10**12))
@examples(60)
def test_one_two_five_of_any_length(most: int) -> None:
    assert one_two_five(most) == slow_one_two_five(most)


@pytest.mark.parametrize("family", [*VLLM, *OURS])
def test_every_default_family_is_sound(family: str) -> None:
    bounds = {**VLLM, **OURS}[family]
    assert check(family, bounds) == tuple(bounds)


def test_gen_ai_buckets_are_those_of_the_convention() -> None:
    assert OURS["gen_ai_request_duration"] == tuple(pytest.approx(0.01 * 2**n) for n in range(14))
    assert OURS["gen_ai_time_to_first_token"] == (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    )  # fmt: skip
    assert OURS["gen_ai_time_per_output_token"] == (
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    )  # fmt: skip


WRONG: list[tuple[str, list[Any], tuple[str, ...]]] = [
    ("stepp", [1.0], ("stepp", "step", "request_latency")),
    ("step", [], ("step", "0 bounds", "1 to 200")),
    ("step", list(range(MAX_BOUNDS + 1)), ("step", "201", "200")),
    ("step", [1.0, math.inf], ("step", "inf", "finite")),
    ("step", [math.nan], ("step", "nan", "finite")),
    ("step", [1.0, 3.0, 2.0], ("step", "[1.0, 3.0, 2.0]", "ascend")),
    ("step", [1.0, 1.0], ("step", "[1.0, 1.0]", "repeats")),
]


@pytest.mark.parametrize(("family", "bounds", "words"), WRONG, ids=lambda value: str(value)[:30])
def test_errors_name_the_family_the_value_and_what_is_allowed(
    family: str, bounds: list[Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError, match=family) as error:
        check(family, bounds)
    for word in words:
        assert word in str(error.value)


def test_the_maximum_number_of_bounds_is_allowed() -> None:
    assert len(check("step", list(range(MAX_BOUNDS)))) == MAX_BOUNDS


def test_a_plan_has_every_family_as_floats() -> None:
    made = plan(None)
    assert set(made) == set(FAMILIES)
    assert all(type(bound) is float for bounds in made.values() for bound in bounds)
    assert made[TOKENS] == slow_one_two_five(DEFAULT_LENGTH)


def test_a_plan_follows_the_models_length() -> None:
    assert plan(50)[TOKENS] == (1, 2, 5, 10, 20, 50)
    assert plan(1)[TOKENS] == (1,)


def test_later_overrides_win() -> None:
    made = plan(50, {"step": [1, 2], TOKENS: [7]}, {"step": [3]})
    assert (made["step"], made[TOKENS], made["export"]) == ((3.0,), (7.0,), OURS["export"])
