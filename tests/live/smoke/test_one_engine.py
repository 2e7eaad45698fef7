"""One vLLM of any release, scraped by a real Prometheus, pushing to a real collector: all of them say the same."""

import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.pages import eventually
from tests.live.pushes import contradictions
from tests.live.server import fetch
from tests.live.smoke.stack import (
    BURST,
    E2E,
    PATIENCE,
    PLACES,
    RELEASE,
    SHORT,
    Stack,
    apart,
    ask_all_kinds,
    running,
    tells_sources,
)
from tests.live.smoke.store import compared, exemplars, store_differences, stored
from tests.parity import APART, PAIRS, Samples, differences, parse, value
from vllm_vitals.catalog import engine
from vllm_vitals.vllm_page.counterparts import RECOMPUTED

pytestmark = pytest.mark.timeout(1200)
LIMITED = "vllm_engine_limited_duration_seconds_total"
QUEUED = "vllm:request_queue_time_seconds"
JUDGED = "vllm_slo_requests_total"
EXEMPLARS_FROM = (0, 20)
"""The first vLLM that tells stat loggers a request's id."""


@pytest.fixture(scope="module")
def stack(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running(model, tmp_path_factory.mktemp("smoke"), (f"--max-num-seqs={PLACES}",)) as made:
        ask_all_kinds(made)
        yield made


def test_doctor_finds_nothing_wrong(stack: Stack) -> None:
    """It warns that nobody else can scrape the endpoint, which is so: it listens on localhost."""
    bad = [
        check for check in stack.doctor["checks"] if check["status"] not in ("ok", "skip") and check["id"] != "reach"
    ]
    assert (bad, stack.doctor["exit status"], stack.doctor["ok"]) == ([], 0, True)


def test_the_endpoint_is_alive_and_ready(stack: Stack) -> None:
    base = stack.server.vitals_url.removesuffix("/metrics")
    assert {path: fetch(base + path) for path in ("/healthz", "/readyz")} == {"/healthz": "ok\n", "/readyz": "ok\n"}


def test_every_number_of_vllm_is_ours_too(stack: Stack) -> None:
    assert list(differences(stack.end.native, stack.end.ours, apart=apart())) == []


def test_what_is_compared_is_not_nothing(stack: Stack) -> None:
    native = stack.end.native
    moved = [pair.native for pair in PAIRS if any(value(native, pair.native + s) > 0 for s in ("", "_count"))]
    assert len(moved) >= 18, moved


def test_no_metric_of_vllm_is_forgotten(stack: Stack) -> None:
    known = {pair.native for pair in PAIRS} | set(APART) | {RECOMPUTED}
    stems = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in stack.end.native}
    exported = {stem for stem in stems if stem.startswith("vllm:") and not stem.endswith("_created")}
    assert exported - known == set()


def test_the_client_counted_the_same(stack: Stack) -> None:
    ours = stack.end.ours
    ended = {reason: value(ours, "vllm_requests_finished_total", finish_reason=reason) for reason in stack.finished}
    assert ended == stack.finished
    assert value(ours, "vllm_requests_finished_total") == sum(stack.finished.values())
    assert value(ours, "vllm_request_output_tokens_sum") == stack.client("completion_tokens")
    assert value(ours, "vllm_request_input_tokens_sum") == stack.client("engine_prompt_tokens")
    least = stack.client("engine_prompt_tokens") + stack.client("late_prompt_tokens")
    assert value(ours, "vllm_tokens_prompt_total") >= least


def test_who_hung_up_is_counted(stack: Stack) -> None:
    left = stack.load.disconnected
    # Who left early may have had a token by then.
    assert left["late"] <= value(stack.end.ours, "vllm_requests_abandoned_total") <= left["late"] + left["early"], left


def test_tokens_of_steps_are_prompts_and_outputs(stack: Stack) -> None:
    ours = stack.end.ours
    parts = [value(ours, "vllm_tokens_prompt_total"), value(ours, "vllm_tokens_generation_total")]
    if tells_sources():  # told apart since then: what was cached does not count
        parts[0] = value(ours, "vllm_tokens_prompt_total", source="local_compute")
    assert value(ours, "vllm_step_tokens_sum") == sum(parts)


def test_requests_are_judged_as_vllms_buckets_count_them(stack: Stack) -> None:
    """A limit that is a bound of a bucket is met by as many as that bucket holds."""
    native, ours = stack.end.native, stack.end.ours
    durations, finished = "vllm:e2e_request_latency_seconds", sum(stack.finished.values())
    for place, limit in enumerate(E2E):
        within = value(native, f"{durations}_bucket", le=str(limit))
        expected = {"good": within, "bad": value(native, f"{durations}_count") - within}
        assert _judged(ours, f"within-{place}") == expected, f"{limit} s"
    assert _judged(ours, "generous") == {"good": finished, "bad": 0}
    assert _judged(ours, "impossible") == {"good": 0, "bad": finished}
    short = value(native, "vllm:request_generation_tokens_bucket", le=f"{SHORT:.1f}")
    assert _judged(ours, "short") == {"good": short, "bad": 0}
    assert 0 < short < finished
    for objective in ("ttft", "e2e"):
        assert value(ours, "vllm_slo_violations_total", slo="impossible", objective=objective) == finished


