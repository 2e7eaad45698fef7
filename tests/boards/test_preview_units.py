"""Units, colours and names of a preview, against what Grafana's own code made of the same (`units.json`)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.boards.expressions import FILES, load, panels
from vllm_vitals.preview import units
from vllm_vitals.preview.fields import Look, legend, options, shade

GRAFANAS = json.loads(Path(__file__).with_name("units.json").read_text(encoding="utf-8"))["units"]


@pytest.mark.parametrize("unit", GRAFANAS)
def test_values_are_written_as_grafana_writes_them(unit: str) -> None:
    wrong = [
        (value, decimals, wanted, made)
        for value, texts in GRAFANAS[unit].items()
        for decimals, wanted in zip((None, 0, 2), texts, strict=True)
        if (made := units.text(float(value), unit, decimals)) != wanted
    ]
    assert wrong == []


def test_every_unit_of_the_boards_is_compared() -> None:
    found = set()
    for path in [*FILES["vitals"], *FILES["native"]]:
        for panel in panels(load(path)):
            looks = [panel["fieldConfig"]["defaults"], *map(flat, panel["fieldConfig"]["overrides"])]
            found |= {look["unit"] for look in looks if "unit" in look}
    assert len(found) > 15
    assert found <= GRAFANAS.keys()


def flat(override: dict[str, Any]) -> dict[str, Any]:
    return {each["id"]: each["value"] for each in override["properties"]}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.25, "s", "250 ms"), (90, "s", "1.5 mins"), (7.5, "reqps", "7.5 req/s"), (0, "si:tok", "0 tok"), (100, "none", "100"),
     (0.5, "percentunit", "50%"), (5 * 2**30, "bytes", "5 GiB")],
)  # fmt: skip
def test_an_axis_has_no_needless_zeros(value: float, unit: str, text: str) -> None:
    assert units.text(value, unit, trim=True) == text


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "∞"), (-math.inf, "-∞")])
def test_what_is_no_number_is_said(value: float, text: str) -> None:
    assert units.text(value, "s") == text


def test_a_label_that_a_series_lacks_is_empty_in_its_name() -> None:
    assert legend("{{instance}} engine {{ engine }}", {"engine": "3"}) == " engine 3"
    assert legend("{{error_type}}", {}) == "Value"


def test_thresholds_and_words_colour_a_value() -> None:
    steps = [{"color": "#111111", "value": None}, {"color": "#222222", "value": 1}, {"color": "#333333", "value": 5}]
    look = Look({"color": {"mode": "thresholds"}, "thresholds": {"steps": steps}, "unit": "none"})
    assert [look.colour(value) for value in (-1, 0.99, 1, 4.9, 5, 100)] == [
        "#111111", "#111111", "#222222", "#222222", "#333333", "#333333",
    ]  # fmt: skip
    words = {
        "1": {"text": "there", "color": "#009E73", "index": 0},
        "0": {"text": "gone", "color": "#D55E00", "index": 1},
    }
    look = Look({"mappings": [{"type": "value", "options": words}], "unit": "none", "color": {"mode": "thresholds"}})
    assert [(look.text(value), look.colour(value)) for value in (1, 0)] == [("there", "#009E73"), ("gone", "#D55E00")]
    assert look.text(0.5) == "0.500"


def test_a_field_is_overridden_by_name_or_by_query() -> None:
    panel = {
        "fieldConfig": {
            "defaults": {"unit": "s", "custom": {"fillOpacity": 8}},
            "overrides": [
                {"matcher": {"id": "byName", "options": "p99"}, "properties": [{"id": "unit", "value": "short"}]},
                {"matcher": {"id": "byFrameRefID", "options": "B"}, "properties": [{"id": "custom.fillOpacity", "value": 0}]},
                {"matcher": {"id": "byType", "options": "p99"}, "properties": [{"id": "unit", "value": "bytes"}]},
            ],
        }
    }  # fmt: skip
    assert options(panel, "p50", "A") == {"unit": "s", "custom.fillOpacity": 8}
    assert options(panel, "p99", "A") == {"unit": "short", "custom.fillOpacity": 8}
    assert options(panel, "p50", "B") == {"unit": "s", "custom.fillOpacity": 0}


def test_shades_of_a_colour_differ() -> None:
    shades = [shade("#56B4E9", index) for index in range(11)]
    assert shades[0] == "#56b4e9"
    assert len(set(shades)) == 11
