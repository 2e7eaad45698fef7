"""vLLM's numbers arrive under our names and labels, value for value, from the oldest release to the newest."""

from typing import Any

import pytest
from prometheus_client import Counter, Histogram

from tests.unit.native_vllm import DECLARED, ENGINE, OPENMETRICS, RUST, TEXT, Vllm, text_page
from vllm_vitals.catalog import CATALOG, cache, engine, requests
from vllm_vitals.catalog.connectors import CONNECTORS
from vllm_vitals.catalog.metric import Scope
from vllm_vitals.vllm_page.counterparts import COUNTERPARTS, NAMES, OUTPUT_TOKENS, PARTLY, RECOMPUTED, UNFIT
from vllm_vitals.vllm_page.mapping import mapped, missing, relevant
from vllm_vitals.vllm_page.parse import parse

OLDEST, NEWEST = (0, 11, 0), (0, 33, 0)
HISTOGRAMS = {
    "vllm.step.tokens": "iteration_tokens_total",
    "vllm.request.time_to_first_token": "time_to_first_token_seconds",
    "vllm.request.inter_token_latency": "inter_token_latency_seconds",
    "vllm.request.duration": "e2e_request_latency_seconds",
    "vllm.request.inference.duration": "request_inference_time_seconds",
    "vllm.request.phase.duration queue": "request_queue_time_seconds",
    "vllm.request.phase.duration prefill": "request_prefill_time_seconds",
    "vllm.request.phase.duration decode": "request_decode_time_seconds",
    "vllm.request.input_tokens": "request_prompt_tokens",
    "vllm.request.output_tokens": "request_generation_tokens",
    "vllm.request.computed_tokens": "request_prefill_kv_computed_tokens",
    "vllm.request.max_tokens": "request_params_max_tokens",
    "vllm.request.longest_output": "request_max_num_generation_tokens",
    "vllm.request.n": "request_params_n",
    "vllm.request.preemptions": "request_num_preemptions",
    "vllm.kv_cache.block.lifetime": "kv_block_lifetime_seconds",
    "vllm.kv_cache.block.idle": "kv_block_idle_before_evict_seconds",
    "vllm.kv_cache.block.reuse_gap": "kv_block_reuse_gap_seconds",
}


def shown(vllm: Vllm) -> dict[str, Any]:
    """Return what a page of a vLLM is mapped to, but for KV connectors, by our name and the labels beside the engine's."""
    page = mapped(relevant(parse(text_page(vllm.registry), TEXT)))
    found = {place: each for place, each in page.items() if place[0] not in CONNECTORS}
    assert all(key[: len(metric.scope.value)] == ("m", "0")[: len(metric.scope.value)] for metric, key in found)
    return {" ".join([metric.name, *key[len(metric.scope.value) :]]): each for (metric, key), each in found.items()}


def numbers(vllm: Vllm) -> dict[str, float]:
    return {name: each.value for name, each in shown(vllm).items() if not each.bounds}


def full(*release: int) -> Vllm:
    """Return a vLLM in which each counter and gauge has a number of its own."""
    vllm = Vllm(*release)
    for number, name in enumerate(vllm.metrics, start=1):
        if DECLARED[name].labels == ENGINE and DECLARED[name].kind is not Histogram:
            vllm.of(name).inc(number)
    return vllm


def value(vllm: Vllm, name: str) -> float:
    read: float = vllm.of(name)._value.get()
    return read


