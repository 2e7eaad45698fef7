"""A real vLLM is overloaded: alerts fire, arrive where they are sent, read well, and end with the load."""

import asyncio
import contextlib
import json
import math
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.live.alerting import Alertmanager, Receiver
from tests.live.layouts import Shared
from tests.live.model import VOCAB
from tests.live.pages import eventually, took, until
from tests.live.prometheus import Prometheus
from tests.live.server import MODEL_NAME, VllmServer, fetch
from tests.parity import parse, value
from tests.unit.nvml import stub
from vllm_vitals.catalog import CATALOG
from vllm_vitals.mixin.rules import RulesConfig, files
from vllm_vitals.vllm_page import counterparts as native

CONFIG = """
global: {{{{scrape_interval: 1s, evaluation_interval: 1s}}}}
rule_files: ["{rules}/*.yaml"]
alerting:
  alertmanagers: [static_configs: [targets: ["127.0.0.1:{alertmanager}"]]]
scrape_configs:
  - job_name: vllm
    static_configs: [{{{{targets: ["localhost:{{port}}"]}}}}]
  - job_name: native
    static_configs: [{{{{targets: ["localhost:{native}"]}}}}]
"""
RULES = {
    "runbooks": "https://runbooks.example.com/",
    "slo": {
        "burns": [{"long": "30s", "short": "10s", "factor": 14.4, "for": "2s", "severity": "critical"}],
        "floor": 5,
    },
    "engine": {"stalled": {"after": "5s", "for": "1s"}},
    "capacity": {"queue_growing": {"window": "10s", "floor": 5, "for": "2s"}},
}
"""Hours are seconds here; what is not listed is as it is by default."""
BURN, QUEUE, STALLED = "VllmSloBudgetBurn", "VllmQueueGrowing", "VllmEngineStalled"
EMPTY = {
    "vllm_kv_cache_time_to_full_seconds": "there is none while the cache does not fill",
}
"""What rules ask for and is not there, and why."""
NAME = re.compile(r"[\w:]+")
SELECTOR = re.compile(r"\b(?:(?:vllm|vitals|hw)[\w:]+|up)\b(?:\{[^}]*\})?")
NAMES = {each.prometheus + suffix for each in CATALOG for suffix in ("", "_bucket")} | native.NAMES | {"up"}
WITHOUT_GPUS = re.compile(r"^(hw_|vllm_gpu_|vllm_engine_energy|model\w*:vllm_engine_energy)")


class Watched(NamedTuple):
    """A server, and who is told of it."""

    server: VllmServer
    prometheus: Prometheus
    receiver: Receiver


