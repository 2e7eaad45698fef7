"""Every expression parses, and all that it names exists; promtool finds nothing wrong with the files."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.bootstrap import prometheus_tools
from tests.rules.expressions import exported, faults
from vllm_vitals.mixin.rules import RulesConfig, build, files
from vllm_vitals.mixin.rules.config import Labels
from vllm_vitals.mixin.rules.maker import Maker
from vllm_vitals.mixin.rules.rule import Record

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy" / "prometheus" / "rules"
CONFIGS = {
    "default": RulesConfig(),
    "exponential": RulesConfig(histograms="exponential"),
    "other labels": RulesConfig(labels=Labels(service=["region", "job"], replica=["instance"], shared=["region", "host"])),
    "no labels": RulesConfig(labels=Labels(service=[], replica=[], shared=[])),
    "seconds": RulesConfig.model_validate(
        {"slo": {"burns": [{"long": "30s", "short": "10s", "factor": 2}]}, "interval": "2s"}
    ),
}  # fmt: skip


def rules(config: RulesConfig) -> list[dict[str, Any]]:
    read = (yaml.safe_load(text) for text in files(config).values())
    return [rule for data in read for group in data["groups"] for rule in group["rules"]]


def wrong(expression: str, config: RulesConfig) -> list[str]:
    recorded = {
        rule.made.name: rule.made.labels
        for groups in build(config).values() for group in groups for rule in group.rules if isinstance(rule, Record)
    }  # fmt: skip
    return list(faults(expression, exported() | recorded, set(Maker(config).queries.targets)))


@pytest.mark.parametrize("name", CONFIGS)
def test_expressions_name_what_there_is(name: str) -> None:
    for rule in rules(CONFIGS[name]):
        assert wrong(rule["expr"], CONFIGS[name]) == [], rule


@pytest.mark.parametrize("name", CONFIGS)
def test_promtool_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    for file, text in files(CONFIGS[name]).items():
        (tmp_path / file).write_text(text)
    assert check(*sorted(tmp_path.glob("*.yaml"))) == ""


def test_promtool_finds_nothing_wrong_with_the_files() -> None:
    assert check(*sorted(FILES.glob("*.yaml"))) == ""


def check(*paths: Path) -> str:
    assert paths
    _, promtool = prometheus_tools()
    done = subprocess.run([promtool, "check", "rules", *paths], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("vllm_engine_requests_runing > 0", "there is no series vllm_engine_requests_runing"),
        ("sum by (engine, rank) (vllm_engine_requests_running)", "no series has a label rank"),
        ('vllm_engine_requests_waiting{raeson="capacity"}', "vllm_engine_requests_waiting has no label raeson"),
        ('rate(vllm_requests_finished_total{finish_reason=~"stop|stopped"}[5m])',
         "finish_reason of vllm_requests_finished_total is never stopped"),
        ("model:no_such_thing:sum", "there is no series model:no_such_thing:sum"),
        ("up / on (zone) up", "no series has a label zone"),
        ('vllm:num_requests_running{reason="capacity"}', "vllm:num_requests_running has no label reason"),
    ],
)  # fmt: skip
def test_a_name_that_stands_for_nothing_is_found(expression: str, fault: str) -> None:
    assert wrong(expression, RulesConfig()) == [fault]


def test_what_does_not_parse_is_found() -> None:
    with pytest.raises(ValueError, match=r"unclosed|unexpected|invalid"):
        wrong("sum by (engine (vllm_engine_requests_running)", RulesConfig())


def test_what_promtool_refuses_is_found(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(files(RulesConfig())["gpu.yaml"].replace("> 0.1", "> > 0.1"))
    assert "could not parse expression" in check(path)


def test_names_of_recordings_are_of_three_parts() -> None:
    for rule in rules(RulesConfig()):
        if "record" in rule:
            level, metric, operation = rule["record"].split(":")
            assert level
            assert metric.startswith("vllm_")
            assert operation
            assert not metric.endswith("_total")


def test_no_series_is_recorded_twice() -> None:
    made = [
        (rule["record"], *sorted(rule.get("labels", {}).items())) for rule in rules(RulesConfig()) if "record" in rule
    ]
    assert len(set(made)) == len(made)