def test_the_newest_release() -> None:
    vllm = full(*NEWEST)
    for name, own in {
        "request_success": ("stop", "length", "abort", "error", "repetition"), "prompt_tokens_cached_by_source": ("device", "disk"),
        "prompt_tokens_by_source": ("local_compute", "local_cache_hit", "external_kv_transfer"),
        "spec_decode_num_accepted_tokens_per_pos": ("0", "1"), "watermark_requests": ("skipped",),
    }.items():  # fmt: skip
        for number, each in enumerate(own, start=101):
            vllm.of(name, each).inc(number)
    vllm.metrics["admission_rejections"].labels("m", "max_num_queued_reqs").inc(201)
    for name, own in {
        "num_requests_waiting_by_reason": ("capacity", "deferred"), "engine_sleep_state": ("discard_all", "awake", "weights_offloaded"),
        "num_requests_kv_fetch_by_stage": ("waiting_to_start", "in_progress", "completed_waiting"),
    }.items():  # fmt: skip
        for number, each in enumerate(own):
            vllm.of(name, each).set(number % 2)
    assert numbers(vllm) == {
        "vllm.engine.requests.running": value(vllm, "num_requests_running"),
        "vllm.engine.requests.waiting capacity": 0.0,
        "vllm.engine.requests.waiting deferred": 1.0,
        "vllm.engine.requests.kv_fetch waiting_to_start": 0.0,
        "vllm.engine.requests.kv_fetch in_progress": 1.0,
        "vllm.engine.requests.kv_fetch completed_waiting": 0.0,
        "vllm.engine.sleep awake": 1.0,
        "vllm.engine.sleep paused": 0.0,
        "vllm.engine.sleep weights_offloaded": 0.0,
        "vllm.engine.sleep discard_all": 0.0,
        "vllm.step.scheduled_tokens prefill": 101.0,
        "vllm.step.scheduled_tokens decode": value(vllm, "generation_tokens"),
        "vllm.perf.flops": value(vllm, "estimated_flops_per_gpu_total"),
        "vllm.perf.memory_traffic read": value(vllm, "estimated_read_bytes_per_gpu_total"),
        "vllm.perf.memory_traffic write": value(vllm, "estimated_write_bytes_per_gpu_total"),
        "vllm.tokens.prompt local_compute": 101.0,
        "vllm.tokens.prompt local_cache_hit": 102.0,
        "vllm.tokens.prompt external_kv_transfer": 103.0,
        "vllm.tokens.prompt_cached device": 101.0,
        "vllm.tokens.prompt_cached disk": 102.0,
        "vllm.tokens.generation": value(vllm, "generation_tokens"),
        "vllm.requests.finished stop": 101.0,
        "vllm.requests.finished length": 102.0,
        "vllm.requests.finished abort": 103.0,
        "vllm.requests.finished error": 104.0,
        "vllm.requests.finished repetition": 105.0,
        "vllm.requests.rejected max_num_queued_reqs": 201.0,
        "vllm.requests.preempted": value(vllm, "num_preemptions"),
        "vllm.requests.corrupted": value(vllm, "corrupted_requests"),
        "vllm.requests.watermarked skipped": 101.0,
        "vllm.kv_cache.usage": value(vllm, "kv_cache_usage_perc"),
        "vllm.prefix_cache.queried_tokens local": value(vllm, "prefix_cache_queries"),
        "vllm.prefix_cache.queried_tokens external": value(vllm, "external_prefix_cache_queries"),
        "vllm.prefix_cache.hit_tokens local": value(vllm, "prefix_cache_hits"),
        "vllm.prefix_cache.hit_tokens external": value(vllm, "external_prefix_cache_hits"),
        "vllm.multimodal_cache.queries": value(vllm, "mm_cache_queries"),
        "vllm.multimodal_cache.hits": value(vllm, "mm_cache_hits"),
        "vllm.spec_decode.drafts": value(vllm, "spec_decode_num_drafts"),
        "vllm.spec_decode.draft_tokens": value(vllm, "spec_decode_num_draft_tokens"),
        "vllm.spec_decode.accepted_tokens 0": 101.0,
        "vllm.spec_decode.accepted_tokens 1": 102.0,
    }


def test_the_oldest_release() -> None:
    vllm = full(*OLDEST)
    vllm.of("request_success", "stop").inc(101)
    assert numbers(vllm) == {
        "vllm.engine.requests.running": value(vllm, "num_requests_running"),
        "vllm.engine.requests.waiting capacity": value(vllm, "num_requests_waiting"),
        "vllm.step.scheduled_tokens prefill": value(vllm, "prompt_tokens"),
        "vllm.step.scheduled_tokens decode": value(vllm, "generation_tokens"),
        "vllm.tokens.prompt unknown": value(vllm, "prompt_tokens"),
        "vllm.tokens.prompt_cached device": value(vllm, "prefix_cache_hits"),
        "vllm.tokens.generation": value(vllm, "generation_tokens"),
        "vllm.requests.finished stop": 101.0,
        "vllm.requests.preempted": value(vllm, "num_preemptions"),
        "vllm.kv_cache.usage": value(vllm, "kv_cache_usage_perc"),
        "vllm.prefix_cache.queried_tokens local": value(vllm, "prefix_cache_queries"),
        "vllm.prefix_cache.hit_tokens local": value(vllm, "prefix_cache_hits"),
        "vllm.spec_decode.drafts": value(vllm, "spec_decode_num_drafts"),
        "vllm.spec_decode.draft_tokens": value(vllm, "spec_decode_num_draft_tokens"),
    }


@pytest.mark.parametrize("release", [OLDEST, NEWEST])
def test_histograms_arrive_bucket_by_bucket(release: tuple[int, ...]) -> None:
    vllm = Vllm(*release)
    names = {ours: name for ours, name in HISTOGRAMS.items() if DECLARED[name].exists(release)}
    for number, name in enumerate(names.values(), start=1):
        vllm.observe(name, *[0.5] * number, 1.0, 1.5, 5.0, 6.0, 7.0)
    found = shown(vllm)
    for number, ours in enumerate(names, start=1):
        assert found[ours].bounds == (1.0, 2.0, 5.0)
        assert found[ours].counts == (number + 1, 1, 1, 2), ours
        assert found[ours].value == 0.5 * number + 20.5
    assert {name for name, each in found.items() if each.bounds} == names.keys()


