"""A client that measures its own latencies judges its requests as the SLOs of a real vLLM do."""

import asyncio
import random
import time
from dataclasses import dataclass
from itertools import product
from typing import Any

import aiohttp
import pytest

from tests.live.layouts import LADDER, NARROW, SLOS, TPOT, Shared
from tests.live.load import put_load
from tests.live.model import VOCAB
from tests.live.pages import eventually, faults, settled
from tests.live.server import MODEL_NAME, VllmServer
from tests.parity import Samples, parse, value

REQUESTS = "vllm_slo_requests_total"
VIOLATIONS = "vllm_slo_violations_total"
SLACK = 0.25
"""Seconds by which client and server may differ: the way between them, and the delivery of the last token."""
TRIES = 10
"""How often times are compared that other work on this machine may have changed."""


@dataclass
class Seen:
    """What the client saw of one request, seconds and tokens."""

    ttft: float
    last: float
    """When the last token came."""
    e2e: float
    tokens: int

    def verdict(self, slo: dict[str, Any]) -> str:
        """Return the outcome by the client's own clock, `""` where it is too close to tell."""
        if "tpot" in slo:
            # All tokens after the first, however many, may seem to have come so much later or earlier.
            decode, limit = self.last - self.ttft, slo["tpot"] * (self.tokens - 1)
            return "bad" if decode > limit + SLACK else "good" if decode < limit - SLACK or self.tokens == 1 else ""
        first, whole = self.ttft - slo["ttft"], self.e2e - slo["e2e"]
        if first > SLACK or whole > SLACK:
            return "bad"
        # The server's duration is a part of the client's; its time to first token is rebuilt and may be a bit longer.
        return "good" if first < -SLACK and whole < 0 else ""


@pytest.fixture(scope="module")
def server(roomy: Shared) -> VllmServer:
    return roomy.server


def page(server: VllmServer) -> Samples:
    return parse(server.vitals_text())


def judged(server: VllmServer, number: float) -> Samples:
    """Return the page once so many requests are judged."""
    samples: Samples = {}

    def all_there() -> bool:
        samples.update(page(server))
        return value(samples, REQUESTS, slo="generous") >= number

    assert eventually(all_there)
    assert value(samples, REQUESTS, slo="generous") == number
    return samples


def outcomes(samples: Samples) -> dict[tuple[str, str], float]:
    return {(name, each): value(samples, REQUESTS, slo=name, outcome=each) for name in SLOS for each in ("good", "bad")}


async def ask(url: str, prompt: int, tokens: int, rng: random.Random) -> Seen:
    """Send one request and measure it."""
    body = {"model": MODEL_NAME, "prompt": [rng.randrange(2, VOCAB) for _ in range(prompt)], "max_tokens": tokens,
            "ignore_eos": True, "stream": True, "temperature": 0}  # fmt: skip
    first = last = None
    async with aiohttp.ClientSession(url) as session:
        start = time.perf_counter()
        async with session.post("/v1/completions", json=body) as response:
            assert response.status == 200
            async for line in response.content:
                if line.startswith(b"data: {"):
                    last = time.perf_counter() - start
                    first = first or last
        whole = time.perf_counter() - start
    assert first is not None
    assert last is not None
    return Seen(first, last, whole, tokens)


def test_all_is_there_before_the_first_request(roomy: Shared) -> None:
    samples = roomy.newborn
    assert set(outcomes(samples).values()) == {0.0}
    assert value(samples, "vllm_slo_threshold_seconds", slo="generous", objective="ttft") == 3600
    assert value(samples, "vllm_slo_target_ratio", slo="generous") == 0.9


def test_each_request_is_judged_as_its_client_judges_it(server: VllmServer) -> None:
    rng = random.Random(0)
    told = {of: {"good": 0, "bad": 0} for of in ("both", "tpot")}
    sizes = [*product((4, 300, 900), (1, 2, 20, 100)), *product((4, 900), (1, 50))]
    sizes += [(4, 1000)] * 3  # long enough to be bad on a fast machine too
    start = settled(server)[1]
    before, number = outcomes(start), value(start, REQUESTS, slo="generous")
    for prompt, tokens in sizes:
        seen = asyncio.run(ask(server.url, prompt, tokens, rng))
        number += 1
        after = outcomes(judged(server, number))
        got = {name: each for name, each in after if after[name, each] > before[name, each]}
        before = after
        assert (got["generous"], got["impossible"]) == ("good", "bad")
        assert ("short" in got) == (tokens <= 20) != ("long" in got)
        for name, slo in SLOS.items():
            of = "tpot" if name.startswith("each-") else "both"
            if (name.isdigit() or of == "tpot") and (expected := seen.verdict(slo)):
                told[of][expected] += 1
                assert got[name] == expected, (name, slo, seen)
    assert min(told["both"].values()) > len(sizes), told
    assert sum(told["both"].values()) > 4 * len(sizes), told
    assert told["tpot"]["good"] > len(sizes), told
    assert told["tpot"]["bad"] >= len(TPOT), told  # the longest are never that quick


