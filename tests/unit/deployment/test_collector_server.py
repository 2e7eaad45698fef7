"""What several `AsyncLLM`s of one process leave unread is read by a sidecar as each of them means it."""

import gc
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.builders import MODEL, Sight, request_stats
from tests.unit.fake_vllm import Config, make_config
from tests.unit.wire import short_directory
from tests.waiting import wait_until
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment import runtime as runtimes
from vllm_vitals.deployment.collector_server import Host
from vllm_vitals.deployment.runtime import Runtime
from vllm_vitals.ingest.step_queue import Tap

PREFILL = "vllm_request_phase_duration_seconds_count"


class Reason(IntEnum):
    """Finish reasons as vLLM has them."""

    STOP = 0
    LENGTH = 1


@pytest.fixture(autouse=True)
def _reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.v1.engine")
    vars(module)["FinishReason"] = Reason
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def path() -> Iterator[Path]:
    with short_directory() as made:
        yield made / "d" / "s"


def serving(kind: str) -> Config:
    config = make_config(MODEL)
    config.model_config.runner_type = kind
    return config


def end_a_request(tap: Tap, engine: int) -> None:
    """Let a request end without a token, whose first-token time is its duration then."""
    ended = request_stats(Reason.STOP, num_generation_tokens=0, e2e_latency=5.0)
    tap.record(None, SimpleNamespace(finished_requests=[ended]), None, engine)


def test_two_that_serve_one_model_are_each_read_in_their_own_way(path: Path, make_runtime: Any) -> None:
    """Of a pooling model that is how requests end; of another's such a one never came to its prefill."""
    aggregator = Aggregator(Settings())
    host = Host(aggregator, path, serves=False)
    host.start({})
    try:
        runtime: Runtime = make_runtime(wire={"sidecar": path})
        configs = serving("pooling"), serving("generate")
        taps = [runtime.attach(config, [engine], object, "0.32.0") for engine, config in enumerate(configs)]
        for engine, tap in enumerate(taps):
            end_a_request(tap, engine)
        assert [len(kept) for tap in taps for kept in tap.queue] == [2, 2], "both were written down"
        runtime.feed.drain()
        see = Sight(aggregator)
        ended = "vllm_requests_finished_total"
        wait_until(lambda: all(see.of_engine(ended, engine, finish_reason="stop") for engine in "01"))
        assert [see.of_engine(PREFILL, engine, phase="prefill") or 0 for engine in "01"] == [1, 0]
    finally:
        host.stop()


def attached(runtime: Runtime, *configs: Config) -> list[Tap]:
    return [runtime.attach(config, [0], object, "0.32.0") for config in configs]


def test_a_number_is_free_again_when_nothing_more_comes_by_it(path: Path, make_runtime: Any) -> None:
    runtime: Runtime = make_runtime(wire={"sidecar": path})
    first, second = serving("pooling"), serving("generate")
    taps = attached(runtime, first, second)
    assert [runtime._told[number] for number in (0, 1)] == taps
    del first, taps
    gc.collect()
    attached(runtime, third := serving("generate"))  # the first is let go of by now, but not before
    attached(runtime, fourth := serving("generate"))
    assert sorted(runtime._told) == [0, 1, 2]
    del second, third, fourth


def test_one_too_many_is_read_where_it_is(path: Path, make_runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "MOST_TAPS", 1)
    runtime: Runtime = make_runtime(wire={"sidecar": path})
    write: list[Callable[..., Any] | None] = [tap.write for tap in attached(runtime, serving("a"), serving("b"))]
    assert [each is None for each in write] == [False, True]