def test_older_names_stand_in_where_the_newer_are_missing() -> None:
    vllm = full(*OLDEST)
    vllm.observe("time_per_output_token_seconds", 0.5)
    for name in ("kv_cache_usage_perc", "prefix_cache_queries", "prefix_cache_hits", "inter_token_latency_seconds"):
        vllm.registry.unregister(vllm.metrics[name])
    found = shown(vllm)
    assert found["vllm.kv_cache.usage"].value == value(vllm, "gpu_cache_usage_perc")
    assert found["vllm.prefix_cache.queried_tokens local"].value == value(vllm, "gpu_prefix_cache_queries")
    assert found["vllm.prefix_cache.hit_tokens local"].value == value(vllm, "gpu_prefix_cache_hits")
    assert found["vllm.request.inter_token_latency"].counts == (1, 0, 0, 0)


def test_external_hits_have_no_tier_before_0_32() -> None:
    vllm = Vllm(0, 20, 2)
    vllm.count(prefix_cache_hits=3, external_prefix_cache_hits=4)
    found = numbers(vllm)
    assert found["vllm.tokens.prompt_cached device"] == 3.0
    assert found["vllm.tokens.prompt_cached external_unspecified"] == 4.0


def test_a_token_computed_again_counts_once() -> None:
    vllm = Vllm(0, 19, 1)
    for source, tokens in (("local_compute", 11), ("local_cache_hit", 40), ("external_kv_transfer", 5)):
        vllm.of("prompt_tokens_by_source", source).inc(tokens)
    vllm.count(prompt_tokens=54, prompt_tokens_recomputed=2)
    found = numbers(vllm)
    assert found["vllm.tokens.prompt local_cache_hit"] == 38.0
    assert sum(value for name, value in found.items() if name.startswith("vllm.tokens.prompt ")) == 54.0


def test_requests_of_one_token_have_no_time_per_output_token() -> None:
    vllm = Vllm(*NEWEST)
    vllm.observe("request_generation_tokens", 0, 1, 1, 2, 7)
    vllm.observe("request_time_per_output_token_seconds", 0.0, 0.0, 0.0, 0.5, 1.5)
    found = shown(vllm)["vllm.request.mean_time_per_output_token"]
    assert (found.counts, found.value) == ((1, 1, 0, 0), 2.0)


def test_where_they_cannot_be_told_apart_nothing_is_shown() -> None:
    vllm = Vllm(*NEWEST, buckets=(0.5, 2.0))
    vllm.observe("request_generation_tokens", 1, 2)
    vllm.observe("request_time_per_output_token_seconds", 0.0, 0.5)
    assert "vllm.request.mean_time_per_output_token" not in shown(vllm)


@pytest.mark.parametrize(
    ("states", "expected"),
    [((1, 0, 0), "awake"), ((0, 0, 0), "paused"), ((0, 1, 0), "weights_offloaded"), ((0, 0, 1), "discard_all")],
)
def test_an_engine_is_in_one_state(states: tuple[int, ...], expected: str) -> None:
    vllm = Vllm(*NEWEST)
    for state, told in zip(("awake", "weights_offloaded", "discard_all"), states, strict=True):
        vllm.of("engine_sleep_state", state).set(told)
    found = numbers(vllm)
    assert {state for state in engine.SLEEP_STATES if found[f"vllm.engine.sleep {state}"]} == {expected}


def test_the_rust_front_end() -> None:
    found = {metric: (key, each) for (metric, key), each in mapped(relevant(parse(RUST, OPENMETRICS))).items()}
    assert found.keys() == {
        engine.RUNNING, engine.SCHEDULED_TOKENS, requests.PROMPT_TOKENS, requests.TIME_TO_FIRST_TOKEN,
    }  # fmt: skip
    assert found[engine.RUNNING] == (("m", "0"), (2.0, (), ()))
    assert found[requests.TIME_TO_FIRST_TOKEN] == (("m", "0"), (3.25, (0.5, 2560.0), (1, 2, 0)))


def test_engines_are_kept_apart() -> None:
    vllm = Vllm(*NEWEST)
    vllm.count("0", generation_tokens=1)
    vllm.count("1", generation_tokens=2)
    found = mapped(relevant(vllm.families))
    of_metric = {key: each.value for (metric, key), each in found.items() if metric is requests.GENERATION_TOKENS}
    assert of_metric == {("m", "0"): 1.0, ("m", "1"): 2.0}


