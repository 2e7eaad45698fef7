"""The servers that tests share: each has all at once that goes together, so that few of them are enough.

A test measures what it changes, before and after, and leaves a server awake, idle and pushing as it found it.
"""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from tests.live.collector import Rotel, Sink
from tests.live.load import LoadReport
from tests.live.model import make_adapters
from tests.live.pages import eventually
from tests.live.server import VllmServer, free_port, numa_library_path, started
from tests.parity import Samples, parse
from tests.unit.nvml import stub

WATTS = 200.0
STALE_AFTER = 3.0
SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
PRICE = {"VITALS_PRICE__PER_GPU_HOUR": "3.6", "VITALS_PRICE__CURRENCY": "EUR"}
TTFT = (0.005, 0.02, 0.05, 0.2, 1.0)
E2E = (0.05, 0.2, 0.5, 1.5, 5.0)
TPOT = (0.0002, 0.005, 0.3)
SLOS: dict[str, dict[str, Any]] = {
    "generous": {"ttft": "1h", "tpot": "1h", "e2e": "1h"},
    "impossible": {"ttft": "0.001ms", "e2e": "0.001ms"},
    "short": {"e2e": "1h", "output_tokens": [None, 20]},
    "long": {"e2e": "1h", "output_tokens": [21, None]},
    **{f"{place}": {"ttft": ttft, "e2e": e2e} for place, (ttft, e2e) in enumerate(product(TTFT, E2E))},
    **{f"each-{place}": {"tpot": tpot} for place, tpot in enumerate(TPOT)},
}
LADDER = {f"{place}": 0.3 * 1.16**place for place in range(31)}
"""Limits in seconds, so close together that some lie between what a request takes alone and behind another."""
CHAT = {"name": "chat", "target": 0.99, "ttft": "2s"}
SEVERAL = {
    "1-engine-2-servers": ("--api-server-count=2",),
    "2-engines-2-servers": ("--data-parallel-size=2", "--api-server-count=2"),
    "2-engines-1-server": ("--data-parallel-size=2", "--api-server-count=1"),
}
SEQUENCES = 16
"""Most requests in a batch of theirs."""
LONGEST = 2048
"""Tokens of a sequence there at most: a request goes on for longer than anybody has to look at it."""
WITH_NATIVE = "2-engines-2-servers"
"""The layout whose page has vLLM's own metrics too."""
NATIVE_TOO = {"VITALS_PROMETHEUS__INCLUDE_NATIVE": "true"}
BLOCK, BLOCKS = 128, 800
"""Tokens of a block, and blocks of the KV cache, of the roomy server."""
NARROW = 2
"""Most requests in the batch of the narrow server."""
BUDGET = 256
"""Most tokens in a step of the server with all options."""
CONNECTORS = [
    {"kv_connector": name, "kv_connector_module_path": "tests.live.connectors", "kv_role": "kv_producer"}
    for name in ("NixlConnector", "OffloadingConnector")
]
BOTH = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_producer",
    "kv_connector_extra_config": {"connectors": CONNECTORS},
}
# Put into the server's processes by Python itself, before vLLM is there.
HANGING = """
import os, threading, time
from prometheus_client import REGISTRY


class Hanging:
    def describe(self):
        return []

    def collect(self):
        while threading.current_thread().name.startswith("vitals") and os.path.exists(os.environ["HANG"]):
            time.sleep(0.05)
        return []


REGISTRY.register(Hanging())
"""


@dataclass
class Shared:
    """A server that runs, its first page, and what it pushes to: an OTLP collector, and the receiver behind that."""

    server: VllmServer
    home: Path
    newborn: Samples = field(init=False)
    """What its page showed before any request."""
    way: tuple[str, str, str] = ("", "", "")
    """Protocol, temporality and histograms of its pushes."""
    sink: Sink | None = None
    rotel: Rotel | None = None
    apart: tuple[str, ...] = ()
    """Metrics of vLLM's that have other buckets than ours here."""

    def __post_init__(self) -> None:
        self.newborn = parse(self.server.vitals_text())


