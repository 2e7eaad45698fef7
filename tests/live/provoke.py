"""Two real vLLMs on which everything happens that dashboards and alerts are about, and two stores that watch."""

import asyncio
import contextlib
import json
import os
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import yaml

from tests.live.bootstrap import REPO
from tests.live.collector import Rotel
from tests.live.load import run_load
from tests.live.model import make_adapters
from tests.live.prometheus import Prometheus
from tests.live.server import VllmServer, numa_library_path, started
from tests.live.victoria import VictoriaMetrics
from tests.unit.nvml import stub

SLOS = [
    {"name": "chat", "target": 0.99, "ttft": "200ms", "tpot": "20ms"},
    {"name": "whole", "target": 0.9, "e2e": "2s", "aborts": "ignore"},
]
TWO_ENGINES = (
    "--data-parallel-size", "2", "--api-server-count", "1", "--block-size", "32", "--num-gpu-blocks-override", "36",
    "--max-num-seqs", "12", "--max-num-batched-tokens", "256", "--max-num-queued-reqs", "24", "--enable-lora", "--max-lora-rank", "8",
    "--max-loras", "1", "--enable-mfu-metrics", "--kv-cache-metrics", "--kv-cache-metrics-sample", "1.0",
    "--enable-logging-iteration-details",
)  # fmt: skip
SPECULATING = (
    "--num-gpu-blocks-override",
    "400",
    "--speculative-config",
    '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}',
)
RULES = REPO / "deploy" / "prometheus" / "rules"
CONFIG = """
global: {{{{scrape_interval: 1s, evaluation_interval: 2s}}}}
rule_files: ["rules-*.yaml", "at-once.yaml"]
scrape_configs:
  - job_name: vllm
    static_configs:
      - targets: ["localhost:{two}"]
        labels: {{{{cluster: here, namespace: prod, pod: two-0}}}}
      - targets: ["localhost:{one}"]
  - job_name: native
    static_configs:
      - targets: ["localhost:{two_native}", "localhost:{one_native}"]
        labels: {{{{cluster: here, namespace: prod}}}}
"""
AT_ONCE = """
groups:
  - name: at-once
    rules:
      - alert: VllmAtOnce
        expr: max by (cluster, namespace, instance, model_name, engine) (vllm_engine_up) == 1
        labels: {severity: info}
"""
"""An alert that fires: real ones wait longer than a test should."""


class Stores(NamedTuple):
    """A Prometheus that scraped, and what a collector forwarded to."""

    scraped: Prometheus
    pushed: VictoriaMetrics


class Watched:
    """Two servers, what watches them, and when that began, Unix seconds."""

    def __init__(self, stores: Stores, servers: Sequence[VllmServer], driver: stub.Driver | None) -> None:
        self.stores, self.begun = stores, time.time()
        self._servers, self._driver = servers, driver

    def provoke(self) -> None:
        """Let everything happen."""
        with _working(self._driver):
            asyncio.run(_provoke(*self._servers))


@contextlib.contextmanager
def watched(model: Path, home: Path) -> Iterator[Watched]:
    """Run two servers, on which nothing has happened yet, and what watches them."""
    driver = stub.Driver(home) if stub.COMPILER else None
    pushed = VictoriaMetrics()
    with contextlib.ExitStack() as stack:
        rotel = Rotel(pushed, home)
        servers = [
            _two_engines(model, home, _environment(driver, rotel, "two")),
            VllmServer(model, args=SPECULATING, env=_environment(driver, rotel, "one")),
        ]
        scraped = stack.enter_context(_prometheus(home, *servers))
        stack.enter_context(pushed.running(home))
        stack.callback(rotel.kill)
        rotel.start()
        if driver is not None:
            for index in range(2):
                driver.plug(index)
        stack.enter_context(started(*servers))
        if driver is not None:
            for index in range(2):
                driver.say({f"{index}.processes": "".join(f"{server.pid}:{5_000_000} " for server in servers)})
        yield Watched(Stores(scraped, pushed), servers, driver)


