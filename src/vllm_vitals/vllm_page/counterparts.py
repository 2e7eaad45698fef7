"""Which metric of vLLM's stands for which of ours on a page of 0.11 to 0.33, and why the rest of ours is on none.

Beyond the reach of any page: vLLM's latencies hold what it invents of requests that were cut off, where ours have
none; before 0.23 the tokens of its steps hold cached ones; the Rust front end counts clients that left as aborted.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_vitals.catalog import CATALOG, Metric, Scope, cache, engine, requests, self_metrics
from vllm_vitals.catalog import connectors as catalog
from vllm_vitals.catalog.connectors import CONNECTORS
from vllm_vitals.catalog.gpu import GPU
from vllm_vitals.catalog.kv_reports import (
    DESCRIBED,
    DIRECTION_OF_CLASS,
    DIRECTIONS_BY_CLASS,
    FAILED,
    LISTS,
    OPERATIONS,
    SAME_LABEL,
    Rules,
)


@dataclass(frozen=True)
class Native:
    """A metric of vLLM's and the metric of ours that it maps to."""

    name: str
    """Sample name, or the family name of a histogram; `NAME_sum` maps the sum of a histogram alone."""
    ours: Metric[Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of ours that vLLM's metric does not have, with their values."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Only vLLM's series with these labels are mapped."""
    zero_where: Mapping[str, str] = field(default_factory=dict)
    """vLLM's series with these labels count as 0: they start our series, and only the others count."""
    optional_labels: Collection[str] = ()
    """Labels of ours that are empty where vLLM's are missing."""
    superseded_by: str = ""
    """A metric of vLLM's that is used instead where a page has it, or beside which this one means something else."""


OFFLOADING, SIMPLE, STORE = "OffloadingConnector", "SimpleCPUOffloadConnector", "MooncakeStoreConnector"

LISTED: Mapping[str, Mapping[str, str]] = {
    "NixlConnector": {
        "nixl_xfer_time_seconds": "transfer_duration", "nixl_xfer_time_seconds_sum": "transfer_duration",
        "nixl_post_time_seconds": "post_duration",
        "nixl_bytes_transferred": "bytes_transferred", "nixl_bytes_transferred_sum": "bytes_transferred",
        "nixl_num_descriptors": "num_descriptors",
        "nixl_num_failed_transfers_total": "num_failed_transfers",
        "nixl_num_failed_notifications_total": "num_failed_notifications",
        "nixl_num_kv_expired_reqs_total": "num_kv_expired_reqs",
    },
    "MooncakeConnector": {
        "mooncake_xfer_time_seconds": "transfer_duration", "mooncake_xfer_time_seconds_sum": "transfer_duration",
        "mooncake_bytes_transferred": "bytes_transferred", "mooncake_bytes_transferred_sum": "bytes_transferred",
        "mooncake_num_descriptors": "num_descriptors",
        "mooncake_num_failed_transfers_total": "num_failed_transfers",
        "mooncake_num_failed_recvs_total": "num_failed_recvs",
        "mooncake_num_kv_expired_reqs_total": "num_kv_expired_reqs",
    },
    "HF3FSKVConnector": {
        "hf3fs_save_duration_seconds": "save_duration", "hf3fs_save_duration_seconds_sum": "save_duration",
        "hf3fs_load_duration_seconds": "load_duration", "hf3fs_load_duration_seconds_sum": "load_duration",
        "hf3fs_num_failed_save_total": "num_failed_save",
        "hf3fs_num_failed_load_total": "num_failed_load",
    },
    "HiSparseConnector": {
        "hisparse_cache_hits_total": "cache_hits",
        "hisparse_cache_misses_total": "cache_misses",
        "hisparse_host_to_device_bytes_total": "host_to_device_bytes",
        "hisparse_host_cache_usage_perc": "host_cache_usage_perc",
    },
}  # fmt: skip
"""Of classes that report lists: their metrics, without `vllm:`, and the list that each shows."""
OPERATED = {
    "mooncake_store_operation_time_seconds": "duration_seconds",
    "mooncake_store_operation_time_seconds_sum": "duration_seconds",
    "mooncake_store_operation_bytes_total": "num_bytes",
}
"""Of MooncakeStoreConnector, which reports operations: its metrics, and the field that each shows."""
OLDER = {
    "kv_offload_size": ("op_size", "kv_offload_{}_size"),
    "kv_offload_total_bytes_total": ("op_size", "kv_offload_{}_bytes_total"),
    "kv_offload_total_time_total": ("op_time", "kv_offload_{}_time_total"),
}
"""Likewise of OffloadingConnector up to 0.23; and the metric that tells the same since 0.24, by direction."""
ONE_NIXL = "vllm:num_requests_waiting_by_reason"
"""Pages of 0.20 and later have it. On older ones NIXL's metrics are those of its only class, which reads."""

NIXL = "of NIXL since vLLM 0.20: its metrics do not tell which of its classes it was, nor so in which direction"
MOONCAKE = "of MooncakeConnector before vLLM 0.33: it exports nothing"
UNTOLD: dict[Metric[Any], str] = {
    catalog.DURATION: f"{NIXL}; {MOONCAKE}; of OffloadingConnector: it exports only what the times add up to",
    catalog.POST_DURATION: NIXL,
    catalog.SIZE: f"{NIXL}; {MOONCAKE}; of MooncakeStoreConnector: it exports only what the sizes add up to",
    catalog.DESCRIPTORS: f"{NIXL}; {MOONCAKE}",
    catalog.IO: f"{NIXL}; {MOONCAKE}",
    catalog.OPERATION_TIME: f"{NIXL}; {MOONCAKE}",
    catalog.FAILURES: f"{NIXL}; {MOONCAKE}",
    catalog.EXPIRED: f"{NIXL}; {MOONCAKE}",
    catalog.LATE_NOTIFICATIONS: NIXL,
}
"""Whose numbers are missing, and why."""


def _natives() -> Iterator[Native]:
    for connector, lists in LISTED.items():
        superseded_by = ONE_NIXL if connector == "NixlConnector" else ""
        for name, reported in lists.items():
            yield from _of(name, connector, LISTS[reported], superseded_by=superseded_by)
    for name, rules in DESCRIBED.items():
        stem = name.removeprefix("vllm:").removesuffix("_total")
        total = "_total" if rules[0].metric.kind == "counter" else ""
        yield from _of(f"{stem}{total}", SIMPLE if stem.startswith("simple_") else OFFLOADING, rules)
    for kind, fields in OPERATIONS.items():
        yield from _operations(kind, fields)
    for kind, rules in FAILED.items():
        yield from _of(
            "mooncake_store_operation_total", STORE, rules, where={"operation": kind}, zero_where={"status": "ok"}
        )


def _operations(kind: str, fields: Mapping[str, Rules]) -> Iterator[Native]:
    for name, reported in OPERATED.items():
        if rules := fields.get(reported):
            yield from _of(name, STORE, rules, where={"operation": kind})
    for name, (reported, newer) in OLDER.items():
        if rules := fields.get(reported):
            (way,) = rules[0].labels
            yield from _of(
                name, OFFLOADING, rules, where={"transfer_type": kind}, superseded_by=f"vllm:{newer.format(way)}"
            )


def _of(name: str, connector: str, rules: Rules, **more: Any) -> Iterator[Native]:
    """Yield each of our metrics that a number belongs to, where vLLM's metric of it is of the same kind."""
    for metric, labels in rules:
        if (metric.kind == "counter") == name.endswith(("_total", "_sum")):
            told = dict(zip((label.name for label in metric.labels), (connector, *labels), strict=True))
            optional_labels = tuple(label for label, value in told.items() if value == SAME_LABEL)
            fixed = {
                label: DIRECTIONS_BY_CLASS.get(connector, "") if value == DIRECTION_OF_CLASS else value
                for label, value in told.items()
                if label not in optional_labels
            }
            yield Native(f"vllm:{name}", metric, fixed, optional_labels=optional_labels, **more)


OF_CONNECTORS = tuple(_natives())


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
