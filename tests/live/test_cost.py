"""GPU time, energy, money and utilization of a real vLLM, beside a driver that says what is known here."""

import asyncio
import math
import threading
import time
import urllib.request

import pytest

from tests.live.layouts import WATTS, Shared
from tests.live.load import put_load, together
from tests.live.pages import eventually, read, settled
from tests.live.server import VllmServer
from tests.parity import Samples, parse, value
from tests.unit.nvml import stub
from vllm_vitals.catalog.cost import STATES

GPU_TIME, ENERGY, COST = (
    "vllm_engine_gpu_time_seconds_total",
    "vllm_engine_energy_joules_total",
    "vllm_engine_cost_total",
)
PER_SECOND = 0.001
"""Euros for a second of a GPU, at 3.6 for an hour."""
LATE = 1.5
"""Seconds by which a page may be behind what an engine does, on a crowded machine."""
SAMPLED = 4.0
"""Seconds by which energy may be behind time, of which there is a sample each second."""
FADE = 30.0
"""Seconds after which an amount counts for a third in a utilization."""


@pytest.fixture(scope="module")
def server(roomy: Shared) -> VllmServer:
    if not stub.COMPILER:
        pytest.skip("there is no C compiler here (cc) to build the stub of NVIDIA's library with")
    return roomy.server


def page(server: VllmServer) -> Samples:
    return parse(server.vitals_text())


def by_state(samples: Samples, name: str) -> dict[str, float]:
    return {state: value(samples, name, state=state) for state in STATES}


def grown(now: Samples, name: str, before: Samples) -> dict[str, float]:
    old, new = by_state(before, name), by_state(now, name)
    return {state: new[state] - old[state] for state in STATES}


def post(server: VllmServer, path: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{server.url}{path}", method="POST"), timeout=60) as answer:
        assert answer.status == 200


def test_all_time_is_counted_and_priced(server: VllmServer) -> None:
    native, before, begun = parse(server.metrics_text()), read(server), time.monotonic()
    assert set(asyncio.run(together(server, 24, prompt=50, max_tokens=200))) == {200}
    worked = time.monotonic() - begun
    time.sleep(4.0)
    after = read(server)
    spent, (least, most) = grown(after.page, GPU_TIME, before.page), after.since(before)
    assert value(before.page, "vllm_engine_gpus") == 1
    assert least - LATE <= sum(spent.values()) <= most + LATE
    # As long as one of the requests, which ran together, and no longer than their client waited.
    assert inference(parse(server.metrics_text()), native) <= spent["busy"] <= worked + LATE
    assert spent["idle"] >= 4.0 - LATE
    assert spent["asleep"] == 0
    assert grown(after.page, COST, before.page) == pytest.approx(
        {state: seconds * PER_SECOND for state, seconds in spent.items()}, rel=5e-4, abs=1e-9
    )
    assert {dict(labels)["currency"] for labels in after.page[COST]} == {"EUR"}
    assert value(before.page, "vllm_gpu_price_per_hour", currency="EUR") == 3.6


def inference(now: Samples, before: Samples) -> float:
    """Return the seconds for which a request was in the engine, the mean of those that ended in between."""
    seconds, count = (
        value(now, name) - value(before, name)
        for name in (f"vllm:request_inference_time_seconds_{end}" for end in ("sum", "count"))
    )
    return seconds / count


def test_the_energy_is_what_the_gpu_used_whatever_the_engine_did(server: VllmServer) -> None:
    before = read(server)
    assert set(asyncio.run(together(server, 24, prompt=50, max_tokens=200))) == {200}
    time.sleep(4.0)
    after = read(server)
    used, (least, most) = grown(after.page, ENERGY, before.page), after.since(before)
    spent = grown(after.page, GPU_TIME, before.page)
    # A sample each second, and each counts once it is known what the engine did until then.
    assert WATTS * (least - SAMPLED) <= sum(used.values()) <= WATTS * (most + SAMPLED)
    assert used["busy"] == pytest.approx(WATTS * spent["busy"], abs=SAMPLED * WATTS)
    assert used["idle"] == pytest.approx(WATTS * spent["idle"], abs=SAMPLED * WATTS)
    assert value(after.page, "hw_energy_joules_total") >= sum(by_state(after.page, ENERGY).values()) - 1e-6


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
    saved = "vllm_prefix_cache_saved_prefill_seconds_total"
    before = settled(server)[1]
    for _ in range(2):  # the second time they are all in the cache
        assert set(asyncio.run(together(server, 8, prompt=600, max_tokens=2))) == {200}
    ours = settled(server)[1]
    assert value(ours, saved) > value(before, saved)
    assert value(ours, "vllm_prefix_cache_saved_cost_total") == pytest.approx(value(ours, saved) * PER_SECOND)


def test_an_engine_that_sleeps_holds_its_gpus(server: VllmServer) -> None:
    before = read(server)
    begun = time.monotonic()
    post(server, "/sleep?level=1")
    slept = time.monotonic()
    time.sleep(4.0)
    least = time.monotonic() - slept
    post(server, "/wake_up")
    most = time.monotonic() - begun
    assert eventually(lambda: value(page(server), "vllm_engine_sleep", state="awake") == 1)
    time.sleep(SAMPLED)  # until the sampler has seen the end of it
    after = page(server)
    asleep = grown(after, GPU_TIME, before.page)["asleep"]
    assert least - LATE <= asleep <= most + LATE
    assert grown(after, COST, before.page)["asleep"] == pytest.approx(asleep * PER_SECOND)
    assert grown(after, ENERGY, before.page)["asleep"] == pytest.approx(WATTS * asleep, abs=SAMPLED * WATTS)


def test_settings_stand_in_for_what_is_not_known(optional: Shared) -> None:
    put_load(optional.server, count=12, seeded=False)
    assert eventually(lambda: value(page(optional.server), "vllm_perf_mfu_ratio") > 0)
    ours = page(optional.server)
    assert value(ours, "vllm_perf_flops_limit_per_second") == 2e11
    assert value(ours, "vllm_perf_memory_traffic_limit_bytes_per_second") == 5e10
    assert sum(by_state(ours, GPU_TIME).values()) > 0
    assert not [name for name in ours if name in {COST, ENERGY} or "saved_cost" in name or "price" in name]
