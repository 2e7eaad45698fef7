"""A sidecar beside a real vLLM: it says the same, outlives it, and what is lost on the way is counted."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.live.collector import Sink
from tests.live.conftest import put_load
from tests.live.pages import eventually, settled
from tests.live.server import VllmServer, fetch, free_port
from tests.parity import Samples, differences, parse, value

FINISHED = "vllm_requests_finished_total"
DROPPED = "vitals_steps_dropped_total"
STOPPED = 30.0
"""Seconds for which the sidecar stands still."""
RECOVERY = 10.0
"""Seconds within which all is as it should be again."""


class SidecarProcess:
    """`vllm-vitals sidecar` as a process, and its page."""

    def __init__(self, log: Path, *args: str, env: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.log = log
        self._command = [str(Path(sys.executable).with_name("vllm-vitals")), "sidecar", *args]
        self._env = {**os.environ, "OTEL_EXPORTER_PROMETHEUS_PORT": str(self.port), **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=self._env, stdout=log, stderr=log)
        assert eventually(self.answers, 20), self.log.read_text()

    def answers(self) -> bool:
        try:
            return fetch(f"http://127.0.0.1:{self.port}/readyz") == "ok\n"
        except OSError:
            return False

    def page(self) -> Samples:
        return parse(fetch(f"http://127.0.0.1:{self.port}/metrics"))

    def send(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30) if number in (signal.SIGKILL, signal.SIGTERM) else 0


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SidecarProcess, Sink]]:
    sink = Sink()
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "500"}
    with tempfile.TemporaryDirectory(prefix="vitals-") as directory:  # short: a socket's path has 107 bytes at most
        log = tmp_path_factory.mktemp("sidecar") / "sidecar.log"
        made = SidecarProcess(log, "--socket", f"{directory}/s.sock", env=environment)
        made.start()
        try:
            yield made, sink
        finally:
            if made.process is not None and made.process.poll() is None:
                made.send(signal.SIGKILL)
            sink.close()


@pytest.fixture(scope="module")
def server(sidecar: tuple[SidecarProcess, Sink], model: Path) -> Iterator[VllmServer]:
    beside, _ = sidecar
    socket = beside._command[-1]
    with VllmServer(model, env={"VITALS_WIRE__SIDECAR": socket}, vitals_port=beside.port) as running:
        yield running


def test_it_says_all_that_vllm_says(server: VllmServer) -> None:
    load = put_load(server, count=60, disconnects=False)
    native, ours = settled(server)
    assert list(differences(native, ours)) == []
    assert value(ours, FINISHED) == sum(load.finished.values())
    assert value(ours, "vllm_engine_up") == 1
    assert value(ours, DROPPED) == 0


def test_it_pushes_what_it_shows(server: VllmServer, sidecar: tuple[SidecarProcess, Sink]) -> None:
    _, sink = sidecar
    _, ours = settled(server)
    assert eventually(lambda: sink.total("vllm.tokens.generation") == value(ours, "vllm_tokens_generation_total"))
    assert len(sink.resources) == 1


def test_nothing_is_exported_by_the_serving_process(server: VllmServer) -> None:
    log = server.log.read_text()
    assert "Scrape endpoint" not in log
    assert log.count("Steps go to the sidecar at") == 1


def test_while_it_stands_still_steps_wait(server: VllmServer, sidecar: tuple[SidecarProcess, Sink]) -> None:
    beside, _ = sidecar
    before = value(beside.page(), FINISHED)
    stopped = time.monotonic()
    beside.send(signal.SIGSTOP)
    load = put_load(server, count=20, disconnects=False, seed=1)
    time.sleep(max(0.0, stopped + STOPPED - time.monotonic()))
    beside.send(signal.SIGCONT)
    assert eventually(lambda: value(beside.page(), FINISHED) == before + sum(load.finished.values()), RECOVERY)
    assert value(beside.page(), DROPPED) == 0


def test_killed_and_restarted_it_is_told_what_happened_meanwhile(
    server: VllmServer, sidecar: tuple[SidecarProcess, Sink]
) -> None:
    beside, _ = sidecar
    beside.send(signal.SIGKILL)
    load = put_load(server, count=20, disconnects=False, seed=2)
    beside.start()
    # It starts from zero, as a counter does whose process is new; what happened meanwhile was kept for it.
    assert eventually(lambda: value(beside.page(), FINISHED) == sum(load.finished.values()), RECOVERY)
    assert value(beside.page(), DROPPED) == 0
    assert value(beside.page(), "vllm_engine_up") == 1


def test_a_socket_that_somebody_deletes_is_made_anew(server: VllmServer, sidecar: tuple[SidecarProcess, Sink]) -> None:
    beside, _ = sidecar
    before = value(beside.page(), FINISHED)
    Path(beside._command[-1]).unlink()
    load = put_load(server, count=20, disconnects=False, seed=3)
    assert eventually(lambda: value(beside.page(), FINISHED) == before + sum(load.finished.values()), RECOVERY)


def test_it_outlives_vllm_and_says_that_it_is_gone(server: VllmServer, sidecar: tuple[SidecarProcess, Sink]) -> None:
    beside, sink = sidecar
    time.sleep(1)
    last = beside.page()
    os.killpg(server.pid, signal.SIGKILL)
    assert eventually(lambda: value(beside.page(), "vllm_engine_up") == 0, 20)
    after = beside.page()
    assert value(after, FINISHED) == value(last, FINISHED)
    assert "vllm_engine_requests_running" not in after
    assert eventually(lambda: sink.total("vllm.engine.up") == 0)


def test_it_ends_in_order(sidecar: tuple[SidecarProcess, Sink]) -> None:
    beside, _ = sidecar
    start = time.monotonic()
    assert beside.send(signal.SIGTERM) == 0
    assert time.monotonic() - start < 10
    log = beside.log.read_text()
    assert "Sidecar ended" in log
    assert "Traceback" not in log


def test_vllms_own_metrics_are_shown_under_our_names(model: Path, tmp_path: Path) -> None:
    with VllmServer(model, env={"VLLM_PLUGINS": ""}) as plain:
        put_load(plain, count=40, disconnects=False)
        native = SidecarProcess(
            tmp_path / "native.log", "--native-url", f"{plain.url}/metrics", env={"VITALS_NATIVE__INTERVAL": "0.5"}
        )
        native.start()
        try:
            theirs = parse(plain.metrics_text())
            assert eventually(lambda: not list(differences(theirs, native.page())))
            page = native.page()
            assert value(page, FINISHED) > 0
            assert value(page, "vllm_engine_up") == 1
            assert {dict(labels)["source"] for labels in page["vitals_info"]} == {"native"}
            assert "they do not tell:" in native.log.read_text()
            plain.stop()
            assert eventually(lambda: value(native.page(), "vllm_engine_up") == 0)
            assert value(native.page(), FINISHED) == value(page, FINISHED)
        finally:
            native.send(signal.SIGTERM)
