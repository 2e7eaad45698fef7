"""What limits a real engine, how much more it takes, whether all its time is counted, and who hung up on it."""

import asyncio
import contextlib
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.live.model import VOCAB
from tests.live.pages import eventually
from tests.live.server import VllmServer
from tests.parity import parse, value
from vllm_vitals.catalog.engine import LIMITED
from vllm_vitals.collector.headroom import MEMORY

NAME = "vllm_engine_limited_duration_seconds_total"
ABANDONED = "vllm_requests_abandoned_total"
LIMITERS = LIMITED.labels[0].values
SEQUENCES = 4
"""Most requests in a batch, where some shall have to wait."""
FILLING = 96
"""Requests that fill a KV cache slowly enough to foretell when it is full, which takes a quarter of a minute."""
CASES = [
    ("max_num_seqs", ("--max-num-seqs", "2"), {"prompt": 20, "max_tokens": 150}, 24),
    # At every third step both leave the batch, and others take their places before the next.
    ("max_num_seqs", ("--max-num-seqs", "2"), {"prompt": 20, "max_tokens": 3}, 400),
    ("token_budget", ("--max-num-batched-tokens", "64", "--max-num-seqs", "64"), {"prompt": 600, "max_tokens": 2}, 24),
    ("kv_cache", ("--num-gpu-blocks-override", "9", "--max-num-seqs", "64"), {"prompt": 300, "max_tokens": 300}, 24),
]
"""What limits, the options that make it so, what is asked, and how often."""


def limited(server: VllmServer) -> dict[str, float]:
    page = parse(server.vitals_text())
    return {name: value(page, NAME, limiter=name) for name in LIMITERS}


def running(server: VllmServer) -> float:
    return value(parse(server.vitals_text()), "vllm_engine_requests_running")


def waiting(server: VllmServer) -> float:
    return value(parse(server.vitals_text()), "vllm_engine_requests_waiting", reason="capacity")


def idle(server: VllmServer) -> bool:
    return running(server) == waiting(server) == 0


async def complete(session: aiohttp.ClientSession, seed: int, *, prompt: int, **body: Any) -> int:
    tokens = random.Random(seed).choices(range(2, VOCAB), k=prompt)
    ask = {"model": "tiny", "prompt": tokens, "ignore_eos": True, **body}
    async with session.post("/v1/completions", json=ask) as answer:
        await answer.read()
        return answer.status


async def together(server: VllmServer, count: int, **asked: Any) -> list[int]:
    async with aiohttp.ClientSession(server.url) as session:
        return await asyncio.gather(*(complete(session, seed, **asked) for seed in range(count)))


async def hang_up(session: aiohttp.ClientSession, seed: int) -> None:
    """Leave after the first token."""
    tokens = random.Random(seed).choices(range(2, VOCAB), k=500)
    ask = {"model": "tiny", "prompt": tokens, "max_tokens": 500, "ignore_eos": True, "stream": True}
    async with session.post("/v1/completions", json=ask) as answer:
        async for line in answer.content:
            if line.startswith(b"data:"):
                break
        answer.close()


async def some_leave(server: VllmServer) -> None:
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(server.url, connector=connector) as session:
        staying = [complete(session, seed, prompt=50, max_tokens=20) for seed in range(4)]
        leaving = [hang_up(session, 100 + seed) for seed in range(3)]
        await asyncio.gather(*staying, *leaving)


