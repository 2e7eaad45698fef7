"""vLLM drops its plugins when it scales up, by its own code: serving goes on, and it is said that we are out."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.pages import eventually
from tests.live.server import ENVIRONMENT, fetch, free_port, numa_library_path
from tests.parity import Samples, parse, value
from vllm_vitals.feed.watch import LOOK

ROOT = Path(__file__).parents[2]
DETACHED = "vitals_plugin_detached"
STEPS = "vitals_steps_total"
NATIVE_TOKENS = "vllm:generation_tokens_total"


class ElasticServer:
    """A process that serves and can be told to scale up."""

    def __init__(self, model: Path, log: Path) -> None:
        self.log = log
        self._port = free_port()
        environment = {
            **os.environ, **ENVIRONMENT, **numa_library_path(),
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(self._port), "VITALS_PROMETHEUS__INCLUDE_NATIVE": "true",
        }  # fmt: skip
        with log.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.elastic", str(model)],
                env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=said, stderr=said, process_group=0,
            )  # fmt: skip

    def page(self) -> Samples:
        with suppress(OSError):
            return parse(fetch(f"http://127.0.0.1:{self._port}/metrics"))
        return {}

    def scale_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def lines(self, text: str) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if text in line]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[ElasticServer]:
    made = ElasticServer(model, tmp_path / "log")
    try:
        assert eventually(lambda: value(made.page(), STEPS) > 0, 240), made.log.read_text(errors="replace")[-4000:]
        yield made
    finally:
        made.kill()


def test_it_is_said_once_that_vllm_goes_on_without_us(server: ElasticServer) -> None:
    time.sleep(2.5 * LOOK)
    assert value(server.page(), DETACHED) == 0
    server.scale_up()
    assert eventually(lambda: server.lines("scaled up, with new loggers"), 60), server.lines("Error")
    assert eventually(lambda: value(server.page(), DETACHED) == 1, 4 * LOOK)
    before = server.page()
    assert value(before, "vitals_step_age_seconds") > LOOK / 2
    time.sleep(2.5 * LOOK)
    after = server.page()
    assert value(after, NATIVE_TOKENS) > value(before, NATIVE_TOKENS), "it serves"
    assert value(after, STEPS) == value(before, STEPS)
    assert not math.isnan(value(after, STEPS))
    assert value(after, DETACHED) == 1
    (line,) = server.lines("has not called this plugin")
    assert "vllm-vitals: vLLM generates tokens" in line
    assert "restart vLLM" in line
