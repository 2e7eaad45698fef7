"""Which metric of a KV connector's own stands for which of ours on a page of vLLM's, from 0.11 to 0.33.

What each number means says `vllm.reports`, of the report that vLLM makes the page from. Here is only of which class a
metric is, and what number of its reports it shows.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vllm_vitals.catalog import Metric
from vllm_vitals.catalog import connectors as catalog
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
from vllm_vitals.vllm_page.counterpart import Native

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
