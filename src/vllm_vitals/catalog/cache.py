"""The caches (KV, prefix, multimodal), LoRA adapters and speculative decoding."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from vllm_vitals.catalog.metric import Counter, Gauge, Group, Histogram, Label
from vllm_vitals.records.step import CacheUse, Facts, Step

TIER = Label(
    "tier",
    ("local",),
    open=True,
    help="local: this engine's KV cache. external: the cache of a KV connector",
    values_from=lambda facts: ("external",) if "kv_connector" in facts.features else (),
)
MAX_POSITIONS = 64
"""Positions in a draft that get a series of their own."""
MAX_ADAPTERS = 100
"""Distinct LoRA adapters that get a series of their own."""


def _queries(step: Step) -> dict[str, float] | None:
    return _of_tiers(step, _QUERIES)


def _hits(step: Step) -> dict[str, float] | None:
    return _of_tiers(step, _HITS)


_QUERIES, _HITS = attrgetter("queries"), attrgetter("hits")


def _of_tiers(step: Step, read: Callable[[CacheUse], int]) -> dict[str, float] | None:
    local, external = step.prefix_cache, step.external_prefix_cache
    if external:
        return {"local": read(local) if local else 0, "external": read(external)}
    return {"local": read(local)} if local else None


def _adapters(step: Step) -> dict[tuple[str, str], float] | None:
    if not step.scheduled:
        return None
    running = {(name, "running"): float(n) for name, n in (step.lora_running or {}).items()}
    return running | {(name, "waiting"): float(n) for name, n in (step.lora_waiting or {}).items()}


CACHE = Group("cache", "Cache", "The KV cache, the prefix cache and the cache of the multimodal processor.")
LORA = Group("lora", "LoRA")
SPECULATIVE = Group("speculative", "Speculative")

KV_USAGE = CACHE.add(
    Gauge(
        "vllm.kv_cache.usage",
        "1",
        "Share of the KV cache blocks in use by requests at the latest step.",
        record=Step,
        read="kv_cache_usage",
        initial=0.0,
        expires=True,
        limit=1.0,
        vllm_name="vllm:kv_cache_usage_perc",
    )
)
KV_CAPACITY = CACHE.add(
    Gauge(
        "vllm.kv_cache.capacity",
        "{token}",
        "Capacity of one engine's KV cache in tokens.",
        record=Facts,
        read="kv_cache_tokens",
    )
)
KV_FREE = CACHE.add(
    Gauge(
        "vllm.kv_cache.free",
        "{token}",
        "Tokens that still fit in the KV cache: its capacity times the unused share.",
        record=Step,
        read="kv_cache_free",
        expires=True,
    )
)
PREFIX_QUERIES = CACHE.add(
    Counter(
        "vllm.prefix_cache.queried_tokens",
        "{token}",
        "Tokens looked up in the prefix cache when a request is first scheduled.",
        record=Step,
        read=_queries,
        labels=(TIER,),
        vllm_name="vllm:[external_]prefix_cache_queries",
    )
)
PREFIX_HITS = CACHE.add(
    Counter(
        "vllm.prefix_cache.hit_tokens",
        "{token}",
        "Tokens found in the prefix cache. Never more than the tokens looked up.",
        record=Step,
        read=_hits,
        labels=(TIER,),
        vllm_name="vllm:[external_]prefix_cache_hits",
    )
)
SAVED_PREFILL: Counter[Any] = CACHE.add(
    Counter(
        "vllm.prefix_cache.saved_prefill",
        "s",
        "Prefill time that cached prompt tokens saved finished requests: the cached tokens times the engine's time "
        "per prompt token. That time is averaged over the latest few hundred requests with at least 32 prompt "
        "tokens to compute.",
    )
)
MULTIMODAL_QUERIES = CACHE.add(
    Counter(
        "vllm.multimodal_cache.queries",
        "{item}",
        "Images, sounds and videos looked up in the cache of the multimodal processor.",
        record=Step,
        read=lambda s: s.multimodal_cache.queries if s.multimodal_cache else None,
        vllm_name="vllm:mm_cache_queries",
    )
)
MULTIMODAL_HITS = CACHE.add(
    Counter(
        "vllm.multimodal_cache.hits",
        "{item}",
        "Images, sounds and videos found in the cache of the multimodal processor.",
        record=Step,
        read=lambda s: s.multimodal_cache.hits if s.multimodal_cache else None,
        vllm_name="vllm:mm_cache_hits",
    )
)
FREE_SEQUENCES: Gauge[Any] = CACHE.add(
    Gauge(
        "vllm.kv_cache.free_sequences",
        "{request}",
        "Number of typical requests that still fit in the KV cache. A typical request has the average prompt and "
        "output length of the latest few hundred.",
        expires=True,
    )
)
TIME_TO_FULL: Gauge[Any] = CACHE.add(
    Gauge(
        "vllm.kv_cache.time_to_full",
        "s",
        "Time until the KV cache is full if it keeps filling as in the last minute. Absent while it does not fill, "
        "and beyond one hour.",
        expires=True,
    )
)
BLOCK_LIFETIME = CACHE.add(
    Histogram(
        "vllm.kv_cache.block.lifetime",
        "s",
        "Time from the allocation of a sampled KV cache block to its eviction.",
        record=Step,
        read=lambda s: s.evictions.lifetimes if s.evictions else None,
        buckets="kv_cache_residency",
        needs="kv_residency",
        since="0.12.0",
        vllm_name="vllm:kv_block_lifetime_seconds",
    )
)
BLOCK_IDLE = CACHE.add(
    Histogram(
        "vllm.kv_cache.block.idle",
        "s",
        "Time from the last use of a sampled KV cache block to its eviction.",
        record=Step,
        read=lambda s: s.evictions.idle_times if s.evictions else None,
        buckets="kv_cache_residency",
        needs="kv_residency",
        since="0.12.0",
        vllm_name="vllm:kv_block_idle_before_evict_seconds",
    )
)
BLOCK_REUSE_GAP = CACHE.add(
    Histogram(
        "vllm.kv_cache.block.reuse_gap",
        "s",
        "Time between two uses of a sampled KV cache block.",
        record=Step,
        read=lambda s: s.evictions.reuse_gaps if s.evictions else None,
        buckets="kv_cache_residency",
        needs="kv_residency",
        since="0.12.0",
        vllm_name="vllm:kv_block_reuse_gap_seconds",
    )
)

LORA_REQUESTS = LORA.add(
    Gauge(
        "vllm.lora.requests",
        "{request}",
        "Requests per LoRA adapter at the latest step, as counted by vLLM's front end. The count covers all "
        "engines of the API server that received the step's stats. It is the engine's own only with one engine "
        "behind one server.",
        record=Step,
        read=_adapters,
        expires=True,
        needs="lora",
        vllm_name="vllm:lora_requests_info",
        labels=(
            Label("adapter", cap=MAX_ADAPTERS, help="`_other` beyond 100 adapters"),
            Label("state", cap=2, help="running or waiting"),
        ),
    )
)

DRAFTS = SPECULATIVE.add(
    Counter(
        "vllm.spec_decode.drafts",
        "{draft}",
        "Proposed drafts.",
        record=Step,
        read=lambda s: s.speculation.drafts if s.speculation else None,
        needs="speculation",
        vllm_name="vllm:spec_decode_num_drafts",
    )
)
DRAFT_TOKENS = SPECULATIVE.add(
    Counter(
        "vllm.spec_decode.draft_tokens",
        "{token}",
        "Tokens proposed in drafts. Subtract `vllm.spec_decode.accepted_tokens` of all positions to get the "
        "rejected tokens.",
        record=Step,
        read=lambda s: s.speculation.draft_tokens if s.speculation else None,
        needs="speculation",
        vllm_name="vllm:spec_decode_num_draft_tokens",
    )
)
ACCEPTED_TOKENS = SPECULATIVE.add(
    Counter(
        "vllm.spec_decode.accepted_tokens",
        "{token}",
        "Accepted draft tokens, by their position in the draft.",
        record=Step,
        needs="speculation",
        vllm_name="vllm:spec_decode_num_accepted_tokens_per_pos",
        read=lambda s: (
            {str(position): float(n) for position, n in enumerate(s.speculation.accepted_by_position)}
            if s.speculation
            else None
        ),
        labels=(
            Label(
                "position",
                cap=MAX_POSITIONS,
                help="0 is the first token of a draft",
                values_from=lambda facts: map(str, range(min(facts.draft_tokens or 0, MAX_POSITIONS))),
            ),
        ),
    )
)
