"""Latencies: how long users wait, and what for."""

from collections.abc import Callable
from typing import Any

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from vllm_vitals.catalog import Histogram, gen_ai, requests, slo
from vllm_vitals.mixin.dashboards.board import Board, Context, Row
from vllm_vitals.mixin.dashboards.panels import THIRD, figure, heat, lines
from vllm_vitals.mixin.dashboards.query import Query, optional
from vllm_vitals.mixin.dashboards.shapes import PERCENT, SECONDS, TOKENS, by_label, limits, quantiles
from vllm_vitals.mixin.dashboards.theme import GREY, ORANGE, PINK, SKY, VERMILION
from vllm_vitals.mixin.promql import matching, ratio

PHASES = {"queue": VERMILION, "prefill": ORANGE, "decode": SKY, "frontend": PINK, "unknown": GREY}
NO_MISSES = "no limit was missed"


def _answer(title: str, why: str, metric: Histogram[Any]) -> Callable[[Context], Builder[Panel]]:
    """Return what makes a panel of the median and the 99th percentile of a latency."""

    def make(c: Context) -> Builder[Panel]:
        p50, _, p99 = quantiles(c, metric)
        return figure(title, why, SECONDS, p50, p99, width=6)

    return make


def _spread(title: str, why: str, metric: Histogram[Any]) -> Callable[[Context], Builder[Panel]]:
    """Return what makes a heatmap of a latency."""

    def make(c: Context) -> Builder[Panel]:
        return heat(title, why, SECONDS, Query(c.queries.buckets(metric), "{{le}}", exemplars=True))

    return make


def _ranks(title: str, why: str, metric: Histogram[Any], objective: str = "") -> Callable[[Context], Builder[Panel]]:
    """Return what makes a graph of a latency's quantiles, and of the limits that SLOs set on it."""

    def make(c: Context) -> Builder[Panel]:
        dashed = limits(c, objective) if objective else []
        return lines(title, why, SECONDS, *quantiles(c, metric, exemplars=True), *dashed)

    return make


first_token = _answer(
    "Time to first token", "Median and 99th percentile from arrival to the first token. Long: see below whether requests queue "
    "or prefill.", requests.TIME_TO_FIRST_TOKEN,
)  # fmt: skip
inter_token = _answer(
    "Between tokens", "Median and 99th percentile of the time between two outputs of a request. A p99 far above the median: "
    "prefills of others come between; lower --max-num-batched-tokens.", requests.INTER_TOKEN_LATENCY,
)  # fmt: skip
per_token = _answer(
    "Time per output token", "Median and 99th percentile of a request's decode time over its tokens after the first: the speed "
    "that its reader sees.", requests.MEAN_TIME_PER_OUTPUT_TOKEN,
)  # fmt: skip
whole = _answer(
    "Request duration", "Median and 99th percentile from arrival to the last token. Depends on how many tokens are asked for: "
    "compare with Request shape below.", requests.DURATION,
)  # fmt: skip

first_tokens = _spread(
    "Time to first token", "How many first tokens came after how long. Two bands: two kinds of prompts, or cache hits and "
    "misses. A band that climbs: a queue. Points are single requests, where exemplars are stored.", requests.TIME_TO_FIRST_TOKEN,
)  # fmt: skip
inter_tokens = _spread(
    "Between tokens", "How many outputs came after how long. A second band above the first: steps that held a prefill.",
    requests.INTER_TOKEN_LATENCY,
)  # fmt: skip
per_tokens = _spread(
    "Time per output token", "How many requests had which mean speed. A band that climbs with load: the batch is too large for "
    "the limit on tpot; lower --max-num-seqs.", requests.MEAN_TIME_PER_OUTPUT_TOKEN,
)  # fmt: skip
durations = _spread(
    "Request duration", "How many requests took how long. Points are single requests, where exemplars are stored.",
    requests.DURATION,
)  # fmt: skip

first_token_ranks = _ranks(
    "Time to first token", "Quantiles, and the limits of SLOs (dashed). Where p99 crosses a limit while p50 stays: a few long "
    "prompts or bursts, not load.", requests.TIME_TO_FIRST_TOKEN, "ttft",
)  # fmt: skip
inter_token_ranks = _ranks(
    "Between tokens", "Quantiles of the time between two outputs. Follows the time between steps: see Engine.",
    requests.INTER_TOKEN_LATENCY,
)  # fmt: skip
per_token_ranks = _ranks(
    "Time per output token", "Quantiles, and the limits of SLOs (dashed).", requests.MEAN_TIME_PER_OUTPUT_TOKEN, "tpot",
)  # fmt: skip
duration_ranks = _ranks(
    "Request duration", "Quantiles, and the limits of SLOs (dashed).", requests.DURATION, "e2e",
)  # fmt: skip


def anatomy(c: Context) -> Builder[Panel]:
    return lines(
        "Anatomy of a request",
        "Mean time of a finished request by phase; the phases add up to its duration. queue: add replicas. prefill: prefix "
        "caching, shorter prompts. decode: a smaller batch, speculative decoding. frontend: more API servers.",
        SECONDS, Query(c.queries.mean(requests.PHASE_DURATION, ("phase",)), "{{phase}}", PHASES), stacked=True,
    )  # fmt: skip


def slow_phases(c: Context) -> Builder[Panel]:
    return lines(
        "Phases, p99",
        "99th percentile of each phase; these do not add up. The phase that rises with the p99 of the duration is the one to "
        "look at.",
        SECONDS, Query(c.queries.quantile(0.99, requests.PHASE_DURATION, ("phase",)), "{{phase}}", PHASES),
    )  # fmt: skip


