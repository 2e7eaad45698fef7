"""Fixtures: nothing said yet, a clock to turn, runtimes that are stopped in the end."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.builders import Clock
from vllm_vitals import logs
from vllm_vitals.collector import collector
from vllm_vitals.runtime import Runtime
from vllm_vitals.settings import Settings


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test see what is logged once a process."""
    monkeypatch.setattr(logs, "_said", set())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the collector's clock; it stands at 100 s until a test turns it."""
    made = Clock()
    monkeypatch.setattr(collector, "time", made)
    return made


@pytest.fixture
def make_runtime() -> Iterator[Callable[..., Runtime]]:
    """Make runtimes that drain only when they are told to."""
    made: list[Runtime] = []

    def make(**values: Any) -> Runtime:
        made.append(Runtime(Settings(**{"drain_interval": 10.0, "gpu": {"enabled": False}, **values})))
        return made[-1]

    yield make
    for each in made:
        each.stop()
