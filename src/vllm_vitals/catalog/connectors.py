"""KV connectors: transfers of KV cache between engines, and to and from storage outside the GPU.

Each connector class has its own report format; `catalog.kv_reports` maps all of them to these metrics.
"""

from typing import Any

from vllm_vitals.catalog.metric import MAX_LATENCY_SECONDS, Counter, Gauge, Group, Histogram, Label

CONNECTOR = Label("connector", help="class name of the connector; each one inside a MultiConnector by itself")
DIRECTION = Label(
    "direction",
    cap=8,
    help="receive, send: from or to another engine. load, store: from or to storage outside the GPU. Empty where "
    "the connector does not report it",
)
TIER = Label("tier", cap=16, help="name of the storage tier in vLLM; empty where there is only one")

CONNECTORS = Group(
    "connectors",
    "KV connectors",
    "Reports of [KV connectors](connectors.md), which move the KV cache between engines, or to and from storage "
    "outside the GPU. There are no series before the first report of a connector.",
)

DURATION: Histogram[Any] = CONNECTORS.add(
    Histogram(
        "vllm.kv_transfer.duration",
        "s",
        "Duration of one transfer of KV cache. OffloadingConnector reports no single transfers since vLLM 0.24.0.",
        needs="kv_connector",
        buckets="kv_transfer_duration",
        limit=MAX_LATENCY_SECONDS,
        labels=(CONNECTOR, DIRECTION),
    )
)
POST_DURATION: Histogram[Any] = CONNECTORS.add(
    Histogram(
        "vllm.kv_transfer.post.duration",
        "s",
        "Time to hand one transfer to the network.",
        needs="kv_connector",
        buckets="kv_transfer_duration",
        limit=MAX_LATENCY_SECONDS,
        labels=(CONNECTOR,),
    )
)
SIZE: Histogram[Any] = CONNECTORS.add(
    Histogram(
        "vllm.kv_transfer.size",
        "By",
        "Size of one transfer of KV cache.",
        needs="kv_connector",
        buckets="kv_transfer_size",
        labels=(CONNECTOR, DIRECTION),
    )
)
DESCRIPTORS: Histogram[Any] = CONNECTORS.add(
    Histogram(
        "vllm.kv_transfer.descriptors",
        "{descriptor}",
        "Memory regions moved by one transfer.",
        needs="kv_connector",
        buckets="kv_transfer_descriptors",
        labels=(CONNECTOR,),
    )
)
IO: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_transfer.io",
        "By",
        "Transferred bytes of KV cache.",
        needs="kv_connector",
        labels=(CONNECTOR, DIRECTION),
    )
)
OPERATION_TIME: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_transfer.operation_time",
        "s",
        "Total duration of transfers; parallel transfers add up. Bytes divided by this time are the speed of a "
        "single transfer.",
        needs="kv_connector",
        labels=(CONNECTOR, DIRECTION),
    )
)
FAILURES: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_transfer.failures",
        "{failure}",
        "Failures, each under one kind.",
        needs="kv_connector",
        labels=(
            CONNECTOR,
            Label(
                "kind",
                cap=16,
                help="transfer, handshake, notification: between engines. receive: requests whose cache did not "
                "arrive. load, store, lookup: operations on the storage outside the GPU, or parts of one. "
                "allocation: no room to store. promotion, cascade, promotion_allocation: between storage "
                "tiers",
            ),
        ),
    )
)
EXPIRED: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_transfer.expired",
        "{request}",
        "Requests whose KV cache was released because it was not fetched in time, counted by the engine that holds "
        "the cache.",
        needs="kv_connector",
        since="0.15.0",
        labels=(CONNECTOR,),
    )
)
LATE_NOTIFICATIONS: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_transfer.late_notifications",
        "{notification}",
        "Notifications of a finished transfer that came after its KV cache was released: the transferred data may "
        "have been overwritten.",
        needs="kv_connector",
        since="0.32.0",
        labels=(CONNECTOR,),
    )
)

LOOKUP_DURATION: Histogram[Any] = CONNECTORS.add(
    Histogram(
        "vllm.kv_offload.lookup.duration",
        "s",
        "Duration of one lookup in the storage outside the GPU.",
        needs="kv_connector",
        since="0.22.0",
        buckets="kv_lookup",
        limit=MAX_LATENCY_SECONDS,
        labels=(
            CONNECTOR,
            TIER,
            Label(
                "kind",
                cap=8,
                help="sync: one call. async: from a deferred call until its result. load, store: one call of "
                "MooncakeStoreConnector before it loads or stores",
            ),
        ),
    )
)
QUERIED: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_offload.queried_blocks",
        "{block}",
        "Blocks looked up in the storage outside the GPU.",
        needs="kv_connector",
        since="0.28.0",
        labels=(CONNECTOR, TIER),
    )
)
HITS: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_offload.hit_blocks",
        "{block}",
        "Blocks found in the storage outside the GPU.",
        needs="kv_connector",
        since="0.28.0",
        labels=(CONNECTOR, TIER),
    )
)
BLOCKS: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_offload.blocks",
        "{block}",
        "Blocks by outcome of loading or storing.",
        needs="kv_connector",
        since="0.24.0",
        labels=(
            CONNECTOR,
            TIER,
            Label(
                "outcome",
                cap=16,
                help="reuse_threshold: not stored, not requested often enough. backpressure: not stored, storage "
                "is too slow. loaded, stored, and several kinds of dropped and skipped: as "
                "SimpleCPUOffloadConnector names them",
            ),
        ),
    )
)
USAGE: Gauge[Any] = CONNECTORS.add(
    Gauge(
        "vllm.kv_offload.usage",
        "1",
        "Share of the blocks in host memory that are in use and cannot be evicted. Near 1, nothing more is stored.",
        needs="kv_connector",
        since="0.24.0",
        expires=True,
        limit=1.0,
        labels=(CONNECTOR,),
    )
)
TIER_IO: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_offload.tier.io",
        "By",
        "Bytes moved between host memory and the tiers behind it.",
        needs="kv_connector",
        since="0.28.0",
        labels=(CONNECTOR, TIER, DIRECTION),
    )
)
TIER_OPERATION_TIME: Counter[Any] = CONNECTORS.add(
    Counter(
        "vllm.kv_offload.tier.operation_time",
        "s",
        "Total duration of the transfers between host memory and the tiers behind it; parallel transfers add up.",
        needs="kv_connector",
        since="0.28.0",
        labels=(CONNECTOR, TIER, DIRECTION),
    )
)
