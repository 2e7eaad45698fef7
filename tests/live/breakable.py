"""Servers that tests break or end, with what they need for that; what can start at the same time does."""

import contextlib
import datetime as dt
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.live.collector import Sink
from tests.live.layouts import Maker, on_path
from tests.live.pages import eventually
from tests.live.provoke import watched
from tests.live.pushes import PACE
from tests.live.receivers import Authority, Front, SilentHttp, good, silent
from tests.live.server import ENVIRONMENT, ServerError, VllmServer, fetch, free_port, numa_library_path, started
from tests.live.sidecar import SidecarProcess, started_sidecar
from tests.parity import Samples, parse, value
from tests.unit.otlp import HOST, Receiver

ROOT = Path(__file__).parents[2]
STEPS = "vitals_steps_total"
SECRET = "t0p-s3cret"  # noqa: S105
CASES = {
    "http/protobuf": ("delta", "explicit"),
    "grpc": ("cumulative", "base2_exponential"),
}
"""Temporality and histograms by protocol; the servers that are shared have them the other way round, for what a way of
failing does to a push depends on the protocol, and what has to come after that on the temporality."""
COUNTING = """
from prometheus_client import Counter
from vllm.v1.metrics.loggers import StatLoggerBase

CALLS = Counter("stat_logger_calls", "Calls of record().")


class Counting(StatLoggerBase):
    def __init__(self, vllm_config, engine_index=0):
        pass

    def record(self, *args, **kwargs):
        CALLS.inc()

    def log_engine_initialized(self):
        pass
"""
"""A stat logger beside ours: vLLM's own metrics have no count of all steps, for some bring nothing but scheduler stats."""
SMALLEST_BUFFER = 2**20


def counting(directory: Path) -> Path:
    """Let a directory of the path offer vLLM a logger that counts on vLLM's own page how often it is called."""
    (directory / "counting.py").write_text(COUNTING)
    about = directory / "counting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[vllm.stat_logger_plugins]\ncounting = counting:Counting\n")
    return directory


@dataclass
class Beside:
    """A server, the sidecar that it tells of its steps, and what that pushes to."""

    server: VllmServer
    sidecar: SidecarProcess
    sink: Sink


@contextlib.contextmanager
def beside(model: Path, home: Path) -> Iterator[Beside]:
    """Run a vLLM that has the smallest buffer: all that is done to its sidecar fits, but for what shall not."""
    with contextlib.closing(Sink()) as sink:
        pushes = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "500"}
        with started_sidecar(home / "sidecar.log", pushes) as sidecar:
            environment = {
                "VITALS_WIRE__SIDECAR": str(sidecar.socket),
                "VITALS_WIRE__BUFFER": str(SMALLEST_BUFFER),
                **on_path(counting(home)),
            }
            with VllmServer(model, env=environment, vitals_port=sidecar.port) as server:
                yield Beside(server, sidecar, sink)


@contextlib.contextmanager
def without(model: Path, _: Path) -> Iterator[VllmServer]:
    """Run a vLLM that is told to load other plugins."""
    with VllmServer(model, env={"VLLM_PLUGINS": "other"}) as server:
        yield server


@dataclass
class Starts:
    """Servers each of which has something in the way of its start or its end."""

    taken: VllmServer
    """Its port is the `holder`'s."""
    holder: socket.socket
    wrong: VllmServer
    """It has a setting that cannot be."""
    hanging: VllmServer
    """It pushes to who takes connections and never answers."""
    strict: ServerError | None
    """What became of one that has a setting that cannot be and shall not start with such."""


