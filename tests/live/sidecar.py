"""`vllm-vitals sidecar` as a process, and its page."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.live.pages import eventually
from tests.live.server import fetch, free_port
from tests.parity import Samples, parse


class SidecarProcess:
    """A sidecar that can be killed, stopped for a while and started again; the last of its arguments is its socket."""

    def __init__(self, log: Path, *args: str, env: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.log = log
        self._command = [str(Path(sys.executable).with_name("vllm-vitals")), "sidecar", *args]
        self._env = {**os.environ, "OTEL_EXPORTER_PROMETHEUS_PORT": str(self.port), **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return Path(self._command[-1])

    def start(self) -> None:
        self._launch()
        assert eventually(self.answers), self.log.read_text()

    def fail(self) -> int:
        """Start it where it cannot, and return its exit code."""
        return self._launch().wait(60)

    def _launch(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=self._env, stdout=log, stderr=log)
        return self.process

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


@contextmanager
def started_sidecar(log: Path, env: Mapping[str, str] | None = None) -> Iterator[SidecarProcess]:
    """Have a sidecar that takes steps at a socket of its own; none is left in the end."""
    with tempfile.TemporaryDirectory(prefix="vitals-") as directory:  # short: a socket's path has 107 bytes at most
        made = SidecarProcess(log, "--socket", f"{directory}/s.sock", env=env)
        try:
            made.start()
            yield made
        finally:
            if made.process is not None and made.process.poll() is None:
                made.send(signal.SIGKILL)