def _environment(driver: stub.Driver | None, rotel: Rotel, name: str) -> dict[str, str]:
    shown = {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{rotel.endpoint('http')}/v1/metrics", "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id={name},k8s.cluster.name=here,k8s.namespace.name=prod",
        "VITALS_OTLP__INCLUDE_NATIVE": "true", "VLLM_SERVER_DEV_MODE": "1", "VITALS_SLOS": json.dumps(SLOS), "VITALS_EXEMPLARS": "true",
        "VITALS_PRICE__PER_GPU_HOUR": "2.5", "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
    }  # fmt: skip
    if driver is None:
        return shown
    library = stub.build(driver.file.parent).parent
    paths = [str(library), numa_library_path().get("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))]
    return {
        **shown, **driver.variables, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
    }  # fmt: skip


def _two_engines(model: Path, home: Path, environment: Mapping[str, str]) -> VllmServer:
    modules = [f"{name}={path}" for name, path in make_adapters(home / "adapters").items()]
    return VllmServer(model, args=(*TWO_ENGINES, "--lora-modules", *modules), env=environment)


@contextlib.contextmanager
def _prometheus(home: Path, two: VllmServer, one: VllmServer) -> Iterator[Prometheus]:
    config = CONFIG.format(
        rules=RULES, two=two.vitals_port, one=one.vitals_port, two_native=two.port, one_native=one.port
    )
    _write_rules(home)
    running = Prometheus(home, 0, config)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(timeout=20)


def _write_rules(home: Path) -> None:
    """Write the rules that are checked in, each to be evaluated as often as the shortest of them, and one more."""
    for path in RULES.glob("*.yaml"):
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        for group in found["groups"]:
            group.pop("interval", None)
        (home / f"rules-{path.name}").write_text(yaml.safe_dump(found))
    (home / "at-once.yaml").write_text(AT_ONCE)


@contextlib.contextmanager
def _working(driver: stub.Driver | None) -> Iterator[None]:
    """Let the counters of the GPUs grow meanwhile, and something keep their clocks down."""
    ended = threading.Event()

    def work() -> None:
        energy, started = 1_000_000, time.monotonic()
        while driver is not None and not ended.wait(0.5):
            passed = time.monotonic() - started
            for index in range(2):
                moved = 1000 + int(passed * 1e5)
                links = {f"{index}.field.{field}.{stub.EVERY_LINK}": moved for field in (138, 139)}
                driver.say({f"{index}.energy": energy + int(passed * 400_000), f"{index}.reasons": 0x4, **links})

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        yield
    finally:
        ended.set()
        worker.join(10)


async def _provoke(two: VllmServer, one: VllmServer) -> None:
    """Plain load with clients that leave, adapters, speculation, overload, an abort of everything, sleep, rest.

    Sampling is not seeded: on a CPU that ends vLLM's worker where a prompt is prefilled in chunks.
    """
    filling = asyncio.create_task(_ramp(one, 24))
    await asyncio.gather(
        run_load(two.url, count=45, concurrency=8, seed=1, seeded=False),
        _burst(one, 6, prompt=[7, 8, 9, 10] * 20, max_tokens=250, temperature=0),
    )
    await asyncio.gather(_burst(two, 4, model="red"), _burst(two, 4, model="blue"))
    for _ in range(3):  # blocks that are used again and again, until the overload evicts them
        await _burst(two, 4, prompt=[3] * 200, max_tokens=8)
    await _burst(two, 70, max_tokens=300)
    aborted = asyncio.create_task(_burst(two, 6, max_tokens=900))
    await asyncio.sleep(1.5)
    await _post(two, "/pause?mode=abort")
    await aborted
    await _post(two, "/resume")
    await _post(two, "/sleep?level=1")
    await asyncio.sleep(4)
    await _post(two, "/wake_up")
    await run_load(two.url, count=13, disconnects=False, seed=2, seeded=False)
    await filling
    await asyncio.sleep(4)


async def _ramp(server: VllmServer, seconds: float) -> None:
    """Put more and more requests in, so that the KV cache fills steadily."""
    end = time.monotonic() + seconds

    async def again_and_again() -> None:
        while time.monotonic() < end:
            await _burst(server, 1, max_tokens=600)

    async with asyncio.TaskGroup() as group:
        while time.monotonic() < end:
            group.create_task(again_and_again())
            await asyncio.sleep(0.6)


async def _burst(server: VllmServer, count: int, **body: Any) -> None:
    """Send completions at once; refused ones count as answered."""
    ask = {"model": "tiny", "max_tokens": 150, "ignore_eos": True} | body
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(server.url, connector=connector) as session:

        async def one(number: int) -> None:
            prompt = ask.get("prompt") or [2 + number, *[5] * 39]
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post("/v1/completions", json=ask | {"prompt": prompt}) as answer:
                    await answer.read()

        await asyncio.gather(*map(one, range(count)))


async def _post(server: VllmServer, path: str) -> None:
    def post() -> None:
        urllib.request.urlopen(urllib.request.Request(f"{server.url}{path}", method="POST"), timeout=60).close()

    await asyncio.to_thread(post)