def test_series_that_only_a_label_of_others_tells_apart_make_one() -> None:
    page = b"""\
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m",engine="0",pid="7"} 0.25
vllm:kv_cache_usage_perc{model_name="m",engine="0",pid="8"} 0.5
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="m",engine="0",pod="a"} 3
vllm:generation_tokens_total{model_name="m",engine="0",pod="b"} 4
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{model_name="m",engine="0",pod="a",le="1.0"} 1
vllm:e2e_request_latency_seconds_bucket{model_name="m",engine="0",pod="a",le="+Inf"} 3
vllm:e2e_request_latency_seconds_sum{model_name="m",engine="0",pod="a"} 9
vllm:e2e_request_latency_seconds_bucket{model_name="m",engine="0",pod="b",le="1.0"} 2
vllm:e2e_request_latency_seconds_bucket{model_name="m",engine="0",pod="b",le="+Inf"} 2
vllm:e2e_request_latency_seconds_sum{model_name="m",engine="0",pod="b"} 1
"""
    found = {metric: each for (metric, _), each in mapped(relevant(parse(page, TEXT))).items()}
    assert found[cache.KV_USAGE].value == 0.5
    assert found[requests.GENERATION_TOKENS].value == 7.0
    assert (found[requests.DURATION].counts, found[requests.DURATION].value) == ((3, 2), 10.0)


@pytest.mark.parametrize(
    "page",
    [
        b'vllm:num_requests_running_total{engine="0"} 1\nvllm:generation_tokens_total{engine="0"} 1\n',
        b'# TYPE vllm:e2e_request_latency_seconds histogram\nvllm:e2e_request_latency_seconds_bucket{le="1.0"} 1\n',
        (b'# TYPE vllm:e2e_request_latency_seconds histogram\nvllm:e2e_request_latency_seconds_bucket{le="1.0"} 2\n'
         b'vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 1\n'),
        b'# TYPE vllm:e2e_request_latency_seconds histogram\nvllm:e2e_request_latency_seconds_bucket{le="+Inf"} NaN\n',
        b"# TYPE vllm:e2e_request_latency_seconds gauge\nvllm:e2e_request_latency_seconds 1\n",
        b'# TYPE vllm:request_success_total counter\nvllm:request_success_total{model_name="m",engine="0"} 1\n',
    ],
)  # fmt: skip
def test_what_is_of_another_shape_is_left_out(page: bytes) -> None:
    assert mapped(relevant(parse(page, TEXT))) == {}


def test_a_series_that_is_shown_twice_counts_once() -> None:
    page = b"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total 3\n" * 2
    assert mapped(relevant(parse(page, TEXT)))[requests.GENERATION_TOKENS, ("", "")].value == 3.0


def test_a_page_without_the_usual_labels_is_mapped_still() -> None:
    page = b"""\
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total 3
# TYPE vllm:prompt_tokens_recomputed_total counter
vllm:prompt_tokens_recomputed_total 3
# TYPE vllm:request_generation_tokens histogram
vllm:request_generation_tokens_bucket{le="1.0"} 1
vllm:request_generation_tokens_bucket{le="+Inf"} 1
"""
    found = mapped(relevant(parse(page, TEXT)))
    assert found[requests.GENERATION_TOKENS, ("", "")].value == 3.0


def test_every_metric_is_had_or_it_is_said_why_not() -> None:
    had = {native.ours for native in COUNTERPARTS}
    why = dict(missing(CATALOG))
    own = {metric for metric in CATALOG if metric.scope is Scope.PROCESS}
    assert had | why.keys() | own == set(CATALOG)
    assert had & why.keys() - set(CONNECTORS) == {requests.PHASE_DURATION} == PARTLY.keys()
    assert (
        {metric for metric in CATALOG if metric.vllm_name} - had == {engine.INFO, cache.LORA_REQUESTS} <= UNFIT.keys()
    )
    assert all(why.values())


def test_a_page_is_told_what_it_lacks() -> None:
    names = {each.name for each in relevant(full(*OLDEST).families)}
    why = dict(missing(CATALOG, names))
    assert why[requests.REJECTED] == "this page has no vllm:admission_rejections_total"
    assert why[cache.MULTIMODAL_HITS] == "this page has no vllm:mm_cache_hits_total"
    assert requests.PROMPT_TOKENS not in why


def test_names_are_those_of_releases_and_kinds_agree() -> None:
    declared = {
        f"vllm:{name.removesuffix('_total')}_total" if each.kind is Counter else f"vllm:{name}": each.kind
        for name, each in DECLARED.items()
    }
    sums = {f"{name}_sum": Counter for name, kind in declared.items() if kind is Histogram}
    assert {native.superseded_by for native in COUNTERPARTS} - {""} <= declared.keys()
    assert {RECOMPUTED, OUTPUT_TOKENS} <= declared.keys() & NAMES
    for native in COUNTERPARTS:
        assert (declared | sums)[native.name].__name__.lower() == native.ours.kind, native.name
