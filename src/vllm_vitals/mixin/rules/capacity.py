"""Load: saturation, queues, the KV cache, preemptions, how evenly engines share it, whom they turn away."""

from collections.abc import Iterator
from typing import Any

from vllm_vitals.catalog import Metric, cache, engine, requests
from vllm_vitals.mixin.promql import Recording, avg_by, max_by, ratio
from vllm_vitals.mixin.rules.engine import ENGINE, asleep, held, saturated
from vllm_vitals.mixin.rules.maker import ROUNDED, Maker
from vllm_vitals.mixin.rules.rule import Alert, Record, RuleGroup
from vllm_vitals.mixin.rules.windows import duration

SATURATED = "What limits: sum by (limiter) (rate(vllm_engine_limited_duration_seconds_total[5m]))."


def groups(make: Maker) -> Iterator[RuleGroup]:
    """Yield the rules on load."""
    makers = (
        _queue_growing, _saturated, _kv_full_soon, _preemption_storm, _rank_imbalance, _rejections, _cache_collapse,
    )  # fmt: skip
    yield RuleGroup("vllm-capacity.rules", list(_records(make)))
    yield RuleGroup("vllm-capacity.alerts", [each(make) for each in makers])


def requests_held(make: Maker) -> Recording:
    """Return the requests that each engine has, running or waiting."""
    return Recording("engine:vllm_engine_requests:sum", frozenset(make.engine))


def hit_ratio(make: Maker, window: int) -> Recording:
    """Return the share of looked-up tokens that the prefix cache had."""
    name = f"model_tier:vllm_prefix_cache_hit_tokens_per_queried_tokens:ratio_rate{duration(window)}"
    return Recording(name, frozenset((*make.model, "tier")))


def _records(make: Maker) -> Iterator[Record]:
    queries, by = make.queries, make.model
    of_model: tuple[tuple[str, Metric[Any], str], ...] = (
        ("avg", engine.SATURATION, "Saturation, 0 to 1, the mean of a model's engines. To scale on."),
        ("max", engine.SATURATION, "Saturation of the fullest engine of a model."),
        ("sum", engine.RUNNING, "Requests in the batches of a model's engines."),
        ("sum", engine.WAITING, "Requests that wait for them."),
        ("avg", cache.KV_USAGE, "Share of the KV cache in use, the mean of a model's engines."),
    )
    for operator, metric, about in of_model:
        made = Recording(f"model:{metric.prometheus}:{operator}", frozenset(by))
        yield make.record(made, queries.gauge(operator, metric, by), about)
    yield make.record(requests_held(make), held(make), "Requests that an engine has, running or waiting.")
    settings, tiers = make.config.capacity.prefix_cache_collapse, (*by, "tier")
    for window in dict.fromkeys((settings.window, settings.baseline)):
        over = make.over(window)
        asked = over.rate(cache.PREFIX_QUERIES, tiers)
        found = over.rate(cache.PREFIX_HITS, tiers).or_(asked * 0)  # a tier that never had any has no series of them
        yield make.record(
            hit_ratio(make, window), ratio(found, asked), "Share of looked-up tokens that the prefix cache had."
        )


def _queue_growing(make: Maker) -> Alert:
    settings, by = make.config.capacity.queue_growing, make.engine
    over = make.over(settings.window)
    waiting = make.queries.max(engine.WAITING, by, reason="capacity") > settings.floor
    slope = max_by(over.ranged("deriv", engine.WAITING, reason="capacity"), *by)
    never_empty = max_by(over.ranged("min_over_time", engine.WAITING, reason="capacity"), *by) > 0
    window = duration(settings.window)
    return make.alert(
        "VllmQueueGrowing", "capacity.queue_growing", settings,
        waiting.and_(slope * settings.window > settings.floor).and_(never_empty),
        "{{ $value }} requests wait for room in engine {{ $labels.engine }} of {{ $labels.model_name }}, "
        f"and ever more for {window}",
        f"More than {settings.floor:g} requests wait for room, that many more than {window} ago, and the queue was never empty in between.",
        (
            SATURATED,
            "Whether other engines of the model have room: vllm_engine_saturation_ratio by engine and replica.",
            "What the traffic is: rate(vllm_requests_finished_total[5m]) and the prompt lengths, against an hour ago.",
        ),
        make.replica,
    )  # fmt: skip


def _saturated(make: Maker) -> Alert:
    settings = make.config.capacity.saturated
    window = duration(settings.window)
    return make.alert(
        "VllmSaturated", "capacity.saturated", settings,
        avg_by(saturated(make, settings.window), *make.model) > settings.above,
        f"The engines of {{{{ $labels.model_name }}}} were {{{{ $value | humanizePercentage }}}} saturated over {window}",
        f"The engines of a model that are awake are more than {settings.above:.0%} saturated on average: requests wait for room nearly all the time.",
        (
            SATURATED,
            "Whether the autoscaler wants more replicas and does not get them: kubectl describe hpa, or scaledobject.",
            "Whether the load is even: vllm_engine_saturation_ratio by engine and replica.",
        ),
        make.service,
    )  # fmt: skip


