"""The generated pages are fresh, and what they tell people to write works."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from vllm_vitals.catalog import CATALOG, Histogram
from vllm_vitals.cli import metrics_page, settings_page
from vllm_vitals.cli.settings_page import sections
from vllm_vitals.config.load import load
from vllm_vitals.config.otel_env import SWITCHES, VARIABLES
from vllm_vitals.exporters.otlp.target import resolve

DOCS = Path(__file__).parents[3] / "docs"
MAKERS = {"metrics": metrics_page.as_markdown, "settings": settings_page.as_markdown}


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def fenced(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", page("settings"), re.DOTALL)
    assert found
    return found[1]


@pytest.mark.parametrize("name", MAKERS)
def test_page_is_fresh(name):
    command = f"vllm-vitals {name} --markdown > docs/{name}.md"
    assert page(name) == MAKERS[name](), f"docs/{name}.md is stale; run: {command}"


@pytest.mark.parametrize("name", [*MAKERS, "otlp", "processes", "security"])
def test_tables_are_even(name):
    """A pipe that is not escaped would shift every cell after it."""
    for table in re.findall(r"(?:^\|.*\n)+", page(name), re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_every_metric_is_on_its_page():
    text = page("metrics")
    for metric in CATALOG:
        assert f"| `{metric.name}` | `{metric.prometheus}` |" in text
        if isinstance(metric, Histogram):
            assert f"| `{metric.buckets}` |" in text


def test_every_setting_is_on_its_page():
    text = page("settings")
    for _, _, listed in sections():
        for setting in listed:
            assert f"| `{setting.variable}` | `{setting.key}` |" in text
    for variable in (name for each in VARIABLES for name in each.names):
        assert f"`{variable}`" in text


def test_every_variable_on_the_page_is_read():
    """The default, given as the page prints it, is taken and changes nothing."""
    for _, _, listed in sections():
        for setting in listed:
            if setting.default != "not set":
                loaded = load({setting.variable: setting.default})
                assert loaded.origins == {setting.path: setting.variable}
                assert loaded.settings == load({}).settings


def test_the_two_examples_say_the_same(tmp_path):
    file = tmp_path / "vitals.yaml"
    file.write_text(fenced("yaml"))
    words = [shlex.split(line)[1] for line in fenced("sh").splitlines()]
    variables = dict(word.split("=", 1) for word in words)
    by_file, by_variables = load({"VITALS_CONFIG": str(file)}), load(variables)
    assert by_file.settings == by_variables.settings != load({}).settings
    assert len(variables) == len(by_file.origins) == 5
    assert yaml.safe_load(fenced("yaml"))["prometheus"]["port"] == by_variables.settings.prometheus.port


def test_the_page_of_the_push_names_variables_and_settings_that_there_are():
    text = page("otlp")
    known = {name for each in VARIABLES for name in each.names} | set(SWITCHES)
    assert set(re.findall(r"\bOTEL_[A-Z_]*[A-Z]\b(?!_?\*)", text)) <= known
    listed = [setting for _, _, inside in sections() for setting in inside]
    assert set(re.findall(r"\bVITALS_\w+\b", text)) - {"VITALS_CONFIG", "VITALS_OTLP__"} <= {
        each.variable for each in listed
    }
    assert set(re.findall(r"`(otlp\.\w+)`", text)) <= {each.key for each in listed}
    names = {metric.prometheus for metric in CATALOG}
    assert set(re.findall(r"`(vitals_\w+_total)`", text)) <= names


def test_the_page_of_the_processes_names_what_there_is():
    text = page("processes")
    listed = [setting for _, _, inside in sections() for setting in inside]
    assert set(re.findall(r"\bVITALS_\w+\b", text)) <= {each.variable for each in listed}
    keys = {each.key for each in listed}
    assert set(re.findall(r"`((?:prometheus|otlp|wire|native)\.\w+)`", text)) <= keys
    assert {"queue_size", "strict", "buckets", "stale_after", "exemplars"} <= keys
    names = {metric.prometheus for metric in CATALOG}
    assert set(re.findall(r"\b(vitals_\w+|vllm_\w+_\w+|vllm_engine_up)\b", text)) <= names
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (DOCS / link).exists()


DESTINATIONS = sorted((DOCS / "destinations").glob("*.md"))


@pytest.mark.parametrize("path", DESTINATIONS, ids=lambda path: path.stem)
def test_what_a_destination_wants_is_read_as_its_page_says(path):
    """Each block's variables make a target without a warning, with the header that it names."""
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert blocks
    assert f"destinations/{path.name}" in page("otlp")
    assert re.search(r"## Tried\?\n\n\*\*(Yes|No)", text)
    for block in blocks:
        pairs = dict(re.findall(r"export (OTEL_\w+)=(\S+)", block))
        pairs = {
            name: value.replace("PORT", "80").replace("URL", "https://HOST/v1/metrics") for name, value in pairs.items()
        }
        loaded = load(pairs)
        assert not loaded.warnings
        found = resolve(loaded.settings.otlp)
        assert found is not None
        assert found.protocol == "grpc" or found.endpoint.endswith("/v1/metrics")
        headers = [value.get_secret_value() for value in loaded.settings.otlp.headers.values()]
        assert len(headers) == sum("_HEADERS" in name for name in pairs)
        assert all(value and "%" not in value for value in headers)


def test_there_is_a_page_for_each_destination():
    assert {path.stem for path in DESTINATIONS} == {
        "collector", "datadog", "dynatrace", "google-cloud", "grafana", "new-relic", "victoriametrics",
    }  # fmt: skip