def test_all_time_of_the_engine_is_under_one_limiter(stack: Stack) -> None:
    """It is no more than since vLLM was spawned, and comes to what has passed since it was healthy."""
    least = time.monotonic() - stack.healthy
    seen = _limited(parse(stack.server.vitals_text()))
    assert sum(seen.values()) <= time.monotonic() - stack.spawned, seen
    assert seen["idle"] > 0
    assert seen["asleep"] == 0

    def caught_up() -> bool:
        seen.update(_limited(parse(stack.server.vitals_text())))
        return sum(seen.values()) >= least

    assert eventually(caught_up, PATIENCE), (least, seen)


def test_a_burst_is_kept_out_for_as_long_as_vllm_says_that_it_waited(stack: Stack) -> None:
    before, after = stack.before_burst, stack.end
    earlier, later = _limited(before.ours), _limited(after.ours)
    spent = {limiter: later[limiter] - earlier[limiter] for limiter in later}
    kept_out = {limiter: seconds for limiter, seconds in spent.items() if limiter not in {"none", "idle", "asleep"}}
    waited, requests = (
        value(after.native, f"{QUEUED}_{part}") - value(before.native, f"{QUEUED}_{part}") for part in ("sum", "count")
    )
    assert requests == BURST
    # Somebody waited for as long as the one who waited longest, but for a step at the beginning.
    assert 0.5 * waited / requests <= sum(kept_out.values()) <= stack.burst_seconds, (spent, waited)
    assert kept_out["max_num_seqs"] >= 0.8 * sum(kept_out.values()), spent


def test_the_plugin_lost_nothing(stack: Stack) -> None:
    ours = stack.end.ours
    assert value(ours, "vitals_steps_total") > 100
    assert value(ours, "vitals_steps_dropped_total") == 0
    assert value(ours, "vitals_errors_total") == 0
    assert math.isnan(value(ours, "vitals_values_rejected_total")), ours["vitals_values_rejected_total"]


def test_facts_are_those_of_the_engine(stack: Stack) -> None:
    ours = stack.end.ours
    (info,) = ours["vllm_engine_info"]
    facts = dict(info)
    assert (facts["max_model_len"], facts["dtype"]) == ("1024", "float32"), facts
    assert value(ours, "vllm_engine_requests_limit") == PLACES
    assert value(ours, "vllm_kv_cache_capacity") > 1024
    assert value(ours, "vllm_kv_cache_free") == value(ours, "vllm_kv_cache_capacity")
    assert 1 < value(ours, "vllm_engine_startup_duration_seconds") <= stack.healthy - stack.spawned
    assert value(ours, "vllm_engine_up") == 1


def test_prometheus_stores_what_the_page_shows(stack: Stack) -> None:
    found = [""]

    def equal() -> bool:
        page = parse(stack.server.vitals_text())
        found[:] = store_differences(stored(stack.prometheus), page)
        return not found

    assert eventually(equal, PATIENCE, 1.0), found[:10]
    assert compared(stack.end.ours) > 400


def test_pushes_add_up_to_what_the_page_shows(stack: Stack) -> None:
    found = [""]

    def equal() -> bool:
        found[:] = contradictions(stack.sink, parse(stack.server.vitals_text()))
        return not found

    assert eventually(equal, PATIENCE, 1.0), found[:10]
    assert stack.sink.total("vllm.requests.finished") == sum(stack.finished.values())
    (resource,) = stack.sink.resources
    told = dict(resource)
    assert (told["service.name"], told["process.pid"]) == ("vllm", str(stack.server.pid))


def test_exemplars_name_requests_where_vllm_does(stack: Stack) -> None:
    """Whatever Prometheus has scraped by now is all there is: the requests ended long before."""
    assert eventually(
        lambda: not store_differences(stored(stack.prometheus), parse(stack.server.vitals_text())), PATIENCE
    )
    ids = exemplars(stack.prometheus, "vllm_request_duration_seconds_bucket")
    assert all(each.startswith("cmpl-") for each in ids), ids
    assert bool(ids) == (RELEASE >= EXEMPLARS_FROM), ids


def test_the_log_tells_each_thing_once_and_no_trouble(stack: Stack) -> None:
    lines = [line for line in stack.server.log.read_text(errors="replace").splitlines() if "vllm-vitals: " in line]
    assert sum("Scrape endpoint:" in line for line in lines) == 1, lines
    assert sum("OTLP push:" in line for line in lines) == 1, lines
    troubles = [line for line in lines if "ERROR" in line or "WARNING" in line]
    if RELEASE < EXEMPLARS_FROM:
        told = [line for line in troubles if "exemplars" in line]
        assert len(told) == 1, lines
        troubles.remove(told[0])
    assert troubles == []


def test_it_stops_by_itself_and_leaves_nothing_behind(stack: Stack) -> None:
    server = stack.server
    os.kill(server.pid, signal.SIGTERM)
    assert eventually(lambda: not server.alive() and not server.processes(), PATIENCE), server.processes()
    log = server.log.read_text(errors="replace")
    ours = [line for line in log.splitlines() if "vllm_vitals" in line and ("File " in line or "Error" in line)]
    assert ours == [], server.log_tail()
    with pytest.raises(OSError, match="refused"):
        server.vitals_text()


def _judged(page: Samples, slo: str) -> dict[str, float]:
    return {outcome: value(page, JUDGED, slo=slo, outcome=outcome) for outcome in ("good", "bad")}


def _limited(page: Samples) -> dict[str, float]:
    return {limiter: value(page, LIMITED, limiter=limiter) for limiter in engine.LIMITED.labels[0].values}
