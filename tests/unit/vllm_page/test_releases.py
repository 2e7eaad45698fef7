"""Every metric that a release of vLLM declares is shown under our names, or it is said here why it is not."""

import re
from functools import cache
from itertools import product

import pytest
from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric

from tests.unit.native_vllm import DECLARED, ENGINE, RELEASES, Release, Vllm
from vllm_vitals.vllm_page.mapping import mapped, relevant

CONNECTOR = "what one KV connector says of itself, of which the catalogue has nothing"
OPERATION = "what somebody asks vLLM's server to do, not what its engines do"
NOT_OURS = {
    "cache_config_info": "facts as labels, under other names than ours; the numbers among them are no series",
    "lora_requests_info": "the names of adapters as labels, without the number of their requests",
    "prompt_tokens_cached": "the hits of the prefix cache and of the connector, which ours tell apart, in one",
    "spec_decode_num_accepted_tokens": "the sum of what is shown by position",
    "diffusion_.*": "the work of diffusion models, of which the catalogue has nothing",
    "nixl_num_notifications_after_expiry": "of a NIXL connector that may be any of three classes",
    "mooncake_store_operation_(failed_)?keys_total": CONNECTOR,
    "hisparse_(host_block|pending)_.*": CONNECTOR,
    "umbp_.*": CONNECTOR,
    "kvcr_.*": "what the tier kvcr does inside; what it loads and stores is shown as that of any tier",
    "(simple_)?kv_offload_(config_)?info": CONNECTOR,
    "kv_offload_cpu_(allocation_size|cache_(read|write)_usage_perc)": CONNECTOR,
    "simple_kv_offload_(used|pending_store)_blocks": CONNECTOR,
    "kv_offload_tiering_(active|primary|promotion_latency)_.*": CONNECTOR,
    "kv_offload_tiering_backpressure_store(s_dropped|_latency_ema)": CONNECTOR,
    "(sleep_mode|rl_weight_update)_operation.*": OPERATION,
    "(websocket_connection|tool_call_parser_invocation).*": "what goes on in vLLM's HTTP server",
}
"""Patterns of names, and why nothing of ours means the same."""
INSTEAD = {
    "num_requests_waiting": "num_requests_waiting_by_reason",
    "prompt_tokens": "prompt_tokens_by_source",
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_queries": "prefix_cache_queries",
    "gpu_prefix_cache_hits": "prefix_cache_hits",
    "time_per_output_token_seconds": "inter_token_latency_seconds",
    "kv_offload_size": "kv_offload_load_size",
    "kv_offload_total_bytes": "kv_offload_load_bytes",
    "kv_offload_total_time": "kv_offload_load_time",
}
"""Metrics that say less than another, or the same under an older name, and are not needed where there is that one."""
TWO_NIXLS = (0, 20, 0)
"""From this release on those of NIXL may be of several classes, and are not shown."""
VALUES = {
    "model_name": ("m",),
    "engine": ("0",),
    "source": ("local_compute", "local_cache_hit", "external_kv_transfer"),
    "finished_reason": ("stop", "length"),
    "reason": ("capacity", "deferred"),
    "position": ("0", "1"),
    "sleep_state": ("awake", "weights_offloaded", "discard_all"),
    "operation": ("save_put", "load_get", "save_exists", "lookup_exists"),
    "status": ("ok", "error"),
    "transfer_type": ("CPU_to_GPU", "GPU_to_CPU"),
}


@cache
def families(release: Release, sign: int = 1) -> list[Metric]:
    """Return the page of a release that has been through everything: each of its series has a number of its own.

    They grow from one metric to the next, or fall: of two gauges the greater may hide the other.
    """
    vllm = Vllm(*release)
    number = 500
    for name, metric in vllm.metrics.items():
        declared = DECLARED[name]
        for values in product(*(VALUES.get(label, ("x",)) for label in declared.labels_of(release))):
            number += sign
            series = metric.labels(*values) if values else metric
            if declared.kind is Histogram:
                for value in (0.5, 1.5, 4.0):
                    series.observe(value + number)
                    series.observe(value)
            else:
                (series.set if declared.kind is Gauge else series.inc)(number)
    return vllm.families


def unused(release: Release) -> set[str]:
    """Return the metrics of a release without which everything would be shown as it is."""
    return {name for name in names(release) if all(_unused(name, families(release, sign)) for sign in (1, -1))}


def _unused(name: str, page: list[Metric]) -> bool:
    left = [family for family in page if family.name != f"vllm:{_family(name)}"]
    return mapped(relevant(page)) == mapped(relevant(left))


def _family(name: str) -> str:
    return name.removesuffix("_total") if DECLARED[name].kind is Counter else name


def names(release: Release) -> set[str]:
    return {name for name, declared in DECLARED.items() if declared.exists(release)}


def reasons(name: str) -> list[str]:
    return [why for pattern, why in NOT_OURS.items() if re.fullmatch(pattern, name)]


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: ".".join(map(str, release)))
def test_every_metric_is_shown_or_there_is_a_reason(release: Release) -> None:
    present = names(release)
    assert {f"vllm:{_family(name)}" for name in present} == {family.name for family in families(release)}
    superseded = {name for name in present if INSTEAD.get(name) in present}
    unsaid = {name for name in present if name.startswith("nixl_") and release >= TWO_NIXLS}
    assert unused(release) == superseded | unsaid | {name for name in present if reasons(name)}


def test_what_is_shown_has_no_reason_not_to_be() -> None:
    ever = {name for release in RELEASES for name in names(release)}
    assert ever == DECLARED.keys(), "each is in a release"
    for pattern in NOT_OURS:
        assert any(re.fullmatch(pattern, name) for name in ever), pattern
    assert {*INSTEAD, *INSTEAD.values()} <= ever
    assert not [name for name in ever if len(reasons(name)) > 1 or (reasons(name) and name in INSTEAD)]


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: ".".join(map(str, release)))
def test_nothing_is_shown_without_its_engine(release: Release) -> None:
    """What has the labels of an engine is shown with them, whichever release it is of."""
    for metric, key in mapped(relevant(families(release))):
        told = dict(zip(metric.labelnames, key, strict=True))
        assert {name: told[name] for name in metric.scope.value} == {
            name: value for name, value in zip(ENGINE, ("m", "0"), strict=True) if name in metric.scope.value
        }
