"""`vllm-vitals metrics`, `settings`, `--version` and `--help`."""

import json
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, TypeAdapter
from typer.testing import CliRunner

import vllm_vitals
from vllm_vitals.catalog import CATALOG, GROUPS
from vllm_vitals.cli import app
from vllm_vitals.cli.allowed import allowed, default
from vllm_vitals.cli.metrics_page import FEATURES
from vllm_vitals.cli.output import markdown_table
from vllm_vitals.cli.settings_page import sections


def run(*words):
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def entries():
    return {entry["name"]: entry for entry in json.loads(run("metrics", "--json"))}


def test_json_has_every_metric_in_order():
    listed = json.loads(run("metrics", "--json"))
    assert [entry["name"] for entry in listed] == [metric.name for metric in CATALOG]
    assert {entry["group"] for entry in listed} == set(GROUPS)


def test_json_of_a_histogram():
    assert entries()["vllm.kv_cache.block.idle"] == {
        "group": "cache",
        "name": "vllm.kv_cache.block.idle",
        "kind": "histogram",
        "unit": "s",
        "prometheus": "vllm_kv_cache_block_idle_seconds",
        "labels": [],
        "scope_labels": [
            {"name": "model_name", "prometheus": "model_name"},
            {"name": "engine", "prometheus": "engine"},
        ],
        "help": "Time from the last use of a sampled KV cache block to its eviction.",
        "momentary": False,
        "buckets": {
            "family": "kv_cache_residency",
            "bounds": [
                0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
            ],
        },
        "native": "vllm:kv_block_idle_before_evict_seconds",
        "needs": {"feature": "kv_residency", "switch": "--kv-cache-metrics"},
        "since": "0.12.0",
    }  # fmt: skip


def test_json_of_a_gauge_with_labels():
    waiting = entries()["vllm.engine.requests.waiting"]
    assert waiting["momentary"] is True
    assert (waiting["buckets"], waiting["needs"], waiting["since"]) == (None, None, None)
    (label,) = waiting["labels"]
    assert (label["name"], label["values"]) == ("reason", ["capacity", "deferred"])
    assert "no room in the batch" in label["help"]


def test_json_translates_label_names():
    duration = entries()["gen_ai.server.request.duration"]
    assert {"name": "gen_ai.request.model", "prometheus": "gen_ai_request_model"} in duration["scope_labels"]
    assert duration["labels"][0]["prometheus"] == "error_type"


def test_table_names_groups_metrics_and_switches():
    text = run("metrics")
    for metric in CATALOG:
        assert metric.name in text
        assert metric.prometheus in text
    assert text.index("\nstep ") < text.index("\nrequests ")
    assert "enabled by: --enable-mfu-metrics" in text
    assert "vLLM's counterpart: vllm:num_requests_running" in text


def test_every_need_has_a_switch_and_every_switch_a_need():
    assert {metric.needs for metric in CATALOG} - {""} == set(FEATURES)


def test_json_and_markdown_exclude_each_other():
    result = CliRunner().invoke(app, ["metrics", "--json", "--markdown"])
    assert result.exit_code == 2


def test_settings_table_tells_variable_default_and_range():
    text = run("settings")
    for _, _, settings in sections():
        for setting in settings:
            assert setting.variable in text
            assert setting.key in text
    assert "OTEL_EXPORTER_PROMETHEUS_PORT" in text
    assert "a whole number from 0 to 65535" in text


def test_settings_are_told_by_section():
    told = {key: [setting.key for setting in settings] for key, _, settings in sections()}
    assert list(told)[:2] == ["", "prometheus"]
    assert "strict" in told[""]
    assert "prometheus.port" in told["prometheus"]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (bool, "true or false"),
        (Annotated[int, Field(ge=1, le=9)], "a whole number from 1 to 9"),
        (Annotated[int, Field(ge=16, le=1_000_000)], "a whole number from 16 to 1000000"),
        (Annotated[float, Field(gt=0)], "a number, over 0"),
        (Annotated[float, Field(ge=0, lt=1)], "a number, at least 0 and under 1"),
        (float, "a number"),
        (Annotated[str, Field(min_length=1)], "text, not empty"),
        (Annotated[str, Field(max_length=5)], "text of 0 to 5 characters"),
        (str | None, "text"),
        (Path | None, "the path of a readable file"),
        (Literal["a", "b"], "a, b"),
        (Literal["a"], "a"),
        (Colour, "red, blue"),
        (int | bool, "a whole number or true or false"),
        (list[float], "a list of numbers"),
        (list[str], "a list, each text"),
        (dict[str, list[float]], "JSON: name to a list of numbers"),
        (dict, "JSON"),
    ],
)
def test_what_is_allowed_in_words(kind, words):
    schema = TypeAdapter(kind).json_schema()
    assert allowed(schema, schema.get("$defs", {})) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "not set"),
        (True, "true"),
        (60.0, "60"),
        (0.05, "0.05"),
        ({}, "{}"),
        (["a"], '["a"]'),
        (Colour.RED, "red"),
    ],
)
def test_default_as_one_would_write_it(value, words):
    assert default(value) == words


def test_pipes_do_not_break_a_table():
    assert markdown_table(["a"], [["b|c"]]) == "| a |\n| --- |\n| b\\|c |\n"


def test_version():
    assert run("--version") == f"vllm-vitals {vllm_vitals.__version__}\n"


def test_help_needs_nothing_heavy():
    code = (
        "import sys; from typer.testing import CliRunner; from vllm_vitals.cli import app\n"
        "result = CliRunner().invoke(app, ['--help'])\n"
        "assert result.exit_code == 0 and 'doctor' in result.output, result.output\n"
        "assert not {'numpy', 'pydantic', 'yaml', 'prometheus_client', 'vllm_vitals.catalog'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_command_shows_the_help():
    assert "doctor" in CliRunner().invoke(app, []).output