def test_under_load_all_sequences_and_tokens_are_counted(server: VllmServer) -> None:
    before = settled(server)[1]
    report = put_load(server, count=60, disconnects=False)
    ended = sum(report.finished.values())
    samples = judged(server, value(before, REQUESTS, slo="generous") + ended)

    def more(name: str, **labels: str) -> float:
        return value(samples, name, **labels) - value(before, name, **labels)

    for slo, outcome in (("generous", "good"), ("impossible", "bad")):
        assert more(REQUESTS, slo=slo, outcome=outcome) == ended
        assert more("vllm_slo_tokens_total", slo=slo, outcome=outcome) == report.completion_tokens
    for objective in ("ttft", "e2e"):
        assert more("vllm_slo_violations_total", slo="impossible", objective=objective) == ended
    assert more("vllm_slo_violations_total", phase="unknown") == 0
    assert more("vllm_slo_excluded_total") == 0
    assert more(REQUESTS, slo="short") + more(REQUESTS, slo="long") == ended
    assert faults(samples) == 0


async def one_behind_others(url: str, rng: random.Random, ahead: int, behind: int) -> Seen:
    """Ask for so many tokens while all places are taken by others that are alike."""
    first = [asyncio.create_task(ask(url, 20, ahead, rng)) for _ in range(NARROW)]
    await asyncio.sleep(0.05)
    late = await ask(url, 20, behind, rng)
    await asyncio.gather(*first)
    return late


def between(least: float, most: float) -> list[str]:
    return [name for name, limit in LADDER.items() if least < limit < most]


def to_blame(before: Samples, after: Samples, slos: list[str]) -> list[tuple[str, str]]:
    """Return the SLOs that were missed once more, each with the phase."""
    phases = ("queue", "prefill", "decode", "frontend", "unknown")
    return [
        (name, phase) for name, phase in product(slos, phases)
        if value(after, VIOLATIONS, slo=name, phase=phase) > value(before, VIOLATIONS, slo=name, phase=phase)
    ]  # fmt: skip


@pytest.mark.fresh  # what is usual comes from all requests before
def test_a_wait_is_to_blame_where_only_that_was_unusual_and_else_the_length(narrow: Shared) -> None:
    """A request of 500 tokens keeps a limit alone, misses it behind some of 300, and one of 900 misses it at any rate."""
    server, rng = narrow.server, random.Random(1)
    number = value(settled(server)[1], REQUESTS, slo="0")

    def page_after(more: int) -> Samples:
        nonlocal number
        number += more
        samples: Samples = {}

        def all_there() -> bool:
            samples.update(page(server))
            return value(samples, REQUESTS, slo="0") == number

        assert eventually(all_there)
        return samples

    def slowest_alone() -> float:
        return max(asyncio.run(ask(server.url, 20, 500, rng)).e2e for _ in range(3))

    asyncio.run(ask(server.url, 20, 500, rng))  # the first is slow
    number += 1
    for _ in range(TRIES):
        alone = slowest_alone()
        before = page_after(3)
        late = asyncio.run(one_behind_others(server.url, rng, 300, 500)).e2e
        waited = page_after(1 + NARROW)
        missed = between(1.1 * alone, 0.95 * late)
        if missed and late < 1.9 * alone:  # decode was the longest phase
            break
    else:
        pytest.fail(f"a request took {alone:.2f} s alone, and {late:.2f} s behind others")
    assert to_blame(before, waited, missed) == [(name, "queue") for name in missed]
    for _ in range(TRIES):
        alone = slowest_alone()
        before = page_after(3)
        long = asyncio.run(ask(server.url, 20, 900, rng)).e2e
        after = page_after(1)
        if missed := between(1.1 * alone, 0.95 * long):
            break
    else:
        pytest.fail(f"500 tokens took {alone:.2f} s, and 900 took {long:.2f} s")
    assert to_blame(before, after, missed) == [(name, "decode") for name in missed]
