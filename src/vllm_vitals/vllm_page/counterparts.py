"""Which metric of vLLM's stands for which of ours on a page of 0.11 to 0.33, and why the rest of ours is on none.

Beyond the reach of any page: vLLM's latencies hold what it invents of requests that were cut off, where ours have
none; before 0.23 the tokens of its steps hold cached ones; the Rust front end counts clients that left as aborted.
"""

import re
from collections.abc import Iterator
from typing import Any

from vllm_vitals.catalog import CATALOG, Metric, Scope, cache, engine, requests, self_metrics
from vllm_vitals.catalog.connectors import CONNECTORS
from vllm_vitals.catalog.gpu import GPU
from vllm_vitals.vllm_page.counterpart import Native
from vllm_vitals.vllm_page.kv_counterparts import OF_CONNECTORS, UNTOLD

RENAMED = {"finished_reason": "finish_reason", "sleep_state": "state"}
"""vLLM's label names to ours, where they differ."""
ONE_NAME = re.compile(r"vllm:\w+")
"""What the catalogue says of a metric that has one counterpart of the same shape."""

UNFIT: dict[Metric[Any], str] = {
    engine.INFO: "vLLM shows a part of it, under other names, as labels of vllm:cache_config_info",
    cache.KV_CAPACITY: "vLLM shows it as a label of vllm:cache_config_info only",
    cache.KV_FREE: "it needs vllm.kv_cache.capacity",
    cache.LORA_REQUESTS: "vllm:lora_requests_info names the adapters and does not count their requests",
}
PARTLY: dict[Metric[Any], str] = {requests.PHASE_DURATION: "phase=frontend: vLLM does not export it"}
OF_HOOKS = (self_metrics.DROPPED, self_metrics.HOOK_TIME)
"""The rest of what a process says of itself is kept by whichever exports."""

SPECIAL = (
    Native("vllm:num_requests_waiting", engine.WAITING, {"reason": "capacity"},
           superseded_by="vllm:num_requests_waiting_by_reason"),
    Native("vllm:prompt_tokens_by_source_total", engine.SCHEDULED_TOKENS, {"phase": "prefill"},
           {"source": "local_compute"}),
    Native("vllm:prompt_tokens_total", engine.SCHEDULED_TOKENS, {"phase": "prefill"},
           superseded_by="vllm:prompt_tokens_by_source_total"),
    Native("vllm:generation_tokens_total", engine.SCHEDULED_TOKENS, {"phase": "decode"}),
    Native("vllm:estimated_read_bytes_per_gpu_total", engine.MEMORY_TRAFFIC, {"direction": "read"}),
    Native("vllm:estimated_write_bytes_per_gpu_total", engine.MEMORY_TRAFFIC, {"direction": "write"}),
    Native("vllm:prompt_tokens_total", requests.PROMPT_TOKENS, {"source": "unknown"},
           superseded_by="vllm:prompt_tokens_by_source_total"),
    Native("vllm:prefix_cache_hits_total", requests.CACHED_TOKENS, {"source": "device"},
           superseded_by="vllm:prompt_tokens_cached_by_source_total"),
    Native("vllm:external_prefix_cache_hits_total", requests.CACHED_TOKENS, {"source": "external_unspecified"},
           superseded_by="vllm:prompt_tokens_cached_by_source_total"),
    Native("vllm:time_per_output_token_seconds", requests.INTER_TOKEN_LATENCY, superseded_by="vllm:inter_token_latency_seconds"),
    Native("vllm:request_queue_time_seconds", requests.PHASE_DURATION, {"phase": "queue"}),
    Native("vllm:request_prefill_time_seconds", requests.PHASE_DURATION, {"phase": "prefill"}),
    Native("vllm:request_decode_time_seconds", requests.PHASE_DURATION, {"phase": "decode"}),
    Native("vllm:gpu_cache_usage_perc", cache.KV_USAGE, superseded_by="vllm:kv_cache_usage_perc"),
    Native("vllm:prefix_cache_queries_total", cache.PREFIX_QUERIES, {"tier": "local"}),
    Native("vllm:external_prefix_cache_queries_total", cache.PREFIX_QUERIES, {"tier": "external"}),
    Native("vllm:gpu_prefix_cache_queries_total", cache.PREFIX_QUERIES, {"tier": "local"},
           superseded_by="vllm:prefix_cache_queries_total"),
    Native("vllm:prefix_cache_hits_total", cache.PREFIX_HITS, {"tier": "local"}),
    Native("vllm:external_prefix_cache_hits_total", cache.PREFIX_HITS, {"tier": "external"}),
    Native("vllm:gpu_prefix_cache_hits_total", cache.PREFIX_HITS, {"tier": "local"},
           superseded_by="vllm:prefix_cache_hits_total"),
)  # fmt: skip
"""What the catalogue's `native` does not say: metrics split by label, older names, what stands in for finer ones."""


def _plain() -> Iterator[Native]:
    for metric in CATALOG:
        if ONE_NAME.fullmatch(metric.vllm_name) and metric not in UNFIT:
            stem = metric.vllm_name.removesuffix("_total")
            yield Native(f"{stem}_total" if metric.kind == "counter" else metric.vllm_name, metric)


NATIVES = (*_plain(), *SPECIAL)
"""Those that do not depend on a KV connector: PromQL over vLLM's own series is made of these."""
COUNTERPARTS = (*NATIVES, *OF_CONNECTORS)
RECOMPUTED = "vllm:prompt_tokens_recomputed_total"
OUTPUT_TOKENS = "vllm:request_generation_tokens"
NAMES = {native.name for native in COUNTERPARTS} | {RECOMPUTED, OUTPUT_TOKENS}
"""What is read of a page."""


def why_missing(metric: Metric[Any]) -> str:
    """Return why a metric, or a part of it, is on no page of vLLM's; `""` when all of it is, or it is not vLLM's."""
    if metric in CONNECTORS:
        return UNTOLD.get(metric, "")
    if metric in {native.ours for native in NATIVES}:
        return PARTLY.get(metric, "")
    if metric in GPU:
        return ""  # a sidecar samples them itself
    if metric in self_metrics.SELF:
        of_plugin = metric.scope is not Scope.PROCESS or metric in OF_HOOKS
        return "the plugin counts it, and does not run in that vLLM" if of_plugin else ""
    if metric.scope is Scope.CONVENTION:
        return "vLLM's latencies do not tell requests that failed from the others, and have other buckets"
    return UNFIT.get(metric, "vLLM does not export it")
