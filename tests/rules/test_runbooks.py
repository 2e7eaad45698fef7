"""Every alert has a runbook and every runbook an alert; what they tell people to write works."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.expressions import exported, faults
from vllm_vitals.cli.settings_page import sections
from vllm_vitals.config.otel_env import SWITCHES, VARIABLES
from vllm_vitals.mixin.rules import RulesConfig, build
from vllm_vitals.mixin.rules.maker import Maker
from vllm_vitals.mixin.rules.rule import Alert, Record
from vllm_vitals.records.gpu import REASONS

BOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
CONFIG = RulesConfig()
RULES = [rule for groups in build(CONFIG).values() for group in groups for rule in group.rules]
ALERTS = {rule.name: rule for rule in RULES if isinstance(rule, Alert)}
KNOWN = exported() | {rule.made.name: rule.made.labels for rule in RULES if isinstance(rule, Record)}
TARGETS = set(Maker(CONFIG).queries.targets)
NAME = re.compile(r"\b((?:vllm|vitals|hw)_\w+|(?:vllm|model\w*|engine):[\w:]+)\b(?!\*)")
NOT_METRICS = {"vllm_vitals", "vitals_prometheus", *REASONS}


def without_runbook(names: set[str], books: Path) -> set[str]:
    """Return alerts that lack a page, and pages that lack an alert."""
    return names ^ {path.stem for path in books.glob("Vllm*.md")}


def wrong(text: str, books: Path) -> Iterator[str]:
    """Yield what a page says that is not so."""
    blocks = re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    for block in blocks:
        try:
            yield from faults(block, KNOWN, TARGETS)
        except ValueError as error:
            yield f"does not parse: {block}: {error}"
    for name in NAME.findall(re.sub(r"```\w+\n.*?```", "", text, flags=re.DOTALL)):
        if name not in KNOWN and name not in NOT_METRICS and not any(name in labels for labels in KNOWN.values()):
            yield f"there is no series {name}"
    listed = [setting for _, _, inside in sections() for setting in inside]
    variables = {setting.variable for setting in listed} | set(SWITCHES)
    variables |= {name for each in VARIABLES for name in each.names}
    for name in re.findall(r"\b(?:VITALS|OTEL)_[A-Z_]*[A-Z]\b", text):
        if name not in variables and f"{name}_" not in text:
            yield f"there is no setting {name}"
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        if not (books / link).exists():
            yield f"there is no {link}"


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert without_runbook(set(ALERTS), BOOKS) == set()


def test_a_missing_one_is_found_on_either_side() -> None:
    assert without_runbook({*ALERTS, "VllmNew"}, BOOKS) == {"VllmNew"}
    assert without_runbook(set(ALERTS) - {"VllmGpuLost"}, BOOKS) == {"VllmGpuLost"}


@pytest.mark.parametrize("path", sorted(BOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_what_a_runbook_says_is_so(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert list(wrong(text, BOOKS)) == []
    if path.stem != "README":
        assert text.startswith(f"# {path.stem}\n\n")
        assert "```" in text.partition("## Look")[2]
        assert "## What it usually is" in text or "## Do" in text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```promql\nsum(vllm_engine_request_running)\n```", "there is no series vllm_engine_request_running"),
        ("```promql\nsum((\n```", "does not parse"),
        ("see `vllm_engine_requests_runing`", "there is no series vllm_engine_requests_runing"),
        ("set `VITALS_QUEUE_LENGTH`", "there is no setting VITALS_QUEUE_LENGTH"),
        ("[here](VllmNothing.md)", "there is no VllmNothing.md"),
    ],
)
def test_what_is_not_so_is_found(text: str, fault: str) -> None:
    assert any(each.startswith(fault) for each in wrong(text, BOOKS))


@pytest.mark.parametrize("name", ALERTS)
def test_checks_name_what_there_is(name: str) -> None:
    """What an alert itself says to look at first: three things, with series that there are."""
    alert = ALERTS[name]
    assert len(alert.checks) == 3
    assert list(wrong("\n".join((alert.meaning, *alert.checks)), BOOKS)) == []


def test_settings_that_runbooks_name_are_there() -> None:
    for path in BOOKS.glob("*.md"):
        for section, name, field in re.findall(
            r"`(slo|engine|capacity|gpu|telemetry)\.(\w+)(?:\.(\w+))?[:`]", path.read_text()
        ):
            settings = getattr(getattr(CONFIG, section), name)
            assert not field or hasattr(settings, field) or field == "for", (path.name, section, name, field)
