"""One engine: what limits it, its batch, its steps, its KV cache, its state."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import Panel

from vllm_vitals.catalog import cache, engine, requests
from vllm_vitals.mixin.dashboards.board import Board, Context, Row
from vllm_vitals.mixin.dashboards.panels import HALF, THIRD, WHOLE, figure, heat, lines, states
from vllm_vitals.mixin.dashboards.query import Query, optional
from vllm_vitals.mixin.dashboards.shapes import (
    ENGINE,
    ENGINE_NAME,
    PERCENT,
    SECONDS,
    TOKENS,
    TOKENS_PER_SECOND,
    by_label,
    column,
    quantiles,
)
from vllm_vitals.mixin.dashboards.tables import rows
from vllm_vitals.mixin.dashboards.theme import BAD, BLUE, GOOD, GREY, ORANGE, PINK, SKY, VERMILION, YELLOW
from vllm_vitals.mixin.promql import ratio

QUIET = "no engine works"
LIMITERS = {
    "none": GOOD, "max_num_seqs": ORANGE, "token_budget": PINK, "kv_cache": VERMILION, "deferred": YELLOW, "idle": SKY,
    "asleep": GREY,
}  # fmt: skip


def limiter(c: Context) -> Builder[Panel]:
    by = c.queries.rate(engine.LIMITED, ("limiter",))
    share = ratio(by, c.queries.rate(engine.LIMITED), on=(), group_left=())
    return lines(
        "What limits it",
        "Share of the engine's time by what kept requests out of its batch. max_num_seqs: raise --max-num-seqs while the KV "
        "cache has room. token_budget: raise --max-num-batched-tokens, at the price of inter-token latency. kv_cache: more GPU "
        "memory, a smaller KV dtype, shorter contexts, more replicas. deferred: LoRA slots, grammars, KV transfer. idle: "
        "scale in.",
        PERCENT, Query(share, "{{limiter}}", LIMITERS), stacked=True, most=1, width=WHOLE,
    )  # fmt: skip


def saturation(c: Context) -> Builder[Panel]:
    return figure(
        "Saturation", "How near it is to turning work away, over half a minute: goes to 1 while requests wait for room. To scale on.",
        PERCENT, Query(c.queries.max(engine.SATURATION), "saturation"), decimals=0, none=QUIET,
    )  # fmt: skip


def running(c: Context) -> Builder[Panel]:
    return figure(
        "Running", "Requests in the batch at the latest step. Zero with requests waiting is a stall: read vLLM's log.",
        "short", Query(c.queries.sum(engine.RUNNING), "running"), decimals=0, none=QUIET,
    )  # fmt: skip


def waiting(c: Context) -> Builder[Panel]:
    return figure(
        "Waiting", "Requests held back. The graph above says by what.",
        "short", Query(c.queries.sum(engine.WAITING), "waiting"), decimals=0, none=QUIET,
    )  # fmt: skip


def kv_in_use(c: Context) -> Builder[Panel]:
    return figure(
        "KV cache in use", "Share of the KV-cache blocks that requests hold. Near 1 the next step may preempt: see time to full.",
        PERCENT, Query(c.queries.max(cache.KV_USAGE), "in use"), decimals=0, none=QUIET,
    )  # fmt: skip


def soon_full(c: Context) -> Builder[Panel]:
    return figure(
        "KV cache full in", "Time until the KV cache is full if it goes on filling as in the last minute. Shorter than a new "
        "replica takes to start: shed load now.",
        SECONDS, Query(c.queries.min(cache.TIME_TO_FULL), "full in"), none="not filling",
    )  # fmt: skip


def room(c: Context) -> Builder[Panel]:
    return figure(
        "Room for requests", "Requests of typical length that the KV cache still has room for. Fewer than wait: they will not "
        "all get in, whatever --max-num-seqs is.",
        "short", Query(c.queries.sum(cache.FREE_SEQUENCES), "room"), decimals=0, none=QUIET,
    )  # fmt: skip


def batch(c: Context) -> Builder[Panel]:
    return lines(
        "Batch",
        "Requests in the batch, and the most that fit (dashed, --max-num-seqs). At the dashed line with room in the KV cache: "
        "raise it.",
        "short",
        Query(c.queries.sum(engine.RUNNING), "running", {"running": SKY}),
        *optional(lambda: Query(c.queries.sum(engine.LIMIT), "most", limit=True)), width=THIRD, none=QUIET,
    )  # fmt: skip


def queue(c: Context) -> Builder[Panel]:
    colours = {"capacity": VERMILION, "deferred": ORANGE}
    return lines(
        "Queue by reason",
        "capacity: no room in the batch or the KV cache. deferred: held by a transient limit such as a LoRA slot, a grammar or "
        "a KV transfer: raise --max-loras, or look at the KV connector.",
        "short", Query(c.queries.sum(engine.WAITING, ("reason",)), "{{reason}}", colours), stacked=True, width=THIRD, none=QUIET,
    )  # fmt: skip


def fetching(c: Context) -> Builder[Panel]:
    return lines(
        "KV transfer of waiting requests",
        "Waiting requests by stage of their asynchronous KV load. Many in progress: the link to the prefill side or the KV "
        "store is the bottleneck. Many completed_waiting: the batch is.",
        "short",
        by_label(c.queries.sum(engine.KV_FETCH, ("stage",)), "stage", ("waiting_to_start", "in_progress", "completed_waiting")),
        stacked=True, width=THIRD, none="no KV is loaded",
    )  # fmt: skip


def composition(c: Context) -> Builder[Panel]:
    return lines(
        "Tokens by phase",
        "Tokens that steps worked on. Prefill crowding decode out makes inter-token latency jump: lower "
        "--max-num-batched-tokens, or separate the two.",
        TOKENS_PER_SECOND,
        Query(c.queries.rate(engine.SCHEDULED_TOKENS, ("phase",)), "{{phase}}", {"prefill": ORANGE, "decode": SKY}),
        stacked=True, width=THIRD,
    )  # fmt: skip


def step_tokens(c: Context) -> Builder[Panel]:
    return lines(
        "Tokens per step",
        "Mean and 99th percentile of the tokens of a step, and the most that --max-num-batched-tokens allows (dashed). Far below "
        "it the GPU waits for work.",
        TOKENS,
        Query(c.queries.mean(engine.STEP_TOKENS), "mean", {"mean": SKY}),
        Query(c.queries.quantile(0.99, engine.STEP_TOKENS), "p99", {"p99": VERMILION}),
        *optional(lambda: Query(c.queries.max(engine.TOKEN_LIMIT), "most", limit=True)), width=THIRD,
    )  # fmt: skip


def interval(c: Context) -> Builder[Panel]:
    return lines(
        "Time between steps",
        "From one step to the next while there is work. This is what every running request waits for its next token. A growing "
        "p99 with a steady median: single long prefills.",
        SECONDS, *quantiles(c, engine.STEP_INTERVAL), width=THIRD,
    )  # fmt: skip


def intervals(c: Context) -> Builder[Panel]:
    return heat(
        "Steps by time", "How many steps took how long. Two bands are steps with and without prefill.",
        SECONDS, Query(c.queries.buckets(engine.STEP_INTERVAL), "{{le}}"), width=HALF,
    )  # fmt: skip


def duration(c: Context) -> Builder[Panel]:
    return lines(
        "Time in the engine per step",
        "What the engine itself spent on a step; needs --enable-logging-iteration-details. Much less than the time between "
        "steps: the host is the bottleneck, not the GPU.",
        SECONDS, *quantiles(c, engine.STEP_DURATION), width=THIRD, none="vLLM does not report it",
    )  # fmt: skip


def processing(c: Context) -> Builder[Panel]:
    return lines(
        "Time in the serving process per step",
        "From a step's outputs to when they were on their way to the clients. All streams of the process wait that long. "
        "Near the time between steps: add API servers (--api-server-count).",
        SECONDS, *quantiles(c, engine.STEP_PROCESSING), width=THIRD,
    )  # fmt: skip


def padding(c: Context) -> Builder[Panel]:
    run = c.queries.rate(engine.GRAPH_TOKENS, kind="padded")
    return lines(
        "CUDA-graph padding",
        "Share of the tokens run through the model that were padding up to a captured size. Above a few percent: capture more "
        "sizes (--cuda-graph-sizes). Needs --cudagraph-metrics.",
        PERCENT, Query(ratio(run - c.queries.rate(engine.GRAPH_TOKENS, kind="unpadded"), run), "padding", {"padding": ORANGE}),
        width=THIRD, none="vLLM does not report it",
    )  # fmt: skip


def kv_usage(c: Context) -> Builder[Panel]:
    return lines(
        "KV cache in use",
        "By engine. A line that stays at 1 is an engine that preempts.",
        PERCENT, Query(c.queries.max(cache.KV_USAGE, ENGINE), ENGINE_NAME), most=1, none=QUIET,
    )  # fmt: skip


def kv_free(c: Context) -> Builder[Panel]:
    return lines(
        "KV cache free",
        "Tokens that still fit, and all that the KV cache holds (dashed).",
        TOKENS,
        Query(c.queries.sum(cache.KV_FREE), "free", {"free": SKY}),
        Query(c.queries.sum(cache.KV_CAPACITY), "capacity", limit=True), none=QUIET,
    )  # fmt: skip


def preemptions(c: Context) -> Builder[Panel]:
    return lines(
        "Preemptions",
        "Requests that lost their KV cache and are computed again, and how often each finished request was. Anything steady is "
        "wasted GPU time: lower --max-num-seqs, or give the KV cache more memory.",
        "reqps",
        Query(c.queries.rate(requests.PREEMPTED), "preemptions", {"preemptions": VERMILION}),
        *optional(lambda: Query(c.queries.mean(requests.REQUEST_PREEMPTIONS), "per request", {"per request": BLUE}, right="short")),
    )  # fmt: skip


def recomputed(c: Context) -> Builder[Panel]:
    return lines(
        "Tokens computed again",
        "Tokens per second that preempted requests had to compute anew, because the prefix cache had lost them: the price of "
        "the preemptions, in work.",
        TOKENS_PER_SECOND, Query(c.queries.rate(requests.RECOMPUTED_TOKENS), "computed again", {"computed again": VERMILION}),
        none="no prefix caching",
    )  # fmt: skip


def sleep(c: Context) -> Builder[Panel]:
    words = {"awake": GOOD, "paused": ORANGE, "weights_offloaded": SKY, "discard_all": GREY}
    return lines(
        "Asleep or awake",
        "State of the engine: paused, weights_offloaded and discard_all are sleep levels 0, 1 and 2. Asleep with requests "
        "waiting: something has to wake it.",
        "short", Query(c.queries.sum(engine.SLEEP, ("state",)), "{{state}}", words), stacked=True, width=THIRD, none="no sleep mode",
    )  # fmt: skip


def presence(c: Context) -> Builder[Panel]:
    return states(
        "There or gone",
        "Whether a serving process of each engine is there. A gap is an endpoint that does not answer, gone one that ended.",
        Query(c.queries.max(engine.UP, ENGINE), ENGINE_NAME), words={"1": ("there", GOOD), "0": ("gone", BAD)}, width=THIRD,
        none="no engine reports",
    )  # fmt: skip


def startup(c: Context) -> Builder[Panel]:
    return figure(
        "Start-up", "From the start of the serving process until its engines were ready: what a new replica takes, and so how "
        "early to scale out.",
        SECONDS, Query(c.queries.max(engine.STARTUP), "took"), width=THIRD, none="not known",
    )  # fmt: skip


def faults(c: Context) -> Builder[Panel]:
    return lines(
        "Faulty answers",
        "Requests that the engine failed, and finished ones with NaNs in their logits (VLLM_COMPUTE_NANS_IN_LOGITS=1). "
        "Either is a fault of hardware, weights or kernels: take the engine out of service and read its log.",
        "reqps",
        Query(c.queries.rate(requests.FINISHED, finish_reason="error"), "errors", {"errors": VERMILION}),
        Query(c.queries.rate(requests.CORRUPTED), "corrupted", {"corrupted": PINK}), width=THIRD,
    )  # fmt: skip


def watermarks(c: Context) -> Builder[Panel]:
    return lines(
        "Watermarks",
        "Finished requests by watermark status. Anything but watermarked where all should be: check the configuration.",
        "reqps", by_label(c.queries.rate(requests.WATERMARKED, ("status",)), "status", ("watermarked", "skipped", "not_watermarked")),
        stacked=True, width=THIRD, none="no watermarking",
    )  # fmt: skip


def facts(c: Context) -> Builder[Panel]:
    return rows(
        "Configuration", "What each engine was started with. Engines of one model that differ answer differently.", (*ENGINE, *engine.INFO_LABELS),
        *column(lambda: c.queries.max(engine.INFO, (*ENGINE, *engine.INFO_LABELS)), "info"), worst="instance", hide=True,
        none="no engine reports",
    )  # fmt: skip


BOARD = Board(
    "engine", "Engine", "What limits this engine, and what would help?",
    (
        Row("What limits it?", (limiter, saturation, running, waiting, kv_in_use, soon_full, room)),
        Row("Batch and queue", (batch, queue, composition)),
        Row("Steps", (interval, step_tokens, processing, intervals, duration, padding)),
        Row("KV cache", (kv_usage, kv_free, preemptions, recomputed)),
        Row("State", (presence, sleep, faults, startup, facts)),
        Row("Only some set-ups", (fetching, watermarks), closed=True),
    ),
)  # fmt: skip
