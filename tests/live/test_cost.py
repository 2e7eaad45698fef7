"""GPU time, energy, money and utilization of a real vLLM, beside a driver that says what is known here."""

import asyncio
import math
import os
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import put_load
from tests.live.pages import eventually
from tests.live.server import VllmServer, numa_library_path
from tests.live.test_limits import together
from tests.parity import Samples, parse, value
from tests.unit.nvml.stub import Driver, build
from vllm_vitals.catalog.cost import STATES

GPU_TIME, ENERGY, COST = (
    "vllm_engine_gpu_time_seconds_total",
    "vllm_engine_energy_joules_total",
    "vllm_engine_cost_total",
)
PER_SECOND = 0.001
"""Euros for a second of a GPU, at 3.6 for an hour."""
WATTS = 200.0
FADE = 30.0
"""Seconds after which an amount counts for a third in a utilization."""


class Meter:
    """Lets a GPU use `WATTS` all the time, as its energy counter says."""

    def __init__(self, driver: Driver) -> None:
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


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("driver")
    build(folder)
    driver = Driver(folder)
    driver.plug(0, energy=0)
    meter = Meter(driver)
    libraries = [str(folder), *filter(None, [(numa_library_path() or os.environ).get("LD_LIBRARY_PATH")])]
    price = {"VITALS_PRICE__PER_GPU_HOUR": "3.6", "VITALS_PRICE__CURRENCY": "EUR"}
    environment = {
        **driver.variables,
        **price,
        "VLLM_SERVER_DEV_MODE": "1",
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
    }
    try:
        with VllmServer(model, args=("--enable-mfu-metrics",), env=environment) as running:
            yield running
    finally:
        meter.stop()


def page(server: VllmServer) -> Samples:
    return parse(server.vitals_text())


def by_state(samples: Samples, name: str) -> dict[str, float]:
    return {state: value(samples, name, state=state) for state in STATES}


def grown(server: VllmServer, name: str, before: Samples) -> dict[str, float]:
    old, new = by_state(before, name), by_state(page(server), name)
    return {state: new[state] - old[state] for state in STATES}


def post(server: VllmServer, path: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}{path}", method="POST"), timeout=60) as answer:
        assert answer.status == 200


def test_all_time_is_counted_and_priced(server: VllmServer) -> None:
    before, begun = page(server), time.monotonic()
    assert set(asyncio.run(together(server, 24, prompt=50, max_tokens=200))) == {200}
    worked = time.monotonic() - begun
    time.sleep(4.0)
    spent, ended = grown(server, GPU_TIME, before), time.monotonic()
    assert value(before, "vllm_engine_gpus") == 1
    assert sum(spent.values()) == pytest.approx(ended - begun, abs=0.5)
    assert spent["busy"] == pytest.approx(worked, abs=1.0)
    assert spent["idle"] >= 3.0
    assert spent["asleep"] == 0
    ours = page(server)
    costs, time_of_it = by_state(ours, COST), by_state(ours, GPU_TIME)
    assert costs == pytest.approx({state: seconds * PER_SECOND for state, seconds in time_of_it.items()}, abs=5e-4)
    assert {dict(labels)["currency"] for labels in page(server)[COST]} == {"EUR"}
    assert value(before, "vllm_gpu_price_per_hour", currency="EUR") == 3.6


def test_the_energy_is_what_the_gpu_used_whatever_the_engine_did(server: VllmServer) -> None:
    before, begun = page(server), time.monotonic()
    assert set(asyncio.run(together(server, 24, prompt=50, max_tokens=200))) == {200}
    time.sleep(4.0)
    used, ended = grown(server, ENERGY, before), time.monotonic()
    spent = grown(server, GPU_TIME, before)
    # a sample each second, and each counts once it is known what the engine did until then
    assert sum(used.values()) == pytest.approx(WATTS * (ended - begun), abs=2.5 * WATTS)
    assert used["busy"] == pytest.approx(WATTS * spent["busy"], abs=2.5 * WATTS)
    assert used["idle"] == pytest.approx(WATTS * spent["idle"], abs=2.5 * WATTS)
    ours = page(server)
    assert value(ours, "hw_energy_joules_total") >= sum(by_state(ours, ENERGY).values()) - 1e-6


