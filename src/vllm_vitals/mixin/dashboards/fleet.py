"""The fleet: whether users are served as promised, and where not."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from vllm_vitals.catalog import cache, engine, requests, self_metrics, slo
from vllm_vitals.mixin.dashboards.annotations import firing
from vllm_vitals.mixin.dashboards.board import Board, Context, Row
from vllm_vitals.mixin.dashboards.panels import THIRD, WHOLE, figure, lines
from vllm_vitals.mixin.dashboards.query import Query, optional
from vllm_vitals.mixin.dashboards.shapes import (
    ANYWHERE,
    ENGINE,
    ENGINE_NAME,
    PERCENT,
    SECONDS,
    TOKENS_PER_SECOND,
    burn_rate,
    by_label,
    column,
    quantiles,
)
from vllm_vitals.mixin.dashboards.tables import rows
from vllm_vitals.mixin.dashboards.theme import BAD, GOOD, ORANGE, PINK, SKY, VERMILION
from vllm_vitals.mixin.promql import Vector, count_by, max_by, min_by

NO_SLO = "no SLO judged a request"
REASONS = ("stop", "length", "abort", "error", "repetition")


def attainment(c: Context) -> Builder[Panel]:
    good = c.queries.over("$__range").share(slo.REQUESTS, {"outcome": "good"}, ("slo",))
    return figure(
        "SLO attainment",
        "Share of the judged requests of the time shown that met every limit of their SLO. Below the target: look at the "
        "burn rate, then at the worst engines. Nothing here: no SLO is configured (setting `slos`).",
        PERCENT, Query(good, "{{slo}}"), decimals=2, none=NO_SLO,
    )  # fmt: skip


def budget(c: Context) -> Builder[Panel]:
    left = 1 - burn_rate(c, "$__range")
    return figure(
        "Error budget left",
        "What is left of the bad requests that the target allows in the time shown: show the time that your SLO is about, "
        "such as 30 days. Below 0 the target is missed: hold releases back until it is earned again.",
        PERCENT, Query(left, "{{slo}}"), steps=((None, BAD), (0, GOOD)), decimals=0, none=NO_SLO,
    )  # fmt: skip


def burning(c: Context) -> Builder[Panel]:
    return figure(
        "Burn rate, last hour",
        "How many times as fast as the target allows the error budget is used up. 1 lasts exactly as long as the SLO's "
        "window; at 14.4 a budget for 30 days is gone in 2 days. Above 1: open Latency, phases of the violators.",
        "suffix:x", Query(burn_rate(c, "1h"), "{{slo}}"), steps=((None, GOOD), (1, BAD)), decimals=2, none=NO_SLO,
    )  # fmt: skip


def goodput(c: Context) -> Builder[Panel]:
    return figure(
        "Goodput",
        "Tokens per second generated for requests that met their SLO. Compare with the tokens generated in all: the "
        "difference was computed for users who waited too long.",
        TOKENS_PER_SECOND, Query(c.queries.rate(slo.TOKENS, ("slo",), outcome="good"), "{{slo}}"), none=NO_SLO,
    )  # fmt: skip


def first_token(c: Context) -> Builder[Panel]:
    return figure(
        "Time to first token, p99",
        "99 of 100 requests had their first token within this time. Rising while requests wait: add replicas, or shed load. "
        "Rising without: long prompts, see Latency.",
        SECONDS, Query(c.queries.quantile(0.99, requests.TIME_TO_FIRST_TOKEN), "p99"),
    )  # fmt: skip


def served(c: Context) -> Builder[Panel]:
    return figure(
        "Requests finished", "Requests per second that ended for whatever reason. Zero with requests waiting is a stall: open Engine.",
        "reqps", Query(c.queries.rate(requests.FINISHED), "finished"),
    )  # fmt: skip


def queued(c: Context) -> Builder[Panel]:
    return figure(
        "Requests waiting",
        "Requests held back by all schedulers together. Steadily above 0 the fleet is at its limit: open Engine to see which.",
        "short", Query(c.queries.sum(engine.WAITING), "waiting"), decimals=0, none="no engine reports",
    )  # fmt: skip


def engines(c: Context) -> Builder[Panel]:
    return figure(
        "Engines up",
        "Engines whose serving process is there. Fewer than you run: a crash, or an endpoint that is not scraped.",
        "short", Query(c.queries.sum(engine.UP), "up"), decimals=0, none="no engine reports",
    )  # fmt: skip


def traffic(c: Context) -> Builder[Panel]:
    ended = by_label(c.queries.rate(requests.FINISHED, ("finish_reason",)), "finish_reason", REASONS)
    turned_away = Query(c.queries.rate(requests.REJECTED), "rejected", {"rejected": VERMILION})
    return lines(
        "Requests by outcome",
        "Requests per second by why they ended, with those that admission control turned away and, where it is known, those "
        "whose client left. Errors: read vLLM's log. Aborts and clients leaving rise when answers are slow.",
        "reqps", ended, turned_away,
        *optional(lambda: Query(c.queries.rate(requests.ABANDONED), "client left", {"client left": PINK})),
        stacked=True, width=THIRD,
    )  # fmt: skip


def tokens(c: Context) -> Builder[Panel]:
    return lines(
        "Tokens",
        "Tokens per second, in and out, and those of requests that met their SLO. A gap between generated and good is work "
        "that came too late.",
        TOKENS_PER_SECOND,
        Query(c.queries.rate(requests.PROMPT_TOKENS), "prompt", {"prompt": SKY}),
        Query(c.queries.rate(requests.GENERATION_TOKENS), "generated", {"generated": ORANGE}),
        *optional(lambda: Query(c.queries.rate(slo.TOKENS, ("slo",), outcome="good"), "good for {{slo}}")),
        width=THIRD,
    )  # fmt: skip


def saturation(c: Context) -> Builder[Panel]:
    return lines(
        "Saturation",
        "How near engines are to turning work away, over half a minute: goes to 1 while requests wait for room. The largest at 1 with a low mean is bad "
        "routing; both near 1 call for more replicas. This is the signal to scale on.",
        PERCENT,
        Query(c.queries.max(engine.SATURATION), "most", {"most": VERMILION}),
        Query(c.queries.avg(engine.SATURATION), "mean", {"mean": SKY}),
        most=1, width=THIRD, none="no engine reports",
    )  # fmt: skip


def burn(c: Context) -> Builder[Panel]:
    return lines(
        "Burn rate",
        "Use of the error budget over the last hour and the last 6 hours, as multiples of what the target allows (dashed). "
        "An hour above 14.4 or 6 hours above 6 is worth waking someone.",
        "suffix:x",
        Query(burn_rate(c, "1h"), "{{slo}}, 1 h"), Query(burn_rate(c, "6h"), "{{slo}}, 6 h"),
        Query(Vector("vector(1)"), "allowed", limit=True),
        width=THIRD, none=NO_SLO,
    )  # fmt: skip


def batch(c: Context) -> Builder[Panel]:
    return lines(
        "Requests in engines",
        "Requests in batches and held back, and how many fit in all batches together (dashed). Waiting below the dashed "
        "line is the KV cache's doing, not the batch's.",
        "short",
        Query(c.queries.sum(engine.RUNNING), "running", {"running": SKY}),
        Query(c.queries.sum(engine.WAITING), "waiting", {"waiting": VERMILION}),
        *optional(lambda: Query(c.queries.sum(engine.LIMIT), "most in batches", limit=True)),
        width=THIRD, none="no engine reports",
    )  # fmt: skip


def latency(c: Context) -> Builder[Panel]:
    return lines(
        "Time to first token",
        "Median, 90th and 99th percentile over all engines chosen. The median tells of load, the 99th of bursts and long prompts.",
        SECONDS, *quantiles(c, requests.TIME_TO_FIRST_TOKEN), width=THIRD,
    )  # fmt: skip


def worst(c: Context) -> Builder[Panel]:
    q = c.queries
    good = column(
        lambda: min_by(q.share(slo.REQUESTS, {"outcome": "good"}, (*ANYWHERE, "slo")), *ANYWHERE),
        "SLO attainment",
        PERCENT,
    )
    fullness = column(lambda: q.max(engine.SATURATION, ANYWHERE), "saturation", PERCENT, bar=True)
    return rows(
        "Worst engines first",
        "Every engine, the fullest first; click its instance to open it. One bad engine among good ones is that machine or "
        "its routing, all bad alike is load.",
        ANYWHERE,
        *fullness,
        *column(lambda: q.sum(engine.WAITING, ANYWHERE), "waiting"),
        *column(lambda: q.sum(engine.RUNNING, ANYWHERE), "running"),
        *column(lambda: q.max(cache.KV_USAGE, ANYWHERE), "KV cache", PERCENT, bar=True),
        *column(lambda: q.quantile(0.99, requests.TIME_TO_FIRST_TOKEN, ANYWHERE), "TTFT p99", SECONDS),
        *column(lambda: q.rate(requests.GENERATION_TOKENS, ANYWHERE), "generated", TOKENS_PER_SECOND),
        *good,
        *column(lambda: q.max(self_metrics.STEP_AGE, ANYWHERE), "last step", SECONDS),
        worst="saturation" if fullness else "waiting", none="no engine reports",
        link=c.link("engine", instance="${__data.fields.instance}", engine="${__data.fields.engine}"),
    )  # fmt: skip


def by_engine(c: Context) -> Builder[Panel]:
    return lines(
        "Saturation by engine",
        "The same engine by engine. One line apart from the others: see how requests are routed to it.",
        PERCENT, Query(c.queries.max(engine.SATURATION, ENGINE), ENGINE_NAME), most=1, none="no engine reports",
    )  # fmt: skip


def uneven(c: Context) -> Builder[Panel]:
    return lines(
        "Imbalance of data-parallel ranks",
        "Work of the busiest rank over the mean of all ranks that one endpoint shows: 1 is even. The others of its step wait "
        "for the busiest. Steadily above 1.5: change how requests are spread over the ranks.",
        "suffix:x", Query(c.queries.max(engine.IMBALANCE, ("instance", "model_name", "of")), "{{instance}} {{model_name}}, {{of}}"),
        none="no endpoint shows several ranks at work",
    )  # fmt: skip


def alerts(_: Context) -> Builder[Panel]:
    found = Query(count_by(firing(), "alertname", "severity", *ANYWHERE), "firing")
    return rows(
        "Alerts that fire",
        "Alerts of these rules that fire now, as the Prometheus that is asked evaluates them. Each has a runbook: begin there. "
        "Empty too where the rules are not loaded.",
        ("alertname", "severity", *ANYWHERE), *column(lambda: found.vector, "firing"), worst="alertname", hide=True,
        none="no alert fires",
    )  # fmt: skip


def versions(c: Context) -> Builder[Panel]:
    facts = ("vllm_version", "dtype", "quantization", "kv_cache_dtype", "tensor_parallel_size", "data_parallel_size",
             "max_model_len", "prefix_caching", "speculative_method", "kv_role")  # fmt: skip
    inside = max_by(c.queries.select(engine.INFO), *ANYWHERE, *facts)
    return rows(
        "Versions and configurations",
        "How many engines run with which facts. More than one row for a model: a rollout is under way, or was left half done.",
        ("cluster", "namespace", "model_name", *facts),
        *column(lambda: count_by(inside, "cluster", "namespace", "model_name", *facts), "engines"),
        worst="engines", width=WHOLE, none="no engine reports",
    )  # fmt: skip


BOARD = Board(
    "fleet", "Fleet", "Are users served as promised, and if not, which engine is it?",
    (
        Row("Are users served as promised?", (attainment, budget, burning, goodput, first_token, engines, served, queued)),
        Row("Load", (traffic, tokens, saturation, burn, batch, latency)),
        Row("Where", (worst, by_engine, uneven)),
        Row("What is wrong, what changed", (alerts, versions)),
    ),
)  # fmt: skip
