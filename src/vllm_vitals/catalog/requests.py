"""Tokens and requests: prompt and output tokens, finished and failed requests, and the time of each part."""

import re
from collections import Counter as Tally
from collections.abc import Callable
from typing import Any

import numpy as np

from vllm_vitals._util.labels import UNKNOWN
from vllm_vitals.catalog.metric import MAX_LATENCY_SECONDS, Counter, Group, Histogram, Label, Scope
from vllm_vitals.records.request_batch import Floats, Requests
from vllm_vitals.records.step import CLOCK_SLACK, Facts, Finished, Rejection, Step


def lifetime(step: Step) -> float:
    """Return the maximum latency in this step, in seconds: the age of its process."""
    return step.age + CLOCK_SLACK


def _frontend(requests: Requests) -> Floats:
    """Return the seconds outside the engine (tokenization, transport, detokenization); NaN if a part is impossible."""
    queue, inference, longest = requests.queue, requests.inference, requests.max_phase
    known = (queue >= 0) & (queue <= longest) & (inference >= 0) & (inference <= longest)
    return np.where(known, np.maximum(requests.duration - queue - inference, 0.0), np.nan)


def _sources(facts: Facts) -> tuple[str, ...]:
    """Return the only source that vLLM before 0.16.0 reports."""
    found = re.match(r"0\.(\d+)\.", facts.info.get("vllm_version", ""))
    return (UNKNOWN,) if found and int(found[1]) < 16 else ()  # noqa: PLR2004 - the release above


PHASES: dict[str, Callable[[Requests], Floats]] = {
    "queue": lambda r: r.queue,
    "prefill": lambda r: r.prefill,
    "decode": lambda r: r.decode,
    "frontend": _frontend,
}

TOKENS = Group("tokens", "Tokens")
REQUESTS = Group("requests", "Requests", "Requests, and the time that each part of them took.")

PROMPT_TOKENS = TOKENS.add(
    Counter(
        "vllm.tokens.prompt",
        "{token}",
        "Prompt tokens of requests whose prefill is done, by source.",
        record=Step,
        read="prompt_tokens",
        vllm_name="vllm:prompt_tokens_by_source",
        labels=(
            Label(
                "source",
                ("local_compute", "local_cache_hit", "external_kv_transfer"),
                open=True,
                values_from=_sources,
                help="`unknown` before vLLM 0.16.0, which does not report the source",
            ),
        ),
    )
)
CACHED_TOKENS = TOKENS.add(
    Counter(
        "vllm.tokens.prompt_cached",
        "{token}",
        "Prompt tokens found in a cache when their request was scheduled, by cache tier.",
        record=Step,
        read="cached_by_source",
        vllm_name="vllm:prompt_tokens_cached_by_source",
        labels=(
            Label("source", ("device",), open=True, help="device, or a tier of the KV connector since vLLM 0.32.0"),
        ),
    )
)
RECOMPUTED_TOKENS = TOKENS.add(
    Counter(
        "vllm.tokens.recomputed",
        "{token}",
        "Tokens computed again because their request was preempted and the prefix cache no longer had them. Needs "
        "prefix caching. Before vLLM 0.27.0, a request counts at every attempt to resume it, so the value is an "
        "upper bound.",
        record=Step,
        read=lambda s: s.prefix_cache.again if s.prefix_cache else None,
    )
)
GENERATION_TOKENS = TOKENS.add(
    Counter(
        "vllm.tokens.generation",
        "{token}",
        "Generated tokens.",
        record=Step,
        read="generation_tokens",
        vllm_name="vllm:generation_tokens",
    )
)

FINISHED = REQUESTS.add(
    Counter(
        "vllm.requests.finished",
        "{request}",
        "Finished sequences (`n` per request). vLLM reports requests whose client disconnected to no stat logger.",
        record=Finished,
        read=lambda r: Tally(r.reason),
        vllm_name="vllm:request_success",
        labels=(Label("finish_reason", ("stop", "length", "abort", "error", "repetition")),),
    )
)
ABANDONED: Counter[Any] = REQUESTS.add(
    Counter(
        "vllm.requests.abandoned",
        "{request}",
        "Sequences whose client disconnected after their first token. vLLM reports them to no stat logger: the "
        "value is the started sequences minus those that finished and those still in the engine. Exact once the "
        "engine is idle, a lower bound before.",
    )
)
REJECTED = REQUESTS.add(
    Counter(
        "vllm.requests.rejected",
        "{request}",
        "Requests rejected by admission control before they were queued.",
        record=Rejection,
        read=lambda r: {r.reason: r.count},
        scope=Scope.MODEL,
        since="0.32.0",
        labels=(Label("reason", ("max_num_queued_reqs", "max_num_queued_tokens")),),
        vllm_name="vllm:admission_rejections",
    )
)
PREEMPTED = REQUESTS.add(
    Counter(
        "vllm.requests.preempted",
        "{request}",
        "Preemptions: a request lost its KV cache and must be computed again.",
        record=Step,
        read="preempted",
        vllm_name="vllm:num_preemptions",
    )
)
CORRUPTED = REQUESTS.add(
    Counter(
        "vllm.requests.corrupted",
        "{request}",
        "Finished requests that had NaNs in their logits.",
        record=Step,
        read="corrupted",
        needs="nan_check",
        vllm_name="vllm:corrupted_requests",
    )
)
WATERMARKED = REQUESTS.add(
    Counter(
        "vllm.requests.watermarked",
        "{request}",
        "Finished requests by watermark status.",
        record=Step,
        read="watermarks",
        needs="watermark",
        since="0.32.0",
        vllm_name="vllm:watermark_requests",
        labels=(Label("status", ("watermarked", "skipped", "not_watermarked")),),
    )
)

