"""Latencies: quantiles by model, over all engines and replicas."""

from collections.abc import Iterator

from vllm_vitals.catalog import requests
from vllm_vitals.mixin.promql import Recording
from vllm_vitals.mixin.promql.vector import number
from vllm_vitals.mixin.rules.maker import Maker
from vllm_vitals.mixin.rules.rule import Record, RuleGroup
from vllm_vitals.mixin.rules.windows import duration

LATENCIES = (
    requests.TIME_TO_FIRST_TOKEN, requests.INTER_TOKEN_LATENCY, requests.MEAN_TIME_PER_OUTPUT_TOKEN, requests.DURATION,
)  # fmt: skip


def groups(make: Maker) -> Iterator[RuleGroup]:
    """Yield the rules on latencies."""
    yield RuleGroup("vllm-latency.rules", list(_records(make)))


def _records(make: Maker) -> Iterator[Record]:
    settings = make.config.latency
    for metric in LATENCIES:
        name = f"model_quantile:{metric.prometheus}:histogram_quantile_rate{duration(settings.window)}"
        made = Recording(name, frozenset((*make.model, "quantile")))
        for rank in settings.quantiles:
            expr = make.over(settings.window).quantile(rank, metric, make.model)
            yield make.record(made, expr, f"Quantile of `{metric.name}`.", quantile=number(rank))
