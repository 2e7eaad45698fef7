"""A real vLLM under varied load: every number that it exports, ours show too, and so did the client."""

import asyncio
import math
from dataclasses import dataclass

import aiohttp
import pytest

from tests.live.layouts import Shared
from tests.live.load import LoadReport, Request, put_load, send
from tests.live.pages import faults, settled
from tests.live.server import fetch
from tests.parity import APART, PAIRS, Samples, differences, parse, value
from vllm_vitals.catalog import CATALOG


async def run(url: str, request: Request) -> LoadReport:
    report = LoadReport()
    async with aiohttp.ClientSession(url) as session:
        await send(session, request, report)
    return report


@dataclass
class Loaded:
    """What the client saw of a load, our page before it, and vLLM's and ours after it."""

    load: LoadReport
    before: Samples
    native: Samples
    ours: Samples

    def grown(self, name: str, **labels: str) -> float:
        """Return by how much a metric of ours grew, one that was not there from 0 on."""
        before = value(self.before, name, **labels)
        return value(self.ours, name, **labels) - (0 if math.isnan(before) else before)


@pytest.fixture(scope="module")
def loaded(roomy: Shared) -> Loaded:
    _, before = settled(roomy.server)
    load = put_load(roomy.server, count=90)
    return Loaded(load, before, *settled(roomy.server))


@pytest.fixture(scope="module")
def pages(loaded: Loaded) -> tuple[Samples, Samples]:
    return loaded.native, loaded.ours


@pytest.fixture(scope="module")
def busy(optional: Shared) -> Shared:
    # Seeded sampling and speculation do not go together on a CPU.
    put_load(optional.server, count=60, seed=1, seeded=False)
    return optional


def test_every_number_of_vllm_is_ours_too(pages: tuple[Samples, Samples]) -> None:
    native, ours = pages
    assert list(differences(native, ours)) == []


def test_what_is_compared_is_not_nothing(pages: tuple[Samples, Samples]) -> None:
    native, _ = pages
    moved = [pair.native for pair in PAIRS if any(value(native, pair.native + s) > 0 for s in ("", "_count"))]
    assert len(moved) >= 24, moved


def test_no_metric_of_vllm_is_forgotten(pages: tuple[Samples, Samples]) -> None:
    native, _ = pages
    known = {pair.native for pair in PAIRS} | set(APART)
    stems = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in native}
    exported = {stem for stem in stems if stem.startswith("vllm:") and not stem.endswith("_created")}
    assert exported - known == set()


def test_the_catalogue_claims_no_other_counterparts() -> None:
    compared = {pair.ours for pair in PAIRS}
    claimed = {metric for metric in CATALOG if metric.vllm_name}
    assert {metric.name for metric in claimed - compared} == {"vllm.engine.info", "vllm.lora.requests"}


def test_the_client_counted_the_same(loaded: Loaded) -> None:
    load = loaded.load
    assert load.sent == 90
    for reason, count in load.finished.items():
        assert loaded.grown("vllm_requests_finished_total", finish_reason=reason) == count
    assert loaded.grown("vllm_requests_finished_total") == sum(load.finished.values())
    assert loaded.grown("vllm_request_output_tokens_sum") == load.completion_tokens
    assert loaded.grown("vllm_request_input_tokens_sum") == load.engine_prompt_tokens
    assert loaded.grown("vllm_tokens_prompt_total") >= load.engine_prompt_tokens + load.late_prompt_tokens


def test_the_conventions_agree_with_the_rest(pages: tuple[Samples, Samples]) -> None:
    _, ours = pages
    finished = value(ours, "vllm_requests_finished_total")
    for name in ("gen_ai_server_request_duration_seconds", "gen_ai_server_time_to_first_token_seconds"):
        assert value(ours, f"{name}_count", gen_ai_request_model="tiny", gen_ai_operation_name="chat") == finished
    total = "gen_ai_server_request_duration_seconds_sum"
    assert math.isclose(value(ours, total), value(ours, "vllm_request_duration_seconds_sum"), rel_tol=1e-9)
    several = finished - value(ours, "vllm_request_output_tokens_bucket", le="1.0")
    assert value(ours, "gen_ai_server_time_per_output_token_seconds_count") == several


def test_phases_add_up_to_durations(pages: tuple[Samples, Samples]) -> None:
    _, ours = pages
    phases = value(ours, "vllm_request_phase_duration_seconds_sum")
    assert math.isclose(phases, value(ours, "vllm_request_duration_seconds_sum"), rel_tol=1e-6)