def test_utilization_is_what_vllms_own_counters_make_it(server: VllmServer) -> None:
    """Average vLLM's counters as the gauges are said to, over a load of some twenty seconds."""
    put_load(server, count=4)
    seen, now, start = parse(server.metrics_text()), time.monotonic(), page(server)
    flops_limit = value(start, "vllm_perf_flops_limit_per_second")
    traffic_limit = value(start, "vllm_perf_memory_traffic_limit_bytes_per_second")
    assert (flops_limit, traffic_limit) == (67e12, 3.35e12)  # an H100's, in float32
    flops = value(start, "vllm_perf_mfu_ratio") * flops_limit
    traffic = value(start, "vllm_perf_memory_traffic_utilization_ratio") * traffic_limit
    worker = threading.Thread(target=lambda: [put_load(server, count=24, seed=seed) for seed in range(3)])
    worker.start()
    while worker.is_alive():
        worker.join(0.2)
        before, since = seen, now
        seen, now = parse(server.metrics_text()), time.monotonic()
        faded = math.exp((since - now) / FADE)
        flops = flops * faded + _estimated(seen, before, "flops") / FADE
        traffic = traffic * faded + sum(_estimated(seen, before, f"{way}_bytes") for way in ("read", "write")) / FADE
    ours = page(server)
    assert value(ours, "vllm_perf_mfu_ratio") == pytest.approx(flops / flops_limit, rel=0.1)
    shown = value(ours, "vllm_perf_memory_traffic_utilization_ratio")
    assert shown == pytest.approx(traffic / traffic_limit, rel=0.1)
    assert eventually(
        lambda: (
            value(page(server), "vllm_perf_flops_total")
            == value(parse(server.metrics_text()), "vllm:estimated_flops_per_gpu_total")
        )
    )


def _estimated(now: Samples, before: Samples, what: str) -> float:
    name = f"vllm:estimated_{what}_per_gpu_total"
    return value(now, name) - value(before, name)


def test_cached_prompts_save_money(server: VllmServer) -> None:
    for _ in range(2):  # the second time they are all in the cache
        assert set(asyncio.run(together(server, 8, prompt=600, max_tokens=2))) == {200}
    assert eventually(lambda: value(page(server), "vllm_prefix_cache_saved_prefill_seconds_total") > 0)
    ours = page(server)
    seconds = value(ours, "vllm_prefix_cache_saved_prefill_seconds_total")
    assert value(ours, "vllm_prefix_cache_saved_cost_total") == pytest.approx(seconds * PER_SECOND)


def test_an_engine_that_sleeps_holds_its_gpus(server: VllmServer) -> None:
    before = page(server)
    post(server, "/sleep?level=1")
    time.sleep(4.0)
    post(server, "/wake_up")
    assert eventually(lambda: grown(server, GPU_TIME, before)["asleep"] >= 2.5)  # told at the next drain
    time.sleep(2.5)
    asleep = grown(server, GPU_TIME, before)["asleep"]
    assert asleep == pytest.approx(4.0, abs=1.5)
    assert grown(server, COST, before)["asleep"] == pytest.approx(asleep * PER_SECOND)
    assert grown(server, ENERGY, before)["asleep"] == pytest.approx(WATTS * asleep, abs=2.5 * WATTS)


def test_settings_stand_in_for_what_is_not_known(model: Path) -> None:
    peaks = {"VITALS_PERF__PEAK_FLOPS": "2e11", "VITALS_PERF__PEAK_BANDWIDTH": "5e10"}
    with VllmServer(model, args=("--enable-mfu-metrics",), env=peaks) as server:
        put_load(server, count=12)
        assert eventually(lambda: value(page(server), "vllm_perf_mfu_ratio") > 0)
        ours = page(server)
        assert value(ours, "vllm_perf_flops_limit_per_second") == 2e11
        assert value(ours, "vllm_perf_memory_traffic_limit_bytes_per_second") == 5e10
        assert sum(by_state(ours, GPU_TIME).values()) > 0
        assert not [name for name in ours if name in {COST, ENERGY} or "saved_cost" in name or "price" in name]
