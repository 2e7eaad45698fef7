"""`vllm-vitals sidecar` in a process of its own."""

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from typing_extensions import Self

START_SECONDS = 20.0


class Sidecar:
    """The process, beside the one that is measured or measured itself; it ends with the block."""

    def __init__(self, port: int) -> None:
        """`port`: of its scrape endpoint."""
        self._folder = tempfile.TemporaryDirectory(prefix="vitals-bench-")
        folder = Path(self._folder.name)
        self.socket = folder / "s.sock"
        self._log = folder / "log"
        self._ready = f"http://127.0.0.1:{port}/readyz"
        command = [str(Path(sys.executable).with_name("vllm-vitals")), "sidecar", "--socket", str(self.socket)]
        own = {"OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1", "OTEL_EXPORTER_PROMETHEUS_PORT": str(port)}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, env={**os.environ, **own}, stdout=log, stderr=log)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        """Return when steps can be sent and pages be had.

        Raises:
            RuntimeError: when it does not come so far.
        """
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                said = self._log.read_text()
                self.__exit__()
                raise RuntimeError(f"the sidecar did not start: {said}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self._ready, timeout=START_SECONDS):
                return True
        except OSError:
            return False
