"""Tokens and requests: what came in, what went out, and how long each part took."""

import re
from collections import Counter as Tally
from collections.abc import Callable
from typing import Any

import numpy as np

from vllm_vitals._util.labels import UNKNOWN
from vllm_vitals.catalog.metric import MAX_LATENCY_SECONDS, Counter, Histogram, Label, Scope
from vllm_vitals.records.request_batch import Floats, Requests
from vllm_vitals.records.step import CLOCK_SLACK, Facts, Finished, Rejection, Step


def lifetime(step: Step) -> float:
    """Return the seconds that no latency seen in this step can exceed: its process is no older."""
    return step.age + CLOCK_SLACK


def _frontend(requests: Requests) -> Floats:
    """Return the seconds spent outside the engine (tokenising, transport, detokenising), NaN where a part is not true."""
    queue, inference, most = requests.queue, requests.inference, requests.most
    known = (queue >= 0) & (queue <= most) & (inference >= 0) & (inference <= most)
    return np.where(known, np.maximum(requests.duration - queue - inference, 0.0), np.nan)


def _sources(facts: Facts) -> tuple[str, ...]:
    """Return the source that vLLM before 0.16.0 knows alone."""
    found = re.match(r"0\.(\d+)\.", facts.info.get("vllm_version", ""))
    return (UNKNOWN,) if found and int(found[1]) < 16 else ()  # noqa: PLR2004 - the release above


PHASES: dict[str, Callable[[Requests], Floats]] = {
    "queue": lambda r: r.queue,
    "prefill": lambda r: r.prefill,
    "decode": lambda r: r.decode,
    "frontend": _frontend,
}

PROMPT_TOKENS = Counter(
    "vllm.tokens.prompt", "{token}", "Prompt tokens of requests whose prefill is done, by where they came from.",
    record=Step, read="prompt_tokens", vllm_name="vllm:prompt_tokens_by_source",
    labels=(Label("source", ("local_compute", "local_cache_hit", "external_kv_transfer"), open=True, values_from=_sources,
                  help="`unknown` before vLLM 0.16.0, which does not tell"),),
)  # fmt: skip
CACHED_TOKENS = Counter(
    "vllm.tokens.prompt_cached", "{token}", "Prompt tokens found in a cache when scheduled, by cache tier.",
    record=Step, read="cached_by_source", vllm_name="vllm:prompt_tokens_cached_by_source",
    labels=(Label("source", ("device",), open=True, help="device, or a tier of the KV connector since vLLM 0.32.0"),),
)  # fmt: skip
RECOMPUTED_TOKENS = Counter(
    "vllm.tokens.recomputed", "{token}",
    "Tokens that were computed again because their request had been preempted and the prefix cache had lost them. "
    "Needs prefix caching. Before vLLM 0.27.0 a request counts at every attempt to take it back in, so at most.",
    record=Step, read=lambda s: s.prefix_cache.again if s.prefix_cache else None,
)  # fmt: skip
GENERATION_TOKENS = Counter(
    "vllm.tokens.generation", "{token}", "Tokens generated.",
    record=Step, read="generation_tokens", vllm_name="vllm:generation_tokens",
)  # fmt: skip

FINISHED = Counter(
    "vllm.requests.finished", "{request}",
    "Finished sequences (`n` per request). Requests whose client left are reported to no stat logger.",
    record=Finished, read=lambda r: Tally(r.reason), vllm_name="vllm:request_success",
    labels=(Label("finish_reason", ("stop", "length", "abort", "error", "repetition")),),
)  # fmt: skip
ABANDONED: Counter[Any] = Counter(
    "vllm.requests.abandoned", "{request}",
    "Sequences whose client left after their first token, which vLLM reports to no stat logger: those that started, less "
    "those that ended and those still there. Exact once the engine is idle, a lower bound before.",
)  # fmt: skip
REJECTED = Counter(
    "vllm.requests.rejected", "{request}", "Requests turned away by admission control before they were queued.",
    record=Rejection, read=lambda r: {r.reason: r.count}, scope=Scope.MODEL, since="0.32.0",
    labels=(Label("reason", ("max_num_queued_reqs", "max_num_queued_tokens")),),
    vllm_name="vllm:admission_rejections",
)  # fmt: skip
PREEMPTED = Counter(
    "vllm.requests.preempted", "{request}", "Preemptions: a request lost its KV cache and must be recomputed.",
    record=Step, read="preempted", vllm_name="vllm:num_preemptions",
)  # fmt: skip
CORRUPTED = Counter(
    "vllm.requests.corrupted", "{request}", "Finished requests that had NaNs in their logits.",
    record=Step, read="corrupted", needs="nan_check", vllm_name="vllm:corrupted_requests",
)  # fmt: skip
WATERMARKED = Counter(
    "vllm.requests.watermarked", "{request}", "Finished requests by watermark status.",
    record=Step, read="watermarks", needs="watermark", since="0.32.0", vllm_name="vllm:watermark_requests",
    labels=(Label("status", ("watermarked", "skipped", "not_watermarked")),),
)  # fmt: skip

