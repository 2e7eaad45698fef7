"""The steps of several `AsyncLLM`s of one process reach a sidecar, each read by its own rules."""

import sys
from collections.abc import Iterator
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
from vllm_vitals.deployment.collector_server import CollectorServer
from vllm_vitals.deployment.runtime import Runtime
from vllm_vitals.ingest.step_queue import StepQueue

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


def end_a_request(queue: StepQueue, engine: int) -> None:
    """Let a request end without a token, whose first-token time is its duration then."""
    ended = request_stats(Reason.STOP, num_generation_tokens=0, e2e_latency=5.0)
    queue.record(None, SimpleNamespace(finished_requests=[ended]), None, engine)


def test_two_that_serve_one_model_are_each_read_in_their_own_way(path: Path, make_runtime: Any) -> None:
    """Of a pooling model that is how requests end; of another's such a one never came to its prefill."""
    aggregator = Aggregator(Settings())
    host = CollectorServer(aggregator, path, serves=False)
    host.start({})
    try:
        runtime: Runtime = make_runtime(wire={"sidecar": path})
        configs = serving("pooling"), serving("generate")
        queues = [runtime.attach(config, [engine], object, "0.32.0") for engine, config in enumerate(configs)]
        for engine, queue in enumerate(queues):
            end_a_request(queue, engine)
        runtime.drainer.drain()
        see = Sight(aggregator)
        ended = "vllm_requests_finished_total"
        wait_until(lambda: all(see.of_engine(ended, engine, finish_reason="stop") for engine in "01"))
        assert [see.of_engine(PREFILL, engine, phase="prefill") or 0 for engine in "01"] == [1, 0]
    finally:
        host.stop()
