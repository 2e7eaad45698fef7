"""Stands in for vLLM: the abstract base class of its stat loggers, and our plugins imported over it."""

import atexit
import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.builders import Sight
from vllm_vitals.deployment import runtime as runtimes
from vllm_vitals.deployment.runtime import Runtime

PLUGINS = "vllm_vitals.plugin"
VERSION = "0.32.0"
QUIET = {"VITALS_PROMETHEUS__HOST": "127.0.0.1", "VITALS_PROMETHEUS__PORT": "0", "VITALS_DRAIN_INTERVAL": "10",
         "VITALS_GPU__ENABLED": "false"}  # fmt: skip
"""A port of the system's choice, and no drain that a test does not ask for."""
PUSH = {
    "VITALS_OTLP__ENDPOINT": "http://127.0.0.1:9",
    "VITALS_OTLP__INTERVAL": "3600",
    "VITALS_OTLP__SHUTDOWN_TIMEOUT": "0",
}
"""A push that is on, and never comes to send."""


class StatLoggerBase(ABC):
    """As in vLLM."""

    @abstractmethod
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None: ...

    @abstractmethod
    def log_engine_initialized(self) -> None: ...

    def log(self) -> None:  # noqa: B027 - vLLM's is no abstract method either
        pass

    def record_sleep_state(self, is_awake: int, level: int) -> None:  # noqa: B027
        pass


class AggregateStatLoggerBase(StatLoggerBase):
    """As in vLLM."""

    @abstractmethod
    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None: ...

    def record_admission_rejection(self, reason: str) -> None:
        pass


class Config(SimpleNamespace):
    """A configuration that, as vLLM's does, allows weak references."""


def make_config(model: str = "m", **sections: Any) -> Config:
    return Config(model_config=SimpleNamespace(served_model_name=model), **sections)


class FakeVllm:
    """A process that serves, as far as our plugins can tell."""

    def __init__(self, base: type = AggregateStatLoggerBase) -> None:
        self.modules = _modules(base)

    @property
    def plugins(self) -> Any:
        """Our plugins, imported as vLLM imports them."""
        return importlib.import_module(PLUGINS)

    @property
    def host(self) -> Runtime:
        """What runs in this process."""
        return runtimes.runtime()

    @property
    def logs(self) -> Any:
        """The logger classes by their section."""
        return SimpleNamespace(prometheus=self.plugins.PrometheusVitals, otlp=self.plugins.OtlpVitals)

    def start(self, *names: str, config: Any = None, engines: Sequence[int] = (0,)) -> list[Any]:
        """Return the loggers of one new `AsyncLLM`, made as vLLM makes them."""
        config = make_config() if config is None else config
        made = [
            getattr(self.logs, name)(vllm_config=config, engine_indexes=list(engines))
            for name in names or ("prometheus",)
        ]
        for logger in made:
            logger.log_engine_initialized()
        return made

    def sight(self) -> Sight:
        """Drain, and return what is shown then."""
        self.host.drainer.drain()
        return Sight(self.host.aggregator)

    def over(self, base: type) -> None:
        """Let the plugins be imported anew, over another base class."""
        self.modules = _modules(base)
        sys.modules.update(self.modules)
        _forget()


@pytest.fixture(name="vllm")
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVllm]:
    """Give a process with vLLM, and with nothing of ours in it yet."""
    for name in os.environ:
        if name.startswith(("VITALS_", "OTEL_")):
            monkeypatch.delenv(name)
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(runtimes, "_runtime", None)
    made = FakeVllm()
    for name, module in made.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    _forget()
    yield made
    if (host := runtimes._runtime) is not None:
        atexit.unregister(host.stop)
        host.stop()
    _forget()


def _modules(base: type) -> dict[str, ModuleType]:
    names = ("vllm", "vllm.v1", "vllm.v1.metrics", "vllm.v1.metrics.loggers")
    modules = {name: ModuleType(name) for name in names}
    vars(modules["vllm"])["__version__"] = VERSION
    vars(modules["vllm.v1.metrics.loggers"])["AggregateStatLoggerBase"] = base
    return modules


def _forget() -> None:
    """Take the plugins out again: they are bound to the base class that they were imported with."""
    sys.modules.pop(PLUGINS, None)
    parent = sys.modules.get("vllm_vitals.vllm")
    if parent is not None:
        vars(parent).pop("plugins", None)
