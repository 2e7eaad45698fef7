"""The rules as files: their configuration, how they are laid out, and that what is checked in is fresh."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from vllm_vitals.cli import app, rules_page
from vllm_vitals.mixin.rules import GROUPS, RulesConfig, build, files
from vllm_vitals.mixin.rules.config import Alert as AlertSettings
from vllm_vitals.mixin.rules.layout import WIDTH, laid_out
from vllm_vitals.mixin.rules.loading import RulesConfigError, read
from vllm_vitals.mixin.rules.windows import duration, seconds

ROOT = Path(__file__).parents[3]
DIRECTORY = ROOT / "deploy" / "prometheus" / "rules"


def rules(config: RulesConfig | None = None) -> list[dict[str, Any]]:
    made = files(config or RulesConfig()).values()
    return [rule for text in made for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def alert(name: str, **config: Any) -> dict[str, Any]:
    return next(rule for rule in rules(RulesConfig.model_validate(config)) if rule.get("alert") == name)


def test_files_are_fresh() -> None:
    made = files(RulesConfig())
    stale = {
        name
        for name, text in made.items()
        if not (DIRECTORY / name).is_file() or (DIRECTORY / name).read_text() != text
    }
    assert not stale, "run: vllm-vitals rules --out deploy/prometheus/rules"
    assert {path.name for path in DIRECTORY.iterdir()} == set(made)


def test_the_page_is_fresh() -> None:
    text = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    assert text == rules_page.page(), "run: vllm-vitals rules --markdown > docs/alerts.md"
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_the_page_has_every_alert_and_every_setting() -> None:
    text = rules_page.page()
    for rule in rules():
        assert "record" in rule or f"[{rule['alert']}](runbooks/{rule['alert']}.md)" in text
    for section in GROUPS:
        for name, value in getattr(RulesConfig(), section):
            if isinstance(value, AlertSettings):
                (row,) = [line for line in text.splitlines() if f"| `{section}.{name}`" in line]
                assert all(
                    f"`{field}`" in row
                    for field in type(value).model_fields
                    if field not in {"enabled", "severity", "for_"}
                )


def test_the_example_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    (text,) = [
        block for block in re.findall(r"```yaml\n(.*?)```", rules_page.page(), re.DOTALL) if "runbooks:" in block
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    config = read(file)
    made = {rule["alert"]: rule for rule in rules(config) if "alert" in rule}
    stalled = made["VllmEngineStalled"]
    assert "> 300" in stalled["expr"]
    assert stalled["labels"] == {"team": "inference", "severity": "warning"}
    assert stalled["annotations"]["runbook_url"] == "https://wiki.example.com/vllm/VllmEngineStalled.md"
    assert not any(name.startswith("VllmGpu") for name in made)
    assert {rule["labels"]["severity"] for name, rule in made.items() if name.startswith("VllmVitals")} == {"info"}


def test_every_alert_says_what_where_and_what_to_do() -> None:
    for rule in rules():
        if "alert" not in rule:
            continue
        told = rule["annotations"]
        assert rule["alert"].startswith("Vllm")
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert "{{ with $labels.namespace }}, namespace {{ . }}{{ end }}" in told["summary"]
        assert re.search(r"\. Look first at:\n1\. .+\n2\. .+\n3\. .+$", told["description"])
        assert told["runbook_url"] == f"docs/runbooks/{rule['alert']}.md"


def test_a_setting_changes_that_only() -> None:
    before, after = alert("VllmRequestErrors"), alert("VllmRequestErrors", engine={"errors": {"above": "3%"}})
    assert after["expr"] == before["expr"].replace("0.01", "0.03")
    assert {**after, "expr": "", "annotations": ""} == {**before, "expr": "", "annotations": ""}
    assert alert("VllmRequestErrors", engine={"errors": {"for": "7m"}})["for"] == "7m"
    assert alert("VllmRequestErrors", engine={"errors": {"severity": "info"}})["labels"]["severity"] == "info"
    assert "for" not in alert("VllmRequestErrors", engine={"errors": {"for": 0}})


def test_a_group_and_an_alert_can_be_switched_off() -> None:
    names = {rule.get("alert") for rule in rules(RulesConfig.model_validate({"engine": {"gone": {"enabled": False}}}))}
    assert "VllmEngineGone" not in names
    assert "VllmEngineStalled" in names
    without = RulesConfig.model_validate({"capacity": {"enabled": False}})
    assert set(build(without)) == set(GROUPS) - {"capacity"}
    assert "capacity.yaml" not in files(without)


@pytest.mark.parametrize("section", GROUPS)
def test_a_group_stands_by_itself(section: str) -> None:
    """What a group reads of recordings, it records."""
    text = files(RulesConfig())[f"{section}.yaml"]
    recorded = {
        rule["record"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"] if "record" in rule
    }
    assert set(re.findall(r"\b(?:model|engine)\w*:[\w:]+", text)) <= recorded


def test_a_group_has_one_severity_if_it_is_told_so() -> None:
    made = rules(RulesConfig.model_validate({"slo": {"severity": "warning"}}))
    assert {rule["labels"]["severity"] for rule in made if rule.get("alert") == "VllmSloBudgetBurn"} == {"warning"}
    assert {rule["labels"]["severity"] for rule in made if rule.get("alert") == "VllmGpuLost"} == {"critical"}


def test_labels_are_kept_that_are_listed() -> None:
    labels = {"service": ["region", "job"], "replica": ["host", "instance"]}
    rule = alert("VllmEngineStalled", labels=labels)
    assert "max by (region, job, host, instance, model_name, engine)" in rule["expr"]
    assert "cluster" not in rule["expr"]
    assert "{{ with $labels.region }}, region {{ . }}{{ end }}" in rule["annotations"]["summary"]


def test_windows_of_burns_are_recorded_whatever_they_are() -> None:
    burns = [{"long": "40s", "short": "10s", "factor": 2, "for": 0, "severity": "info"}]
    made = rules(RulesConfig.model_validate({"slo": {"burns": burns}}))
    records = {rule["record"] for rule in made if rule.get("record", "").startswith("model_slo:vllm_slo_requests_bad")}
    assert records == {f"model_slo:vllm_slo_requests_bad_per_requests:ratio_rate{window}" for window in ("40s", "10s")}
    assert "* 40\n" in alert("VllmSloBudgetBurn", slo={"burns": burns})["expr"]


def test_long_windows_are_evaluated_seldom() -> None:
    groups = yaml.safe_load(files(RulesConfig(interval=60))["slo.yaml"])["groups"]
    assert [(group["name"], group["interval"]) for group in groups] == [
        ("vllm-slo.rules", "1m"), ("vllm-slo-long.rules", "3m"), ("vllm-slo.alerts", "1m"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "engine: {stalled: {after: soon}}",
            "engine.stalled.after='soon': must be a duration such as 30s, 5m, 6h or 3d",
        ),
        ("engine: {stalled: {after: 0}}", "engine.stalled.after=0: Input should be greater than or equal to 1"),
        ("slo: {long_interval: 10m}", ": Input should be less than or equal to 240"),
        ("interval: 1h", "interval='1h': Input should be less than or equal to 240"),
        ("engine: {stalled: {afer: 5m}}", "there is no 'engine.stalled.afer'; did you mean 'after'?"),
        ("enigne: {}", "there is no 'enigne'; did you mean 'engine'?"),
        ("slo: {burns: [{long: 5m, short: 1h, factor: 2}]}", "short must be shorter than long"),
        ("slo: {burns: []}", "slo.burns=[]: List should have at least 1 item"),
        ("slo: {burns: [{long: 5m, short: 1m, facto: 2}]}", "there is no 'slo.burns.0.facto'; did you mean 'factor'?"),
        ("engine: {errors: {above: 1.5}}", "engine.errors.above=1.5: Input should be less than 1"),
        ("gpu: {throttled: {reasons: [dust]}}", "gpu.throttled.reasons=['dust']: dust is none of: application_clocks"),
        ("labels: {service: [job, engine]}", "engine is on the series itself and need not be listed"),
        ("labels: {service: [job, job]}", "each label may be listed once"),
        ("labels: {service: [my-job]}", "labels.service.0='my-job': String should match pattern"),
        ("gpu: {severity: urgent}", "gpu.severity='urgent': Input should be 'critical', 'warning' or 'info'"),
        ("[1]", "must hold a mapping, holds a list"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_wrong_configuration_is_named(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    with pytest.raises(RulesConfigError) as raised:
        read(file)
    assert str(raised.value).startswith(f"{file}: ")
    assert message in str(raised.value)


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("engine: {stalled: {after: soon}}\ngpu: {enabled: perhaps}\n")
    with pytest.raises(RulesConfigError) as raised:
        read(file)
    assert len(str(raised.value).splitlines()) == 2


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RulesConfigError, match="cannot be read"):
        read(tmp_path / "none.yaml")


def command(*words: str) -> Any:
    return CliRunner().invoke(app, ["rules", *words])


def test_the_command_writes_files_and_takes_away_what_is_switched_off(tmp_path: Path) -> None:
    out, config = tmp_path / "out", tmp_path / "config.yaml"
    result = command("--out", str(out))
    assert result.exit_code == 0
    assert {path.name: path.read_text() for path in out.iterdir()} == files(RulesConfig())
    assert str(out / "gpu.yaml") in result.output
    (out / "mine.yaml").write_text("groups: []\n")
    config.write_text("gpu: {enabled: false}")
    assert command("--out", str(out), "--config", str(config)).exit_code == 0
    assert {path.name for path in out.iterdir()} == {*files(RulesConfig()), "mine.yaml"} - {"gpu.yaml"}


def test_what_others_have_in_the_directory_is_left_alone_whatever_it_is(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "directory.yaml").mkdir()
    (tmp_path / "nowhere.yaml").symlink_to(tmp_path / "none")
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "large.yaml").touch()
    os.truncate(tmp_path / "large.yaml", 2**40)
    theirs = set(tmp_path.iterdir())
    assert command("--out", str(tmp_path)).exit_code == 0
    assert theirs < set(tmp_path.iterdir())


def test_the_command_prints_one_file() -> None:
    result = command("--stdout")
    assert result.exit_code == 0
    assert [rule for group in yaml.safe_load(result.output)["groups"] for rule in group["rules"]] == rules()


@pytest.mark.parametrize("words", [[], ["--stdout", "--markdown"], ["--stdout", "--out", "x"]])
def test_the_command_wants_one_way_out(words: list[str]) -> None:
    assert command(*words).exit_code == 2


def test_the_command_says_what_is_wrong_with_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("gpu: {enabled: perhaps}")
    result = command("--stdout", "--config", str(file))
    assert result.exit_code == 2
    assert f"{file}: gpu.enabled='perhaps': Input should be a valid boolean" in result.output


@pytest.mark.parametrize(
    ("text", "length"), [("30s", 30), ("5m", 300), ("90m", 5400), ("6h", 21600), ("3d", 259200), (7, 7)]
)
def test_a_duration_is_read_and_written(text: str | int, length: int) -> None:
    assert seconds(text) == length
    assert seconds(duration(length)) == length


@pytest.mark.parametrize("text", ["5", "m", "1h30m", "-5m", "1.5h", "5 w", True])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        seconds(text)


def test_a_layout_changes_nothing_but_blanks() -> None:
    for groups in build(RulesConfig()).values():
        for rule in (rule for group in groups for rule in group.rules):
            text = str(rule.expr)
            assert re.sub(r"\s", "", laid_out(text)) == re.sub(r"\s", "", text)


def test_a_long_expression_is_broken_where_it_is_loosest() -> None:
    left, right = "sum by (a) (rate(left_total[5m]))", 'sum by (a) (rate(right_total{b="x) and (y"}[5m]))'
    assert laid_out(f"{left} > 1 and {right} > 2").splitlines() == [f"{left} > 1 and {right} > 2"]
    long = f"({left} * 100000000) and on (a) ({right} / 200000000)"
    assert laid_out(long).splitlines() == [f"({left} * 100000000)", f"and on (a) ({right} / 200000000)"]
    longest = max(len(line) for rule in rules() for line in rule["expr"].splitlines() if "~" not in line)
    assert longest <= WIDTH + 30, "lines that cannot be broken are few and not much longer"
