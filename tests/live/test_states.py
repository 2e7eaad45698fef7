"""LoRA, sleep, admission control and aborts on a real vLLM: what happens to gauges and counters."""

import asyncio
import json
import math
import urllib.error
import urllib.request
from typing import Any

import aiohttp
import pytest

from tests.live.layouts import Shared
from tests.live.load import put_load
from tests.live.pages import eventually, settled
from tests.live.server import VllmServer
from tests.parity import differences, parse, value

SEVERAL = 120
"""Requests at once of which some are too many for the batch and the queue."""


@pytest.fixture(scope="module")
def server(tight: Shared) -> VllmServer:
    return tight.server


def post(server: VllmServer, path: str) -> None:
    request = urllib.request.Request(f"{server.url}{path}", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


def ours(server: VllmServer, name: str, **labels: str) -> float:
    return value(parse(server.vitals_text()), name, **labels)


async def complete(session: aiohttp.ClientSession, **body: Any) -> int:
    ask = {"model": "tiny", "prompt": [5] * 20, "max_tokens": 400, "ignore_eos": True} | body
    try:
        async with session.post("/v1/completions", json=ask) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientError:
        return 0


async def burst(server: VllmServer, count: int, meanwhile: Any = None, **body: Any) -> list[int]:
    """Send requests at once, call `meanwhile` in a thread while they run, and return their status codes."""
    async with aiohttp.ClientSession(server.url) as session:
        asked = [asyncio.create_task(complete(session, **body)) for _ in range(count)]
        if meanwhile:
            await asyncio.to_thread(meanwhile)
        return await asyncio.gather(*asked)


def test_adapters_are_shown_while_they_work_and_go_away(server: VllmServer) -> None:
    seen: dict[str, float] = {}

    def watch() -> None:
        def running() -> bool:
            seen["red"] = max(seen.get("red", 0.0), _zero(ours(server, "vllm_lora_requests", adapter="red")))
            return seen["red"] >= 4

        assert eventually(running, pause=0.05), seen

    asyncio.run(burst(server, 4, watch, model="red"))
    assert eventually(lambda: math.isnan(ours(server, "vllm_lora_requests", adapter="red")))


def test_deferred_requests_are_told_from_those_without_room(server: VllmServer) -> None:
    most = {"deferred": 0.0, "running": 0.0}

    async def both() -> None:
        def watch() -> None:
            def deferred() -> bool:
                page = parse(server.vitals_text())
                most["deferred"] = max(most["deferred"], value(page, "vllm_engine_requests_waiting", reason="deferred"))
                most["running"] = max(most["running"], value(page, "vllm_engine_requests_running"))
                return most["deferred"] > 0 and most["running"] > 0

            assert eventually(deferred, pause=0.05), most

        # One adapter slot: while red works, blue has to wait.
        await asyncio.gather(burst(server, 3, watch, model="red"), burst(server, 3, model="blue"))

    asyncio.run(both())
    native, page = settled(server)
    assert list(differences(native, page)) == []
    assert value(page, "vllm_engine_limited_duration_seconds_total", limiter="deferred") > 0


def test_rejected_requests_are_counted(server: VllmServer) -> None:
    before = _zero(ours(server, "vllm_requests_rejected_total"))
    statuses = asyncio.run(burst(server, SEVERAL, max_tokens=100))
    rejected = statuses.count(503)
    assert rejected > 0
    assert eventually(lambda: ours(server, "vllm_requests_rejected_total") == before + rejected)
    native, page = settled(server)
    assert value(native, "vllm:admission_rejections_total") == value(page, "vllm_requests_rejected_total")


@pytest.mark.parametrize(("level", "state"), [(1, "weights_offloaded"), (2, "discard_all"), (0, "paused")])
def test_sleep_is_shown_and_ends(server: VllmServer, level: int, state: str) -> None:
    post(server, f"/sleep?level={level}")
    assert eventually(lambda: ours(server, "vllm_engine_sleep", state=state) == 1)
    assert ours(server, "vllm_engine_sleep", state="awake") == 0
    post(server, "/wake_up")
    assert eventually(lambda: ours(server, "vllm_engine_sleep", state="awake") == 1)
    assert ours(server, "vllm_engine_sleep") == 1


def test_after_an_abort_of_everything_no_gauge_stands_for_ever(server: VllmServer) -> None:
    def abort() -> None:
        assert eventually(lambda: _zero(ours(server, "vllm_engine_requests_running")) >= 6, pause=0.05)
        post(server, "/pause?mode=abort")

    before = settled(server)[1]
    asyncio.run(burst(server, 6, abort, max_tokens=900))
    assert eventually(lambda: not _zero(ours(server, "vllm_engine_requests_running")))
    assert eventually(lambda: not _zero(ours(server, "vllm_kv_cache_usage_ratio")))
    name = "vllm_requests_finished_total"
    aborted = value(before, name, finish_reason="abort") + 6
    assert eventually(lambda: ours(server, name, finish_reason="abort") == aborted)
    post(server, "/resume")
    put_load(server, count=13, disconnects=False)
    assert value(settled(server)[1], "vllm_engine_requests_running") == 0


def test_a_client_that_leaves_is_no_error(server: VllmServer) -> None:
    before = settled(server)[1]
    put_load(server, count=30, seed=5)
    page = settled(server)[1]
    assert value(page, "vllm_requests_finished_total", finish_reason="error") == 0
    assert value(page, "gen_ai_server_request_duration_seconds_count", error_type="error") == 0
    errors = "vitals_errors_total"
    assert value(page, errors) == value(before, errors) == 0


def _zero(number: float) -> float:
    return 0.0 if math.isnan(number) else number


def test_bad_requests_move_nothing(server: VllmServer) -> None:
    before = settled(server)[1]
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        data=json.dumps({"model": "nobody", "prompt": "x"}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=10)
    page = settled(server)[1]
    assert page["vllm_requests_finished_total"] == before["vllm_requests_finished_total"]
