"""A scrape endpoint in a process of its own, of which one can see from outside what clients do to it."""

import contextlib
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import Self

from tests.waiting import PATIENCE

HOST = "127.0.0.1"
HONEST = "127.0.0.2"
"""The address from which an honest client comes: to the endpoint it is another machine."""
ENGINES = 12
"""Enough for a page that no buffer of the kernel holds."""
UNHURRIED = {"HEAD_SECONDS": 30.0, "HANDSHAKE_SECONDS": 30.0, "LINGER_SECONDS": 30.0}
"""Deadlines that an honest client keeps on a machine that is overloaded too."""
PROGRAM = """
import json, logging, os, resource, sys
from types import SimpleNamespace
from prometheus_client import CollectorRegistry
from vllm_vitals._util import log as logs
from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.exporters.prometheus.exporter import PrometheusExporter
from vllm_vitals.deployment.runtime import Runtime
from vllm_vitals.config.settings import Settings

given = json.loads(sys.argv[1])
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
usual = {name: value for name, value in vars(limits).items() if name.isupper()}
vars(limits).update(given["limits"])
settings = {"prometheus": {"host": "127.0.0.1", "port": 0, **given["prometheus"]}, "gpu": {"enabled": False}}
settings["stale_after"] = 3600.0  # its gauges stay however long the tests take
runtime = Runtime(Settings.model_validate(settings))
config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="m"))
queue = runtime.attach(config, list(range(given["engines"])), object, "0.32.0")
exporter = PrometheusExporter(runtime.aggregator, runtime.settings.prometheus, runtime.drainer.problem, CollectorRegistry)
runtime.expose("prometheus", lambda: exporter)
for engine in range(given["engines"]):
    queue.record(SimpleNamespace(num_running_reqs=1), None, None, engine)
while not exporter.ports:
    pass
print(exporter.ports[0], flush=True)
files = []
for command in sys.stdin:
    if command == "exhaust\\n":
        if not files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, HARD))
        try:
            while True:
                files.append(open("/dev/null"))
        except OSError:
            pass
    elif command == "release\\n":
        for file in files:
            file.close()
        files.clear()
        resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))
    elif command.startswith("limits "):
        vars(limits).update(usual, **json.loads(command.removeprefix("limits ")))
    elif command == "forget\\n":
        logs._said.clear()
    elif command.startswith("allow "):
        room = len(os.listdir("/proc/self/fd")) - 1 + int(command.split()[1])
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, HARD))
    print("done", flush=True)
runtime.stop()
"""


class Usage(NamedTuple):
    """What a process has."""

    threads: int
    files: int
    resident: int
    """Bytes."""


class Answer(NamedTuple):
    """What a client was given."""

    status: int
    headers: dict[str, str]
    body: bytes


class Target:
    """The process, and an honest client of it."""

    def __init__(
        self, tls: ssl.SSLContext | None = None, limits: Mapping[str, float] = UNHURRIED, **prometheus: object
    ) -> None:
        """`limits`, `prometheus`: limits and settings that differ from the default; `tls`: what a client trusts."""
        self._tls = tls
        self._old = 0
        self._limits = {**UNHURRIED, **limits}
        self._log = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115 - it lasts as long as the process
        given = {"prometheus": prometheus, "limits": self._limits, "engines": ENGINES}
        arguments = json.dumps(given, default=str)
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, arguments],
            env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self.port = int(self._line() or 0)
        assert self.port, self.said()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=PATIENCE)
        self._log.close()

    def tell(self, command: str) -> None:
        """Let the process do one thing to itself."""
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        assert self._line() == "done\n", self.said()

    @contextlib.contextmanager
    def limited(self, **limits: float) -> Iterator[None]:
        """Let other limits hold in the block."""
        self.tell(f"limits {json.dumps({**self._limits, **limits})}")
        try:
            yield
        finally:
            self.tell(f"limits {json.dumps(self._limits)}")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def forget(self) -> None:
        """Begin anew with what `said` returns, and let the process say again what it says once."""
        self.tell("forget")
        self._old = len(Path(self._log.name).read_text())

    def said(self, level: str = "") -> str:
        """Return what it has logged, or the lines of a level."""
        lines = Path(self._log.name).read_text()[self._old :].splitlines(keepends=True)
        return "".join(line for line in lines if line.startswith(level))

    def connect(self, source: str = HOST) -> socket.socket:
        return socket.create_connection((HOST, self.port), timeout=PATIENCE, source_address=(source, 0))

    def open(self) -> socket.socket:
        """Connect, with TLS where there is TLS."""
        connection = self.connect()
        return self._tls.wrap_socket(connection, server_hostname=HOST) if self._tls else connection

    def ask(self, path: str = "/metrics", source: str = HONEST, **headers: str) -> Answer:
        """Ask as an honest client does."""
        if self._tls:
            client: Any = http.client.HTTPSConnection(
                HOST, self.port, timeout=PATIENCE, context=self._tls, source_address=(source, 0)
            )
        else:
            client = http.client.HTTPConnection(HOST, self.port, timeout=PATIENCE, source_address=(source, 0))
        with contextlib.closing(client):
            client.request("GET", path, headers=headers)
            answer = client.getresponse()
            return Answer(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())

    def usage(self) -> Usage:
        process = Path(f"/proc/{self.pid}")
        threads, files = (len(list((process / name).iterdir())) for name in ("task", "fd"))
        return Usage(threads, files, self._status("VmRSS"))

    def files(self) -> int:
        """Return how many descriptors it has that it keeps."""
        found = []
        for _ in range(10):
            found.append(self.usage().files)
            time.sleep(0.02)
        return min(found)

    def peak(self) -> int:
        """Return the most resident bytes since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise KeyError(name)

    def processor(self) -> float:
        """Return the seconds of processor time that all its threads have taken."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def read_all(client: socket.socket) -> bytes:
    """Return what the other side says until it hangs up."""
    said = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while more := client.recv(65536):
            said += more
    return said


def status_of(answer: bytes) -> int:
    """Return the status of one whole answer, 0 for none."""
    if not answer:
        return 0
    head, end, body = answer.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    version, status, _ = lines[0].split(" ", 2)
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    assert (version, end, headers["connection"]) == ("HTTP/1.1", b"\r\n\r\n", "close")
    assert int(headers["content-length"]) == len(body)
    return int(status)


@contextlib.contextmanager
def held(connections: list[socket.socket]) -> Iterator[None]:
    """Close connections in the end."""
    try:
        yield
    finally:
        for connection in connections:
            connection.close()
