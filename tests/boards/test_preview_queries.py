"""What a preview asks a Prometheus: windows and variables by Grafana's rules."""

import json
import re

import promql_parser
import pytest

from tests.boards.expressions import FILES, expressions, load
from vllm_vitals.preview.variables import any_of, chosen, substituted
from vllm_vitals.preview.window import Window, moment, seconds

HOSTILE = ['a"} or vector(1) or x{y="', "a.b", "a\\b", "$model", "a|b", "é {x}", "line\nbreak", "(", "+1", ".*"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("90s", 90), ("15m", 900), ("1h30m", 5400), ("7d", 604800), ("2w", 1209600), ("366d", 31622400)],
)
def test_durations(text: str, wanted: int) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "0s", "1", "h", "1y", "-1h", "1h ", "1.5h", "367d", "1hx", "9999999s"])
def test_a_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        seconds(text)


@pytest.mark.parametrize("text", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00"])
def test_moments(text: str) -> None:
    assert moment(text) == 1769860800


def test_a_text_that_is_no_moment_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a time such as"):
        moment("yesterday")


def test_no_value_is_asked_for_between_two_scrapes_nor_more_than_fit() -> None:
    hour = Window(1_000_000_007, 3600, 15)
    assert (hour.step(624), hour.step(100)) == (15, 36)
    assert hour.bounds(36) == (999_996_372, 999_999_972)  # multiples of 36
    assert Window(1_000_000_007, 86_400, 15).step(400) == 216


def test_grafanas_variables() -> None:
    """The window of a rate is four scrapes, or a step and a scrape if that is more."""
    hour = Window(1_000_000_007, 3600, 15)
    assert hour.variables(15)["__rate_interval"] == "60s"
    assert hour.variables(120)["__rate_interval"] == "135s"
    text = "$__range ${__range_s} $__range_ms $__interval ${__interval_ms} $__rate_interval"
    assert substituted(text, hour.variables(15)) == "3600s 3600 3600000 15s 15000 60s"


def test_a_variable_that_nobody_knows_is_no_query() -> None:
    with pytest.raises(ValueError, match=r"\$nobody is not known"):
        substituted("up > $nobody", {"model": "x"})


def test_what_a_replacement_refers_to_is_no_variable() -> None:
    text = 'label_replace(up, "a", "$1", "b", "(.*)")'
    assert substituted(text, {}) == text


def test_all_is_every_value_and_a_missing_label_too() -> None:
    assert chosen(load(FILES["vitals"][0]), {}) == dict.fromkeys(
        ("cluster", "namespace", "model", "instance", "engine"), ".*"
    )


def test_a_variable_that_a_board_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="'datasource': it must be one of cluster, namespace, model, instance, engine"):
        chosen(load(FILES["vitals"][0]), {"datasource": ["x"]})


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_matches_itself_alone_and_leaves_no_query(value: str) -> None:
    query = substituted('up{model_name=~"$model"}', {"model": any_of([value])})
    found = promql_parser.parse(query)
    assert isinstance(found, promql_parser.VectorSelector)
    (matcher,) = found.matchers.matchers
    assert re.fullmatch(matcher.value, value)
    assert [other for other in HOSTILE if re.fullmatch(matcher.value, other)] == [value]


def test_several_values_are_one_pattern() -> None:
    pattern = json.loads(f'"{any_of(["a.b", "c"])}"')
    assert [bool(re.fullmatch(pattern, text)) for text in ("a.b", "c", "axb", "a.bc")] == [True, True, False, False]


def test_every_query_of_every_board_can_be_asked() -> None:
    window = Window(1_000_000_007, 3600)
    for path in [*FILES["vitals"], *FILES["native"]]:
        board = load(path)
        values = {**chosen(board, {"model": ["meta/llama-3"]}), **window.variables(15)}
        for each in expressions(board):
            promql_parser.parse(substituted(each.text, values))
