"""Run a real vLLM OpenAI server on this machine's CPU, and leave nothing of it behind."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from urllib.request import ProxyHandler, build_opener

from typing_extensions import Self

from tests.live.bootstrap import CACHE, numa_library_dir

MODEL_NAME = "tiny"
FLAGS = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "1024")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CACHE_ROOT": str(CACHE / "vllm"),
    "VLLM_CONFIG_ROOT": str(CACHE / "vllm"),
    "HF_HOME": str(CACHE / "huggingface"),
    "HF_HUB_OFFLINE": "1",
    # Without it the first sampled request compiles for half a minute, even with --enforce-eager.
    "TORCHDYNAMO_DISABLE": "1",
}
# Outlives us when we are killed outright: its standard input then ends, and it kills the server.
WATCHDOG = """
import contextlib, os, signal, sys
sys.stdin.buffer.read()
with contextlib.suppress(ProcessLookupError):
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
"""
_given: set[int] = set()
_open = build_opener(ProxyHandler({})).open


class ServerError(RuntimeError):
    """vLLM ended or did not become healthy; the message holds the end of its log."""


def free_port() -> int:
    """Return a TCP port that is free on every address and that no process of this test run gave before."""
    # Below the range from which the kernel takes ports for outgoing connections; of processes that test at the same
    # time each has its own, for a port that was given is not in use yet.
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in random.SystemRandom().sample(range(20000 + mine, 30000, processes), 200):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            if port not in _given:
                _given.add(port)
                return port
    raise ServerError("no free TCP port among 200 tried between 20000 and 29999")


def fetch(url: str, *, timeout: float = 10.0) -> str:
    """Return the text behind a local ``url``, past any proxy; raise OSError when it fails."""
    with _open(url, timeout=timeout) as response:
        return str(response.read().decode())


class VllmServer:
    """``vllm serve`` in a process group of its own, healthy when the ``with`` block starts."""

    def __init__(
        self,
        model_dir: Path,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        vitals_port: int | None = None,
        log: Path | None = None,
        python: str = sys.executable,
        timeout: float = 600.0,
        on_wait: Callable[[float], object] | None = None,
    ) -> None:
        self.port = port or free_port()
        self.vitals_port = vitals_port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.vitals_url = f"http://127.0.0.1:{self.vitals_port}/metrics"
        self.log = log or CACHE / "live" / f"vllm-{self.port}.log"
        self._timeout, self._on_wait = timeout, on_wait
        serve = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(model_dir)]
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        self._command = [*serve, *where, "--served-model-name", MODEL_NAME, *FLAGS, *args]
        self._env = {
            **os.environ,
            **ENVIRONMENT,
            **numa_library_path(),
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(self.vitals_port),
            **(env or {}),
        }
        self.several = any("api-server-count" in each for each in args)
        """Whether there may be several API servers, and each tells for itself."""
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the API server, which is also its process group."""
        if self._process is None:
            raise ServerError("vLLM is not running: enter the context manager first")
        return self._process.pid

    def metrics_text(self) -> str:
        """Return vLLM's own ``/metrics`` page."""
        return fetch(f"{self.url}/metrics")

    def vitals_text(self) -> str:
        """Return the page of this project's endpoint."""
        return fetch(self.vitals_url)

    def log_tail(self, lines: int = 40) -> str:
        """Return the last ``lines`` of the server's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def alive(self) -> bool:
        """Tell whether the API server process is still running."""
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[int]:
        """Return those of vLLM's processes that are still there."""
        return _group(self.pid)

    def __enter__(self) -> Self:
        try:
            self._start()
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self, *, grace: float = 20.0) -> None:
        """Ask the server to end, kill what is left of its group after ``grace`` seconds."""
        if self._process is None:
            return
        try:
            self._process.terminate()
            _until(lambda: not self.processes(), grace)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait(timeout=30)
            self._dismiss_watchdog()
            _until(lambda: not self.processes(), 10.0)
            self._process = None

    def seconds_to_end(self) -> float:
        """Ask the server to end, give it a minute, and return the seconds that it took."""
        begun = time.monotonic()
        self.stop(grace=60)
        return time.monotonic() - begun

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Not a session of its own: Linux schedules sessions against each other, and vLLM's
                # spinning workers then kept the load generator off the CPU for seconds at a time.
                process_group=0,
            )
        self._watchdog = subprocess.Popen(
            [sys.executable, "-S", "-c", WATCHDOG, str(self.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _wait_until_healthy(self) -> None:
        start = time.monotonic()
        while not self._healthy():
            waited = time.monotonic() - start
            if not self.alive():
                self._fail(f"ended while starting (exit status {self._process_status()})")
            if waited > self._timeout:
                self._fail(f"was not healthy within {self._timeout:g} s")
            if self._on_wait:
                self._on_wait(waited)
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            fetch(f"{self.url}/health", timeout=5)
        except OSError:
            return False
        return True

    def _process_status(self) -> int | None:
        return self._process.returncode if self._process else None

    def _fail(self, what: str) -> None:
        raise ServerError(f"vLLM {what}; the end of {self.log}:\n{self.log_tail()}")

    def _dismiss_watchdog(self) -> None:
        if self._watchdog is not None and self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
            self._watchdog.wait(timeout=30)


@contextlib.contextmanager
def started(*servers: VllmServer) -> Iterator[None]:
    """Start servers at the same time, for one alone keeps one processor busy; stop them all in the end."""
    with contextlib.ExitStack() as stack:
        with ThreadPoolExecutor(len(servers)) as starts:
            list(starts.map(stack.enter_context, servers))
        yield


def numa_library_path() -> dict[str, str]:
    """Return the environment that lets vLLM find libnuma where the system has none."""
    directory = numa_library_dir()
    if directory is None:
        return {}
    paths = [str(directory), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths))}


def _group(group: int) -> list[int]:
    """Return the processes of a group; a zombie that nobody collects is not one."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, owner = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(owner) == group and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def _until(done: Callable[[], bool], seconds: float) -> None:
    """Wait until ``done`` or until ``seconds`` have passed."""
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.1)
