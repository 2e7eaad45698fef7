"""Metrics pages as numbers, and vLLM's own compared with ours metric by metric."""

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from vllm_vitals.catalog import Metric, cache, engine, requests

Labels = frozenset[tuple[str, str]]
Samples = dict[str, dict[Labels, float]]


def parse(text: str) -> Samples:
    """Return every sample of a page in text format by its full name and labels."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if value)
            samples.setdefault(sample.name, {})[labels] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum over the samples of a name that have these labels, NaN when there is none."""
    found = [
        number
        for given, number in samples.get(name, {}).items()
        if all((key, wanted) in given for key, wanted in labels.items())
    ]
    return math.fsum(found) if found else math.nan


@dataclass(frozen=True)
class Pair:
    """One metric of vLLM's, and ours that must show the same for every engine."""

    native: str
    ours: Metric[Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Label values of ours that together make vLLM's metric; its own labels must be equal but for `rename`."""
    rename: Mapping[str, str] = field(default_factory=dict)
    """vLLM's label names to ours."""


PAIRS = (
    Pair("vllm:num_requests_running", engine.RUNNING),
    Pair("vllm:num_requests_waiting", engine.WAITING),
    Pair("vllm:num_requests_waiting_by_reason", engine.WAITING),
    Pair("vllm:num_requests_kv_fetch_by_stage", engine.KV_FETCH),
    Pair("vllm:engine_sleep_state", engine.SLEEP, rename={"sleep_state": "state"}),
    Pair("vllm:iteration_tokens_total", engine.STEP_TOKENS),
    Pair("vllm:estimated_flops_per_gpu_total", engine.FLOPS),
    Pair("vllm:estimated_read_bytes_per_gpu_total", engine.MEMORY_TRAFFIC, {"direction": "read"}),
    Pair("vllm:estimated_write_bytes_per_gpu_total", engine.MEMORY_TRAFFIC, {"direction": "write"}),
    Pair("vllm:prompt_tokens_total", requests.PROMPT_TOKENS),
    Pair("vllm:prompt_tokens_by_source_total", requests.PROMPT_TOKENS),
    Pair("vllm:prompt_tokens_cached_by_source_total", requests.CACHED_TOKENS),
    Pair("vllm:generation_tokens_total", requests.GENERATION_TOKENS),
    Pair("vllm:request_success_total", requests.FINISHED, rename={"finished_reason": "finish_reason"}),
    Pair("vllm:admission_rejections_total", requests.REJECTED),
    Pair("vllm:num_preemptions_total", requests.PREEMPTED),
    Pair("vllm:corrupted_requests_total", requests.CORRUPTED),
    Pair("vllm:watermark_requests_total", requests.WATERMARKED),
    Pair("vllm:time_to_first_token_seconds", requests.TIME_TO_FIRST_TOKEN),
    Pair("vllm:inter_token_latency_seconds", requests.INTER_TOKEN_LATENCY),
    Pair("vllm:e2e_request_latency_seconds", requests.DURATION),
    Pair("vllm:request_inference_time_seconds", requests.INFERENCE_DURATION),
    Pair("vllm:request_queue_time_seconds", requests.PHASE_DURATION, {"phase": "queue"}),
    Pair("vllm:request_prefill_time_seconds", requests.PHASE_DURATION, {"phase": "prefill"}),
    Pair("vllm:request_decode_time_seconds", requests.PHASE_DURATION, {"phase": "decode"}),
    Pair("vllm:request_prompt_tokens", requests.INPUT_TOKENS),
    Pair("vllm:request_generation_tokens", requests.OUTPUT_TOKENS),
    Pair("vllm:request_prefill_kv_computed_tokens", requests.COMPUTED_TOKENS),
    Pair("vllm:request_params_max_tokens", requests.MAX_TOKENS),
    Pair("vllm:request_max_num_generation_tokens", requests.LONGEST_OUTPUT),
    Pair("vllm:request_params_n", requests.SEQUENCES_ASKED),
    Pair("vllm:request_num_preemptions", requests.REQUEST_PREEMPTIONS),
    Pair("vllm:request_time_per_output_token_seconds", requests.MEAN_TIME_PER_OUTPUT_TOKEN),
    Pair("vllm:kv_cache_usage_perc", cache.KV_USAGE),
    Pair("vllm:prefix_cache_queries_total", cache.PREFIX_QUERIES, {"tier": "local"}),
    Pair("vllm:prefix_cache_hits_total", cache.PREFIX_HITS, {"tier": "local"}),
    Pair("vllm:external_prefix_cache_queries_total", cache.PREFIX_QUERIES, {"tier": "external"}),
    Pair("vllm:external_prefix_cache_hits_total", cache.PREFIX_HITS, {"tier": "external"}),
    Pair("vllm:mm_cache_queries_total", cache.MULTIMODAL_QUERIES),
    Pair("vllm:mm_cache_hits_total", cache.MULTIMODAL_HITS),
    Pair("vllm:kv_block_lifetime_seconds", cache.BLOCK_LIFETIME),
    Pair("vllm:kv_block_idle_before_evict_seconds", cache.BLOCK_IDLE),
    Pair("vllm:kv_block_reuse_gap_seconds", cache.BLOCK_REUSE_GAP),
    Pair("vllm:spec_decode_num_drafts_total", cache.DRAFTS),
    Pair("vllm:spec_decode_num_draft_tokens_total", cache.DRAFT_TOKENS),
    Pair("vllm:spec_decode_num_accepted_tokens_total", cache.ACCEPTED_TOKENS),
    Pair("vllm:spec_decode_num_accepted_tokens_per_pos_total", cache.ACCEPTED_TOKENS),
)
APART = {
    "vllm:cache_config_info": "facts; ours are in vllm_engine_info",
    "vllm:prompt_tokens_cached_total": "the sum of two sources of vllm:prompt_tokens_by_source",
    "vllm:lora_requests_info": "adapter names joined in a label; ours is vllm_lora_requests",
}
"""Metrics of vLLM's that have no counterpart of the same shape, and why."""


def differences(native: Samples, ours: Samples, *, apart: Container[str] = ()) -> Iterator[str]:
    """Yield a line for each number that vLLM exports and that ours contradict, `apart` from some metrics of its."""
    singles = {
        labels - {("le", "1.0")}: count
        for labels, count in native.get("vllm:request_generation_tokens_bucket", {}).items()
        if ("le", "1.0") in labels
    }
    for pair in (pair for pair in PAIRS if pair.native not in apart):
        for suffix in ("_bucket", "_count", "_sum") if pair.ours.kind == "histogram" else ("",):
            for labels, expected in native.get(pair.native + suffix, {}).items():
                if pair.ours is requests.MEAN_TIME_PER_OUTPUT_TOKEN and suffix != "_sum":
                    # vLLM observes 0 s for a request of one token, which has no time per output token.
                    expected -= singles[frozenset((n, v) for n, v in labels if n != "le")]  # noqa: PLW2901
                wanted = {pair.rename.get(name, name): text for name, text in labels} | dict(pair.labels)
                wanted = {name: text for name, text in wanted.items() if name in (*pair.ours.prometheus_labels, "le")}
                shown = value(ours, pair.ours.prometheus + suffix, **wanted)
                shown = 0.0 if math.isnan(shown) and not expected else shown
                if not math.isclose(shown, expected, rel_tol=1e-9, abs_tol=1e-9):
                    yield f"{pair.native}{suffix}{dict(labels)} is {expected}, {pair.ours.prometheus} shows {shown}"