class Meter:
    """Lets a GPU use `WATTS` all the time, as its energy counter says."""

    def __init__(self, driver: stub.Driver) -> None:
        self._driver = driver
        self._begun = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(0.1):
            self._driver.say({"0.energy": int(1000 * WATTS * (time.monotonic() - self._begun))})

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(10)


def has_gpu(home: Path) -> tuple[stub.Driver | None, dict[str, str]]:
    """Return a driver's stand-in with one GPU, and the environment to find it; neither where it cannot be built."""
    if not stub.COMPILER:
        return None, {}
    driver = stub.Driver(home)
    driver.plug(0, energy=0)
    libraries = [
        str(stub.build(home).parent), numa_library_path().get("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
    ]  # fmt: skip
    return driver, {
        **driver.variables, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)), "VITALS_GPU__DEVICES": "0",
    }  # fmt: skip


def on_path(*directories: Path) -> dict[str, str]:
    """Return the environment in which Python finds what lies in these directories."""
    paths = [*map(str, directories), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def bear_witness(directory: Path) -> dict[str, str]:
    """Return the environment in which vLLM finds `Witness`, as an installed package's."""
    about = directory / "witness-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: witness\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[vllm.stat_logger_plugins]\nwitness = tests.live.witness:Witness\n")
    return {"WITNESS": str(directory / "witness.json"), **on_path(directory)}


def slos(limits: dict[str, dict[str, Any]], *more: dict[str, Any]) -> dict[str, str]:
    return {"VITALS_SLOS": json.dumps([*({"name": name, "target": 0.9, **slo} for name, slo in limits.items()), *more])}


@contextlib.contextmanager
def pushing(
    home: Path, protocol: str, temporality: str, histograms: str, start: Callable[[dict[str, str]], VllmServer]
) -> Iterator[Shared]:
    """Run a server that pushes to a collector, which is not there before pushes have failed."""
    sink = Sink()
    rotel = Rotel(sink, home)
    aggregation = "base2_exponential" if histograms == "exponential" else "explicit"
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": rotel.endpoint(protocol),
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": temporality,
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": f"{aggregation}_bucket_histogram",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        "VITALS_OTLP__INCLUDE_NATIVE": "true",
    }
    with contextlib.closing(sink), start(environment) as server:
        try:
            assert eventually(lambda: " failed: " in server.log.read_text(), 60)
            rotel.start()
            made = Shared(server, home, (protocol, temporality, histograms), sink, rotel)
            yield made
        finally:
            rotel.kill()


@contextlib.contextmanager
def roomy(model: Path, home: Path) -> Iterator[Shared]:
    """Run one engine with room for many requests, and nearly everything of ours: SLOs, exemplars, prices, GPU, pushes."""
    driver, gpu = has_gpu(home)
    meter = Meter(driver) if driver else None
    (home / "sitecustomize.py").write_text(HANGING)
    arguments = (
        "--max-model-len=2048", "--max-num-seqs=128", f"--block-size={BLOCK}", f"--num-gpu-blocks-override={BLOCKS}",
        "--enable-mfu-metrics",
    )  # fmt: skip

    def start(environment: dict[str, str]) -> VllmServer:
        return VllmServer(model, args=arguments, env={
            **environment, **gpu, **PRICE, **slos(SLOS), **on_path(home), "VITALS_EXEMPLARS": "true",
            "VLLM_SERVER_DEV_MODE": "1", "HANG": str(home / "hang"),
        })  # fmt: skip

    try:
        with pushing(home, "http/protobuf", "cumulative", "exponential", start) as made:
            yield made
    finally:
        if meter:
            meter.stop()


@contextlib.contextmanager
def optional(model: Path, home: Path) -> Iterator[Shared]:
    """Run speculation, preemption and every optional statistic at once, vLLM's own metrics on our page."""
    arguments = (
        "--block-size=32", "--num-gpu-blocks-override=36", "--max-num-seqs=16", f"--max-num-batched-tokens={BUDGET}",
        "--enable-mfu-metrics", "--kv-cache-metrics", "--kv-cache-metrics-sample=1.0",
        "--enable-logging-iteration-details", "--cudagraph-metrics", f"--speculative-config={json.dumps(SPECULATION)}",
        '--custom-histogram-buckets={"request_latency":[0.05,0.5,5,50]}',
    )  # fmt: skip
    environment = {
        "VITALS_PROMETHEUS__INCLUDE_NATIVE": "true",
        "VITALS_EXEMPLARS": "true",
        "VITALS_BUCKETS": '{"inter_token_latency": [0.001, 0.01, 0.1, 1]}',
        "VITALS_PERF__PEAK_FLOPS": "2e11",
        "VITALS_PERF__PEAK_BANDWIDTH": "5e10",
    }
    rebucketed = ("vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds")
    with VllmServer(model, args=arguments, env=environment) as server:
        yield Shared(server, home, apart=rebucketed)


