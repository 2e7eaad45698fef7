"""Prefix and multimodal caches, LoRA adapters, speculative decoding: whether they pay off."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from vllm_vitals.catalog import cache, cost, requests
from vllm_vitals.mixin.dashboards import transfer
from vllm_vitals.mixin.dashboards.board import Board, Context, Row
from vllm_vitals.mixin.dashboards.panels import THIRD, figure, lines
from vllm_vitals.mixin.dashboards.query import Query
from vllm_vitals.mixin.dashboards.shapes import (
    ANYWHERE,
    ENGINE,
    ENGINE_NAME,
    PERCENT,
    SECONDS,
    TOKENS,
    TOKENS_PER_SECOND,
    by_label,
    quantiles,
)
from vllm_vitals.mixin.dashboards.theme import GREEN, GREY, ORANGE, SKY, VERMILION
from vllm_vitals.mixin.promql import Vector, max_by, ratio, sum_by

OFF = "no lookups"
NOT_SPECULATING = "no speculation"


def _found(c: Context, *by: str) -> Vector:
    """Return the share of the prompt tokens looked up that any tier had.

    A connector is asked for what the engine's own cache lacks: these were looked up there already.
    """
    asked = max_by(c.queries.rate(cache.PREFIX_QUERIES, (*ANYWHERE, "tier")), *ANYWHERE)
    return ratio(c.queries.rate(cache.PREFIX_HITS, by), sum_by(asked, *by))


def hit_ratio(c: Context) -> Builder[Panel]:
    return figure(
        "Prefix cache hits", "Share of the prompt tokens looked up that were found, in any tier. Falling: prompts have less in "
        "common, routing ignores it, or the cache is too small: see lifetimes below.",
        PERCENT, Query(_found(c), "hits"), decimals=1, none=OFF,
    )  # fmt: skip


def saved(c: Context) -> Builder[Panel]:
    return figure(
        "Prefill saved", "Seconds of prefill that cached tokens spare finished requests, per second. 1 is one engine that need "
        "not be there.",
        "suffix:s/s", Query(c.queries.rate(cache.SAVED_PREFILL), "saved"), decimals=2,
    )  # fmt: skip


def saved_money(c: Context) -> Builder[Panel]:
    return figure(
        "Money saved per hour", "Price of the GPU time that cached prompt tokens spare, in the currency named. Needs the setting "
        "price.per_gpu_hour.",
        "short", Query(c.queries.rate(cost.SAVED_COST, ("currency",)) * 3600, "{{currency}}"), none="no price is set",
    )  # fmt: skip


def acceptance(c: Context) -> Builder[Panel]:
    return figure(
        "Draft tokens accepted", "Share of the proposed draft tokens that were right. Low: try a shorter draft "
        "(num_speculative_tokens) or another method; see by position below.",
        PERCENT, Query(ratio(c.queries.rate(cache.ACCEPTED_TOKENS), c.queries.rate(cache.DRAFT_TOKENS)), "accepted"),
        decimals=1, none=NOT_SPECULATING,
    )  # fmt: skip


def per_step(c: Context) -> Builder[Panel]:
    accepted = ratio(c.queries.rate(cache.ACCEPTED_TOKENS), c.queries.rate(cache.DRAFTS))
    return figure(
        "Tokens per draft", "Mean of the tokens that a draft brings, the one that comes anyway included. Near 1 speculation "
        "costs more than it brings: switch it off under load.",
        "short", Query(accepted + 1, "tokens"), decimals=2, none=NOT_SPECULATING,
    )  # fmt: skip


def adapters_now(c: Context) -> Builder[Panel]:
    return figure(
        "LoRA requests", "Requests in the batch and waiting that ask for an adapter. Many waiting: raise --max-loras.",
        "short", Query(c.queries.sum(cache.LORA_REQUESTS, ("state",)), "{{state}}"), decimals=0, none="no adapter in use",
    )  # fmt: skip


def by_tier(c: Context) -> Builder[Panel]:
    hits, looked_up = (c.queries.rate(metric, ("tier",)) for metric in (cache.PREFIX_HITS, cache.PREFIX_QUERIES))
    return lines(
        "Prefix cache hits by tier",
        "local: this engine's KV cache. external: a KV connector's store, asked for what the local one lacks.",
        PERCENT, Query(ratio(hits, looked_up), "{{tier}}", {"local": SKY, "external": ORANGE}), most=1, width=THIRD, none=OFF,
    )  # fmt: skip


def by_engine(c: Context) -> Builder[Panel]:
    return lines(
        "Prefix cache hits by engine", "In any tier. Engines far below the others get prompts that others have cached: route by prefix or "
        "session.",
        PERCENT, Query(_found(c, *ENGINE), ENGINE_NAME), most=1, width=THIRD, none=OFF,
    )  # fmt: skip


def sources(c: Context) -> Builder[Panel]:
    known = {"local_compute": VERMILION, "local_cache_hit": GREEN, "external_kv_transfer": SKY, "unknown": GREY}
    return lines(
        "Prompt tokens by source",
        "Where prompt tokens came from: computed here, found in the cache, or transferred. What is computed is what costs.",
        TOKENS_PER_SECOND, Query(c.queries.rate(requests.PROMPT_TOKENS, ("source",)), "{{source}}", known), stacked=True, width=THIRD,
    )  # fmt: skip


def tiers(c: Context) -> Builder[Panel]:
    return lines(
        "Cached prompt tokens by store", "Prompt tokens found when scheduled: on the device, or in a tier of the KV connector.",
        TOKENS_PER_SECOND, by_label(c.queries.rate(requests.CACHED_TOKENS, ("source",)), "source", ("device",)), stacked=True,
        width=THIRD, none="nothing was cached",
    )  # fmt: skip


def per_request(c: Context) -> Builder[Panel]:
    return lines(
        "Cached tokens per request", "How many prompt tokens of a finished request came from a cache. A median of 0 with a high "
        "p90: a few clients share a prefix.",
        TOKENS, *quantiles(c, requests.REQUEST_CACHED_TOKENS), width=THIRD,
    )  # fmt: skip


def multimodal(c: Context) -> Builder[Panel]:
    hits = ratio(c.queries.rate(cache.MULTIMODAL_HITS), c.queries.rate(cache.MULTIMODAL_QUERIES))
    return lines(
        "Multimodal cache hits", "Share of images, sounds and videos whose processing was cached. Low with repeated media: raise "
        "--mm-processor-cache-gb.",
        PERCENT, Query(hits, "hits", {"hits": SKY}), most=1, width=THIRD, none=OFF,
    )  # fmt: skip


def lifetimes(c: Context) -> Builder[Panel]:
    q = c.queries
    named = (("lifetime", cache.BLOCK_LIFETIME, SKY), ("idle before eviction", cache.BLOCK_IDLE, ORANGE),
             ("between two uses", cache.BLOCK_REUSE_GAP, GREEN))  # fmt: skip
    return lines(
        "KV blocks, median times",
        "Of sampled blocks (--kv-cache-metrics). Lifetimes shorter than the time between two uses: blocks are evicted before "
        "they would be used again, and more KV cache would bring hits.",
        SECONDS, *(Query(q.quantile(0.5, metric), name, {name: colour}) for name, metric, colour in named), log=True,
        none="vLLM does not sample blocks",
    )  # fmt: skip


def adapters(c: Context) -> Builder[Panel]:
    return lines(
        "Requests by LoRA adapter", "In the batch, by adapter. One that crowds the others out: give it an engine of its own.",
        "short", Query(c.queries.sum(cache.LORA_REQUESTS, ("adapter",), state="running"), "{{adapter}}"), stacked=True,
        none="no adapter in use",
    )  # fmt: skip


def adapters_waiting(c: Context) -> Builder[Panel]:
    return lines(
        "Waiting by LoRA adapter", "Held back, by adapter. Many adapters waiting with few slots: raise --max-loras.",
        "short", Query(c.queries.sum(cache.LORA_REQUESTS, ("adapter",), state="waiting"), "{{adapter}}"), stacked=True,
        none="no adapter in use",
    )  # fmt: skip


def positions(c: Context) -> Builder[Panel]:
    accepted = c.queries.rate(cache.ACCEPTED_TOKENS, ("position",))
    share = ratio(accepted, c.queries.rate(cache.DRAFTS), on=(), group_left=())
    return lines(
        "Accepted by position", "Share of the drafts whose token at a position was accepted. Where it nears 0 the draft is too "
        "long: lower num_speculative_tokens to there.",
        PERCENT, Query(share, "{{position}}"), most=1, none=NOT_SPECULATING,
    )  # fmt: skip


def drafting(c: Context) -> Builder[Panel]:
    proposed, taken = c.queries.rate(cache.DRAFT_TOKENS), c.queries.rate(cache.ACCEPTED_TOKENS)
    return lines(
        "Draft tokens", "Proposed tokens that were accepted, and those that were wasted. Waste is GPU time that a full batch "
        "could have used.",
        TOKENS_PER_SECOND, Query(taken, "accepted", {"accepted": GREEN}), Query(proposed - taken, "wasted", {"wasted": VERMILION}),
        stacked=True, none=NOT_SPECULATING,
    )  # fmt: skip


BOARD = Board(
    "cache", "Cache, LoRA and speculation", "Do caching, adapters and speculative decoding pay off?",
    (
        Row("Do they pay off?", (hit_ratio, saved, saved_money, acceptance, per_step, adapters_now)),
        Row("Prefix cache", (by_tier, by_engine, sources, tiers, per_request, multimodal)),
        Row("Life of KV blocks", (lifetimes,)),
        Row("LoRA", (adapters, adapters_waiting)),
        Row("Speculative decoding", (positions, drafting)),
        *transfer.ROWS,
    ),
)  # fmt: skip
