"""An `AsyncLLM` that ends in a program that lives on is shown as ended, without waiting for another."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.embedded import TOKENS
from tests.live.pages import Recovers, eventually
from tests.live.server import ENVIRONMENT, fetch, free_port, numa_library_path
from tests.parity import Samples, parse, value

ROOT = Path(__file__).parents[2]
UP = "vllm_engine_up"
GAUGES = ("vllm_engine_requests_running", "vllm_kv_cache_usage_ratio", "vitals_step_age_seconds")
TOKENS_MADE = "vllm_tokens_generation_total"


class Program:
    """Runs `tests.live.embedded`, and reads its page."""

    def __init__(self, model: Path, log: Path) -> None:
        self.log = log
        self._port = free_port()
        environment = {
            **os.environ, **ENVIRONMENT, **numa_library_path(), "OTEL_EXPORTER_PROMETHEUS_PORT": str(self._port),
        }  # fmt: skip
        with log.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.live.embedded", str(model)],
                env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=said, stderr=said, process_group=0,
            )  # fmt: skip

    def page(self) -> Samples:
        with suppress(OSError):
            return parse(fetch(f"http://127.0.0.1:{self._port}/metrics"))
        return {}

    def has_said(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def program(model: Path, tmp_path: Path) -> Iterator[Program]:
    made = Program(model, tmp_path / "log")
    try:
        yield made
    finally:
        made.kill()


@pytest.mark.timeout(1200)
def test_each_is_up_until_it_ends_however_that_comes(program: Program, recovers: Recovers) -> None:
    made = 0.0
    for serves, ended in (
        ("first serves", "first is shut down"),
        ("second serves", "second is deleted"),
        ("third serves", "third is shut down"),
    ):
        assert eventually(lambda text=serves: program.has_said(text), 360), program.log.read_text()[-4000:]
        assert eventually(lambda: value(program.page(), UP) == 1, 30)
        made += TOKENS
        assert eventually(lambda least=made: value(program.page(), TOKENS_MADE) >= least, 30)
        program.go_on()
        assert eventually(lambda text=ended: program.has_said(text), 120), program.log.read_text()[-4000:]
        assert recovers(lambda: value(program.page(), UP) == 0, 60, what=f"after '{ended}' down"), program.page()
        page = program.page()
        assert [name for name in GAUGES if name in page] == []
        assert value(page, TOKENS_MADE) >= made, "counters stay, and go on"
        program.go_on()
    assert eventually(lambda: program.has_said("lived on"), 60)