@contextlib.contextmanager
def tight(model: Path, home: Path) -> Iterator[Shared]:
    """Run a KV cache in which few have room, a short queue, adapters of which one works at a time, and a witness."""
    modules = [f"{name}={path}" for name, path in make_adapters(home / "adapters").items()]
    arguments = (
        "--num-gpu-blocks-override=20", "--max-num-seqs=64", "--max-num-queued-reqs=24",
        "--enable-logging-iteration-details", "--enable-lora", "--max-lora-rank=8", "--max-loras=1",
        "--lora-modules", *modules,
    )  # fmt: skip
    environment = {**bear_witness(home), "VLLM_SERVER_DEV_MODE": "1", "VITALS_STALE_AFTER": str(STALE_AFTER)}
    with VllmServer(model, args=arguments, env=environment) as server:
        yield Shared(server, home)


@contextlib.contextmanager
def narrow(model: Path, home: Path) -> Iterator[Shared]:
    """Run a batch of `NARROW` requests, no prefix cache, KV connectors, and all that alerts are about."""
    _, gpu = has_gpu(home)
    port = free_port()
    arguments = (
        f"--max-num-seqs={NARROW}", "--no-enable-prefix-caching", "--kv-transfer-config", json.dumps(BOTH),
        "--disable-hybrid-kv-cache-manager",
    )  # fmt: skip
    ladder = {name: {"e2e": limit} for name, limit in LADDER.items()}

    def start(environment: dict[str, str]) -> VllmServer:
        return VllmServer(model, args=arguments, port=port, env={
            **environment, **gpu, **slos(ladder, CHAT), **on_path(), "VITALS_PRICE__PER_GPU_HOUR": "2.5",
            "VLLM_COMPUTE_NANS_IN_LOGITS": "1", "VITALS_STALE_AFTER": str(STALE_AFTER),
            "VITALS_NATIVE__URL": f"http://127.0.0.1:{port}/metrics",
        })  # fmt: skip

    with pushing(home, "grpc", "delta", "explicit", start) as made:
        yield made


class Deployment:
    """A running vLLM of one layout of engines and API servers, where it pushes to, and what it was asked."""

    def __init__(self, name: str, server: VllmServer, sink: Sink) -> None:
        self.engines, self.servers = int(name[0]), int(name.split("-")[2])
        self.has_native = name == WITH_NATIVE
        self.server = server
        self.sink = sink
        self.load = LoadReport()


@contextlib.contextmanager
def deployments(model: Path, _: Path) -> Iterator[dict[str, Deployment]]:
    """Run servers of several engines or API servers, by their names."""
    made = {}
    with contextlib.ExitStack() as sinks:
        for name, layout in SEVERAL.items():
            sink = sinks.enter_context(contextlib.closing(Sink()))
            environment = {
                "OTEL_EXPORTER_OTLP_ENDPOINT": sink.endpoint,
                "OTEL_METRIC_EXPORT_INTERVAL": "500",
                **(NATIVE_TOO if name == WITH_NATIVE else {}),
            }
            arguments = (*layout, f"--max-model-len={LONGEST}", f"--max-num-seqs={SEQUENCES}")
            made[name] = Deployment(name, VllmServer(model, args=arguments, env=environment), sink)
        with started(*(each.server for each in made.values())):
            yield made


Maker = Callable[[Path, Path], AbstractContextManager[Any]]
LAYOUTS: dict[str, Maker] = {
    "roomy": roomy, "optional": optional, "tight": tight, "narrow": narrow, "deployments": deployments,
}  # fmt: skip
"""By name what makes one, in the order in which they run."""
