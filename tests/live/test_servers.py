"""Two API servers before one engine: each shows its share on a port of its own, and the shares add up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.conftest import put_load
from tests.live.load import LoadReport
from tests.live.pages import eventually
from tests.live.server import VllmServer, fetch
from tests.parity import Samples, parse, value

STALE_AFTER = 2.0


@pytest.fixture(scope="module")
def servers(model: Path) -> Iterator[tuple[VllmServer, LoadReport]]:
    environment = {"VITALS_STALE_AFTER": str(STALE_AFTER)}
    with VllmServer(model, args=("--api-server-count=2",), env=environment) as running:
        yield running, put_load(running, count=60, disconnects=False)


def pages(server: VllmServer) -> list[Samples]:
    return [parse(fetch(f"http://127.0.0.1:{server.vitals_port + rank}/metrics")) for rank in (0, 1)]


def total(server: VllmServer, name: str) -> float:
    return sum(value(page, name) for page in pages(server))


def test_the_shares_add_up_to_what_the_client_counted(servers: tuple[VllmServer, LoadReport]) -> None:
    server, load = servers
    finished = sum(load.finished.values())
    assert eventually(lambda: total(server, "vllm_requests_finished_total") == finished)
    assert total(server, "vllm_request_output_tokens_sum") == load.completion_tokens
    assert total(server, "vllm_tokens_prompt_total") == load.engine_prompt_tokens
    assert min(value(page, "vllm_requests_finished_total") for page in pages(server)) > 0


def test_the_shares_add_up_to_vllms_own_page(servers: tuple[VllmServer, LoadReport]) -> None:
    server, _ = servers
    native = parse(server.metrics_text())
    for theirs, ours in (
        ("vllm:generation_tokens_total", "vllm_tokens_generation_total"),
        ("vllm:prefix_cache_queries_total", "vllm_prefix_cache_queried_tokens_total"),
        ("vllm:e2e_request_latency_seconds_count", "vllm_request_duration_seconds_count"),
    ):
        assert total(server, ours) == value(native, theirs), theirs


def test_no_gauge_of_an_idle_engine_stays_up(servers: tuple[VllmServer, LoadReport]) -> None:
    server, _ = servers

    def quiet() -> bool:
        # Gone where the latest word was of work, nothing where it was of none.
        return not any(value(page, "vllm_engine_requests_running") > 0 for page in pages(server))

    assert eventually(quiet, STALE_AFTER + 5)


def test_neither_fights_for_the_others_port(servers: tuple[VllmServer, LoadReport]) -> None:
    server, _ = servers
    log = server.log.read_text()
    assert "No scrape endpoint" not in log
    assert log.count("vllm-vitals: Scrape endpoint:") == 2
