"""What limits a real engine, how much more it takes, whether all its time is counted, and who hung up on it."""

import asyncio
import math
import random
import statistics
import time

import aiohttp
import pytest

from tests.live.fleet import Fleet
from tests.live.layouts import BLOCK, BLOCKS, NARROW, SEQUENCES, Deployment, Shared
from tests.live.load import complete, together
from tests.live.model import VOCAB
from tests.live.pages import eventually, idle, read, running, settled, until, waiting
from tests.live.server import VllmServer
from tests.parity import Samples, parse, value
from vllm_vitals.catalog.engine import LIMITED
from vllm_vitals.engine.headroom import AVERAGING_SECONDS, RECENT_REQUESTS

NAME = "vllm_engine_limited_duration_seconds_total"
ABANDONED = "vllm_requests_abandoned_total"
FINISHED = "vllm_requests_finished_total"
LIMITERS = LIMITED.labels[0].values
FILLING, LONG = 32.0, 1000
"""Seconds for which a KV cache fills, as a forecast takes a quarter of a minute, and tokens of the prompts that fill it."""
LATE = 4.0
"""Seconds by which a page may be behind what an engine does, on a crowded machine."""
CASES = [
    ("kv_cache", "tight", {"prompt": 300, "max_tokens": 300}, 24),
    ("max_num_seqs", "narrow", {"prompt": 20, "max_tokens": 150}, 24),
    # At every third step both leave the batch, and others take their places before the next.
    ("max_num_seqs", "narrow", {"prompt": 20, "max_tokens": 3}, 400),
    # One and a part of another have room in a step's tokens; 16 in the batch and 5 in the KV cache.
    ("token_budget", "optional", {"prompt": 200, "max_tokens": 1}, 150),
]
"""What limits, the server on which it does, what is asked, and how often."""


def spent(page: Samples) -> dict[str, float]:
    return {name: value(page, NAME, limiter=name) for name in LIMITERS}


def length(page: Samples) -> float:
    """Return the tokens that a page takes for what a request needs; NaN before any has finished."""
    return value(page, "vllm_kv_cache_capacity") / value(page, "vllm_kv_cache_free_sequences")


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


async def some_leave_the_queue(server: VllmServer, places: int) -> None:
    """Fill the places of the engine for some seconds, so that who comes then leaves without a token."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(server.url, connector=connector) as session:
        staying = [asyncio.create_task(complete(session, seed, prompt=50, max_tokens=600)) for seed in range(places)]
        assert await asyncio.to_thread(eventually, lambda: running(server) == places)
        leaving = [asyncio.create_task(complete(session, 200 + seed, prompt=50, max_tokens=20)) for seed in range(3)]
        assert await asyncio.to_thread(eventually, lambda: waiting(server) == 3)
        for each in leaving:
            each.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert set(await asyncio.gather(*staying)) == {200}


@pytest.mark.parametrize(
    ("expected", "layout", "asked", "count"), CASES, ids=[f"{each[0]}-{each[3]}" for each in CASES]
)
def test_the_limit_that_was_set_is_the_one_that_shows(
    expected: str, layout: str, asked: dict[str, int], count: int, fleet: Fleet
) -> None:
    shared: Shared = fleet.get(layout)
    server = shared.server
    settled(server, apart=shared.apart)
    before = read(server)
    assert set(asyncio.run(together(server, count, **asked))) == {200}
    assert eventually(lambda: idle(server))
    after = read(server)
    least, most = after.since(before)
    took = {name: seconds - spent(before.page)[name] for name, seconds in spent(after.page).items()}
    kept_out = {name: took[name] for name in LIMITERS if name not in {"none", "idle", "asleep"}}
    assert kept_out[expected] >= 0.6 * sum(kept_out.values()), took
    assert kept_out[expected] >= 0.3, took
    # Every second is counted once, up to the steps of the latest moment.
    assert least - LATE <= sum(took.values()) <= most + LATE
    # All requests were alike; an idle engine has all of its KV cache to give away, and remembers older ones less.
    alike, older = asked["prompt"] + asked["max_tokens"], length(before.page)
    usual = alike if math.isnan(older) else alike + math.exp(-count / RECENT_REQUESTS) * (older - alike)
    assert length(after.page) == pytest.approx(usual)
    # At the least it was 1 while requests were kept out and 0 after that, at the most 1 for as long as any were there.
    name = "vllm_engine_saturation_ratio"
    out, whole = sum(kept_out.values()), most + LATE
    faded = math.exp(-(least - LATE) / AVERAGING_SECONDS) * value(before.page, name)
    lowest = (1 - math.exp(-out / AVERAGING_SECONDS)) * math.exp(-(whole - out) / AVERAGING_SECONDS)
    highest = 1 - math.exp(-(out + took["none"] + LATE) / AVERAGING_SECONDS) + faded
    assert lowest - 0.01 <= value(after.page, name) <= highest + 0.01


async def until_full(server: VllmServer) -> list[tuple[float, float, float]]:
    """Let more and more long prompts in until the KV cache is full; return moments, shares in use, and forecasts.

    Its use rises as evenly as that goes, on a fast machine as on a slow one.
    """
    seen: list[tuple[float, float, float]] = []
    asked: list[asyncio.Task[int]] = []
    begun = time.monotonic()
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        for _ in until(10 * FILLING, pause=0):
            page = parse(await asyncio.to_thread(server.vitals_text))
            used, ahead = value(page, "vllm_kv_cache_usage_ratio"), value(page, "vllm_kv_cache_time_to_full_seconds")
            now = time.monotonic()
            seen.append((now, used, ahead))
            if used > 0.97:
                break
            missing = (now - begun) / FILLING - (0 if math.isnan(used) else used)
            for _ in range(min(int(missing * BLOCK * BLOCKS / LONG), 4)):
                ask = complete(session, 5000 + len(asked), prompt=LONG, max_tokens=1000)
                asked.append(asyncio.create_task(ask))
            await asyncio.sleep(0.5)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    return seen


@pytest.mark.fresh  # what was a minute ago is a part of the trend
def test_when_the_kv_cache_will_be_full_is_told_before_it_is(roomy: Shared) -> None:
    server = roomy.server
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
    assert eventually(lambda: math.isnan(value(parse(server.vitals_text()), "vllm_kv_cache_time_to_full_seconds")))


def abandoned(server: VllmServer, places: int) -> None:
    """Let three leave after the first token, and others at other moments: only the three are counted."""
    before = settled(server)[1]

    def more(name: str, **labels: str) -> float:
        earlier = value(before, name, **labels)
        return value(parse(server.vitals_text()), name, **labels) - (0 if math.isnan(earlier) else earlier)

    asyncio.run(some_leave(server))
    assert eventually(lambda: more(ABANDONED) == 3), server.vitals_text()
    asyncio.run(some_leave_the_queue(server, places))
    asyncio.run(together(server, 5, prompt=50, max_tokens=20))
    assert eventually(lambda: idle(server))
    time.sleep(5.0)  # it has had time to count too many
    assert more(ABANDONED) == 3
    assert more(FINISHED, finish_reason="length") == 4 + places + 5


def test_who_leaves_after_the_first_token_is_counted_and_nobody_else(narrow: Shared) -> None:
    abandoned(narrow.server, NARROW)


def test_so_it_is_behind_two_api_servers(deployments: dict[str, Deployment]) -> None:
    abandoned(deployments["1-engine-2-servers"].server, SEQUENCES)
