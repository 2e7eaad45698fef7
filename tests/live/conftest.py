"""A tiny model, load for servers, and how long it took until all was as it should be again."""

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.load import LoadReport, run_load
from tests.live.model import make_model
from tests.live.pages import Recovers, took
from tests.live.server import VllmServer


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def recovers(record_property: Callable[[str, object], None]) -> Recovers:
    """Give what waits until all is as it should be, and has the summary say how long that took."""

    def wait(check: Callable[[], bool], seconds: float, *, since: float | None = None, what: str = "recovered") -> bool:
        before = 0.0 if since is None else time.monotonic() - since
        spent = took(check, seconds)
        record_property(f"{what} after", f"{before + spent:.2f} s")
        return spent < math.inf

    return wait


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests measured, of those that passed as well."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, measured in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name} {measured}")


def put_load(server: VllmServer, *, count: int, **options: Any) -> LoadReport:
    """Send requests as `run_load` does and return what the client saw; none may have failed."""
    report = asyncio.run(run_load(server.url, count=count, **options))
    assert not report.failures
    return report
