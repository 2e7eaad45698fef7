"""vLLM that goes on without us: told once, and its end; by hand-made counts."""

import logging
import math

import pytest
from prometheus_client import CollectorRegistry, Counter

from tests.unit.builders import Clock, Sight, collect
from vllm_vitals.ingest import detach_monitor as module
from vllm_vitals.ingest.detach_monitor import CHECK_SECONDS, DetachMonitor
from vllm_vitals.records.step import Health
from vllm_vitals.vllm import generated as counted


class Server:
    """A vLLM whose tokens and calls a test moves."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tokens = self.spent = 0.0
        self.watch = DetachMonitor(lambda: self.tokens)

    def after(self, *, tokens: float = 0.0, spent: float = 0.0) -> bool | None:
        self.tokens += tokens
        self.spent += spent
        self.clock.now += CHECK_SECONDS
        return self.watch.check(lambda: self.spent)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return Server(clock)


def test_it_is_told_once_and_so_is_its_end(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        told = [server.after(tokens=5, spent=1e-6), server.after(tokens=5, spent=1e-6)]
        assert told == [None, None]
        assert [server.after(tokens=5), server.after(tokens=5), server.after()] == [True, None, None]
        assert server.after(tokens=5, spent=1e-6) is False
    assert caplog.text.count("has not called this plugin") == 1


def test_an_idle_server_is_no_cause(server: Server) -> None:
    assert [server.after(tokens=5, spent=1e-6), *(server.after() for _ in range(5))] == [None] * 6


def test_it_looks_no_more_often_than_it_has_to(server: Server) -> None:
    server.after()
    server.tokens += 5
    assert server.watch.check(lambda: 0.0) is None
    assert server.after() is True


def test_the_metric() -> None:
    see = Sight(collect())
    assert see("vitals_plugin_detached", process="0") == 0
    see = Sight(collect(Health(detached=True, process="1"), Health()))
    assert see("vitals_plugin_detached", process="1") == 1


def test_what_vllm_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr(counted, "REGISTRY", registry)
    assert counted.generated() == 0
    tokens = Counter("vllm:generation_tokens", "", ["engine"], registry=registry)
    tokens.labels("0").inc(3)
    tokens.labels("1").inc(4)
    assert counted.generated() == 7


def test_a_registry_that_cannot_be_read_says_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(CollectorRegistry):
        def restricted_registry(self, names: object) -> object:  # type: ignore[override]
            raise RuntimeError(names)

    monkeypatch.setattr(counted, "REGISTRY", Broken())
    assert math.isnan(counted.generated())
    server.tokens = math.nan
    assert [server.after(), server.after()] == [None, None]
    server.tokens = 5
    assert server.after() is None  # it is not known that any came
