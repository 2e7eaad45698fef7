"""What comes to an idle engine and takes it one step is work, though nobody tells of it before it is over."""

import asyncio
import random

import aiohttp
import pytest

from tests.live.layouts import Shared
from tests.live.model import VOCAB
from tests.live.pages import settled
from tests.live.server import VllmServer
from tests.parity import Samples, value

REQUESTS = 80


async def one_after_another(server: VllmServer, first: int) -> None:
    """Send requests that no other is like, so that nothing of them is cached."""
    async with aiohttp.ClientSession(server.url) as session:
        for seed in range(first, first + REQUESTS):
            tokens = random.Random(seed).choices(range(2, VOCAB), k=900)
            async with session.post(
                "/v1/completions", json={"model": "tiny", "prompt": tokens, "max_tokens": 1}
            ) as answer:
                assert answer.status == 200
                await answer.read()


def spent(ours: Samples) -> dict[str, float]:
    states = ("none", "max_num_seqs", "token_budget", "kv_cache", "deferred", "idle", "asleep")
    return {state: value(ours, "vllm_engine_limited_duration_seconds_total", limiter=state) for state in states}


def test_it_is_work_for_as_long_as_vllm_says(tight: Shared) -> None:
    """Nobody reads meanwhile, not even a push: what was shown as idle while a step took longer than usual stays idle."""
    server = tight.server
    asyncio.run(one_after_another(server, 1000))  # the first takes long, and a part of it was told as idle
    native_before, before = settled(server)
    asyncio.run(one_after_another(server, 1000 + REQUESTS))
    native, ours = settled(server)
    took = {
        name: value(native, f"vllm:{name}_seconds_sum") - value(native_before, f"vllm:{name}_seconds_sum")
        for name in ("request_inference_time", "time_to_first_token")
    }
    count = "vllm:request_inference_time_seconds_count"
    assert value(native, count) - value(native_before, count) == REQUESTS
    work = spent(ours)["none"] - spent(before)["none"]
    # From when a request came to this server to its answer: longer than in the engine, and each alone in it.
    # What a page has shown as idle is not taken back: a crowded machine may make that a part of the first step.
    assert took["request_inference_time"] <= work * 1.01
    assert work <= took["time_to_first_token"] * 1.02 + 0.05
    assert {state for state, seconds in spent(ours).items() if seconds > spent(before)[state]} == {"none", "idle"}
    name = "vllm_engine_gpu_time_seconds_total"
    busy = value(ours, name, state="busy") - value(before, name, state="busy")
    assert busy == pytest.approx(work, abs=0.01)
