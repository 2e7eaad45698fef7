"""GPUs: what slows them down, breaks them, or leaves them without work."""

from collections.abc import Iterator

from vllm_vitals.catalog import cost, gpu
from vllm_vitals.mixin.promql import any_of, max_by
from vllm_vitals.mixin.rules.efficiency import UNUSED
from vllm_vitals.mixin.rules.maker import ROUNDED, Labels, Maker
from vllm_vitals.mixin.rules.rule import Alert, RuleGroup
from vllm_vitals.mixin.rules.windows import duration

GPU = (
    "GPU {{ $labels.hw_id }} ({{ $labels.hw_name }}{{ with $labels.model_name }}, engine {{ $labels.engine }} of {{ . }}"
    "{{ end }})"
)


def groups(make: Maker) -> Iterator[RuleGroup]:
    """Yield the rules on GPUs."""
    yield RuleGroup("vllm-gpu.alerts", [each(make) for each in (_throttled, _memory_errors, _degraded, _lost, _idle)])


def _device(make: Maker) -> Labels:
    return (*make.replica, "hw_id", "hw_name", "model_name", "engine")


def _throttled(make: Maker) -> Alert:
    settings = make.config.gpu.throttled
    rate = make.over(settings.window).rate(
        gpu.THROTTLED, (*_device(make), "reason"), reason=any_of(*settings.reasons)
    )  # fmt: skip
    return make.alert(
        "VllmGpuThrottled", "gpu.throttled", settings, rate > settings.above,
        GPU + f" was slowed down for {{{{ $value | humanizePercentage }}}} of the last {duration(settings.window)} "
        "({{ $labels.reason }})",
        f"Heat or power kept the clocks of a GPU down for more than {settings.above:.0%} of {duration(settings.window)}, and with them each step of its engine.",
        (
            "Its temperature against its limit: hw_temperature_celsius and hw_temperature_limit_celsius.",
            "Whether other GPUs of the host are slowed down too: then cooling or power of the host, else this GPU.",
            'What it costs: vllm_gpu_clock_hertz{domain="sm"}, and vllm_step_interval_seconds against other engines.',
        ),
        make.replica,
    )  # fmt: skip


def _memory_errors(make: Maker) -> Alert:
    settings = make.config.gpu.memory_errors
    errors = make.over(settings.window).increase(
        gpu.HARDWARE_ERRORS, _device(make), error_type=any_of("uncorrected", "deferred")
    )
    return make.alert(
        "VllmGpuMemoryErrors", "gpu.memory_errors", settings, errors > settings.floor,
        GPU + f" had {ROUNDED} uncorrected memory errors in the last {duration(settings.window)}",
        "A GPU had memory errors that ECC could not correct: data was lost.",
        (
            "The kernel's log for Xid 48, 63, 64, 94 or 95: dmesg | grep -i xid.",
            "What the driver says: nvidia-smi -q -d ECC,ROW_REMAPPER -i <hw_id>.",
            "Whether the engine on it still answers; outputs since then may be wrong.",
        ),
        make.replica,
    )  # fmt: skip


def _degraded(make: Maker) -> Alert:
    state = make.queries.max(gpu.STATUS, _device(make), hw_state="degraded")
    return make.alert(
        "VllmGpuDegraded", "gpu.degraded", make.config.gpu.degraded, state > 0,
        GPU + " has broken memory rows that wait for a reset, or that cannot be replaced",
        "A GPU works, until the next error in memory rows that are broken and not replaced.",
        (
            "What the driver says: nvidia-smi -q -d ROW_REMAPPER -i <hw_id>; Pending or Remapping Failure Occurred.",
            "How many errors there were: hw_errors_total by error_type.",
            "When the engine can be drained: a reset needs the GPU to be free.",
        ),
        make.replica,
    )  # fmt: skip


def _lost(make: Maker) -> Alert:
    state = make.queries.max(gpu.STATUS, _device(make), hw_state="failed")
    return make.alert(
        "VllmGpuLost", "gpu.lost", make.config.gpu.lost, state > 0,
        GPU + " does not answer its driver: it fell off the bus, hangs, or the driver is gone",
        "A GPU does not answer: what runs on it stands or has failed.",
        (
            "The kernel's log for Xid 79 (fell off the bus) or 119 (GSP): dmesg | grep -i xid.",
            "Whether nvidia-smi answers on the host, and for which GPUs.",
            "Whether the engine on it stands: vitals_step_age_seconds. It will not recover without a restart.",
        ),
        make.replica,
    )  # fmt: skip


def _idle(make: Maker) -> Alert:
    """Return the alert on GPU time without work.

    What was not there a window ago had no time to be used, and what is there no more costs nothing.
    """
    settings = make.config.gpu.idle
    window = duration(settings.window)
    share = make.over(settings.window).share(cost.GPU_TIME, {"state": UNUSED}, make.model) > settings.above
    before = max_by(make.queries.select(cost.GPUS, offset=window), *make.model) > 0
    there = before.and_(make.queries.max(cost.GPUS, make.model) > 0)
    return make.alert(
        "VllmGpuIdleWhileBilled", "gpu.idle", settings, share.and_(there),
        f"The GPUs of {{{{ $labels.model_name }}}} were without work for {{{{ $value | humanizePercentage }}}} of the last {window}",
        f"The GPUs of a model were there for {window}, and idle or asleep for more than {settings.above:.0%} of it.",
        (
            "How many GPUs: sum by (model_name) (vllm_engine_gpus); what they cost: vllm_engine_cost_total by state.",
            "Whether anybody is to use the model, and whether requests reach it: the router, its readiness.",
            "Whether it can be scaled down, or to zero, by the saturation.",
        ),
        make.service,
    )  # fmt: skip