TIME_TO_FIRST_TOKEN = Histogram(
    "vllm.request.time_to_first_token", "s",
    "From a request's arrival to its first token, observed when that token comes. A request that ends without "
    "a token is not observed.",
    record=Step, read="first_token_latencies", buckets="time_to_first_token", limit=MAX_LATENCY_SECONDS,
    max_from_record=lifetime, vllm_name="vllm:time_to_first_token_seconds",
)  # fmt: skip
INTER_TOKEN_LATENCY = Histogram(
    "vllm.request.inter_token_latency", "s", "Time between two outputs of a request, observed at every output.",
    record=Step, read="inter_token_latencies", repeats="inter_token_repeats", buckets="inter_token_latency", limit=MAX_LATENCY_SECONDS,
    max_from_record=lifetime, vllm_name="vllm:inter_token_latency_seconds",
)  # fmt: skip
MEAN_TIME_PER_OUTPUT_TOKEN = Histogram(
    "vllm.request.mean_time_per_output_token", "s",
    "A finished request's decode time over its tokens after the first; needs two tokens.",
    record=Finished, read="time_per_output_token", buckets="inter_token_latency", limit=MAX_LATENCY_SECONDS,
    max_from_record="most", vllm_name="vllm:request_time_per_output_token_seconds",
)  # fmt: skip
DURATION = Histogram(
    "vllm.request.duration", "s", "From a request's arrival to its last token.",
    record=Finished, read="duration", buckets="request_latency", limit=MAX_LATENCY_SECONDS,
    vllm_name="vllm:e2e_request_latency_seconds",
)  # fmt: skip
INFERENCE_DURATION = Histogram(
    "vllm.request.inference.duration", "s",
    "From the first time a request is scheduled to its last token: prefill and decode.",
    record=Finished, read="inference", buckets="request_latency", limit=MAX_LATENCY_SECONDS, max_from_record="most",
    vllm_name="vllm:request_inference_time_seconds",
)  # fmt: skip
PHASE_DURATION = Histogram(
    "vllm.request.phase.duration", "s", "Time of a finished request by phase; the phases add up to its duration.",
    record=Finished, read=lambda r: {phase: read(r) for phase, read in PHASES.items()},
    buckets="request_latency", limit=MAX_LATENCY_SECONDS, max_from_record="most",
    labels=(Label("phase", tuple(PHASES),
                  help="queue: until first scheduled. prefill: until the first token. decode: until the last. "
                       "frontend: the rest, spent outside the engine"),),
    vllm_name="vllm:request_{queue,prefill,decode}_time_seconds",
)  # fmt: skip
INPUT_TOKENS = Histogram(
    "vllm.request.input_tokens", "{token}", "Prompt tokens of a finished request.",
    record=Finished, read="input_tokens", buckets="request_tokens", vllm_name="vllm:request_prompt_tokens",
)  # fmt: skip
OUTPUT_TOKENS = Histogram(
    "vllm.request.output_tokens", "{token}", "Tokens generated for a finished sequence.",
    record=Finished, read="output_tokens", buckets="request_tokens",
    vllm_name="vllm:request_generation_tokens",
)  # fmt: skip
REQUEST_CACHED_TOKENS = Histogram(
    "vllm.request.cached_tokens", "{token}", "Prompt tokens of a finished request that came from a cache.",
    record=Finished, read="cached_tokens", buckets="request_tokens", since="0.13.0",
)  # fmt: skip
COMPUTED_TOKENS = Histogram(
    "vllm.request.computed_tokens", "{token}", "Prompt tokens of a finished request that were not in a cache.",
    record=Finished, buckets="request_tokens", since="0.13.0", vllm_name="vllm:request_prefill_kv_computed_tokens",
    read=lambda r: r.input_tokens - r.cached_tokens,
)  # fmt: skip
MAX_TOKENS = Histogram(
    "vllm.request.max_tokens", "{token}", "The max_tokens that a finished request asked for.",
    record=Finished, read="max_tokens", buckets="request_tokens",
    vllm_name="vllm:request_params_max_tokens",
)  # fmt: skip
LONGEST_OUTPUT = Histogram(
    "vllm.request.longest_output", "{token}", "Tokens of the longest of a finished request's `n` sequences.",
    record=Step, read="longest_outputs", buckets="request_tokens",
    vllm_name="vllm:request_max_num_generation_tokens",
)  # fmt: skip
SEQUENCES_ASKED = Histogram(
    "vllm.request.n", "{sequence}", "The `n` that a finished request asked for.",
    record=Step, read="sequences_asked", buckets="request_params_n", vllm_name="vllm:request_params_n",
)  # fmt: skip
REQUEST_PREEMPTIONS = Histogram(
    "vllm.request.preemptions", "{preemption}", "How often a finished request was preempted.",
    record=Finished, read="preemptions", buckets="request_num_preemptions", since="0.30.0",
    vllm_name="vllm:request_num_preemptions",
)  # fmt: skip

TOKENS = (PROMPT_TOKENS, CACHED_TOKENS, RECOMPUTED_TOKENS, GENERATION_TOKENS)
REQUESTS = (
    FINISHED, ABANDONED, REJECTED, PREEMPTED, CORRUPTED, WATERMARKED, TIME_TO_FIRST_TOKEN, INTER_TOKEN_LATENCY,
    MEAN_TIME_PER_OUTPUT_TOKEN, DURATION, INFERENCE_DURATION, PHASE_DURATION, INPUT_TOKENS, OUTPUT_TOKENS,
    REQUEST_CACHED_TOKENS, COMPUTED_TOKENS, MAX_TOKENS, LONGEST_OUTPUT, SEQUENCES_ASKED, REQUEST_PREEMPTIONS,
)  # fmt: skip