def test_the_plugin_lost_nothing(pages: tuple[Samples, Samples]) -> None:
    _, ours = pages
    assert value(ours, "vitals_steps_total") > 100
    assert value(ours, "vitals_steps_dropped_total") == 0
    assert faults(ours) == 0
    assert math.isnan(value(ours, "vitals_values_rejected_total"))
    assert 0 < value(ours, "vitals_hook_duration_seconds_total") / value(ours, "vitals_steps_total") < 0.01


def test_facts_are_those_of_the_engine(pages: tuple[Samples, Samples], roomy: Shared) -> None:
    native, ours = pages
    (config,) = native["vllm:cache_config_info"]
    facts = dict(config)
    tokens = facts.get("kv_cache_size_tokens")
    assert value(ours, "vllm_kv_cache_capacity") == float(tokens or 0)
    assert value(ours, "vllm_kv_cache_free") == value(ours, "vllm_kv_cache_capacity")
    (info,) = ours["vllm_engine_info"]
    assert dict(info)["max_model_len"] == "2048"
    assert dict(info)["dtype"] == "float32"
    assert 1 < value(ours, "vllm_engine_startup_duration_seconds") < 600
    assert value(ours, "vllm_engine_requests_limit") > 0
    assert "scrape endpoint" in roomy.server.log.read_text().lower()


def test_a_batch_of_many_that_decode_together_agrees_too(roomy: Shared) -> None:
    """The latencies of a step are one number then, as many times as there are requests."""
    _, before = settled(roomy.server)
    body = {"model": "tiny", "prompt": [2, 3, 4, 5], "n": 100, "max_tokens": 8, "ignore_eos": True, "temperature": 1.0}
    report = asyncio.run(run(roomy.server.url, Request("many choices", body)))
    assert (report.failures, report.completion_tokens) == ([], 100 * 8)
    native, ours = settled(roomy.server)
    assert list(differences(native, ours)) == []
    latencies = "vllm_request_inter_token_latency_seconds_count"
    assert value(ours, latencies) - value(before, latencies) == 100 * 7


def test_options_and_preemption_agree_too(busy: Shared) -> None:
    native, ours = settled(busy.server, apart=busy.apart)
    ours_alone = {name: samples for name, samples in ours.items() if not name.startswith("vllm:")}
    assert list(differences(native, ours_alone, apart=busy.apart)) == []
    latencies = value(native, "vllm:inter_token_latency_seconds_count")
    assert value(ours, "vllm_request_inter_token_latency_seconds_count") == latencies
    for name in ("vllm:num_preemptions_total", "vllm:spec_decode_num_accepted_tokens_total"):
        assert value(native, name) > 0
    assert value(native, "vllm:estimated_flops_per_gpu_total") > 0
    assert value(native, "vllm:kv_block_lifetime_seconds_count") > 0
    assert value(ours, "vllm_step_duration_seconds_count") > 0
    computed = value(ours, "vllm_step_scheduled_tokens_total", phase="prefill")
    assert computed >= value(ours, "vllm_tokens_prompt_total", source="local_compute")


def test_buckets_follow_vllm_and_ours_win(busy: Shared) -> None:
    ours = parse(busy.server.vitals_text())
    assert _edges(ours, "vllm_request_duration_seconds") == {"0.05", "0.5", "5.0", "50.0", "+Inf"}
    assert _edges(ours, "vllm_request_inter_token_latency_seconds") == {"0.001", "0.01", "0.1", "1.0", "+Inf"}


def test_our_page_carries_vllm_page_unchanged(busy: Shared) -> None:
    native, _ = settled(busy.server, apart=busy.apart)
    ours = parse(busy.server.vitals_text())
    for name, samples in native.items():
        if name.startswith("vllm:") and not name.endswith("_created"):
            assert ours[name] == samples
    assert "vllm_num_requests_running" not in ours


def test_exemplars_name_requests_in_openmetrics_only(busy: Shared) -> None:
    import urllib.request

    request = urllib.request.Request(busy.server.vitals_url, headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        page = answer.read().decode()
    assert '# {request_id="cmpl-' in page
    assert "vllm:num_requests_running{" in page
    assert "vllm_num_requests_running" not in page
    assert "request_id" not in fetch(busy.server.vitals_url)


def _edges(samples: Samples, name: str) -> set[str]:
    return {dict(labels)["le"] for labels in samples[f"{name}_bucket"]}