def inference(c: Context) -> Builder[Panel]:
    return lines(
        "Time in the engine", "Quantiles from when a request is first scheduled to its last token: its duration without queue "
        "and frontend.", SECONDS, *quantiles(c, requests.INFERENCE_DURATION),
    )  # fmt: skip


def blame(c: Context) -> Builder[Panel]:
    missed = c.queries.rate(slo.VIOLATIONS, ("phase",))
    share = ratio(missed, c.queries.rate(slo.VIOLATIONS), on=(), group_left=())
    return lines(
        "Phases of the violators",
        "Of the limits that were missed, the share that each phase is to blame for: the one that went most beyond what it usually "
        "takes. queue: capacity. prefill: long prompts or cold caches. decode: too large a batch, or long outputs.",
        PERCENT, Query(share, "{{phase}}", PHASES), stacked=True, most=1, none=NO_MISSES,
    )  # fmt: skip


def missed(c: Context) -> Builder[Panel]:
    return lines(
        "Limits missed",
        "Missed limits per second by SLO and objective. Only tpot missed: the batch is too large. Only ttft: queue or prefill, "
        "see beside.",
        "reqps", Query(c.queries.rate(slo.VIOLATIONS, ("slo", "objective")), "{{slo}}: {{objective}}"), none=NO_MISSES,
    )  # fmt: skip


def excluded(c: Context) -> Builder[Panel]:
    return lines(
        "Requests not judged",
        "Finished requests that an SLO covers and did not judge, by reason. unknown growing: the SLO does not see all traffic. "
        "abort growing: clients give up, which may be the latency's fault.",
        "reqps", Query(c.queries.rate(slo.EXCLUDED, ("slo", "reason")), "{{slo}}: {{reason}}"), none="all were judged",
    )  # fmt: skip


def lengths(c: Context) -> Builder[Panel]:
    q = c.queries
    return lines(
        "Tokens in and out",
        "Means of a finished request. Longer prompts explain a longer time to first token, longer outputs a longer duration.",
        TOKENS,
        Query(q.mean(requests.INPUT_TOKENS), "prompt", {"prompt": SKY}),
        Query(q.mean(requests.OUTPUT_TOKENS), "output", {"output": ORANGE}),
        Query(q.mean(requests.COMPUTED_TOKENS), "prompt, not cached", {"prompt, not cached": PINK}),
        *optional(lambda: Query(q.mean(requests.MAX_TOKENS), "max_tokens asked for", limit=True)),
        width=THIRD,
    )  # fmt: skip


def longest(c: Context) -> Builder[Panel]:
    q = c.queries
    return lines(
        "Long requests", "99th percentiles: what the KV cache has to have room for.", TOKENS,
        Query(q.quantile(0.99, requests.INPUT_TOKENS), "prompt, p99", {"prompt, p99": SKY}),
        Query(q.quantile(0.99, requests.OUTPUT_TOKENS), "output, p99", {"output, p99": ORANGE}),
        Query(q.quantile(0.99, requests.LONGEST_OUTPUT), "longest of n, p99", {"longest of n, p99": VERMILION}), width=THIRD,
    )  # fmt: skip


def choices(c: Context) -> Builder[Panel]:
    return lines(
        "Sequences per request", "Mean of the n that requests ask for. Each is a request of its own to the engine.", "short",
        Query(c.queries.mean(requests.SEQUENCES_ASKED), "n", {"n": SKY}), width=THIRD,
    )  # fmt: skip


def _convention(title: str, metric: Histogram[Any]) -> Callable[[Context], Builder[Panel]]:
    def make(c: Context) -> Builder[Panel]:
        return lines(
            title, f"{metric.help} The OpenTelemetry convention's {metric.name}: for comparison with other servers; the graphs "
            "above have more detail.",
            SECONDS, *quantiles(c, metric, gen_ai_request_model=matching("$model")), width=THIRD, none="switched off",
        )  # fmt: skip

    return make


def failed(c: Context) -> Builder[Panel]:
    answered = c.queries.observed(gen_ai.GEN_AI_DURATION, ("error_type",), gen_ai_request_model=matching("$model"))
    return lines(
        "Requests by error.type", "Requests per second; without a name those that succeeded. The convention tells errors apart "
        "by this label alone.",
        "reqps", by_label(answered, "error_type", ("error",)), width=THIRD, none="switched off",
    )  # fmt: skip


BOARD = Board(
    "latency", "Latency", "How long do users wait, and what for?",
    (
        Row("How long do users wait?", (first_token, inter_token, per_token, whole)),
        Row("What for?", (anatomy, slow_phases, blame, missed)),
        Row("Quantiles and limits", (first_token_ranks, inter_token_ranks, per_token_ranks, duration_ranks)),
        Row("Spread", (first_tokens, inter_tokens, per_tokens, durations)),
        Row("Request shape", (lengths, longest, choices)),
        Row("Details", (inference, excluded), closed=True),
        Row(
            "OpenTelemetry conventions",
            (
                _convention("gen_ai duration", gen_ai.GEN_AI_DURATION),
                _convention("gen_ai time to first token", gen_ai.GEN_AI_FIRST_TOKEN),
                _convention("gen_ai time per output token", gen_ai.GEN_AI_PER_TOKEN),
                failed,
            ),
            closed=True,
        ),
    ),
)  # fmt: skip
