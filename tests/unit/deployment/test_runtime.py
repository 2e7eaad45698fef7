"""One of everything in a process, whatever starts first, fails, or goes away."""

import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.builders import Sight
from tests.unit.fake_vllm import Config, FakeVllm, fake_vllm, make_config
from vllm_vitals.config.load import SettingsError
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment import runtime as runtimes
from vllm_vitals.deployment.runtime import Runtime

__all__ = ["fake_vllm"]


class First:
    """A class of loggers."""


class Second:
    """Another one."""


class Exporter:
    """Notes what is asked of it, and fails where it is told to."""

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.asked: list[str] = []

    def _note(self, what: str) -> None:
        self.asked.append(what)
        if what in self.failing:
            raise RuntimeError(what)

    def start(self) -> None:
        self._note("start")

    def stop(self) -> None:
        self._note("stop")

    def after_fork_in_child(self) -> None:
        self._note("after_fork_in_child")


def record(queue: Any, tokens: int = 1) -> None:
    scheduler = SimpleNamespace(num_running_reqs=1, kv_cache_usage=0.25)
    queue.record(scheduler, SimpleNamespace(num_generation_tokens=tokens), None, 0)


def tokens(host: Runtime) -> float | None:
    host.drainer.drain()
    return Sight(host.aggregator).of_engine("vllm_tokens_generation_total")


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == level]


# One per process


@pytest.mark.usefixtures("vllm")
def test_all_threads_get_the_same_runtime() -> None:
    barrier = threading.Barrier(8)

    def get(_: int) -> Runtime:
        barrier.wait()
        return runtimes.runtime()

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(get, range(8)))) == 1


def test_all_loggers_share_one_runtime(vllm: FakeVllm) -> None:
    before = set(threading.enumerate())
    vllm.start("prometheus")
    host = vllm.host
    vllm.start("prometheus")
    assert vllm.host is host
    assert [thread.name for thread in set(threading.enumerate()) - before].count("vitals-drainer") == 1


@pytest.mark.usefixtures("vllm")
def test_a_runtime_that_could_not_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_QUEUE_SIZE", "1")
    with pytest.raises(SettingsError):
        runtimes.runtime()
    monkeypatch.delenv("VITALS_QUEUE_SIZE")
    assert runtimes.runtime().settings.queue_size == 2048


# Taps


def test_only_the_first_logger_of_a_client_has_a_tap(make_runtime: Any) -> None:
    host, config = make_runtime(), make_config()
    queues = [host.attach(config, [0], owner, "1") for owner in (First, Second)]
    for queue in queues:
        record(queue)
    assert queues[1] is runtimes.SILENT
    assert tokens(host) == 1


def test_each_client_has_a_tap(make_runtime: Any) -> None:
    host = make_runtime()
    configs = [make_config(), make_config()]  # equal, and yet two
    for config in configs:
        record(host.attach(config, [0], First, "1"))
    assert tokens(host) == 2


def test_a_configuration_without_weak_references_will_do(make_runtime: Any) -> None:
    host = make_runtime()
    config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="m"))
    for owner in (First, Second):
        record(host.attach(config, [0], owner, "1"))
    assert tokens(host) == 1