TIME_TO_FIRST_TOKEN = REQUESTS.add(
    Histogram(
        "vllm.request.time_to_first_token",
        "s",
        "Time from a request's arrival to its first token, observed at the first token. A request that ends "
        "without a token is not observed.",
        record=Step,
        read="first_token_latencies",
        buckets="time_to_first_token",
        limit=MAX_LATENCY_SECONDS,
        max_from_record=lifetime,
        vllm_name="vllm:time_to_first_token_seconds",
    )
)
INTER_TOKEN_LATENCY = REQUESTS.add(
    Histogram(
        "vllm.request.inter_token_latency",
        "s",
        "Time between two outputs of a request, observed at each output.",
        record=Step,
        read="inter_token_latencies",
        repeats="inter_token_repeats",
        buckets="inter_token_latency",
        limit=MAX_LATENCY_SECONDS,
        max_from_record=lifetime,
        vllm_name="vllm:inter_token_latency_seconds",
    )
)
MEAN_TIME_PER_OUTPUT_TOKEN = REQUESTS.add(
    Histogram(
        "vllm.request.mean_time_per_output_token",
        "s",
        "Decode time of a finished request divided by its tokens after the first. Needs two tokens.",
        record=Finished,
        read="time_per_output_token",
        buckets="inter_token_latency",
        limit=MAX_LATENCY_SECONDS,
        max_from_record="max_phase",
        vllm_name="vllm:request_time_per_output_token_seconds",
    )
)
DURATION = REQUESTS.add(
    Histogram(
        "vllm.request.duration",
        "s",
        "Time from a request's arrival to its last token.",
        record=Finished,
        read="duration",
        buckets="request_latency",
        limit=MAX_LATENCY_SECONDS,
        vllm_name="vllm:e2e_request_latency_seconds",
    )
)
INFERENCE_DURATION = REQUESTS.add(
    Histogram(
        "vllm.request.inference.duration",
        "s",
        "Time from a request's first scheduling to its last token: prefill and decode.",
        record=Finished,
        read="inference",
        buckets="request_latency",
        limit=MAX_LATENCY_SECONDS,
        max_from_record="max_phase",
        vllm_name="vllm:request_inference_time_seconds",
    )
)
PHASE_DURATION = REQUESTS.add(
    Histogram(
        "vllm.request.phase.duration",
        "s",
        "Time of a finished request by phase. The phases add up to its duration.",
        record=Finished,
        read=lambda r: {phase: read(r) for phase, read in PHASES.items()},
        buckets="request_latency",
        limit=MAX_LATENCY_SECONDS,
        max_from_record="max_phase",
        labels=(
            Label(
                "phase",
                tuple(PHASES),
                help="queue: until first scheduled. prefill: until the first token. decode: until the last token. "
                "frontend: the rest, outside the engine",
            ),
        ),
        vllm_name="vllm:request_{queue,prefill,decode}_time_seconds",
    )
)
INPUT_TOKENS = REQUESTS.add(
    Histogram(
        "vllm.request.input_tokens",
        "{token}",
        "Prompt tokens of a finished request.",
        record=Finished,
        read="input_tokens",
        buckets="request_tokens",
        vllm_name="vllm:request_prompt_tokens",
    )
)
OUTPUT_TOKENS = REQUESTS.add(
    Histogram(
        "vllm.request.output_tokens",
        "{token}",
        "Generated tokens of a finished sequence.",
        record=Finished,
        read="output_tokens",
        buckets="request_tokens",
        vllm_name="vllm:request_generation_tokens",
    )
)
REQUEST_CACHED_TOKENS = REQUESTS.add(
    Histogram(
        "vllm.request.cached_tokens",
        "{token}",
        "Prompt tokens of a finished request that came from a cache.",
        record=Finished,
        read="cached_tokens",
        buckets="request_tokens",
        since="0.13.0",
    )
)
COMPUTED_TOKENS = REQUESTS.add(
    Histogram(
        "vllm.request.computed_tokens",
        "{token}",
        "Prompt tokens of a finished request that were not in a cache.",
        record=Finished,
        buckets="request_tokens",
        since="0.13.0",
        vllm_name="vllm:request_prefill_kv_computed_tokens",
        read=lambda r: r.input_tokens - r.cached_tokens,
    )
)
MAX_TOKENS = REQUESTS.add(
    Histogram(
        "vllm.request.max_tokens",
        "{token}",
        "The max_tokens parameter of a finished request.",
        record=Finished,
        read="max_tokens",
        buckets="request_tokens",
        vllm_name="vllm:request_params_max_tokens",
    )
)
LONGEST_OUTPUT = REQUESTS.add(
    Histogram(
        "vllm.request.longest_output",
        "{token}",
        "Tokens of the longest sequence among the `n` of a finished request.",
        record=Step,
        read="longest_outputs",
        buckets="request_tokens",
        vllm_name="vllm:request_max_num_generation_tokens",
    )
)
SEQUENCES_ASKED = REQUESTS.add(
    Histogram(
        "vllm.request.n",
        "{sequence}",
        "The `n` parameter of a finished request.",
        record=Step,
        read="sequences_asked",
        buckets="request_params_n",
        vllm_name="vllm:request_params_n",
    )
)
REQUEST_PREEMPTIONS = REQUESTS.add(
    Histogram(
        "vllm.request.preemptions",
        "{preemption}",
        "Preemptions of a finished request.",
        record=Finished,
        read="preemptions",
        buckets="request_num_preemptions",
        since="0.30.0",
        vllm_name="vllm:request_num_preemptions",
    )
)
