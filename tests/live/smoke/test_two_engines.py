"""Two engines behind two API servers of any release: one endpoint and one push, and the numbers of each engine."""

import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.load import put_load
from tests.live.pages import eventually
from tests.live.pushes import contradictions
from tests.live.releases import RELEASES
from tests.live.smoke.stack import PATIENCE, RELEASE, VERSION, Stack, apart, at_rest, running
from tests.live.smoke.store import store_differences, stored
from tests.parity import differences, parse, value

pytestmark = pytest.mark.timeout(1800)
ENGINES = ("0", "1")
CAPACITY_FROM = (0, 20)
"""The first vLLM of which each API server knows the size of the KV cache; before, where there are several, none does."""


@pytest.fixture(scope="module")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    arguments = ("--data-parallel-size=2", "--api-server-count=2")
    with running(model, tmp_path_factory.mktemp("smoke"), arguments, RELEASES.get(VERSION, {})) as made:
        made.load = put_load(made.server, count=60, seed=6, disconnects=False)
        made.end = at_rest(made.server)
        yield made


def test_every_number_of_each_engine_is_vllms(stack: Stack) -> None:
    assert list(differences(stack.end.native, stack.end.ours, apart=apart())) == []
    for engine in ENGINES:
        finished = value(stack.end.ours, "vllm_requests_finished_total", engine=engine)
        assert finished == value(stack.end.native, "vllm:request_success_total", engine=engine) > 0


def test_together_they_are_what_the_client_counted(stack: Stack) -> None:
    ours, load = stack.end.ours, stack.load
    assert value(ours, "vllm_requests_finished_total") == sum(load.finished.values())
    assert value(ours, "vllm_request_output_tokens_sum") == load.completion_tokens
    assert value(ours, "vllm_tokens_prompt_total") == load.engine_prompt_tokens


def test_gauges_are_there_for_each_engine(stack: Stack) -> None:
    ours = stack.end.ours
    for name, expected in (
        ("vllm_engine_up", 1),
        ("vllm_engine_requests_running", 0),
        ("vllm_kv_cache_usage_ratio", 0),
    ):
        shown = {engine: value(ours, name, engine=engine) for engine in ENGINES}
        assert shown == dict.fromkeys(ENGINES, expected), name
    capacities = {engine: value(ours, "vllm_kv_cache_capacity", engine=engine) for engine in ENGINES}
    told = [capacity > 1024 for capacity in capacities.values() if not math.isnan(capacity)]
    assert told == ([True, True] if RELEASE >= CAPACITY_FROM else []), capacities


def test_there_is_one_endpoint_and_one_push(stack: Stack) -> None:
    log = stack.server.log.read_text(errors="replace")
    for told in ("vllm-vitals: Scrape endpoint:", "vllm-vitals: OTLP push:", "holds the collector"):
        assert log.count(told) == 1, told
    assert len(stack.sink.resources) == 1
    hooks = stack.end.ours["vitals_hook_duration_seconds_total"]
    assert {dict(labels)["process"] for labels in hooks} == {"0", "1"}
    assert value(stack.end.ours, "vitals_steps_dropped_total") == 0
    assert value(stack.end.ours, "vitals_errors_total") == 0


def test_prometheus_and_the_collector_have_what_the_page_shows(stack: Stack) -> None:
    found: dict[str, list[str]] = {}

    def equal() -> bool:
        page = parse(stack.server.vitals_text())
        found["stored"], found["pushed"] = (
            store_differences(stored(stack.prometheus), page), contradictions(stack.sink, page)
        )  # fmt: skip
        return not any(found.values())

    assert eventually(equal, PATIENCE, 1.0), {where: lines[:10] for where, lines in found.items()}


def test_all_of_it_stops_by_itself(stack: Stack) -> None:
    server = stack.server
    os.kill(server.pid, signal.SIGTERM)
    assert eventually(lambda: not server.alive() and not server.processes(), PATIENCE), server.processes()
