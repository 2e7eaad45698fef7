"""Several API servers, several engines: one page, one identity, and together they say what the client counted."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.live.layouts import LONGEST, SEVERAL, Deployment
from tests.live.load import put_load
from tests.live.pages import eventually, settled, took, until
from tests.live.server import VllmServer
from tests.parity import Samples, differences, parse, value

pytestmark = pytest.mark.fresh  # all that a server has done is what its client counted
HELD = {1: (9,), 2: (3, 5)}
"""Requests that each engine has at once, by how many engines there are. Odd: what is counted twice is even."""
SOON = 2.0
"""Seconds by which our page may be behind vLLM's own.

One is for steps that wait for the server which is the last to tell. The other is for a machine where engines, servers and
who looks at the pages share two processors, and to look takes some tenths.
"""

AtWork = dict[str, tuple[float, float]]
"""Running and waiting requests by engine."""


def at_once(work: Callable[[Deployment], Any], deployments: dict[str, Deployment]) -> dict[str, Any]:
    """Do something with all of them at the same time, for much of it is waiting; return what came of it by their names."""
    with ThreadPoolExecutor(len(deployments)) as pool:
        return dict(zip(deployments, pool.map(work, deployments.values()), strict=True))


@pytest.fixture(scope="module")
def loaded(deployments: dict[str, Deployment]) -> dict[str, tuple[Samples, Samples]]:
    """Put load on each, and give vLLM's page and ours once it is counted."""

    def load(deployment: Deployment) -> tuple[Samples, Samples]:
        deployment.load = put_load(deployment.server, count=60, disconnects=False)
        return settled(deployment.server)

    return at_once(load, deployments)


@pytest.fixture(scope="module", params=SEVERAL)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def deployment(name: str, deployments: dict[str, Deployment], loaded: Any) -> Deployment:  # noqa: ARG001
    return deployments[name]


@pytest.fixture(scope="module")
def pages(name: str, loaded: dict[str, tuple[Samples, Samples]]) -> tuple[Samples, Samples]:
    return loaded[name]


def test_every_number_is_that_of_vllms_merged_page(pages: tuple[Samples, Samples]) -> None:
    native, ours = pages
    assert list(differences(native, ours)) == []


def test_every_number_is_what_the_client_counted(deployment: Deployment, pages: tuple[Samples, Samples]) -> None:
    _, ours = pages
    load = deployment.load
    assert value(ours, "vllm_requests_finished_total") == sum(load.finished.values())
    assert value(ours, "vllm_request_output_tokens_sum") == load.completion_tokens
    assert value(ours, "vllm_tokens_prompt_total") == load.engine_prompt_tokens


def test_gauges_are_there_for_each_engine_and_nothing_when_it_is_idle(
    deployment: Deployment, pages: tuple[Samples, Samples]
) -> None:
    _, ours = pages
    engines = {dict(labels)["engine"] for labels in ours["vllm_engine_requests_running"]}
    assert engines == {str(engine) for engine in range(deployment.engines)}
    assert value(ours, "vllm_engine_requests_running") == 0
    assert value(ours, "vllm_kv_cache_usage_ratio") == 0
    assert value(ours, "vllm_engine_up") == deployment.engines


def test_there_is_one_endpoint_and_no_fight_for_it(deployment: Deployment) -> None:
    log = deployment.server.log.read_text()
    assert log.count("vllm-vitals: Scrape endpoint:") == 1
    assert log.count("vllm-vitals: OTLP push:") == 1
    assert "No scrape endpoint" not in log
    assert log.count("holds the collector") == (deployment.servers > 1)


def test_there_is_one_identity_whose_totals_are_the_pages(deployment: Deployment) -> None:
    assert len(deployment.sink.resources) == 1
    shown = value(settled(deployment.server)[1], "vllm_tokens_generation_total")
    assert eventually(lambda: deployment.sink.total("vllm.tokens.generation") == shown)


def test_nothing_was_dropped_and_each_process_speaks_for_itself(
    deployment: Deployment, pages: tuple[Samples, Samples]
) -> None:
    _, ours = pages
    assert value(ours, "vitals_steps_dropped_total") == 0
    assert value(ours, "vitals_errors_total") == 0
    hooks = ours["vitals_hook_duration_seconds_total"]
    assert {dict(labels)["process"] for labels in hooks} == {str(rank) for rank in range(deployment.servers)}


def test_the_page_follows_within_seconds(deployment: Deployment) -> None:
    before = value(parse(deployment.server.vitals_text()), "vllm_requests_finished_total")
    sent = put_load(deployment.server, count=1, disconnects=False, seed=5)
    finished = sum(sent.finished.values())

    def there() -> bool:
        return value(parse(deployment.server.vitals_text()), "vllm_requests_finished_total") == before + finished

    assert eventually(there)


def test_vllms_own_metrics_of_all_servers_are_there_once_where_that_is_set(deployment: Deployment) -> None:
    server = deployment.server
    if not deployment.has_native:
        assert native_lines(server.vitals_text()) == []
        return
    assert eventually(lambda: native_lines(server.vitals_text()) == native_lines(server.metrics_text()))
    page = parse(server.vitals_text())
    assert value(page, "vllm:request_success_total") == value(page, "vllm_requests_finished_total") > 0


