"""Fixtures: nothing said yet, a clock to turn, runtimes that are stopped in the end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.builders import Clock
from vllm_vitals._util import log as logs
from vllm_vitals.aggregation import aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.runtime import Runtime
from vllm_vitals.deployment.topology import of_serving_process

VERSIONED = {
    "catalog": (),
    "cli": ("dashboards", "doctor", "doctor_options", "doctor_plugins", "doctor_tls", "reference"),
    "config": (),
    "deployment": ("plugin", "runtime"),
    "exporters/prometheus": ("app", "registry", "text"),
    "gpu": ("amd", "nvml"),
    "ingest": (),
    "project": ("docs",),
    "slo": ("evaluator", "settings"),
    "store": (),
    "transport": (),
    "vllm": ("connectors", "engine_config", "fields", "finished", "float_lists", "hostile_stats", "reader"),
    "vllm_page": ("download", "mapping", "source"),
}
"""Tests of code that works differently on other Pythons, or with other releases of our dependencies; `()`: of the package.

Together they use all that we use of msgspec, NumPy, NVML, prometheus_client, pydantic, PyYAML, Rich and Typer. Those of
OpenTelemetry mark themselves.
"""
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what also runs on the oldest Python with the oldest dependencies."""
    for item in items:
        if HERE in item.path.parents:
            chosen = VERSIONED.get(str(item.path.parent.relative_to(HERE)))
            if chosen is not None and (not chosen or item.path.stem.removeprefix("test_") in chosen):
                item.add_marker("versions")


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test see what is logged once a process."""
    monkeypatch.setattr(logs, "_said", set())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the collector's clock; it stands at 100 s until a test turns it."""
    made = Clock()
    monkeypatch.setattr(aggregator, "time", made)
    return made


@pytest.fixture
def make_runtime() -> Iterator[Callable[..., Runtime]]:
    """Make runtimes that drain only when they are told to."""
    made: list[Runtime] = []

    def make(**values: Any) -> Runtime:
        settings = Settings(**{"drain_interval": 10.0, "gpu": {"enabled": False}, **values})
        made.append(Runtime(settings, of_serving_process(settings.wire, 0, 1)))
        return made[-1]

    yield make
    for each in made:
        each.stop()
