"""Both Helms take the chart, and both make the same of it; what they make is what was looked at."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from helm.generate import ROOT
from helm.generate.files import files
from helm.generate.values import read
from tests.helm.render import CHART, NAMESPACE, RELEASE, SETS, Object, helm, of_set, parsed
from vllm_vitals import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GOLDEN = Path(__file__).parent / "golden"
PLAIN = ROOT / "deploy" / "kubernetes"
ALLOWED_KEYS = {"name", "image"}


def test_lint_finds_nothing(values: Path, major: int) -> None:
    said = helm(major, "lint", "--strict", str(CHART), values=values)
    assert "0 chart(s) failed" in said
    assert not re.search(r"\[(WARNING|ERROR)\]", said), said


def test_defaults_lint_and_render(major: int) -> None:
    helm(major, "lint", "--strict", str(CHART))
    assert helm(major, "template", RELEASE, str(CHART))


def test_both_render_the_same(values: Path) -> None:
    assert parsed(of_set(values, 3)) == parsed(of_set(values, 4))


def test_it_packs(major: int, tmp_path: Path) -> None:
    helm(major, "package", str(CHART), "--destination", str(tmp_path))
    (archive,) = tmp_path.glob("vllm-vitals-*.tgz")
    shown = helm(major, "show", "chart", str(archive))
    assert yaml.safe_load(shown)["appVersion"] == __version__
    assert parsed(helm(major, "template", RELEASE, str(archive), values=SETS[0]))
    assert archive.stat().st_size < 1_000_000, "a release is kept in a Secret, which holds 1 MiB"


def test_generated_files_are_fresh() -> None:
    made = files()
    stale = [
        str(path.relative_to(ROOT)) for path, text in made.items() if not path.exists() or path.read_text() != text
    ]
    left = set((CHART / "files" / "dashboards").glob("*.json")) - set(made)
    assert (stale, left) == ([], set()), "stale: run python -m helm.generate"


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_golden(path: Path, request: pytest.FixtureRequest) -> None:
    golden = GOLDEN / path.name.replace("-values", "")
    made = "".join(
        f"---\n{yaml.safe_dump(shortened(each), sort_keys=False, width=120)}" for each in parsed(of_set(path))
    )
    if request.config.getoption("--rewrite"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(made)
    assert golden.read_text() == made, "look at the difference; if it is wanted: nox -s helm -- --rewrite -k golden"


def shortened(each: Object) -> Object:
    """Return an object without what other tests compare with its source: boards, rules, the script of the test."""
    if each["kind"] == "PrometheusRule":
        groups = [{"name": group["name"], "rules": f"{len(group['rules'])} rules"} for group in each["spec"]["groups"]]
        return {**each, "spec": {"groups": groups}}
    if each["kind"] == "GrafanaDashboard":
        return {**each, "spec": {**each["spec"], "json": "a board"}}
    if each["kind"] == "ConfigMap":
        long = {name: "a file of the chart" for name in each["data"] if name.endswith((".json", ".py"))}
        return {**each, "data": {**each["data"], **long}}
    return each


def test_chart_tells_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == project["version"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    images = {each["image"] for each in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])}
    named = (values["vllm"]["image"], values["otelCollector"]["image"])
    assert images == {f"docker.io/{image['repository']}:{image['tag']}" for image in named}
    assert f"## {chart['version']}" in (CHART / "CHANGELOG.md").read_text()
    changes = yaml.safe_load(chart["annotations"]["artifacthub.io/changes"])
    assert {each["kind"] for each in changes} <= {"added", "changed", "deprecated", "removed", "fixed", "security"}


def test_every_value_is_told() -> None:
    page = (CHART / "README.md").read_text()

    def told(value: Any) -> None:
        if value.inner:
            for each in value.inner.values():
                told(each)
        else:
            assert value.description.endswith("."), value.key
            assert f"| {value.key} |" in page

    told(read((CHART / "values.yaml").read_text()))


def test_every_value_is_used() -> None:
    """A value that no template reads does nothing, whatever its name says."""
    templates = "".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    unused = []

    def look(value: Any) -> None:
        for name, each in value.inner.items():
            if not re.search(rf"\.{name}\b|\"{name}\"", templates):
                unused.append(each.key)
            look(each)

    look(read((CHART / "values.yaml").read_text()))
    assert unused == []


def test_the_schema_is_strict_all_the_way() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def strict(schema: Any, value: Any, path: str) -> None:
        if isinstance(value, dict) and value and "additionalProperties" not in schema.get("x", {}):
            assert "additionalProperties" in schema, path
            for key, inner in value.items():
                if schema["additionalProperties"] is False:
                    assert key in schema["properties"], f"{path}.{key}"
                    strict(schema["properties"][key], inner, f"{path}.{key}")

    strict(schema, values, "")


def test_namespace_and_names(values: Path, rendered: list[Object]) -> None:
    given = yaml.safe_load(values.read_text())
    wanted = given.get("namespaceOverride", NAMESPACE)
    for each in rendered:
        assert each["metadata"]["namespace"] == wanted
        assert len(each["metadata"]["name"]) <= 63
    names = [(each["kind"], each["metadata"]["name"]) for each in rendered]
    assert len(set(names)) == len(names)
