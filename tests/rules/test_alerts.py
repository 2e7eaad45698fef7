"""Every alert, evaluated by promtool on series that it must fire on and on series that it must not."""

from collections import defaultdict
from pathlib import Path

import pytest

from tests.rules.fleet import healthy
from tests.rules.promtool import Fires, Scenario, names, played, run
from tests.rules.scenarios import SCENARIOS
from vllm_vitals.catalog import CATALOG
from vllm_vitals.mixin.rules import RulesConfig, build
from vllm_vitals.mixin.rules.rule import Alert
from vllm_vitals.vllm_page.counterparts import NAMES

SECTIONS = {
    rule.name: section
    for section, groups in build(RulesConfig()).items()
    for group in groups
    for rule in group.rules
    if isinstance(rule, Alert)
}
BY_ALERT: dict[str, list[Scenario]] = defaultdict(list)
for each in SCENARIOS:
    BY_ALERT[each.alert].append(each)

UNEVENTFUL = {
    "a healthy fleet": healthy(0) | healthy(1) | healthy(2, 0) | healthy(2, 1),
    "an idle fleet": {
        name: values
        for place in (0, 1)
        for name, values in healthy(
            place, running="0x600", tokens="500x600", stop="9x600", abort="0x600", saturation="0x600", usage="0x600", age="0+60x600"
        ).items()
    },
    "scaled to zero": {name: f"{values.partition('x')[0]}x30 stale" for name, values in healthy(0).items()},
    "nothing": {},
}  # fmt: skip


def together() -> dict[tuple[str, str, str], list[Scenario]]:
    """Return the scenarios by what promtool plays at once: those of one section, one interval and one configuration."""
    found: dict[tuple[str, str, str], list[Scenario]] = defaultdict(list)
    for each in SCENARIOS:
        found[SECTIONS[each.alert], each.interval, each.config.model_dump_json()].append(each)
    return found


GROUPS = together()


@pytest.mark.parametrize("group", GROUPS, ids=[f"{each[0].alert} and {len(each) - 1} more" for each in GROUPS.values()])
def test_it_fires_when_it_should_and_only_then(group: tuple[str, str, str], tmp_path: Path) -> None:
    """Promtool says which alert did otherwise, and when."""
    section, interval, _ = group
    scenarios = GROUPS[group]
    assert (
        run(list(map(played, scenarios)), tmp_path, scenarios[0].config, interval=interval, sections=(section,)) == ""
    )


@pytest.mark.parametrize("title", UNEVENTFUL)
def test_nothing_fires_on(title: str, effort: str, tmp_path: Path) -> None:
    silent = {at: [] for at in ("3m", "20m", "40m", "5h", "9h")}
    tests = [played(Scenario(alert, title, UNEVENTFUL[title], silent)) for alert in SECTIONS]
    merged = {**tests[0], "alert_rule_test": [each for test in tests for each in test["alert_rule_test"]]}
    seldom = "1m" if effort == "all" else "2m"
    assert run([merged], tmp_path, RulesConfig(), interval=seldom) == ""


def test_there_are_scenarios_for_every_alert() -> None:
    for alert in SECTIONS:
        assert {each.fires for each in BY_ALERT[alert]} == {True, False}, alert


def test_no_scenario_is_of_an_alert_that_there_is_not() -> None:
    assert set(BY_ALERT) == set(SECTIONS)


def test_scenarios_are_of_series_that_there_are() -> None:
    """One of a name that is wrong would be silent whatever the rule."""
    known = {metric.prometheus for metric in CATALOG} | NAMES | {"up"}
    assert {name for each in SCENARIOS for name in names(each.series)} <= known


@pytest.mark.parametrize("spoil", ["labels", "summary", "silence", "firing"])
def test_a_wrong_expectation_is_found(spoil: str, tmp_path: Path) -> None:
    """The same check fails when what is expected is not what happens."""
    firing = next(each for each in SCENARIOS if each.alert == "VllmEngineGone" and each.fires)
    at, (expected,) = next((at, fires) for at, fires in firing.at.items() if fires)
    wrong = {
        "labels": [Fires({**expected.labels, "engine": "7"}, expected.summary)],
        "summary": [Fires(expected.labels, expected.summary + "!")],
        "silence": [],
    }
    played_wrong = Scenario(firing.alert, "wrong", firing.series, {at: wrong.get(spoil, [expected])})
    if spoil == "firing":
        played_wrong = Scenario(firing.alert, "wrong", healthy(), {at: [expected]})
    assert "FAILED" in run([played(played_wrong)], tmp_path, RulesConfig())
