"""The loggers as vLLM makes and calls them: counted once, silent where they are off, and never in its way."""

import logging
import sys
from abc import abstractmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.builders import ENGINE, Sight
from tests.unit.fake_vllm import PLUGINS, PUSH, AggregateStatLoggerBase, FakeVllm, fake_vllm, make_config
from vllm_vitals.config.load import SettingsError
from vllm_vitals.deployment import runtime as runtimes
from vllm_vitals.deployment.runtime import Runtime

__all__ = ["fake_vllm"]

HOOKS = ("record", "record_sleep_state", "record_admission_rejection", "log", "log_engine_initialized")
PUSHING = pytest.mark.usefixtures("pushing")


@pytest.fixture
def pushing(vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - clears the environment
    for name, value in PUSH.items():
        monkeypatch.setenv(name, value)


class Raising:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("str")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    __hash__ = None  # type: ignore[assignment]


ODD = [None, 7, "text", [], {}, object(), SimpleNamespace(), Raising(), np.array([1, 2]), float("nan"), -1, 10**30]


def kind(value: Any) -> str:
    """Name a case that may not be able to show itself."""
    return type(value).__name__


def record(*loggers: Any, engine: Any = 0, tokens: int = 5) -> None:
    """Hand one step to every logger, as vLLM's manager does."""
    scheduler = SimpleNamespace(num_running_reqs=1, kv_cache_usage=0.25)
    stats = scheduler, SimpleNamespace(num_generation_tokens=tokens)
    for logger in loggers:
        logger.record(*stats, mm_cache_stats=None, engine_idx=engine)


def tokens(vllm: FakeVllm, engine: str = "0", model: str = "m") -> float | None:
    return vllm.sight()("vllm_tokens_generation_total", model_name=model, engine=engine)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


# Counted once


@PUSHING
def test_the_loggers_of_one_engine_client_count_each_step_once(vllm: FakeVllm) -> None:
    loggers = vllm.start("prometheus", "otlp")
    record(*loggers)
    assert [len(logger._queue.calls) for logger in loggers] == [1, 0]
    assert tokens(vllm) == 5
    assert set(vllm.host.exporters) == {"vitals_prometheus", "vitals_otlp"}


@PUSHING
def test_the_second_logger_counts_when_the_first_one_is_off(vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_PROMETHEUS__ENABLED", "false")
    record(*vllm.start("prometheus", "otlp"))
    assert tokens(vllm) == 5


def test_two_engine_clients_both_count(vllm: FakeVllm) -> None:
    record(*vllm.start(), *vllm.start())
    assert tokens(vllm) == 10


def test_two_models_are_counted_apart(vllm: FakeVllm) -> None:
    record(*vllm.start(config=make_config("a")), *vllm.start(config=make_config("b")), tokens=3)
    assert (tokens(vllm, model="a"), tokens(vllm, model="b")) == (3, 3)


def test_of_two_loggers_of_a_class_for_one_configuration_the_newer_records(vllm: FakeVllm) -> None:
    config = make_config()
    older, newer = vllm.start(config=config), vllm.start(config=config)
    record(*older, *newer)
    assert tokens(vllm) == 5
    record(*older)
    assert tokens(vllm) == 5
    record(*newer)
    assert tokens(vllm) == 10


@PUSHING
def test_a_client_that_is_made_again_with_both_loggers_counts_once(vllm: FakeVllm) -> None:
    config = make_config()
    older, newer = (vllm.start("prometheus", "otlp", config=config) for _ in range(2))
    record(*older, *newer)
    assert tokens(vllm) == 5


def test_what_the_older_logger_had_recorded_is_kept(vllm: FakeVllm) -> None:
    config = make_config()
    record(*vllm.start(config=config))
    record(*vllm.start(config=config))
    assert tokens(vllm) == 10


def test_the_engine_stays_known_when_its_logger_is_replaced(vllm: FakeVllm) -> None:
    cache = SimpleNamespace(num_gpu_blocks=100, block_size=16)
    config = make_config(scheduler_config=SimpleNamespace(max_num_seqs=8), cache_config=cache)
    vllm.start(config=config)
    vllm.host.drainer.drain()
    newer = vllm.start(config=config)
    for _ in range(2):
        record(*newer)
        sight = vllm.sight()
        assert sight.of_engine("vllm_engine_requests_limit") == 8
        assert sight.of_engine("vllm_engine_sleep", state="awake") == 1
        assert sight.of_engine("vllm_engine_requests_running") == 1


def test_importing_the_plugins_twice_counts_once(vllm: FakeVllm) -> None:
    config = make_config()
    first = vllm.start(config=config)
    sys.modules.pop(PLUGINS)
    second = vllm.start(config=config)
    assert type(first[0]) is not type(second[0])
    record(*first, *second)
    assert tokens(vllm) == 5
    assert len(vllm.host.exporters) == 1


# Engines


def test_every_engine_is_there_from_the_start(vllm: FakeVllm) -> None:
    vllm.start(engines=range(4))
    shown = vllm.sight()
    assert [shown.of_engine("vllm_engine_sleep", str(n), state="awake") for n in range(4)] == [1] * 4
    assert [shown.of_engine("vllm_tokens_generation_total", str(n)) for n in range(4)] == [0] * 4


def test_steps_count_for_their_engine(vllm: FakeVllm) -> None:
    (logger,) = vllm.start(engines=[0, 1])
    record(logger, engine=0, tokens=2)
    record(logger, engine=1, tokens=3)
    assert (tokens(vllm, "0"), tokens(vllm, "1")) == (2, 3)


@pytest.mark.parametrize("engine", [-1, "0", None, True, 1.5, 2**31, 10**40, object(), [], Raising()], ids=kind)
def test_an_odd_engine_index_is_other(vllm: FakeVllm, engine: Any) -> None:
    record(*vllm.start(), engine=engine)
    assert tokens(vllm, "_other") == 5


def test_an_engine_that_came_later_is_shown(vllm: FakeVllm) -> None:
    record(*vllm.start(engines=[0]), engine=3)
    assert tokens(vllm, "3") == 5


@pytest.mark.parametrize(
    ("call", "state"),
    [((1, 0), "paused"), ((1, 1), "weights_offloaded"), ((1, 2), "discard_all"), ((1, 9), "paused"), ((1,), "paused"),
     ((0, 0), "awake"), ((0, 1), "awake")],
)  # fmt: skip
def test_sleep_states(vllm: FakeVllm, call: tuple[int, ...], state: str) -> None:
    (logger,) = vllm.start(engines=[0, 1])
    logger.record_sleep_state(*call)
    shown = vllm.sight()
    for engine in ("0", "1"):
        states = ("awake", "paused", "weights_offloaded", "discard_all")
        found = [each for each in states if shown.of_engine("vllm_engine_sleep", engine, state=each)]
        assert found == [state]


def test_an_engine_wakes_up(vllm: FakeVllm) -> None:
    (logger,) = vllm.start()
    for call, awake in (((1, 1), 0), ((0, 0), 1)):
        logger.record_sleep_state(*call)
        assert vllm.sight().of_engine("vllm_engine_sleep", state="awake") == awake


def test_rejections_count_by_their_reason(vllm: FakeVllm) -> None:
    (logger,) = vllm.start()
    for reason in ("max_num_queued_reqs", "max_num_queued_tokens", "max_num_queued_reqs", "a_new_one"):
        logger.record_admission_rejection(reason)
    shown = vllm.sight()
    counts = [
        shown("vllm_requests_rejected_total", model_name="m", reason=reason)
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens", "a_new_one")
    ]
    assert counts == [2, 1, 1]
    logger.record_admission_rejection("a_new_one")
    assert vllm.sight()("vllm_requests_rejected_total", model_name="m", reason="a_new_one") == 2


# Later releases


def test_hooks_take_arguments_that_later_releases_may_add(vllm: FakeVllm) -> None:
    (logger,) = vllm.start()
    stats = SimpleNamespace(num_running_reqs=1), SimpleNamespace(num_generation_tokens=5)
    logger.record(*stats, None, 0, "later", later=1)
    logger.record_sleep_state(1, 1, "later", later=1)
    logger.record_admission_rejection("full", "later", later=1)
    logger.log("later", later=1)
    logger.log_engine_initialized("later", later=1)
    shown = vllm.sight()
    assert shown.of_engine("vllm_tokens_generation_total") == 5
    assert shown.of_engine("vllm_engine_sleep", state="weights_offloaded") == 1
    assert shown("vllm_requests_rejected_total", model_name="m", reason="full") == 1


def test_the_loggers_take_arguments_that_later_releases_may_add(vllm: FakeVllm) -> None:
    logger = vllm.logs.prometheus(vllm_config=make_config(), engine_indexes=[0], later=1)
    record(logger)
    assert tokens(vllm) == 5


class LaterBase(AggregateStatLoggerBase):
    """A base class with hooks and attributes that no release has yet."""

    attribute = 7

    @abstractmethod
    def record_transfer(self, source: Any, size: int) -> None: ...

    def record_migration(self, engine: int) -> None: ...


@PUSHING
def test_a_base_class_with_new_hooks_and_attributes_will_do(vllm: FakeVllm) -> None:
    vllm.over(LaterBase)
    for logger in vllm.start("prometheus", "otlp"):
        assert isinstance(logger, LaterBase)
        assert logger.attribute == 7
        assert logger.record_transfer("host", 7) is None
        assert logger.record_migration(0) is None
        record(logger)
    assert tokens(vllm) == 5


def test_the_loggers_are_classes_that_vllm_takes(vllm: FakeVllm) -> None:
    for logger in (vllm.logs.prometheus, vllm.logs.otlp):
        assert isinstance(logger, type)
        assert issubclass(logger, AggregateStatLoggerBase)


# Never in the way


def call_everything(logger: Any) -> None:
    for odd in ODD:
        logger.record(odd, odd, mm_cache_stats=odd, engine_idx=odd)
        logger.record_sleep_state(odd, odd)
        logger.record_admission_rejection(odd)
    for hook in HOOKS:
        getattr(logger, hook)()


@PUSHING
def test_no_hook_raises_whatever_it_is_given(vllm: FakeVllm) -> None:
    loggers = vllm.start("prometheus", "otlp")
    for logger in loggers:
        call_everything(logger)
    vllm.host.drainer.drain()
    record(*loggers)
    assert tokens(vllm) == 5


def test_no_hook_raises_after_the_process_has_stopped(vllm: FakeVllm) -> None:
    (logger,) = vllm.start()
    vllm.host.stop()
    call_everything(logger)


@pytest.mark.parametrize("broken", ["check", "attach", "expose"])
def test_a_start_that_fails_is_logged_and_its_hooks_do_not_raise(
    vllm: FakeVllm, broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(Runtime, broken, fail)
    (logger,) = vllm.start()
    call_everything(logger)
    assert errors(caplog) == ["vllm-vitals: vitals_prometheus stays off: it could not start"]


def test_a_runtime_that_cannot_be_made_is_logged_and_hooks_do_not_raise(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no threads left")

    monkeypatch.setattr(runtimes, "_make", fail)
    (logger,) = vllm.start()
    call_everything(logger)
    assert len(errors(caplog)) == 1


def test_a_strict_start_that_fails_raises(vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setenv("VITALS_STRICT", "true")
    monkeypatch.setattr(Runtime, "attach", fail)
    with pytest.raises(RuntimeError, match="no luck"):
        vllm.start()


@pytest.mark.parametrize("config", ODD, ids=kind)
def test_an_odd_configuration_stops_no_start(vllm: FakeVllm, config: Any) -> None:
    call_everything(vllm.logs.prometheus(vllm_config=config, engine_indexes=[0]))


@pytest.mark.parametrize("engines", [*ODD, np.array([0, 1])], ids=kind)
def test_odd_engine_indexes_stop_no_start(vllm: FakeVllm, engines: Any) -> None:
    call_everything(vllm.logs.prometheus(vllm_config=make_config(), engine_indexes=engines))


def test_a_full_queue_costs_steps_and_nothing_else(vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_QUEUE_SIZE", "16")
    (logger,) = vllm.start()
    for _ in range(20):
        record(logger, tokens=1)
    logger.record_sleep_state(1, 1)
    shown = vllm.sight()
    assert shown.of_engine("vllm_tokens_generation_total") == 16
    assert shown("vitals_steps_dropped_total", process="0") == 4
    assert shown.of_engine("vllm_engine_sleep", state="weights_offloaded") == 1


# Off, and wrong settings


def test_a_logger_without_an_endpoint_to_push_to_does_nothing(vllm: FakeVllm) -> None:
    (logger,) = vllm.start("otlp")
    call_everything(logger)
    record(logger)
    assert not logger._queue.calls
    assert not vllm.host.exporters
    assert vllm.host.drainer.problem()
    assert tokens(vllm) is None


def test_a_logger_that_is_switched_off_does_nothing(vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_PROMETHEUS__ENABLED", "false")
    (logger,) = vllm.start()
    record(logger)
    assert (len(logger._queue.calls), vllm.host.exporters, tokens(vllm)) == (0, {}, None)


@PUSHING
def test_wrong_settings_of_the_push_leave_the_endpoint_on(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VITALS_OTLP__TIMEOUT", "soon")
    record(*vllm.start("otlp", "prometheus"))
    (line,) = errors(caplog)
    assert line.startswith("vllm-vitals: vitals_otlp stays off: VITALS_OTLP__TIMEOUT='soon': ")
    assert line.endswith("(setting otlp.timeout)")
    assert set(vllm.host.exporters) == {"vitals_prometheus"}
    assert tokens(vllm) == 5


@PUSHING
def test_a_file_that_cannot_be_read_is_one_error_however_many_plugins_it_keeps_off(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="vllm.vitals")
    monkeypatch.setenv("VITALS_CONFIG", "/nowhere/vitals.yaml")
    record(*vllm.start("prometheus", "otlp"))
    (line,) = errors(caplog)
    assert "vitals_prometheus stays off: VITALS_CONFIG='/nowhere/vitals.yaml'" in line
    assert "vitals_otlp stays off for a reason that was logged before" in caplog.text


@PUSHING
def test_wrong_settings_of_the_endpoint_leave_the_push_on(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VITALS_PROMETHEUS__PORT", "99999")
    record(*vllm.start("prometheus", "otlp"))
    (line,) = errors(caplog)
    for word in ("vitals_prometheus stays off", "VITALS_PROMETHEUS__PORT='99999'", "65535", "prometheus.port"):
        assert word in line
    assert set(vllm.host.exporters) == {"vitals_otlp"}
    assert tokens(vllm) == 5


@PUSHING
def test_each_wrong_setting_has_a_line_of_its_own(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VITALS_OTLP__TIMEOUT", "0")
    monkeypatch.setenv("VITALS_OTLP__PROTOCOL", "carrier-pigeon")
    vllm.start("prometheus", "otlp")
    protocol, timeout = sorted(errors(caplog))
    assert "'http/protobuf' or 'grpc'" in protocol
    assert "greater than or equal to 0.1" in timeout


@PUSHING
def test_a_wrong_setting_of_no_exporter_keeps_all_off(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VITALS_QUEUE_SIZE", "1")
    loggers = vllm.start("prometheus", "otlp")
    for logger in loggers:
        call_everything(logger)
    lines = errors(caplog)
    assert [line.split()[1] for line in lines] == ["vitals_prometheus"]
    for line in lines:
        for word in ("VITALS_QUEUE_SIZE='1'", "greater than or equal to 16", "queue_size"):
            assert word in line


@PUSHING
@pytest.mark.parametrize("variable", ["VITALS_OTLP__TIMEOUT", "VITALS_QUEUE_SIZE"])
def test_a_wrong_setting_stops_a_strict_start(
    vllm: FakeVllm, variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VITALS_STRICT", "true")
    monkeypatch.setenv(variable, "soon")
    with pytest.raises(SettingsError, match=f"{variable}='soon'"):
        vllm.start("otlp")
    assert len(errors(caplog)) == 1


# API servers


# A sidecar


@pytest.mark.parametrize("variables", [{}, {"VITALS_PROMETHEUS__ENABLED": "false"}])
def test_with_a_sidecar_steps_are_sent_and_nothing_is_exported_here(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], tmp_path: Path
) -> None:
    for name, value in {"VITALS_WIRE__SIDECAR": str(tmp_path / "s.sock"), **variables}.items():
        monkeypatch.setenv(name, value)
    loggers = vllm.start("prometheus", "otlp")
    record(*loggers)
    assert [len(logger._queue.calls) for logger in loggers] == [1, 0]
    assert not vllm.host.exporters
    vllm.host.drainer.drain()
    assert Sight(vllm.host.aggregator)("vitals_steps_total", **ENGINE) is None


# The version


def test_the_version_is_that_of_the_vllm_that_runs(vllm: FakeVllm) -> None:
    assert vllm.plugins.vllm_version() == "0.32.0"


def test_a_vllm_that_does_not_say_its_version_has_none(vllm: FakeVllm) -> None:
    del vars(vllm.modules["vllm"])["__version__"]
    assert vllm.plugins.vllm_version() == "unknown"
