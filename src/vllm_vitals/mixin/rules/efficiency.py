"""Energy and money by token, and GPU time without work."""

from collections.abc import Iterator

from vllm_vitals.catalog import cost, requests, slo
from vllm_vitals.mixin.promql import Recording, any_of, ratio
from vllm_vitals.mixin.rules.maker import Maker
from vllm_vitals.mixin.rules.rule import Record, RuleGroup
from vllm_vitals.mixin.rules.windows import duration

MILLION = 1_000_000
UNUSED = any_of(cost.IDLE, cost.ASLEEP)


def groups(make: Maker) -> Iterator[RuleGroup]:
    """Yield the rules on energy and money."""
    windows = dict.fromkeys(make.config.efficiency.windows)
    yield RuleGroup("vllm-efficiency.rules", [rule for window in windows for rule in _records(make, window)])


def _records(make: Maker, window: int) -> Iterator[Record]:
    """Yield what tokens take. Energy and money are all that the engines took, idle time included."""
    over, by = make.over(window), make.model
    tokens = over.rate(requests.GENERATION_TOKENS, by)
    energy, spent = over.rate(cost.ENERGY, by), over.rate(cost.COST, (*by, "currency"))
    good = over.rate(slo.TOKENS, (*by, "slo"), outcome="good")

    def made(name: str, *more: str) -> Recording:
        return Recording(f"{name}:ratio_rate{duration(window)}", frozenset((*by, *more)))

    yield make.record(
        made("model:vllm_engine_energy_joules_per_tokens"), ratio(energy, tokens),
        "Joules for each token generated, those of idle time included.",
    )  # fmt: skip
    yield make.record(
        made("model_slo:vllm_engine_energy_joules_per_good_tokens", "slo"),
        1 / (good > 0).combined("/", energy, on=by, group_left=()),
        "Joules for each token of a request that met its objective.",
    )  # fmt: skip
    yield make.record(
        made("model_currency:vllm_engine_cost_per_million_tokens", "currency"),
        ratio(spent, tokens, on=by, group_left=()) * MILLION,
        "Price of the GPU time for a million tokens generated; needs `price.per_gpu_hour`.",
    )  # fmt: skip
    yield make.record(
        made("model:vllm_engine_gpu_time_unused_per_gpu_time"), over.share(cost.GPU_TIME, {"state": UNUSED}, by),
        "Share of the GPU time without work, idle or asleep.",
    )  # fmt: skip
