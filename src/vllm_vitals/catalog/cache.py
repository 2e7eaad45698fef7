"""The caches (KV, prefix, multimodal), LoRA adapters and speculative decoding."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from vllm_vitals.catalog.metric import Counter, Gauge, Histogram, Label
from vllm_vitals.records.step import CacheUse, Facts, Step

TIER = Label(
    "tier", ("local",), open=True, help="local: this engine's KV cache. external: a KV connector's",
    values_from=lambda facts: ("external",) if "kv_connector" in facts.features else (),
)  # fmt: skip
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


KV_USAGE = Gauge(
    "vllm.kv_cache.usage", "1", "Share of the KV-cache blocks that requests hold at the latest step.",
    record=Step, read="kv_cache_usage", initial=0.0, expires=True, limit=1.0,
    vllm_name="vllm:kv_cache_usage_perc",
)  # fmt: skip
KV_CAPACITY = Gauge(
    "vllm.kv_cache.capacity", "{token}", "Tokens that the KV cache of one engine holds.",
    record=Facts, read="kv_cache_tokens",
)  # fmt: skip
KV_FREE = Gauge(
    "vllm.kv_cache.free", "{token}", "Tokens that still fit in the KV cache: capacity times the unused share.",
    record=Step, read="kv_cache_free", expires=True,
)  # fmt: skip
PREFIX_QUERIES = Counter(
    "vllm.prefix_cache.queried_tokens", "{token}",
    "Tokens looked up in the prefix cache when requests are first scheduled.",
    record=Step, read=_queries, labels=(TIER,), vllm_name="vllm:[external_]prefix_cache_queries",
)  # fmt: skip
PREFIX_HITS = Counter(
    "vllm.prefix_cache.hit_tokens", "{token}", "Tokens found there; never more than were looked up.",
    record=Step, read=_hits, labels=(TIER,), vllm_name="vllm:[external_]prefix_cache_hits",
)  # fmt: skip
SAVED_PREFILL: Counter[Any] = Counter(
    "vllm.prefix_cache.saved_prefill", "s",
    "Prefill time that cached prompt tokens spared finished requests: those tokens by the time that the engine takes for "
    "one, from the prefills of its latest few hundred requests that had 32 or more to compute.",
)  # fmt: skip
MULTIMODAL_QUERIES = Counter(
    "vllm.multimodal_cache.queries", "{item}", "Images, sounds and videos looked up in the processor's cache.",
    record=Step, read=lambda s: s.multimodal_cache.queries if s.multimodal_cache else None, vllm_name="vllm:mm_cache_queries",
)  # fmt: skip
MULTIMODAL_HITS = Counter(
    "vllm.multimodal_cache.hits", "{item}", "Those that were found there.",
    record=Step, read=lambda s: s.multimodal_cache.hits if s.multimodal_cache else None, vllm_name="vllm:mm_cache_hits",
)  # fmt: skip
FREE_SEQUENCES: Gauge[Any] = Gauge(
    "vllm.kv_cache.free_sequences", "{request}",
    "Requests of typical length, prompt and output of the latest few hundred, that the KV cache still has room for.",
    expires=True,
)  # fmt: skip
TIME_TO_FULL: Gauge[Any] = Gauge(
    "vllm.kv_cache.time_to_full", "s",
    "Time until the KV cache is full if it goes on filling as in the last minute; absent while it does not fill, and "
    "beyond an hour.",
    expires=True,
)  # fmt: skip
BLOCK_LIFETIME = Histogram(
    "vllm.kv_cache.block.lifetime", "s", "From a sampled KV block's allocation to its eviction.",
    record=Step, read=lambda s: s.evictions.lifetimes if s.evictions else None, buckets="kv_cache_residency",
    needs="kv_residency", since="0.12.0", vllm_name="vllm:kv_block_lifetime_seconds",
)  # fmt: skip
BLOCK_IDLE = Histogram(
    "vllm.kv_cache.block.idle", "s", "From a sampled KV block's last use to its eviction.",
    record=Step, read=lambda s: s.evictions.idle_times if s.evictions else None, buckets="kv_cache_residency",
    needs="kv_residency", since="0.12.0", vllm_name="vllm:kv_block_idle_before_evict_seconds",
)  # fmt: skip
BLOCK_REUSE_GAP = Histogram(
    "vllm.kv_cache.block.reuse_gap", "s", "Between two uses of a sampled KV block.",
    record=Step, read=lambda s: s.evictions.reuse_gaps if s.evictions else None, buckets="kv_cache_residency",
    needs="kv_residency", since="0.12.0", vllm_name="vllm:kv_block_reuse_gap_seconds",
)  # fmt: skip

LORA_REQUESTS = Gauge(
    "vllm.lora.requests", "{request}",
    "Requests per LoRA adapter at the latest step, as vLLM's front end counts: those of the API server that the step's stats "
    "came to, on all its engines together. So only of one engine behind one server are they the engine's.",
    record=Step, read=_adapters, expires=True, needs="lora", vllm_name="vllm:lora_requests_info",
    labels=(Label("adapter", cap=MAX_ADAPTERS, help="`_other` once there are too many"),
            Label("state", cap=2, help="running or waiting")),
)  # fmt: skip

DRAFTS = Counter(
    "vllm.spec_decode.drafts", "{draft}", "Drafts proposed.",
    record=Step, read=lambda s: s.speculation.drafts if s.speculation else None, needs="speculation",
    vllm_name="vllm:spec_decode_num_drafts",
)  # fmt: skip
DRAFT_TOKENS = Counter(
    "vllm.spec_decode.draft_tokens", "{token}",
    "Tokens proposed in drafts. Those that were computed in vain are these less `vllm.spec_decode.accepted_tokens` of all "
    "positions.",
    record=Step, read=lambda s: s.speculation.draft_tokens if s.speculation else None, needs="speculation",
    vllm_name="vllm:spec_decode_num_draft_tokens",
)  # fmt: skip
ACCEPTED_TOKENS = Counter(
    "vllm.spec_decode.accepted_tokens", "{token}", "Draft tokens accepted, by their position in the draft.",
    record=Step, needs="speculation", vllm_name="vllm:spec_decode_num_accepted_tokens_per_pos",
    read=lambda s: (
        {str(position): float(n) for position, n in enumerate(s.speculation.accepted_by_position)}
        if s.speculation
        else None
    ),
    labels=(Label("position", cap=MAX_POSITIONS, help="0 is the first token of a draft",
                  values_from=lambda facts: map(str, range(min(facts.draft_tokens or 0, MAX_POSITIONS)))),),
)  # fmt: skip

CACHE = (
    KV_USAGE, KV_CAPACITY, KV_FREE, FREE_SEQUENCES, TIME_TO_FULL, PREFIX_QUERIES, PREFIX_HITS, SAVED_PREFILL, MULTIMODAL_QUERIES, MULTIMODAL_HITS,
    BLOCK_LIFETIME, BLOCK_IDLE, BLOCK_REUSE_GAP,
)  # fmt: skip
LORA = (LORA_REQUESTS,)
SPECULATIVE = (DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS)
