"""Engines: work that does not go on, engines that are gone or asleep, requests that fail."""

from collections.abc import Iterator

from vllm_vitals.catalog import engine, requests, self_metrics
from vllm_vitals.mixin.promql import Vector, avg_by, is_not, max_by, over_time
from vllm_vitals.mixin.rules.maker import ROUNDED, Maker
from vllm_vitals.mixin.rules.rule import Alert, RuleGroup
from vllm_vitals.mixin.rules.windows import duration

ENGINE = "Engine {{ $labels.engine }} of {{ $labels.model_name }}"


def groups(make: Maker) -> Iterator[RuleGroup]:
    """Yield the rules on engines."""
    makers = _stalled, _no_progress, _gone, _asleep, _asleep_under_load, _errors, _corrupted
    yield RuleGroup("vllm-engine.alerts", [each(make) for each in makers])


def asleep(make: Maker) -> Vector:
    """Return the engines that are not awake."""
    return make.queries.max(engine.SLEEP, make.engine, state=is_not("awake")) > 0


def held(make: Maker) -> Vector:
    """Return the requests that each engine has, running or waiting; nothing once it fell silent with some."""
    return make.queries.sum(engine.RUNNING, make.engine) + make.queries.sum(engine.WAITING, make.engine)


def saturated(make: Maker, window: int) -> Vector:
    """Return how saturated each engine was over some seconds, of those that are awake and still there."""
    level = max_by(make.over(window).ranged("avg_over_time", engine.SATURATION), *make.engine)
    return level.and_(make.queries.max(engine.SATURATION, make.engine)).unless(asleep(make))


def _stalled(make: Maker) -> Alert:
    """Return the alert on silence in the middle of work.

    What an engine holds goes away when it falls silent with requests, so that it is idle only where that says 0.
    """
    settings = make.config.engine.stalled
    silent = make.queries.max(self_metrics.STEP_AGE, make.engine) > settings.after
    there = make.queries.max(engine.UP, make.engine) > 0
    return make.alert(
        "VllmEngineStalled", "engine.stalled", settings,
        silent.unless(held(make).is_(0)).unless(asleep(make)).and_(there),
        ENGINE + " has requests and has made no step for {{ $value | humanizeDuration }}",
        f"An engine that is awake held requests at its latest step, and that was more than {duration(settings.after)} ago.",
        (
            "The end of vLLM's log: a worker that died, a collective (NCCL) that hangs, a CUDA error.",
            'The GPUs: nvidia-smi, and hw_status{hw_state="failed"}; at 100% load without steps it is a hang.',
            "Whether other ranks of the deployment stand too: vitals_step_age_seconds by engine.",
        ),
        make.replica,
    )  # fmt: skip


def _no_progress(make: Maker) -> Alert:
    settings = make.config.engine.no_progress
    window = duration(settings.window)
    none = make.over(settings.window).rate(engine.SCHEDULED_TOKENS, make.engine).is_(0)
    busy = over_time("min_over_time", held(make), window) > 0
    stepping = make.queries.max(self_metrics.STEP_AGE, make.engine) < make.config.engine.stalled.after
    return make.alert(
        "VllmEngineNoProgress", "engine.no_progress", settings, busy.and_(none).and_(stepping),
        ENGINE + f" makes steps and has worked on no token for {window}, with {{{{ $value }}}} requests",
        f"An engine holds requests and its scheduler runs, but no token was worked on for {window}.",
        (
            "What they wait for: vllm_engine_requests_waiting by reason. All deferred: LoRA slots, a KV transfer, a grammar.",
            "Whether one request needs more KV cache than there is: vllm_kv_cache_capacity against max_model_len.",
            "The end of vLLM's log, above all of the KV connector's.",
        ),
        make.replica,
    )  # fmt: skip