@pytest.fixture(scope="module")
def watched(narrow: Shared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    home, server = tmp_path_factory.mktemp("alerts"), narrow.server
    rules = home / "rules"
    rules.mkdir()
    for name, text in files(RulesConfig.model_validate(RULES)).items():
        (rules / name).write_text(text)
    with Receiver() as receiver, Alertmanager(home, receiver.url) as alertmanager:
        config = CONFIG.format(rules=rules, alertmanager=alertmanager.port, native=server.port)
        prometheus = Prometheus(home, server.vitals_port, config)
        try:
            yield Watched(server, prometheus, receiver)
        finally:
            prometheus.process.terminate()
            prometheus.process.wait(timeout=20)


async def ask(session: aiohttp.ClientSession, tokens: int, rng: random.Random) -> None:
    body = {
        "model": MODEL_NAME,
        "prompt": [rng.randrange(2, VOCAB) for _ in range(50)],
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    async with session.post("/v1/completions", json=body) as response:
        assert response.status == 200
        await response.read()


@contextlib.asynccontextmanager
async def flood(url: str, every: float) -> AsyncIterator[None]:
    """Send a request each so many seconds, whether those before are done or not; leave all at the end."""
    rng = random.Random(0)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        sent: list[asyncio.Task[None]] = []

        async def send() -> None:
            while True:
                sent.append(asyncio.create_task(ask(session, 75, rng)))
                await asyncio.sleep(every)

        sending = asyncio.create_task(send())
        try:
            yield
        finally:
            for each in (sending, *sent):
                each.cancel()
            await asyncio.gather(sending, *sent, return_exceptions=True)


async def one_by_one(url: str, seconds: float) -> None:
    rng, end = random.Random(1), time.monotonic() + seconds
    async with aiohttp.ClientSession(url) as session:
        while time.monotonic() < end:
            await ask(session, 8, rng)
            await asyncio.sleep(0.1)


async def overloaded(watched: Watched) -> float:
    """Overload the server until both alerts have arrived; return the longest queue that was seen by then, and after it."""
    longest = 0.0
    async with flood(watched.server.url, every=0.05):
        for _ in until(120):
            arrived = all(watched.receiver.heard(name, "firing") for name in (BURN, QUEUE))
            page = parse(await asyncio.to_thread(watched.server.vitals_text))
            longest = max(longest, value(page, "vllm_engine_requests_waiting", reason="capacity"))
            if arrived:
                break
            await asyncio.sleep(0.25)
    return longest


def test_alerts_fire_under_overload_and_end_with_it(watched: Watched) -> None:
    server, prometheus, receiver = watched
    bad = 'model_slo:vllm_slo_requests_bad_per_requests:ratio_rate10s{slo="chat"}'
    asyncio.run(one_by_one(server.url, 12))
    assert receiver.alerts == []
    assert prometheus.query(bad) == 0

    longest = asyncio.run(overloaded(watched))
    # Where a slow machine ends fewer requests than the floor for a while, the alert does, and fires anew.
    (burn, *_), (queue, *_) = (receiver.heard(name, "firing") for name in (BURN, QUEUE))
    assert burn["labels"] == {
        "alertname": BURN, "severity": "critical", "job": "vllm", "model_name": "tiny", "slo": "chat",
        "long": "30s", "short": "10s", "factor": "14.4",
    }  # fmt: skip
    told = re.fullmatch(
        r"([\d.]+)% of the requests to tiny in the last 30s missed the SLO chat \(target: 99%\), job vllm", burn["annotations"]["summary"]
    )  # fmt: skip
    assert told, burn
    assert 14.4 < float(told[1]) <= 100
    assert burn["annotations"]["runbook_url"] == "https://runbooks.example.com/VllmSloBudgetBurn.md"
    assert queue["labels"] == {
        "alertname": QUEUE, "severity": "warning", "job": "vllm", "instance": f"localhost:{server.vitals_port}",
        "model_name": "tiny", "engine": "0",
    }  # fmt: skip
    told = re.fullmatch(
        rf"(\d+) requests wait for room in engine 0 of tiny, and ever more for 10s, job vllm, instance localhost:{server.vitals_port}",
        queue["annotations"]["summary"],
    )
    assert told, queue
    # The queue only grows, but for those that are let in while the client is kept from sending more.
    assert 5 < float(told[1]) <= longest + 20
    for each in (burn, queue):
        assert re.search(r"Look first at:\n1\. .+\n2\. .+\n3\. .+$", each["annotations"]["description"])
        assert "{{" not in json.dumps(each["annotations"])
        assert "<no value>" not in json.dumps(each["annotations"])

    for _ in range(20):
        asyncio.run(one_by_one(server.url, 3))
        if receiver.latest(BURN) == receiver.latest(QUEUE) == "resolved":
            break
    assert receiver.latest(BURN) == receiver.latest(QUEUE) == "resolved"
    assert {each["labels"]["alertname"] for each in receiver.alerts} == {BURN, QUEUE}


def test_a_stalled_engine_is_told_from_an_idle_one(watched: Watched) -> None:
    """Its process is stopped in the middle of work, and goes on; before that all clients leave, and there is no work."""
    server, _, receiver = watched

    async def leave() -> None:
        async with flood(server.url, every=0.2):
            await asyncio.sleep(2)

    asyncio.run(leave())
    time.sleep(9)
    assert receiver.heard(STALLED, "firing") == []

    (core,) = engine_cores(server)

    async def stop() -> float:
        """Return the seconds for which it was stopped."""
        async with flood(server.url, every=0.2):
            await asyncio.sleep(2)
            os.kill(core, signal.SIGSTOP)
            try:
                return await asyncio.to_thread(lambda: took(lambda: bool(receiver.heard(STALLED, "firing")), 60))
            finally:
                os.kill(core, signal.SIGCONT)

    stopped = asyncio.run(stop())
    (stalled,) = receiver.heard(STALLED, "firing")
    assert stalled["labels"]["severity"] == "critical"
    where = f"job vllm, instance localhost:{server.vitals_port}"
    told = re.fullmatch(
        rf"Engine 0 of tiny has requests and has made no step for ([\d.]+)s, {where}", stalled["annotations"]["summary"]
    )
    assert told, stalled
    # Its last step was a little before it was stopped, on a crowded machine some seconds.
    assert 5 < float(told[1]) < stopped + 5
    assert eventually(lambda: bool(receiver.heard(STALLED, "resolved")))


def engine_cores(server: VllmServer) -> list[int]:
    """Return the processes of a server in which its engines are."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text(errors="replace").partition("(")[2].rpartition(")")
            if name.startswith("VLLM::Engine") and int(rest.split()[2]) == server.pid:
                found.append(int(stat.parent.name))
    return found


def test_every_rule_was_evaluated_without_a_fault(watched: Watched) -> None:
    found = evaluated(watched)
    assert len(found) > 60
    assert [(rule["name"], rule.get("lastError")) for rule in found if rule["health"] != "ok"] == []


def test_what_rules_ask_for_and_what_they_record_is_there(watched: Watched) -> None:
    asked = {
        name for rule in evaluated(watched) for name in SELECTOR.findall(rule["query"]) if NAME.match(name)[0] in NAMES
    }
    recorded = {rule["name"] for rule in evaluated(watched) if rule["type"] == "recording"}
    assert len(asked) > 40
    assert len(recorded) > 15
    empty = {each for each in asked | recorded if math.isnan(watched.prometheus.query(f"last_over_time({each}[10m])"))}
    unexpected = {
        each for each in empty if NAME.match(each)[0] not in EMPTY and (stub.COMPILER or not WITHOUT_GPUS.match(each))
    }
    assert unexpected == set()
    assert {NAME.match(each)[0] for each in asked} >= set(EMPTY), "the list names what no rule asks for"


def evaluated(watched: Watched) -> list[dict[str, Any]]:
    answer = json.loads(fetch(f"http://127.0.0.1:{watched.prometheus.port}/api/v1/rules"))
    return [rule for group in answer["data"]["groups"] for rule in group["rules"]]
