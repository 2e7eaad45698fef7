"""What CONTRIBUTING.md says of the code is what the code is."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.conftest import VERSIONED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNIT = Path(__file__).parents[1]
ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "vllm_vitals"


def contracts() -> list[dict[str, Any]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]


def test_the_picture_of_the_layers_is_the_import_contract() -> None:
    (picture,) = re.findall(r"## Layers\n.*?```text\n(.*?)```", TEXT, re.DOTALL)
    (layers,) = [contract["layers"] for contract in contracts() if contract["type"] == "layers"]
    assert [set(line.split()) for line in picture.splitlines()] == [set(layer.split(" | ")) for layer in layers]


def test_no_contract_has_an_exception() -> None:
    assert all(not any("ignore" in key for key in contract) for contract in contracts())


def test_each_package_has_a_line_in_the_table() -> None:
    described = set(re.findall(r"^\| `(\w+)(?:/|\.py)` \|", TEXT.partition("## The way of a step")[0], re.MULTILINE))
    packages = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or any(path.glob("*.py"))}
    assert described == packages - {"__init__"}


@pytest.mark.parametrize("section", ["Layers", "The way of a step"])
def test_each_path_is_there(section: str) -> None:
    (text,) = re.findall(rf"## {section}\n(.*?)\n## ", TEXT, re.DOTALL)
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert paths
    for path in paths:
        where = ROOT if path.startswith("src/") else PACKAGE
        assert (where / path).exists(), path


def test_the_tests_that_depend_on_versions_are_there() -> None:
    for package, names in VERSIONED.items():
        there = {path.stem.removeprefix("test_") for path in (UNIT / package).glob("test_*.py")}
        assert there
        assert there >= set(names), package
