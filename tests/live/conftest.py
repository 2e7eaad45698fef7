"""A tiny model, and servers that several tests share."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.live.load import LoadReport, run_load
from tests.live.model import make_model
from tests.live.server import VllmServer


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def put_load(server: VllmServer, *, count: int, **options: Any) -> LoadReport:
    """Send requests as `run_load` does and return what the client saw; none may have failed."""
    report = asyncio.run(run_load(server.url, count=count, **options))
    assert not report.failures
    return report