def test_a_first_logger_that_fails_does_not_silence_the_second(
    make_runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, config = make_runtime(), make_config()

    def fail(*_: Any) -> None:
        raise RuntimeError("no facts")

    with monkeypatch.context() as patched:
        patched.setattr(runtimes, "engine_facts", fail)
        with pytest.raises(RuntimeError, match="no facts"):
            host.attach(config, [0], First, "1")
    record(host.attach(config, [0], Second, "1"))
    assert tokens(host) == 1


@pytest.mark.parametrize("failing", ["make", "start"])
def test_a_first_logger_whose_exporter_fails_leaves_its_tap_to_the_client(make_runtime: Any, failing: str) -> None:
    host, config = make_runtime(), make_config()
    queue = host.attach(config, [0], First, "1")

    def make() -> Exporter:
        if failing == "make":
            raise RuntimeError("make")
        return Exporter("start")

    with pytest.raises(RuntimeError, match=failing):
        host.expose("first", make)
    other = host.attach(config, [0], Second, "1")
    host.expose("second", Exporter)
    for each in (queue, other):
        record(each)
    assert tokens(host) == 1


def test_clients_that_are_gone_are_forgotten_and_what_they_left_counts(make_runtime: Any) -> None:
    host = make_runtime()
    for _ in range(20):
        config = make_config()
        record(host.attach(config, [0], First, "1"))
        del config
        gc.collect()
    assert tokens(host) == 20
    last = make_config()
    record(host.attach(last, [0], First, "1"))
    assert tokens(host) == 21
    assert len(host.drainer._sources) == 1


def test_a_new_client_takes_the_place_of_one_that_is_gone(make_runtime: Any) -> None:
    host = make_runtime()
    config = make_config(scheduler_config=SimpleNamespace(max_num_seqs=8))
    host.attach(config, [0], First, "1")
    del config
    gc.collect()
    config = make_config(
        scheduler_config=SimpleNamespace(max_num_seqs=16),
        cache_config=SimpleNamespace(num_gpu_blocks=100, block_size=16),
    )
    queue = host.attach(config, [0], First, "1")
    for _ in range(2):
        record(queue)
        host.drainer.drain()
        sight = Sight(host.aggregator)
        assert sight.of_engine("vllm_engine_requests_limit") == 16
        assert sight.of_engine("vllm_engine_sleep", state="awake") == 1
        assert sight.of_engine("vllm_engine_requests_running") == 1
        assert sight.of_engine("vllm_kv_cache_free") == 1200
    assert sight.of_engine("vllm_tokens_generation_total") == 2


def test_a_new_client_is_shown_before_its_first_step_though_another_went(make_runtime: Any) -> None:
    host = make_runtime()
    config = make_config()
    record(host.attach(config, [0], First, "1"))
    del config
    gc.collect()
    config = make_config()
    host.attach(config, [0], First, "1")
    for _ in range(2):
        host.drainer.drain()
        host.aggregator.refresh()
        sight = Sight(host.aggregator)
        assert sight.of_engine("vllm_engine_requests_running") == 0
        assert sight.of_engine("vitals_step_age_seconds") is not None


def test_a_client_that_shares_its_engine_with_one_that_goes_stays(make_runtime: Any) -> None:
    host, staying, going = make_runtime(), make_config(), make_config()
    queue = host.attach(staying, [0], First, "1")
    host.attach(going, [0], First, "1")
    del going
    gc.collect()
    host.attach(other := make_config("other"), [0], First, "1")
    record(queue)
    host.drainer.drain()
    record(queue)
    host.drainer.drain()
    sight = Sight(host.aggregator)
    assert sight.of_engine("vllm_engine_requests_running") == 1
    assert sight.of_engine("vllm_engine_sleep", state="awake") == 1
    assert isinstance(other, Config)


# Exporters


def test_an_exporter_is_started_once(make_runtime: Any) -> None:
    host, made = make_runtime(), []

    def make() -> Exporter:
        made.append(Exporter())
        return made[-1]

    for _ in range(3):
        host.expose("one", make)
    assert [each.asked for each in made] == [["start"]]


def test_an_exporter_that_could_not_be_made_is_tried_again(make_runtime: Any) -> None:
    host, exporter = make_runtime(), Exporter()

    def fail() -> Exporter:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        host.expose("one", fail)
    host.expose("one", lambda: exporter)
    assert exporter.asked == ["start"]


def test_every_exporter_is_stopped_though_one_fails(make_runtime: Any, caplog: pytest.LogCaptureFixture) -> None:
    host = make_runtime()
    exporters = [Exporter("stop"), Exporter(), Exporter("stop"), Exporter()]
    for number, exporter in enumerate(exporters):
        host.expose(str(number), lambda exporter=exporter: exporter)
    host.stop()
    assert [exporter.asked for exporter in exporters] == [["start", "stop"]] * 4
    assert len(said(caplog, logging.ERROR)) == 2


def test_what_waits_counts_when_the_process_stops(make_runtime: Any) -> None:
    host, seen = make_runtime(), []

    class Last(Exporter):
        def stop(self) -> None:
            seen.append(Sight(host.aggregator).of_engine("vllm_tokens_generation_total"))

    config = make_config()
    queue = host.attach(config, [0], First, "1")
    host.expose("last", Last)
    record(queue, 7)
    host.stop()
    assert seen == [7]
    assert host.drainer.problem()


def test_to_stop_twice_is_fine(make_runtime: Any) -> None:
    host = make_runtime()
    host.stop()
    host.stop()


# Settings


def test_a_broken_section_raises_where_it_is_needed() -> None:
    host = Runtime(Settings(), broken={"otlp": ["VITALS_OTLP__TIMEOUT='soon': not a number"]})
    host.check("prometheus")
    with pytest.raises(SettingsError, match="VITALS_OTLP__TIMEOUT='soon': not a number"):
        host.check("otlp")


def test_a_wrong_convention_is_said_and_costs_only_itself(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VITALS_GEN_AI__OPERATION_NAME", "")
    (logger,) = vllm.start()
    (line,) = said(caplog, logging.ERROR)
    for word in ("VITALS_GEN_AI__OPERATION_NAME=''", "at least 1", "gen_ai.operation_name"):
        assert word in line
    record(logger._queue)
    assert tokens(vllm.host) == 1
    assert set(vllm.host.exporters) == {"vitals_prometheus"}
    assert not vllm.host.settings.gen_ai.enabled


def test_a_wrong_convention_stops_a_strict_start(vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_STRICT", "true")
    monkeypatch.setenv("VITALS_GEN_AI__PROVIDER_NAME", "x" * 65)
    with pytest.raises(SettingsError, match="VITALS_GEN_AI__PROVIDER_NAME"):
        vllm.start()


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("more", [{}, {"VITALS_OTLP__TIMEOUT": "soon"}])
def test_a_variable_that_is_no_setting_is_warned_of(
    more: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"VITALS_QUEUE_SIZ": "64", **more}.items():
        monkeypatch.setenv(name, value)
    runtimes.runtime()
    (line,) = said(caplog, logging.WARNING)
    assert line == "vllm-vitals: VITALS_QUEUE_SIZ is not a setting and has no effect; did you mean VITALS_QUEUE_SIZE?"
