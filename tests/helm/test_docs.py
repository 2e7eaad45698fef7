"""The pages on Kubernetes and security name what there is."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm.generate import ROOT
from tests.helm.render import ATTACH, CHART, SERVE, Object, merged, objects

PAGES = ("kubernetes", "security")
SECTIONS = tuple(yaml.safe_load((CHART / "values.yaml").read_text()))


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", page(name)):
        assert (ROOT / "docs" / link).exists(), link


@pytest.mark.parametrize("name", PAGES)
def test_values_are_the_charts(name: str) -> None:
    """Whatever looks like a value of the chart is one: in the text, and in commands."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    free = {"attach.matchLabels", "podMonitor.additionalLabels", "prometheusRule.additionalLabels"}
    named = re.findall(r"[\w.]+(?=[=` *,;:]|$)", page(name), re.MULTILINE)
    for each in {word.rstrip(".") for word in named if word.partition(".")[0] in SECTIONS and "." in word}:
        if each.rpartition(".")[0] in free or each == "gpu.devices" or each.endswith((".md", ".yaml")):
            continue
        inner: Any = values
        for part in each.split("."):
            assert isinstance(inner, dict), each
            assert part in inner, each
            inner = inner[part]


def test_the_example_of_rules_renders() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", page("kubernetes"), re.DOTALL)
    found: list[Object] = objects(merged(ATTACH, yaml.safe_load(text)))
    (rule,) = (each for each in found if each["kind"] == "PrometheusRule")
    saturated = [
        each for group in rule["spec"]["groups"] for each in group["rules"] if each.get("alert") == "VllmSaturated"
    ]
    assert [(each["for"], each["labels"]["team"]) for each in saturated] == [("30m", "inference")]


@pytest.mark.parametrize("path", [Path("docs/kubernetes.md"), Path("helm/vllm-vitals/README.md")], ids=str)
def test_commands_render(path: Path) -> None:
    """Each `helm install` of the page, as it stands there."""
    blocks = re.findall(r"\$ helm install (.*?)(?=\n\$|\n```)", (ROOT / path).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        words = block.replace("\\\n", " ").split()
        given = [word for flag, word in pairwise(words) if flag == "--set"]
        sets = [part for word in given for part in ("--set", word)]
        assert objects(SERVE if "mode=serve" in given else ATTACH, *sets)