async def some_leave_the_queue(server: VllmServer) -> None:
    """Fill the engine for some seconds, so that who comes then leaves without a token."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(server.url, connector=connector) as session:
        staying = [asyncio.create_task(complete(session, seed, prompt=50, max_tokens=600)) for seed in range(SEQUENCES)]
        assert await asyncio.to_thread(eventually, lambda: running(server) == SEQUENCES)
        leaving = [asyncio.create_task(complete(session, 200 + seed, prompt=50, max_tokens=20)) for seed in range(3)]
        assert await asyncio.to_thread(eventually, lambda: waiting(server) == 3)
        for each in leaving:
            each.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert set(await asyncio.gather(*staying)) == {200}


@pytest.mark.parametrize(
    ("expected", "arguments", "asked", "count"), CASES, ids=[f"{name}-{count}" for name, _, _, count in CASES]
)
def test_the_limit_that_was_set_is_the_one_that_shows(
    expected: str, arguments: tuple[str, ...], asked: dict[str, int], count: int, model: Path
) -> None:
    with VllmServer(model, args=(*arguments, "--no-enable-prefix-caching")) as server:
        begun, before = time.monotonic(), limited(server)
        assert set(asyncio.run(together(server, count, **asked))) == {200}
        assert eventually(lambda: idle(server))
        after, ended = limited(server), time.monotonic()
        spent = {name: after[name] - before[name] for name in LIMITERS}
        kept_out = {name: spent[name] for name in LIMITERS if name not in {"none", "idle", "asleep"}}
        assert kept_out[expected] >= 0.8 * sum(kept_out.values()), spent
        assert kept_out[expected] >= 0.3, spent
        # Every second is counted once, up to the steps of the latest moment.
        assert sum(spent.values()) == pytest.approx(ended - begun, abs=0.5)
        page = parse(server.vitals_text())
        # All requests were alike, and an idle engine without a prefix cache has all of its KV cache to give away.
        room = value(page, "vllm_kv_cache_capacity") / (asked["prompt"] + asked["max_tokens"])
        assert value(page, "vllm_kv_cache_free_sequences") == pytest.approx(room)
        # At the least it was 1 while requests were kept out and 0 after that, at the most 1 for as long as any were there.
        out, whole = sum(kept_out.values()), time.monotonic() - begun
        least = (1 - math.exp(-out / MEMORY)) * math.exp(-(whole - out) / MEMORY)
        most = 1 - math.exp(-(out + spent["none"]) / MEMORY)
        assert least - 0.01 <= value(page, "vllm_engine_saturation_ratio") <= most + 0.01


async def until_full(server: VllmServer) -> list[tuple[float, float, float]]:
    """Let requests of random lengths write until the KV cache is full; return moments, shares in use, and forecasts."""
    seen = []
    async with aiohttp.ClientSession(server.url) as session:
        asked = [complete(session, seed, prompt=10 + seed, max_tokens=1900) for seed in range(FILLING)]
        writing = asyncio.ensure_future(asyncio.gather(*asked, return_exceptions=True))
        while not writing.done():
            page = parse(await asyncio.to_thread(server.vitals_text))
            used, ahead = value(page, "vllm_kv_cache_usage_ratio"), value(page, "vllm_kv_cache_time_to_full_seconds")
            seen.append((time.monotonic(), used, ahead))
            if used > 0.97:
                break
            await asyncio.sleep(0.5)
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writing
    return seen


def test_when_the_kv_cache_will_be_full_is_told_before_it_is(model: Path) -> None:
    blocks = str(FILLING * 1700 // 128)
    arguments = ("--max-model-len", "2048", "--max-num-seqs", str(FILLING), "--num-gpu-blocks-override", blocks)
    with VllmServer(model, args=(*arguments, "--block-size", "128", "--no-enable-prefix-caching")) as server:
        seen = asyncio.run(until_full(server))
        full, used, _ = seen[-1]
        assert used > 0.97, seen
        begun = next(moment for moment, used, _ in seen if used > 0)
        told = [(moment, ahead) for moment, _, ahead in seen if not math.isnan(ahead)]
        assert full - begun > 20, "it filled too fast to foretell anything"
        assert len(told) >= 5, seen
        wrong = [abs(moment + ahead - full) for moment, ahead in told]
        assert statistics.median(wrong) < 0.3 * (full - begun), seen
        assert eventually(lambda: idle(server))
        assert math.isnan(value(parse(server.vitals_text()), "vllm_kv_cache_time_to_full_seconds"))


@pytest.mark.parametrize("servers", [1, 2])
def test_who_leaves_after_the_first_token_is_counted_and_nobody_else(servers: int, model: Path) -> None:
    with VllmServer(
        model, args=(f"--max-num-seqs={SEQUENCES}", "--api-server-count", str(servers), "--no-enable-prefix-caching")
    ) as server:
        asyncio.run(some_leave(server))
        assert eventually(lambda: value(parse(server.vitals_text()), ABANDONED) == 3), server.vitals_text()
        asyncio.run(some_leave_the_queue(server))
        asyncio.run(together(server, 5, prompt=50, max_tokens=20))
        assert eventually(lambda: idle(server))
        time.sleep(5.0)  # it has had time to count too many
        page = parse(server.vitals_text())
        assert value(page, ABANDONED) == 3
        assert value(page, "vllm_requests_finished_total", finish_reason="length") == 4 + SEQUENCES + 5