def _gone(make: Maker) -> Alert:
    """Return the alert on engines whose processes are gone: a sidecar says so, or a known endpoint is silent.

    A target that is no more, as after scaling down, has no `up`. A sidecar goes on saying that an engine is gone, though
    it may never be meant to come back: one of a model that was renamed, or of more ranks than there are now.
    """
    settings = make.config.engine.gone
    over = make.over(settings.known_for)
    was = max_by(over.ranged("max_over_time", engine.UP), *make.engine) > 0
    said = make.queries.max(engine.UP, make.engine).is_(0).and_(was)
    known = max_by(over.ranged("last_over_time", engine.UP), *make.engine)
    answers = max_by(Vector("up", frozenset(make.queries.targets)), *make.replica)
    return make.alert(
        "VllmEngineGone", "engine.gone", settings, said.or_(known.and_(answers.is_(0), on=make.replica)),
        ENGINE + " is gone: its processes have ended, or its endpoint does not answer",
        f"Of an engine that was there within {duration(settings.known_for)} all serving processes have ended, as a sidecar says, or its endpoint does not answer.",
        (
            "Whether the process or pod is there, and why it ended: kubectl describe pod, exit code, OOMKilled.",
            "The end of the log before the restart: kubectl logs --previous.",
            "Whether it is loading its model again, or only the scrape is broken: curl its /metrics.",
        ),
        make.replica,
    )  # fmt: skip


def _asleep(make: Maker) -> Alert:
    states = make.queries.max(engine.SLEEP, (*make.engine, "state"), state=is_not("awake"))
    return make.alert(
        "VllmEngineAsleep", "engine.asleep", make.config.engine.asleep, states > 0,
        ENGINE + " is asleep ({{ $labels.state }}) and answers nobody",
        "An engine was put to sleep and has not been woken; its GPUs are paid for all the same.",
        (
            "Who put it to sleep: POST /sleep or /pause in the access log.",
            "Whether somebody waits for it: requests to a sleeping engine hang, and no metric counts them.",
            "Wake it up: POST /wake_up, or /resume after a pause.",
        ),
        make.replica,
    )  # fmt: skip


def _asleep_under_load(make: Maker) -> Alert:
    settings = make.config.engine.asleep_under_load
    loaded = avg_by(saturated(make, settings.window), *make.model) > settings.above
    return make.alert(
        "VllmEngineAsleepUnderLoad", "engine.asleep_under_load", settings, asleep(make).and_(loaded, on=make.model),
        ENGINE + f" is asleep, and those awake are more than {settings.above:.0%} saturated",
        f"An engine is asleep, while those of its model that are awake are more than {settings.above:.0%} saturated.",
        (
            "Who was to wake it: the autoscaler's log, or the controller that sleeps and wakes engines.",
            "Wake it up: POST /wake_up, or /resume after a pause.",
            "How saturated the others are: vllm_engine_saturation_ratio by engine.",
        ),
        make.replica,
    )  # fmt: skip


def _errors(make: Maker) -> Alert:
    settings, queries = make.config.engine.errors, make.over(make.config.engine.errors.window)
    share = queries.share(requests.FINISHED, {"finish_reason": "error"}, make.model) > settings.above
    return make.alert(
        "VllmRequestErrors", "engine.errors", settings,
        share.and_(queries.increase(requests.FINISHED, make.model, finish_reason="error") > settings.floor),
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.model_name }} in the last "
        f"{duration(settings.window)} failed in the engine",
        f"More than {settings.above:.0%} of the finished sequences of a model, and more than {settings.floor:g}, have the finish reason error.",
        (
            'Which engine: sum by (instance, engine) (rate(vllm_requests_finished_total{finish_reason="error"}[5m])).',
            "vLLM's log at that time: failing KV loads, an engine core that died, out of memory.",
            "Whether it began with a rollout or with a certain kind of request.",
        ),
        make.service,
    )  # fmt: skip


def _corrupted(make: Maker) -> Alert:
    settings = make.config.engine.corrupted
    return make.alert(
        "VllmRequestsCorrupted", "engine.corrupted", settings,
        make.over(settings.window).increase(requests.CORRUPTED, make.engine) > settings.floor,
        ENGINE + f" had NaNs in the logits of {ROUNDED} requests in the last {duration(settings.window)}",
        "An engine finished requests with NaNs in their logits: what they were answered is not to be trusted. Counted only with VLLM_COMPUTE_NANS_IN_LOGITS=1.",
        (
            "Whether one engine only: then its GPU, hw_errors_total and hw_status.",
            "Whether one LoRA adapter or one model version only: then its weights.",
            "The data type and quantization: vllm_engine_info. float16 overflows where bfloat16 does not.",
        ),
        make.replica,
    )  # fmt: skip
