"""The sets of values that most tests go through."""

from pathlib import Path

import pytest

from tests.helm.render import MAJORS, SETS, Object, of_set, parsed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="Write what is checked in of the chart's renders anew.")


@pytest.fixture(params=MAJORS, ids=lambda major: f"helm{major}")
def major(request: pytest.FixtureRequest) -> int:
    """Return the major version of a Helm."""
    return int(request.param)


def majors(config: pytest.Config, number: int) -> tuple[int, ...]:
    """Return the major versions of Helm for one of many like cases: one version after another, or else both."""
    return MAJORS if config.option.effort == "all" else (MAJORS[number % len(MAJORS)],)


@pytest.fixture(params=SETS, ids=lambda path: path.name.removesuffix("-values.yaml"))
def values(request: pytest.FixtureRequest) -> Path:
    """Return one of the chart's sets of values."""
    return Path(request.param)


@pytest.fixture
def rendered(values: Path) -> list[Object]:
    """Return the objects of a set."""
    return parsed(of_set(values))
