"""What a scenario adds up to, by hand, and the samples vLLM's own logger should show for it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.compat.releases import Release

Counts = Mapping[str, float]
Values = Sequence[float]


@dataclass
class Totals:
    """Sums, last states and every observation of one engine, in vLLM's own meaning.

    Left empty where the release does not report a thing. `time_per_output_token` has vLLM's 0 for
    requests of one token; `prefill` and `queue` hold what vLLM says even where it is nonsense.
    """

    running: float = 0
    waiting: float = 0
    deferred: float = 0
    kv_usage: float = 0
    encoder_usage: float = 0
    sleep: Counts = field(default_factory=dict)
    kv_fetch: Counts = field(default_factory=dict)
    lora_running: Counts = field(default_factory=dict)
    lora_waiting: Counts = field(default_factory=dict)

    prompt_tokens: float = 0
    generation_tokens: float = 0
    preemptions: float = 0
    corrupted: float = 0
    recomputed: float = 0
    prompt_by_source: Counts = field(default_factory=dict)
    cached_by_tier: Counts = field(default_factory=dict)
    finished: Counts = field(default_factory=dict)
    watermark: Counts = field(default_factory=dict)
    rejections: Counts = field(default_factory=dict)
    prefix_queries: float = 0
    prefix_hits: float = 0
    external_queries: float = 0
    external_hits: float = 0
    mm_queries: float = 0
    mm_hits: float = 0

    drafts: float = 0
    draft_tokens: float = 0
    accepted_tokens: float = 0
    accepted_by_position: Counts = field(default_factory=dict)
    flops: float = 0
    read_bytes: float = 0
    write_bytes: float = 0
    graph_unpadded: float = 0
    graph_padded: float = 0

    time_to_first_token: Values = field(default_factory=list)
    inter_token_latency: Values = field(default_factory=list)
    step_tokens: Values = field(default_factory=list)
    step_seconds: Values = field(default_factory=list)
    duration: Values = field(default_factory=list)
    queue: Values = field(default_factory=list)
    prefill: Values = field(default_factory=list)
    decode: Values = field(default_factory=list)
    inference: Values = field(default_factory=list)
    time_per_output_token: Values = field(default_factory=list)
    request_prompt: Values = field(default_factory=list)
    request_generation: Values = field(default_factory=list)
    request_cached: Values = field(default_factory=list)
    request_computed: Values = field(default_factory=list)
    request_max_tokens: Values = field(default_factory=list)
    request_preemptions: Values = field(default_factory=list)
    group_n: Values = field(default_factory=list)
    group_max_generation: Values = field(default_factory=list)
    block_lifetime: Values = field(default_factory=list)
    block_idle: Values = field(default_factory=list)
    block_reuse_gap: Values = field(default_factory=list)


_NUMBERS = {
    "running": "num_requests_running",
    "kv_usage": "kv_cache_usage_perc",
    "prompt_tokens": "prompt_tokens_total",
    "generation_tokens": "generation_tokens_total",
    "preemptions": "num_preemptions_total",
    "corrupted": "corrupted_requests_total",
    "recomputed": "prompt_tokens_recomputed_total",
    "prefix_queries": "prefix_cache_queries_total",
    "prefix_hits": "prefix_cache_hits_total",
    "external_queries": "external_prefix_cache_queries_total",
    "external_hits": "external_prefix_cache_hits_total",
    "mm_queries": "mm_cache_queries_total",
    "mm_hits": "mm_cache_hits_total",
    "drafts": "spec_decode_num_drafts_total",
    "draft_tokens": "spec_decode_num_draft_tokens_total",
    "accepted_tokens": "spec_decode_num_accepted_tokens_total",
}
_PERF = {
    "flops": "estimated_flops_per_gpu_total",
    "read_bytes": "estimated_read_bytes_per_gpu_total",
    "write_bytes": "estimated_write_bytes_per_gpu_total",
}
_LABELLED = {
    "sleep": ("engine_sleep_state", "sleep_state"),
    "kv_fetch": ("num_requests_kv_fetch_by_stage", "stage"),
    "prompt_by_source": ("prompt_tokens_by_source_total", "source"),
    "cached_by_tier": ("prompt_tokens_cached_by_source_total", "source"),
    "finished": ("request_success_total", "finished_reason"),
    "watermark": ("watermark_requests_total", "status"),
    "accepted_by_position": ("spec_decode_num_accepted_tokens_per_pos_total", "position"),
}
_OBSERVED = {
    "time_to_first_token": "time_to_first_token_seconds",
    "inter_token_latency": "inter_token_latency_seconds",
    "step_tokens": "iteration_tokens_total",
    "duration": "e2e_request_latency_seconds",
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "decode": "request_decode_time_seconds",
    "inference": "request_inference_time_seconds",
    "time_per_output_token": "request_time_per_output_token_seconds",
    "request_prompt": "request_prompt_tokens",
    "request_generation": "request_generation_tokens",
    "request_computed": "request_prefill_kv_computed_tokens",
    "request_max_tokens": "request_params_max_tokens",
    "request_preemptions": "request_num_preemptions",
    "group_n": "request_params_n",
    "group_max_generation": "request_max_num_generation_tokens",
    "block_lifetime": "kv_block_lifetime_seconds",
    "block_idle": "kv_block_idle_before_evict_seconds",
    "block_reuse_gap": "kv_block_reuse_gap_seconds",
}


def samples(release: Release, totals: Totals) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the name, extra labels and value of each sample of vLLM's logger that `totals` decides."""
    # Perf stats came in 0.14.0, their series in 0.17.0.
    numbers = _NUMBERS | _PERF if release.at_least("0.17.0") else _NUMBERS
    for name, sample in numbers.items():
        yield f"vllm:{sample}", {}, getattr(totals, name)
    yield "vllm:num_requests_waiting", {}, totals.waiting + totals.deferred
    if release.at_least("0.20.0"):
        yield "vllm:num_requests_waiting_by_reason", {"reason": "capacity"}, totals.waiting
        yield "vllm:num_requests_waiting_by_reason", {"reason": "deferred"}, totals.deferred
    for name, (sample, label) in _LABELLED.items():
        for key, value in getattr(totals, name).items():
            yield f"vllm:{sample}", {label: key}, value
    for name, sample in _OBSERVED.items():
        yield f"vllm:{sample}_sum", {}, sum(getattr(totals, name))
        yield f"vllm:{sample}_count", {}, len(getattr(totals, name))
