"""Fixtures: one release after another."""

import pytest

from tests.compat.releases import Release, load
from tests.compat.wheels import FEW, VERSIONS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try each release that is asked for."""
    if "release" in metafunc.fixturenames:
        asked = metafunc.config.option.releases or metafunc.config.option.effort
        metafunc.parametrize("release", VERSIONS if asked == "all" else FEW, indirect=True)


@pytest.fixture
def release(request: pytest.FixtureRequest) -> Release:
    """Return one vLLM release; fetched by pip the first time."""
    return load(request.param)
