"""The store stays bounded whatever labels come, and loses no number over it."""

import math
from collections import Counter as Tally

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import ENGINE, Sight, collect, examples, feed, step
from vllm_vitals._util.labels import LONGEST_LABEL
from vllm_vitals.catalog.cache import LORA_REQUESTS, MAX_ADAPTERS
from vllm_vitals.catalog.metric import Counter, Gauge, Label
from vllm_vitals.store import store
from vllm_vitals.store.store import OTHER, Family

SCOPE = ("m", "0")
COUNTER = Counter("vllm.test.counter", "", "Help.", labels=(Label("who", ("a",), cap=2),))
GAUGE = Gauge("vllm.test.gauge", "", "Help.", labels=(Label("who", cap=3),))


def values(family: Family) -> dict[str, float]:
    """Return the value of each series of a one-label metric."""
    return {key[2]: cell.value for key, cell in family.cells.items()}


def test_values_beyond_the_cap_of_a_label_add_up_in_other() -> None:
    family = Family(COUNTER, Tally())
    for who, amount in (("b", 1), ("a", 2), ("c", 4), ("d", 8), ("e", 16), ("b", 32)):
        family.number(SCOPE, (who,)).add(amount)
    assert values(family) == {"b": 33.0, "a": 2.0, "c": 4.0, OTHER: 24.0}


def test_declared_values_keep_their_place_however_late_they_come() -> None:
    family = Family(COUNTER, Tally())
    for who in ("v", "w", "x", "y", "z", "a"):
        family.number(SCOPE, (who,)).add(1)
    assert values(family) == {"v": 1.0, "w": 1.0, OTHER: 3.0, "a": 1.0}


def test_a_gauge_past_its_cap_shows_the_sum_of_the_rest() -> None:
    family = Family(GAUGE, Tally())
    family.replace(SCOPE, dict.fromkeys("abcdefg", 2.0), 1.0)
    assert values(family) == {"a": 2.0, "b": 2.0, "c": 2.0, OTHER: 8.0}


def test_replacing_removes_other_series_and_frees_their_places() -> None:
    family = Family(GAUGE, Tally())
    family.replace(SCOPE, dict.fromkeys("abc", 1.0), 1.0)
    family.replace(SCOPE, {"c": 2.0}, 2.0)
    assert values(family) == {"c": 2.0}
    family.replace(SCOPE, {"c": 1.0, "d": 5.0, "e": 6.0}, 3.0)
    assert values(family) == {"c": 1.0, "d": 5.0, "e": 6.0}


def test_a_full_change_of_names_settles_by_the_next_step() -> None:
    family = Family(GAUGE, Tally())
    family.replace(SCOPE, dict.fromkeys("abc", 1.0), 1.0)
    family.replace(SCOPE, dict.fromkeys("xyz", 1.0), 2.0)
    assert sum(values(family).values()) == 3.0
    family.replace(SCOPE, dict.fromkeys("xyz", 1.0), 3.0)
    assert values(family) == {"x": 1.0, "y": 1.0, "z": 1.0}


def test_a_place_stays_taken_while_another_engine_uses_it() -> None:
    family = Family(GAUGE, Tally())
    family.replace(("m", "0"), dict.fromkeys("abc", 1.0), 1.0)
    family.replace(("m", "1"), {"a": 1.0}, 1.0)
    family.replace(("m", "0"), {}, 2.0)
    family.replace(("m", "0"), dict.fromkeys("xyz", 1.0), 3.0)
    assert set(family.cells) == {("m", "1", "a"), ("m", "0", "x"), ("m", "0", "y"), ("m", "0", OTHER)}


def test_dropping_one_engine_leaves_the_others() -> None:
    family = Family(GAUGE, Tally())
    for engine in ("0", "1", "10"):
        family.replace(("m", engine), {"a": 1.0}, 1.0)
    family.drop(("m", "1"))
    assert set(family.cells) == {("m", "0", "a"), ("m", "10", "a")}


def test_an_impossible_value_makes_no_series_and_changes_none() -> None:
    family = Family(GAUGE, Tally())
    family.replace(SCOPE, {"a": 1.0, "b": math.nan, "c": -1.0}, 1.0)
    assert values(family) == {"a": 1.0}
    family.replace(SCOPE, {"a": math.nan, "b": 2.0}, 2.0)
    assert values(family) == {"a": 1.0, "b": 2.0}
    family.replace(SCOPE, {"b": 3.0}, 3.0)
    assert values(family) == {"b": 3.0}
    assert family.rejects == {("vllm.test.gauge", "not_finite"): 2, ("vllm.test.gauge", "negative"): 1}


