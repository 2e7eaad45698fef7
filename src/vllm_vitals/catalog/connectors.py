"""KV connectors: how the KV cache moves between engines, and to and from what it is kept in outside the GPU.

Each connector reports in a format of its own; `vllm.reports` brings them all to these metrics.
"""

from typing import Any

from vllm_vitals.catalog.metric import MAX_LATENCY_SECONDS, Counter, Gauge, Histogram, Label

CONNECTOR = Label("connector", help="the class of the connector, each of those that a MultiConnector has")
DIRECTION = Label(
    "direction", cap=8,
    help="receive, send: from or to another engine. load, store: from or to what is kept outside the GPU. "
         "None where the connector does not say",
)  # fmt: skip
TIER = Label("tier", cap=16, help="of several tiers of storage, as vLLM names them; none where there is one")

DURATION: Histogram[Any] = Histogram(
    "vllm.kv_transfer.duration", "s",
    "Time that one transfer of KV cache took. OffloadingConnector tells no single ones since vLLM 0.24.0.",
    needs="kv_connector", buckets="kv_transfer_duration", limit=MAX_LATENCY_SECONDS, labels=(CONNECTOR, DIRECTION),
)  # fmt: skip
POST_DURATION: Histogram[Any] = Histogram(
    "vllm.kv_transfer.post.duration", "s", "Time that it took to hand one transfer to the network.",
    needs="kv_connector", buckets="kv_transfer_duration", limit=MAX_LATENCY_SECONDS, labels=(CONNECTOR,),
)  # fmt: skip
SIZE: Histogram[Any] = Histogram(
    "vllm.kv_transfer.size", "By", "Bytes of one transfer of KV cache.",
    needs="kv_connector", buckets="kv_transfer_size", labels=(CONNECTOR, DIRECTION),
)  # fmt: skip
DESCRIPTORS: Histogram[Any] = Histogram(
    "vllm.kv_transfer.descriptors", "{descriptor}", "Pieces of memory that one transfer moved.",
    needs="kv_connector", buckets="kv_transfer_descriptors", labels=(CONNECTOR,),
)  # fmt: skip
IO: Counter[Any] = Counter(
    "vllm.kv_transfer.io", "By", "Bytes of KV cache transferred.",
    needs="kv_connector", labels=(CONNECTOR, DIRECTION),
)  # fmt: skip
OPERATION_TIME: Counter[Any] = Counter(
    "vllm.kv_transfer.operation_time", "s",
    "Time that transfers took, each for itself: those that run at once add up. Bytes over it are the speed of one.",
    needs="kv_connector", labels=(CONNECTOR, DIRECTION),
)  # fmt: skip
FAILURES: Counter[Any] = Counter(
    "vllm.kv_transfer.failures", "{failure}", "What failed, each failure under one kind.",
    needs="kv_connector",
    labels=(CONNECTOR,
            Label("kind", cap=16,
                  help="transfer, handshake, notification: between engines. receive: requests whose cache did not come. "
                       "load, store, lookup: operations on what is kept outside the GPU, or a part of one. allocation: no "
                       "room for what was to be stored. promotion, cascade, promotion_allocation: between its tiers")),
)  # fmt: skip
EXPIRED: Counter[Any] = Counter(
    "vllm.kv_transfer.expired", "{request}",
    "Requests whose KV cache was given up because nobody fetched it in time. The engine that would have sent it counts them.",
    needs="kv_connector", since="0.15.0", labels=(CONNECTOR,),
)  # fmt: skip
LATE_NOTIFICATIONS: Counter[Any] = Counter(
    "vllm.kv_transfer.late_notifications", "{notification}",
    "Notifications that a transfer is done whose KV cache had been given up: it may have been overwritten meanwhile.",
    needs="kv_connector", since="0.32.0", labels=(CONNECTOR,),
)  # fmt: skip

LOOKUP_DURATION: Histogram[Any] = Histogram(
    "vllm.kv_offload.lookup.duration", "s", "Time of one look into what is kept outside the GPU.",
    needs="kv_connector", since="0.22.0", buckets="kv_lookup", limit=MAX_LATENCY_SECONDS,
    labels=(CONNECTOR, TIER,
            Label("kind", cap=8,
                  help="sync: one call. async: from a call that was put off until one that was not. load, store: one call "
                       "of MooncakeStoreConnector before it loads or stores")),
)  # fmt: skip
QUERIED: Counter[Any] = Counter(
    "vllm.kv_offload.queried_blocks", "{block}", "Blocks looked up in what is kept outside the GPU.",
    needs="kv_connector", since="0.28.0", labels=(CONNECTOR, TIER),
)  # fmt: skip
HITS: Counter[Any] = Counter(
    "vllm.kv_offload.hit_blocks", "{block}", "Blocks found there.",
    needs="kv_connector", since="0.28.0", labels=(CONNECTOR, TIER),
)  # fmt: skip
BLOCKS: Counter[Any] = Counter(
    "vllm.kv_offload.blocks", "{block}", "Blocks by what became of them.",
    needs="kv_connector", since="0.24.0",
    labels=(CONNECTOR, TIER,
            Label("outcome", cap=16,
                  help="reuse_threshold: not stored, as not asked for often enough. backpressure: not stored, as storage is "
                       "behind. loaded, stored, dropped and skipped for several reasons: as SimpleCPUOffloadConnector has it")),
)  # fmt: skip
USAGE: Gauge[Any] = Gauge(
    "vllm.kv_offload.usage", "1",
    "Share of the blocks kept in host memory that are in use and cannot make room: near 1 nothing more is stored.",
    needs="kv_connector", since="0.24.0", expires=True, limit=1.0, labels=(CONNECTOR,),
)  # fmt: skip
TIER_IO: Counter[Any] = Counter(
    "vllm.kv_offload.tier.io", "By", "Bytes moved between host memory and the tiers behind it.",
    needs="kv_connector", since="0.28.0", labels=(CONNECTOR, TIER, DIRECTION),
)  # fmt: skip
TIER_OPERATION_TIME: Counter[Any] = Counter(
    "vllm.kv_offload.tier.operation_time", "s", "Time that this took; what runs at once adds up.",
    needs="kv_connector", since="0.28.0", labels=(CONNECTOR, TIER, DIRECTION),
)  # fmt: skip

CONNECTORS = (
    DURATION, POST_DURATION, SIZE, DESCRIPTORS, IO, OPERATION_TIME, FAILURES, EXPIRED, LATE_NOTIFICATIONS, LOOKUP_DURATION,
    QUERIED, HITS, BLOCKS, USAGE, TIER_IO, TIER_OPERATION_TIME,
)  # fmt: skip
