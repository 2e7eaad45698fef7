"""The report formats of KV connectors in vLLM 0.11 to 0.33, and the metric of ours that each number belongs to."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vllm_vitals.catalog import connectors as catalog
from vllm_vitals.catalog.metric import Metric

DIRECTION_OF_CLASS = "<direction>"
"""Placeholder for the direction in which a connector class moves the cache."""
SAME_LABEL = "<same>"
"""Placeholder for the label of vLLM's number."""
DIRECTIONS_BY_CLASS = {
    "NixlConnector": "receive",
    "NixlPullConnector": "receive",
    "NixlPushConnector": "send",
    "MooncakeConnector": "send",
}
"""The classes that time transfers in one direction only: the reading or the writing engine sees the transfer."""


class Rule(NamedTuple):
    """A metric of ours, and its labels beside the connector's class."""

    metric: Metric[Any]
    labels: tuple[str, ...] = ()


Rules = tuple[Rule, ...]


def _durations(direction: str) -> Rules:
    return Rule(catalog.DURATION, (direction,)), Rule(catalog.OPERATION_TIME, (direction,))


def _sizes(direction: str) -> Rules:
    return Rule(catalog.SIZE, (direction,)), Rule(catalog.IO, (direction,))


def _failures(kind: str) -> Rules:
    return (Rule(catalog.FAILURES, (kind,)),)


LISTS: Mapping[str, Rules] = {
    # NIXL and Mooncake
    "transfer_duration": _durations(DIRECTION_OF_CLASS),
    "post_duration": (Rule(catalog.POST_DURATION),),
    "bytes_transferred": _sizes(DIRECTION_OF_CLASS),
    "num_descriptors": (Rule(catalog.DESCRIPTORS),),
    "num_failed_transfers": _failures("transfer"),
    "num_failed_notifications": _failures("notification"),
    "num_failed_handshakes": _failures("handshake"),
    "num_failed_recvs": _failures("receive"),
    "num_kv_expired_reqs": (Rule(catalog.EXPIRED),),
    "num_notifications_after_expiry": (Rule(catalog.LATE_NOTIFICATIONS),),
    # HF3FS
    "save_duration": _durations("store"),
    "load_duration": _durations("load"),
    "num_failed_save": _failures("store"),
    "num_failed_load": _failures("load"),
    # HiSparse
    "cache_hits": (Rule(catalog.HITS, ("",)), Rule(catalog.QUERIED, ("",))),
    "cache_misses": (Rule(catalog.QUERIED, ("",)),),
    "host_to_device_bytes": (Rule(catalog.IO, ("load",)),),
    "host_cache_usage_perc": (Rule(catalog.USAGE),),
}
"""The rules of lists, or of a number in place of a list, by name."""

OPERATIONS: Mapping[str, Mapping[str, Rules]] = {
    # Offloading from 0.16 to 0.23
    "GPU_to_CPU": {"op_size": _sizes("store"), "op_time": _durations("store")},
    "CPU_to_GPU": {"op_size": _sizes("load"), "op_time": _durations("load")},
    # MooncakeStore
    "save_put": {"num_bytes": _sizes("store"), "duration_seconds": _durations("store")},
    "load_get": {"num_bytes": _sizes("load"), "duration_seconds": _durations("load")},
    "save_exists": {"duration_seconds": (Rule(catalog.LOOKUP_DURATION, ("", "store")),)},
    "lookup_exists": {"duration_seconds": (Rule(catalog.LOOKUP_DURATION, ("", "load")),)},
}
"""The rules of the fields of an operation, by the kind of operation."""
FAILED: Mapping[str, Rules] = {
    "save_put": _failures("store"),
    "load_get": _failures("load"),
    "save_exists": _failures("lookup"),
    "lookup_exists": _failures("lookup"),
}
"""The rules of an operation with a status other than `ok`."""

OFFLOAD = ("vllm:kv_offload_", "vllm:simple_kv_offload_")
"""Prefixes of self-describing numbers, shown or not."""
DESCRIBED: Mapping[str, Rules] = {
    f"vllm:{name}": rules
    for name, rules in {
        "kv_offload_load_bytes": (Rule(catalog.IO, ("load",)),),
        "kv_offload_store_bytes": (Rule(catalog.IO, ("store",)),),
        "kv_offload_load_time": (Rule(catalog.OPERATION_TIME, ("load",)),),
        "kv_offload_store_time": (Rule(catalog.OPERATION_TIME, ("store",)),),
        "kv_offload_load_size": (Rule(catalog.SIZE, ("load",)),),
        "kv_offload_store_size": (Rule(catalog.SIZE, ("store",)),),
        "kv_offload_allocation_failure": _failures("allocation"),
        "kv_offload_lookup_sync_delay_seconds": (Rule(catalog.LOOKUP_DURATION, ("", "sync")),),
        "kv_offload_lookup_async_delay_seconds": (Rule(catalog.LOOKUP_DURATION, ("", "async")),),
        "kv_offload_cpu_cache_usage_perc": (Rule(catalog.USAGE),),
        "kv_offload_stores_skipped": (Rule(catalog.BLOCKS, ("", "reuse_threshold")),),
        "kv_offload_tiering_lookup_sync_delay_seconds": (Rule(catalog.LOOKUP_DURATION, (SAME_LABEL, "sync")),),
        "kv_offload_tiering_lookup_async_delay_seconds": (Rule(catalog.LOOKUP_DURATION, (SAME_LABEL, "async")),),
        "kv_offload_tiering_chunk_queries": (Rule(catalog.QUERIED, (SAME_LABEL,)),),
        "kv_offload_tiering_chunk_hits": (Rule(catalog.HITS, (SAME_LABEL,)),),
        "kv_offload_tiering_read_bytes": (Rule(catalog.TIER_IO, (SAME_LABEL, "load")),),
        "kv_offload_tiering_write_bytes": (Rule(catalog.TIER_IO, (SAME_LABEL, "store")),),
        "kv_offload_tiering_read_time": (Rule(catalog.TIER_OPERATION_TIME, (SAME_LABEL, "load")),),
        "kv_offload_tiering_write_time": (Rule(catalog.TIER_OPERATION_TIME, (SAME_LABEL, "store")),),
        "kv_offload_tiering_promotion_job_failures": _failures("promotion"),
        "kv_offload_tiering_cascade_job_failures": _failures("cascade"),
        "kv_offload_tiering_promotion_allocation_failures": _failures("promotion_allocation"),
        "kv_offload_tiering_backpressure_blocks_dropped": (Rule(catalog.BLOCKS, (SAME_LABEL, "backpressure")),),
        "simple_kv_offload_save_outcomes_total": (Rule(catalog.BLOCKS, ("", SAME_LABEL)),),
        "simple_kv_offload_load_blocks_total": (Rule(catalog.BLOCKS, ("", "loaded")),),
    }.items()
}
"""The rules of self-describing numbers, by name."""