def native_lines(text: str) -> list[str]:
    """Return what a page says of vLLM's own metrics, whatever the order; what is there twice is here twice."""
    return sorted(line for line in text.splitlines() if line.startswith(("vllm:", "# TYPE vllm:", "# HELP vllm:")))


def test_gauges_are_vllms_a_second_later_while_requests_run_and_once_they_are_gone(
    deployment: Deployment, record_property: Callable[[str, object], None]
) -> None:
    server, held = deployment.server, HELD[deployment.engines]

    def follow(wanted: AtWork) -> None:
        """See to it that our page shows what vLLM's does, soon and from then on."""
        assert eventually(lambda: their_work(server) == wanted, pause=0.1), their_work(server)
        late = took(lambda: our_work(server) == wanted, 60, 0.1)
        assert late <= SOON + 10 * look(server), our_work(server)
        record_property("right after", f"{late:.2f} s")
        for _ in until(1.0):
            assert our_work(server) == wanted

    async def hold() -> None:
        async with held_requests(server, held) as requests:
            await asyncio.to_thread(follow, {str(engine): (count, 0.0) for engine, count in enumerate(held)})
            assert not any(request.done() for request in requests)

    asyncio.run(hold())
    follow({str(engine): (0.0, 0.0) for engine in range(deployment.engines)})


def look(server: VllmServer) -> float:
    """Return the seconds that it takes to look at our page: on a crowded machine all takes so much longer."""
    begun = time.monotonic()
    our_work(server)
    return time.monotonic() - begun


def their_work(server: VllmServer) -> AtWork:
    return at_work(parse(server.metrics_text()), "vllm:num_requests_running", "vllm:num_requests_waiting")


def our_work(server: VllmServer) -> AtWork:
    return at_work(parse(server.vitals_text()), "vllm_engine_requests_running", "vllm_engine_requests_waiting")


def at_work(page: Samples, running: str, waiting: str) -> AtWork:
    """Return what a page shows of each engine under the names of two gauges."""
    engines = {dict(labels)["engine"] for labels in page.get(running, {})}
    return {engine: (value(page, running, engine=engine), value(page, waiting, engine=engine)) for engine in engines}


@asynccontextmanager
async def held_requests(server: VllmServer, counts: Sequence[int]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Have each engine work on so many requests, until the client hangs up."""
    body = {"model": "tiny", "prompt": [5] * 20, "max_tokens": LONGEST - 20, "ignore_eos": True}

    async def ask(session: aiohttp.ClientSession, rank: int) -> None:
        headers = {"X-data-parallel-rank": str(rank)}
        async with session.post("/v1/completions", json=body, headers=headers) as answer:
            await answer.read()

    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(server.url, connector=connector) as session:
        asked = [asyncio.create_task(ask(session, rank)) for rank, count in enumerate(counts) for _ in range(count)]
        try:
            yield asked
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


async def work_on(server: VllmServer, rank: int, until: asyncio.Event) -> None:
    """Let one engine alone have eight requests at a time."""

    async def ask(session: aiohttp.ClientSession) -> None:
        body = {"model": "tiny", "prompt": [5] * 20, "max_tokens": 100, "ignore_eos": True}
        while not until.is_set():
            async with session.post(
                "/v1/completions", json=body, headers={"X-data-parallel-rank": str(rank)}
            ) as answer:
                assert answer.status == 200
                await answer.read()

    async with aiohttp.ClientSession(server.url) as session:
        await asyncio.gather(*(ask(session) for _ in range(8)))


class OneSided(NamedTuple):
    """What a page shows of the imbalance: whether there was none before and after, and all that it showed meanwhile."""

    before: bool
    found: bool
    """Whether it was seen that one engine had twice the mean."""
    seen: list[dict[str, float]]
    after: bool


def one_sided(deployment: Deployment) -> OneSided:
    """Let one engine have all the work for a while."""
    server = deployment.server
    seen: list[dict[str, float]] = []

    def shown() -> dict[str, float]:
        page = parse(server.vitals_text())
        return {of: value(page, "vllm_engine_imbalance_ratio", of=of) for of in ("running", "tokens")}

    def nothing() -> bool:
        return all(map(math.isnan, shown().values()))

    def twice_the_mean() -> bool:
        seen.append(shown())
        return set(seen[-1].values()) == {2.0}

    async def load() -> bool:
        ended = asyncio.Event()
        working = asyncio.create_task(work_on(server, deployment.engines - 1, ended))
        found = await asyncio.to_thread(eventually, twice_the_mean, 60.0 if deployment.engines == 2 else 8.0)
        ended.set()
        await working
        return found

    before = eventually(nothing)  # nothing has worked of late
    found = asyncio.run(load())
    return OneSided(before, found, seen, eventually(nothing))


@pytest.fixture(scope="module")
def imbalance(deployments: dict[str, Deployment], loaded: Any) -> dict[str, OneSided]:  # noqa: ARG001
    return at_once(one_sided, deployments)


def test_how_unevenly_engines_work_is_shown_while_they_do(
    deployment: Deployment, name: str, imbalance: dict[str, OneSided]
) -> None:
    before, found, seen, after = imbalance[name]
    assert before
    # All on one of two is twice the mean; of one engine there is nothing to compare.
    assert found == (deployment.engines == 2), seen
    numbers = [number for each in seen for number in each.values() if not math.isnan(number)]
    assert bool(numbers) == (deployment.engines == 2)
    assert all(number == 2.0 for number in numbers), seen
    assert after