def test_an_impossible_value_takes_no_place_of_others() -> None:
    family = Family(GAUGE, Tally())
    family.replace(SCOPE, {**dict.fromkeys("abc", math.nan), **dict.fromkeys("xyz", 1.0)}, 1.0)
    assert values(family) == {"x": 1.0, "y": 1.0, "z": 1.0}


def test_only_possible_values_beyond_a_cap_add_up() -> None:
    family = Family(GAUGE, Tally())
    family.replace(SCOPE, {**dict.fromkeys("abcd", 1.0), "e": math.nan, "f": 4.0}, 1.0)
    assert values(family)[OTHER] == 5.0


def test_an_impossible_sum_beyond_a_cap_is_not_shown() -> None:
    family = Family(Gauge("vllm.test.share", "", "Help.", limit=1.0, labels=(Label("who", cap=1),)), Tally())
    family.replace(SCOPE, dict.fromkeys("abc", 0.75), 1.0)
    assert values(family) == {"a": 0.75}
    assert family.rejects == {("vllm.test.share", "absurd"): 1}


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1.5])
def test_an_impossible_first_value_is_not_shown_as_zero(value: float) -> None:
    see = Sight(collect(step(running=1, kv_cache_usage=value)))
    assert see("vllm_kv_cache_usage_ratio", **ENGINE) is None
    assert see("vllm_engine_requests_running", **ENGINE) == 1


@given(st.lists(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.integers(0, 9)), max_size=12))
@examples(100)
def test_series_are_bounded_and_sums_right_for_any_input(steps: list[dict[str, int]]) -> None:
    family = Family(GAUGE, Tally())
    for time, each in enumerate(steps):
        family.replace(SCOPE, each, float(time))
        assert sum(values(family).values()) == sum(each.values())
        assert len(family.cells) <= GAUGE.labels[0].cap + 1


def test_a_long_label_value_is_cut() -> None:
    family = Family(GAUGE, Tally())
    family.replace(SCOPE, {"x" * 5000: 1.0}, 1.0)
    assert values(family) == {"x" * LONGEST_LABEL: 1.0}


def test_long_names_with_the_same_cut_add_up() -> None:
    family = Family(GAUGE, Tally())
    stem = "x" * LONGEST_LABEL
    for time in (1.0, 2.0):
        family.replace(SCOPE, {f"{stem}1": 1.0, f"{stem}2": 2.0}, time)
        assert values(family) == {stem: 3.0}
    family.replace(SCOPE, {"short": 1.0}, 3.0)
    assert values(family) == {"short": 1.0}


def test_engines_past_the_cap_share_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_SCOPES", 3)
    family = Family(COUNTER, Tally())
    for engine in range(6):
        family.number(("m", str(engine)), ("a",)).add(1)
    family.number(("m", "2"), ("b",)).add(1)
    assert {key: cell.value for key, cell in family.cells.items()} == {
        ("m", "0", "a"): 1.0, ("m", "1", "a"): 1.0, ("m", "2", "a"): 1.0, (OTHER, OTHER, "a"): 3.0,
        ("m", "2", "b"): 1.0,
    }  # fmt: skip


def test_a_thousand_adapters_in_one_step_stay_bounded_and_add_up() -> None:
    names = {f"lora-{n}": 1 for n in range(1000)}
    see = Sight(collect(step(running=1, lora_running=names, lora_waiting=names)))
    series = see.labels("vllm_lora_requests")
    assert len(series) == 2 * (MAX_ADAPTERS + 1)
    assert len({each["adapter"] for each in series}) == MAX_ADAPTERS + 1
    for state in ("running", "waiting"):
        assert see.of_engine("vllm_lora_requests", adapter=OTHER, state=state) == 1000 - MAX_ADAPTERS


def test_a_thousand_adapters_one_after_another_each_get_their_series() -> None:
    aggregator = collect()
    for n in range(1000):
        feed(aggregator, step(running=1, lora_running={f"lora-{n}": 1}))
        assert [key[2:] for key in aggregator.store[LORA_REQUESTS].cells] == [(f"lora-{n}", "running")]


def test_adapters_go_away_when_none_is_in_use() -> None:
    aggregator = collect(step(running=1, lora_running={"a": 1}), step(101.0, running=0))
    assert not aggregator.store[LORA_REQUESTS].cells