def _kv_full_soon(make: Maker) -> Alert:
    settings = make.config.capacity.kv_full_soon
    # The forecast comes and goes with noise: each that there was in a minute counts.
    full = max_by(make.over(60).ranged("max_over_time", cache.TIME_TO_FULL), *make.engine) < settings.within
    return make.alert(
        "VllmKvCacheFullSoon", "capacity.kv_full_soon", settings,
        full.and_(make.queries.max(cache.KV_USAGE, make.engine) > settings.above),
        "The KV cache of engine {{ $labels.engine }} of {{ $labels.model_name }} is full in "
        "{{ $value | humanizeDuration }}; then requests wait or are preempted",
        f"The KV cache is full within {duration(settings.within)} at the pace of the last minute, and more than {settings.above:.0%} of it are in use.",
        (
            "Whether requests got longer: histogram_quantile(0.9, ...) of vllm_request_input_tokens and output_tokens.",
            "How many more fit: vllm_kv_cache_free_sequences, against the requests that come in.",
            "Whether another engine has room: vllm_kv_cache_usage_ratio by engine and replica.",
        ),
        make.replica,
    )  # fmt: skip


def _preemption_storm(make: Maker) -> Alert:
    settings, by = make.config.capacity.preemption_storm, make.engine
    over = make.over(settings.window)
    many = over.rate(requests.PREEMPTED, by) > over.rate(requests.FINISHED, by) * settings.above
    return make.alert(
        "VllmPreemptionStorm", "capacity.preemption_storm", settings,
        many.and_(over.increase(requests.PREEMPTED, by) > settings.floor),
        ENGINE + ' preempts {{ $value | printf "%.2f" }} requests per second, which are computed anew',
        f"There are more than {settings.above:g} preemptions for each request that finishes: the work that was done is thrown away.",
        (
            "How full the KV cache is: vllm_kv_cache_usage_ratio, and vllm_kv_cache_free_sequences.",
            "Whether outputs got longer than what was there when requests were let in: vllm_request_output_tokens.",
            "How many run at once: vllm_engine_requests_running against vllm_engine_requests_limit (--max-num-seqs).",
        ),
        make.replica,
    )  # fmt: skip


def _rank_imbalance(make: Maker) -> Alert:
    settings = make.config.capacity.rank_imbalance
    window = duration(settings.window)
    there = requests_held(make).over_time("avg_over_time", window).and_(requests_held(make).select())
    awake = there.unless(asleep(make))
    mean = avg_by(awake, *make.model) * settings.factor
    return make.alert(
        "VllmRankImbalance", "capacity.rank_imbalance", settings,
        awake.combined(">", mean, on=make.model, group_left=()).and_(awake > settings.floor),
        ENGINE + f" had {ROUNDED} requests on average over {window}, more than "
        f"{settings.factor:g} times the mean of all engines of the model",
        f"An engine has more than {settings.floor:g} requests and more than {settings.factor:g} times the mean of its model, while others have little to do; with expert parallelism they wait for it at every step.",
        (
            "All of them: engine:vllm_engine_requests:sum by engine and replica.",
            "How the router chooses: sticky sessions or prefix affinity that all hit one engine, one long-lived connection.",
            "Whether some engines are slower or smaller: vllm_step_interval_seconds, vllm_kv_cache_capacity.",
        ),
        make.replica,
    )  # fmt: skip


def _rejections(make: Maker) -> Alert:
    settings, by = make.config.capacity.rejections, make.model
    over = make.over(settings.window)
    rejected = over.rate(requests.REJECTED, by)
    share = ratio(rejected, rejected + over.rate(requests.FINISHED, by)) > settings.above
    return make.alert(
        "VllmAdmissionRejections", "capacity.rejections", settings,
        share.and_(over.increase(requests.REJECTED, by) > settings.floor),
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.model_name }} in the last "
        f"{duration(settings.window)} were turned away with status 503",
        f"More than {settings.above:.0%} of the requests that came, and more than {settings.floor:g}, were turned away: the limits on queued requests or tokens are reached.",
        (
            "By which limit: sum by (reason) (rate(vllm_requests_rejected_total[5m])).",
            SATURATED,
            "Whether clients try again at once, which makes it worse: rejections against requests finished.",
        ),
        make.service,
    )  # fmt: skip


def _cache_collapse(make: Maker) -> Alert:
    settings, tiers = make.config.capacity.prefix_cache_collapse, (*make.model, "tier")
    now, usual = hit_ratio(make, settings.window).select(), hit_ratio(make, settings.baseline).select()
    asked = make.over(settings.window).increase(cache.PREFIX_QUERIES, tiers) > settings.floor
    return make.alert(
        "VllmPrefixCacheCollapse", "capacity.prefix_cache_collapse", settings,
        (now < usual * settings.factor).and_(usual > settings.least).and_(asked),
        f"The {{{{ $labels.tier }}}} prefix cache of {{{{ $labels.model_name }}}} had {{{{ $value | humanizePercentage }}}} of the "
        f"tokens looked up in the last {duration(settings.window)}, less than {settings.factor:.0%} of what is usual",
        f"The hit ratio is less than {settings.factor:.0%} of what it was over {duration(settings.baseline)}: prompts that were cached are computed, which takes time to first token and room.",
        (
            "Whether prompts changed: something that varies (a date, an id) now comes before what is shared.",
            "Whether the router still sends the same prefixes to the same engine.",
            "Whether cached blocks are pushed out: vllm_kv_cache_usage_ratio near 1, or engines that were restarted.",
        ),
        make.service,
    )  # fmt: skip
