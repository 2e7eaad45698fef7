"""Objectives: error ratios over several windows, and alerts on budgets that are used up too fast."""

from collections.abc import Iterator

from vllm_vitals.catalog import slo
from vllm_vitals.mixin.promql import Recording, call, count_by, max_by, ratio, sum_by
from vllm_vitals.mixin.promql.vector import number
from vllm_vitals.mixin.rules.config import Burn
from vllm_vitals.mixin.rules.maker import Maker
from vllm_vitals.mixin.rules.rule import Alert, Record, RuleGroup
from vllm_vitals.mixin.rules.windows import duration

LONG = 86400
"""Seconds from which on a window is evaluated seldom: it moves slowly, and takes many samples to work out."""


def groups(make: Maker) -> Iterator[RuleGroup]:
    """Yield the rules on objectives."""
    burns = make.config.slo.burns
    windows = sorted({window for burn in burns for window in (burn.long, burn.short)})
    yield RuleGroup("vllm-slo.rules", [_target(make), *_ratios(make, [each for each in windows if each < LONG])])
    if seldom := list(_ratios(make, [each for each in windows if each >= LONG])):
        yield RuleGroup("vllm-slo-long.rules", seldom, make.config.slo.long_interval)
    yield RuleGroup("vllm-slo.alerts", [*(_burn(make, burn) for burn in burns), _not_judged(make)])


def target(make: Maker) -> Recording:
    """Return the targets, by model: the strictest while replicas differ."""
    return Recording("model_slo:vllm_slo_target_ratio:max", frozenset((*make.model, "slo")))


def requests(make: Maker, window: int) -> Recording:
    """Return the requests per second that were judged, by their outcome."""
    labels = frozenset((*make.model, "slo", "outcome"))
    return Recording(f"model_slo_outcome:vllm_slo_requests:rate{duration(window)}", labels)


def bad_ratio(make: Maker, window: int) -> Recording:
    """Return the share of requests that missed an objective; no series without requests."""
    labels = frozenset((*make.model, "slo"))
    return Recording(f"model_slo:vllm_slo_requests_bad_per_requests:ratio_rate{duration(window)}", labels)


def _target(make: Maker) -> Record:
    """Return the rule for targets, which are of a process: the models are those of its engines."""
    endpoint = (*make.replica, "slo")
    served = count_by(make.queries.select(slo.REQUESTS), *make.replica, "model_name", "slo")
    targets = make.queries.max(slo.TARGET, endpoint)
    by_model = (served * 0).combined("+", targets, on=endpoint, group_left=())
    about = "Target of an objective, the strictest while replicas differ."
    return make.record(target(make), max_by(by_model, *make.model, "slo"), about)


def _ratios(make: Maker, windows: list[int]) -> Iterator[Record]:
    labels = (*make.model, "slo")
    for window in windows:
        judged = requests(make, window)
        counted = make.over(window).rate(slo.REQUESTS, (*labels, "outcome"))
        yield make.record(judged, counted, "Requests per second that an objective judged, by their outcome.")
        parts = sum_by(judged.select(outcome="bad"), *labels), sum_by(judged.select(), *labels)
        yield make.record(
            bad_ratio(make, window), ratio(*parts), "Share of them that missed it; no series without requests."
        )


def _burn(make: Maker, burn: Burn) -> Alert:
    labels = (*make.model, "slo")
    ceiling = make.config.slo.ceiling
    allowed = call("clamp_max", (1 - target(make).select()) * burn.factor, ceiling)
    bad = sum_by(requests(make, burn.long).select(outcome="bad"), *labels) * burn.long
    long, short = bad_ratio(make, burn.long).select(), bad_ratio(make, burn.short).select()
    expr = (long > allowed).and_(short > allowed).and_(bad > make.config.slo.floor)
    return make.alert(
        "VllmSloBudgetBurn", "slo.burns", burn, expr,
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.model_name }} in the last "
        f"{duration(burn.long)} missed the SLO {{{{ $labels.slo }}}}{_aim(make)}",
        f"The burn rate is {burn.factor:g} or more (1 uses the error budget up just in its time), or more than {ceiling:.0%} are bad: "
        f"over {duration(burn.long)}, and still in the last {duration(burn.short)}.",
        (
            "What they missed, and in which phase: sum by (objective, phase) (rate(vllm_slo_violations_total[5m])).",
            "Whether there is more traffic than the engines take: the saturation, and requests waiting.",
            "What changed: a rollout, a model, longer prompts (vllm_request_input_tokens), a replica fewer.",
        ),
        make.service, long=duration(burn.long), short=duration(burn.short), factor=number(burn.factor),
    )  # fmt: skip


def _aim(make: Maker) -> str:
    """Return a template that looks the target up; a label that is absent is one that is empty."""
    labels = (*make.model, "slo")
    matchers = ", ".join(f"{label}=%q" for label in labels)
    values = " ".join(f"$labels.{label}" for label in labels)
    query = f'printf "{target(make).name}{{{matchers}}}" {values} | query'
    return f"{{{{ range {query} }}}} (target: {{{{ . | value | humanizePercentage }}}}){{{{ end }}}}"


def _not_judged(make: Maker) -> Alert:
    settings, labels = make.config.slo.not_judged, (*make.model, "slo")
    queries = make.over(settings.window)
    unknown = queries.rate(slo.EXCLUDED, labels, reason="unknown")
    share = ratio(unknown, unknown + queries.rate(slo.REQUESTS, labels)) > settings.above
    return make.alert(
        "VllmSloRequestsNotJudged", "slo.not_judged", settings,
        share.and_(queries.increase(slo.EXCLUDED, labels, reason="unknown") > settings.floor),
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.model_name }} in the last "
        f"{duration(settings.window)} could not be judged by the SLO {{{{ $labels.slo }}}}, which is blind to them",
        f"More than {settings.above:.0%} of the requests that the SLO covers lack a time that it limits, so that they count as neither good nor bad.",
        (
            "Whether vLLM says the times that the SLO limits: vllm_request_phase_duration_seconds_count by phase.",
            "Whether values were refused as impossible: vitals_values_rejected_total by metric and reason.",
            "Whether requests end without a token: vllm_requests_finished_total by finish_reason.",
        ),
        make.service,
    )  # fmt: skip