@contextlib.contextmanager
def starts(model: Path, _: Path) -> Iterator[Starts]:
    """Start all of them at the same time."""
    port = free_port()
    wrong = {"VITALS_PROMETHEUS__PORT": "99999"}
    with socket.create_server((HOST, port)) as holder, socket.create_server((HOST, 0), backlog=64) as silence:
        pushes = {
            "VITALS_OTLP__ENDPOINT": f"http://{HOST}:{silence.getsockname()[1]}",
            "VITALS_OTLP__INTERVAL": "1",
            "VITALS_OTLP__INCLUDE_NATIVE": "true",
        }
        servers = (
            VllmServer(model, vitals_port=port, env={"VITALS_PROMETHEUS__RETRY_INTERVAL": "0.5"}),
            VllmServer(model, env={**wrong, "VITALS_QUEUESIZE": "5"}),
            VllmServer(model, env=pushes),
        )
        with ThreadPoolExecutor(1) as pool:
            strict = pool.submit(refused, VllmServer(model, env={**wrong, "VITALS_STRICT": "true"}))
            with started(*servers):
                yield Starts(servers[0], holder, servers[1], servers[2], strict.result())


def refused(server: VllmServer) -> ServerError | None:
    """Return why a server does not start, `None` if it does."""
    try:
        with server:
            return None
    except ServerError as error:
        return error


@dataclass
class Doomed:
    """Servers to be killed: one that pushes to whatever is behind the front, one of two API servers beside a sidecar."""

    server: VllmServer
    environment: dict[str, str]
    front: Front
    receiver: Receiver
    hanging: SilentHttp
    two_api_servers: VllmServer
    sidecar: SidecarProcess


@contextlib.contextmanager
def doomed(model: Path, home: Path) -> Iterator[Doomed]:
    """Start both at the same time."""
    front, receiver = Front(), good("http/protobuf")
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{front.port}", **PACE}
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(front))
        stack.enter_context(receiver.serve())
        hanging = stack.enter_context(silent(SilentHttp))
        sidecar = stack.enter_context(started_sidecar(home / "sidecar.log"))
        front.lead(receiver.port)
        server = VllmServer(model, env=environment)
        beside = {"VITALS_WIRE__SIDECAR": str(sidecar.socket)}
        two = VllmServer(model, args=("--api-server-count=2",), env=beside, vitals_port=sidecar.port)
        stack.enter_context(started(server, two))
        yield Doomed(server, environment, front, receiver, hanging, two, sidecar)


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
        with contextlib.suppress(OSError):
            return parse(fetch(f"http://127.0.0.1:{self._port}/metrics"))
        return {}

    def scale_up(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def lines(self, text: str) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if text in line]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@contextlib.contextmanager
def elastic(model: Path, home: Path) -> Iterator[ElasticServer]:
    """Run a process that has made steps."""
    made = ElasticServer(model, home / "log")
    try:
        assert eventually(lambda: value(made.page(), STEPS) > 0, 300), made.log.read_text(errors="replace")[-4000:]
        yield made
    finally:
        made.kill()


@dataclass
class Pusher:
    """A server that pushes over TLS to whatever is behind the front."""

    protocol: str
    server: VllmServer
    front: Front
    expired: ssl.SSLContext
    """What the front may show in place of a valid certificate."""


@contextlib.contextmanager
def pushers(model: Path, home: Path) -> Iterator[dict[str, Pusher]]:
    """Run one for each protocol, with nothing behind its front."""
    made = {protocol: _pusher(protocol, model, home / protocol[:4]) for protocol in CASES}
    with started(*(each.server for each in made.values())):
        yield made


def _pusher(protocol: str, model: Path, home: Path) -> Pusher:
    home.mkdir()
    temporality, histograms = CASES[protocol]
    authority = Authority(home)
    front = Front(authority.tls())
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://{HOST}:{front.port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRET}",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.file),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(authority.chain),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(authority.key),
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": temporality,
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": f"{histograms}_bucket_histogram",
        **PACE,
    }
    expired = authority.tls(not_after=dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1))
    return Pusher(protocol, VllmServer(model, env=environment), front, expired)


LAYOUTS: dict[str, Maker] = {
    "beside": beside,
    "stored": watched,
    "without": without,
    "elastic": elastic,
    "doomed": doomed,
    "starts": starts,
    "pushers": pushers,
}
"""By name what makes them, in the order in which they run: two that take much memory do not follow each other."""
