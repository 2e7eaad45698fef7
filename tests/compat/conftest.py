"""Fixtures: every release in turn."""

import pytest

from tests.compat.releases import Release, load
from tests.compat.wheels import VERSIONS


@pytest.fixture(params=VERSIONS)
def release(request: pytest.FixtureRequest) -> Release:
    """Return one vLLM release; fetched by pip the first time."""
    return load(request.param)
