"""Fixtures: nothing said yet, a clock to turn, runtimes that are stopped in the end."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.builders import Clock
from vllm_vitals._util import log as logs
from vllm_vitals.aggregation import aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.runtime import Runtime

VERSIONED = [
    "buckets",
    "catalog",
    "cells",
    "cli_dashboards",
    "cli_doctor",
    "cli_options",
    "cli_otlp",
    "cli_plugins",
    "cli_reference",
    "cli_tls",
    "configuration",
    "connectors",
    "docs",
    "endpoint",
    "exponential",
    "exposition",
    "facts",
    "feed",
    "fields",
    "finished",
    "folded",
    "gpu_amd",
    "gpu_nvml",
    "hostile",
    "native_download",
    "native_mapping",
    "native_source",
    "otlp_series",
    "otlp_encode",
    "otlp_pushes",
    "otlp_transports",
    "plugins",
    "reader",
    "registry",
    "runtime",
    "slo",
    "slo_settings",
    "standard",
    "store",
    "tap",
    "told",
    "wire_frames",
    "wire_messages",
    "wire_outbox",
    "wire_sender",
]
"""The modules of what works differently in other Pythons, or with other releases of what we depend on.

They use all that we use of msgspec, NumPy, NVML, OpenTelemetry, prometheus_client, pydantic, PyYAML, Rich and Typer.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what also runs on the oldest Python with the oldest dependencies."""
    for item in items:
        if item.path.stem.removeprefix("test_") in VERSIONED and item.path.parent.name == "unit":
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
        made.append(Runtime(Settings(**{"drain_interval": 10.0, "gpu": {"enabled": False}, **values})))
        return made[-1]

    yield make
    for each in made:
        each.stop()
