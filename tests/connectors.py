"""Which metric of a KV connector's own must equal which of ours."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from tests.parity import Samples, value


@dataclass(frozen=True)
class Pair:
    """A metric of vLLM's, and ours that must show the same."""

    native: str
    ours: str
    labels: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    """The labels of vLLM's series that are meant."""


IO, TIME, SIZE = "io_bytes_total", "operation_time_seconds_total", "size_bytes"
RECEIVE, LOAD, STORE = ({"direction": way} for way in ("receive", "load", "store"))
CPU_TO_GPU, GPU_TO_CPU = {"transfer_type": "CPU_to_GPU"}, {"transfer_type": "GPU_to_CPU"}
NIXL = (
    Pair("nixl_xfer_time_seconds", "duration_seconds", RECEIVE),
    Pair("nixl_xfer_time_seconds_sum", TIME, RECEIVE),
    Pair("nixl_post_time_seconds", "post_duration_seconds"),
    Pair("nixl_bytes_transferred", SIZE, RECEIVE),
    Pair("nixl_bytes_transferred_sum", IO, RECEIVE),
    Pair("nixl_num_descriptors", "descriptors"),
    Pair("nixl_num_failed_notifications_total", "failures_total", {"kind": "notification"}),
    Pair("nixl_num_kv_expired_reqs_total", "expired_total"),
    Pair("nixl_num_notifications_after_expiry_total", "late_notifications_total"),
)
FAILED_OF_ONE_KIND = Pair("nixl_num_failed_transfers_total", "failures_total", {"kind": "transfer"})
FAILED_OF_ALL_KINDS = Pair("nixl_num_failed_transfers_total", "failures_total")
HF3FS = (
    Pair("hf3fs_save_duration_seconds", "duration_seconds", STORE),
    Pair("hf3fs_load_duration_seconds", "duration_seconds", LOAD),
    Pair("hf3fs_num_failed_save_total", "failures_total", {"kind": "store"}),
    Pair("hf3fs_num_failed_load_total", "failures_total", {"kind": "load"}),
)
OFFLOADING = (
    Pair("kv_offload_total_bytes_total", IO, LOAD, CPU_TO_GPU),
    Pair("kv_offload_total_bytes_total", IO, STORE, GPU_TO_CPU),
    Pair("kv_offload_total_time_total", TIME, LOAD, CPU_TO_GPU),
    Pair("kv_offload_total_time_total", TIME, STORE, GPU_TO_CPU),
    Pair("kv_offload_size", SIZE, LOAD, CPU_TO_GPU),
    Pair("kv_offload_size", SIZE, STORE, GPU_TO_CPU),
    Pair("kv_offload_load_bytes_total", IO, LOAD),
    Pair("kv_offload_store_bytes_total", IO, STORE),
    Pair("kv_offload_load_time_total", TIME, LOAD),
    Pair("kv_offload_store_time_total", TIME, STORE),
    Pair("kv_offload_load_size", SIZE, LOAD),
    Pair("kv_offload_store_size", SIZE, STORE),
    Pair("kv_offload_allocation_failure_total", "failures_total", {"kind": "allocation"}),
    Pair("kv_offload_lookup_sync_delay_seconds", "kv_offload_lookup_duration_seconds", {"kind": "sync"}),
    Pair("kv_offload_lookup_async_delay_seconds", "kv_offload_lookup_duration_seconds", {"kind": "async"}),
    Pair("kv_offload_cpu_cache_usage_perc", "kv_offload_usage_ratio"),
)
MOONCAKE_STORE = (
    Pair("mooncake_store_operation_time_seconds", "duration_seconds", STORE, {"operation": "save_put"}),
    Pair("mooncake_store_operation_time_seconds_sum", TIME, STORE, {"operation": "save_put"}),
    Pair("mooncake_store_operation_bytes_total", IO, STORE, {"operation": "save_put"}),
    Pair("mooncake_store_operation_time_seconds", "duration_seconds", LOAD, {"operation": "load_get"}),
    Pair("mooncake_store_operation_bytes_total", IO, LOAD, {"operation": "load_get"}),
    Pair("mooncake_store_operation_time_seconds", "kv_offload_lookup_duration_seconds", {"kind": "load"},
         {"operation": "lookup_exists"}),
    Pair("mooncake_store_operation_time_seconds", "kv_offload_lookup_duration_seconds", {"kind": "store"},
         {"operation": "save_exists"}),
    Pair("mooncake_store_operation_total", "failures_total", {"kind": "store"},
         {"operation": "save_put", "status": "partial_failure"}),
    Pair("mooncake_store_operation_total", "failures_total", {"kind": "lookup"},
         {"operation": "save_exists", "status": "error"}),
)  # fmt: skip
HISPARSE = (
    Pair("hisparse_cache_hits_total", "kv_offload_hit_blocks_total"),
    Pair("hisparse_host_to_device_bytes_total", IO, LOAD),
    Pair("hisparse_host_cache_usage_perc", "kv_offload_usage_ratio"),
)
SIMPLE = (
    Pair("simple_kv_offload_save_outcomes_total", "kv_offload_blocks_total", {"outcome": "stored"}, {"outcome": "stored"}),
    Pair("simple_kv_offload_save_outcomes_total", "kv_offload_blocks_total", {"outcome": "dropped_cpu_full"},
         {"outcome": "dropped_cpu_full"}),
    Pair("simple_kv_offload_load_blocks_total", "kv_offload_blocks_total", {"outcome": "loaded"}),
)  # fmt: skip
NOT_SHOWN = {
    "mooncake_store_operation_keys", "mooncake_store_operation_failed_keys", "hisparse_pending_page_transfers",
    "simple_kv_offload_used_blocks", "hisparse_cache_misses",  # the last is told by what was asked for less what was hit
}  # fmt: skip


def check(native: Samples, found: Samples, connector: str, pairs: Iterable[Pair]) -> set[str]:
    """Compare what vLLM's page has of the pairs with ours, of one engine, and return the metrics that there were."""
    compared = set()
    for pair in pairs:
        prefix = "vllm_" if pair.ours.startswith("kv_") else "vllm_kv_transfer_"
        for suffix in ("", "_sum", "_count"):
            sample = f"vllm:{pair.native}{suffix}"
            expected = value(native, sample, **pair.where)
            if not math.isnan(expected):
                got = value(found, f"{prefix}{pair.ours}{suffix}", connector=connector, **pair.labels)
                assert got == pytest.approx(expected), (connector, pair, suffix)
                compared.add(re.sub("(_total|_sum|_count)+$", "", f"{pair.native}{suffix}"))
        check_buckets(native, found, connector, pair)
    return compared


def check_buckets(native: Samples, found: Samples, connector: str, pair: Pair) -> None:
    """Compare the buckets whose bounds both have."""
    bounds = {dict(labels)["le"] for labels in native.get(f"vllm:{pair.native}_bucket", ())}
    prefix = "vllm_" if pair.ours.startswith("kv_") else "vllm_kv_transfer_"
    for le in bounds:
        expected = value(native, f"vllm:{pair.native}_bucket", le=le, **pair.where)
        got = value(found, f"{prefix}{pair.ours}_bucket", le=le, connector=connector, **pair.labels)
        assert math.isnan(got) or got == expected, (connector, pair, le)
