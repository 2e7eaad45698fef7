"""The catalogue: every metric is declared soundly, and under a name that nothing else has."""

import re
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from vllm_vitals.catalog import CATALOG, GROUPS, Gauge, Histogram, Metric, Scope
from vllm_vitals.catalog.buckets import FAMILIES
from vllm_vitals.catalog.cache import FREE_SEQUENCES, TIME_TO_FULL
from vllm_vitals.catalog.engine import SATURATION
from vllm_vitals.catalog.metric import reader
from vllm_vitals.catalog.names import UNITS
from vllm_vitals.columns import Requests
from vllm_vitals.gpu.sample import Sample
from vllm_vitals.step import Facts, Finished, Health, Rejection, Sleep, Step
from vllm_vitals.vllm.facts import _features

# Every `vllm:` metric of vLLM 0.11.0 to 0.33.0, as it is named in vLLM's source (without the prefix).
COUNTERS = """
    admission_rejections corrupted_requests diffusion_num_canvas_positions diffusion_num_committed_tokens
    diffusion_num_denoising_steps estimated_flops_per_gpu_total estimated_read_bytes_per_gpu_total
    estimated_write_bytes_per_gpu_total external_prefix_cache_hits external_prefix_cache_queries
    generation_tokens gpu_prefix_cache_hits gpu_prefix_cache_queries hf3fs_num_failed_load hf3fs_num_failed_save
    hisparse_cache_hits hisparse_cache_misses hisparse_host_to_device_bytes kv_offload_allocation_failure
    kv_offload_load_bytes kv_offload_load_time kv_offload_store_bytes kv_offload_store_time
    kv_offload_stores_skipped kv_offload_tiering_backpressure_blocks_dropped
    kv_offload_tiering_backpressure_stores_dropped kv_offload_tiering_cascade_job_failures
    kv_offload_tiering_chunk_hits kv_offload_tiering_chunk_queries
    kv_offload_tiering_promotion_allocation_failures kv_offload_tiering_promotion_job_failures
    kv_offload_tiering_read_bytes kv_offload_tiering_read_time kv_offload_tiering_write_bytes
    kv_offload_tiering_write_time kv_offload_total_bytes kv_offload_total_time mm_cache_hits mm_cache_queries
    mooncake_num_failed_recvs mooncake_num_failed_transfers mooncake_num_kv_expired_reqs
    mooncake_store_operation_bytes_total mooncake_store_operation_failed_keys_total
    mooncake_store_operation_keys_total mooncake_store_operation_total nixl_num_failed_notifications
    nixl_num_failed_transfers nixl_num_kv_expired_reqs nixl_num_notifications_after_expiry num_preemptions
    prefix_cache_hits prefix_cache_queries prompt_tokens prompt_tokens_by_source prompt_tokens_cached
    prompt_tokens_cached_by_source prompt_tokens_recomputed request_success simple_kv_offload_load_blocks_total
    simple_kv_offload_save_outcomes_total spec_decode_num_accepted_tokens
    spec_decode_num_accepted_tokens_per_pos spec_decode_num_draft_tokens spec_decode_num_drafts
    tool_call_parser_invocations_total umbp_transfer_bytes_total umbp_transfer_completed_total
    umbp_transfer_failed_total umbp_transfer_submitted_total watermark_requests websocket_connections_total
"""
GAUGES = """
    cache_config_info engine_sleep_state gpu_cache_usage_perc hisparse_host_cache_usage_perc
    hisparse_pending_page_transfers kv_cache_usage_perc kv_offload_config_info
    kv_offload_cpu_cache_read_usage_perc kv_offload_cpu_cache_usage_perc kv_offload_cpu_cache_write_usage_perc
    kv_offload_tiering_active_cascade_jobs kv_offload_tiering_active_promotion_jobs
    kv_offload_tiering_backpressure_store_latency_ema kv_offload_tiering_primary_read_usage_perc
    kv_offload_tiering_primary_write_usage_perc lora_requests_info num_requests_kv_fetch_by_stage
    num_requests_running num_requests_waiting num_requests_waiting_by_reason
    rl_weight_update_operations_in_flight simple_kv_offload_info simple_kv_offload_pending_store_blocks
    simple_kv_offload_used_blocks sleep_mode_operations_in_flight websocket_connections_active
"""
HISTOGRAMS = """
    e2e_request_latency_seconds hf3fs_load_duration_seconds hf3fs_save_duration_seconds
    hisparse_host_block_idle_before_evict_seconds hisparse_host_block_lifetime_seconds
    hisparse_host_block_reuse_gap_seconds inter_token_latency_seconds iteration_tokens_total
    kv_block_idle_before_evict_seconds kv_block_lifetime_seconds kv_block_reuse_gap_seconds
    kv_offload_cpu_allocation_size kv_offload_load_size kv_offload_lookup_async_delay_seconds
    kv_offload_lookup_sync_delay_seconds kv_offload_size kv_offload_store_size
    kv_offload_tiering_lookup_async_delay_seconds kv_offload_tiering_lookup_sync_delay_seconds
    kv_offload_tiering_promotion_latency_seconds mooncake_bytes_transferred mooncake_num_descriptors
    mooncake_store_operation_time_seconds mooncake_xfer_time_seconds nixl_bytes_transferred nixl_num_descriptors
    nixl_post_time_seconds nixl_xfer_time_seconds request_decode_time_seconds request_generation_tokens
    request_inference_time_seconds request_max_num_generation_tokens request_num_preemptions
    request_params_max_tokens request_params_n request_prefill_kv_computed_tokens request_prefill_time_seconds
    request_prompt_tokens request_queue_time_seconds request_time_per_output_token_seconds
    rl_weight_update_operation_duration_seconds sleep_mode_operation_duration_seconds
    time_per_output_token_seconds time_to_first_token_seconds websocket_connection_duration_seconds
"""
VLLM_COUNTERS, VLLM_GAUGES, VLLM_HISTOGRAMS = (names.split() for names in (COUNTERS, GAUGES, HISTOGRAMS))

EMPTY = {
    Step: Step("m", "0", 1.0, 1.0, 1.0), Finished: Requests([Finished("stop", duration=0.0)]), Facts: Facts("m", "0"), Health: Health(),
    Sleep: Sleep("m", "0", "awake"), Rejection: Rejection("m", "full"), Sample: Sample(1.0, 1.0, []),
}  # fmt: skip


def sample_names(metric: Metric[Any]) -> set[str]:
    """Return every name that a metric takes on a page: of its family (either format) and of its samples."""
    name = metric.prometheus
    if metric.kind == "counter":
        return {name, name.removesuffix("_total"), name.removesuffix("_total") + "_created"}
    if metric.kind == "histogram":
        return {name, *(f"{name}_{suffix}" for suffix in ("bucket", "sum", "count", "created"))}
    return {name}


def vllm_sample_names() -> set[str]:
    """Return every name that vLLM's metrics take on a page, as a rewriting of colons to underscores leaves it."""
    plain = chain(VLLM_COUNTERS, VLLM_GAUGES, VLLM_HISTOGRAMS)
    counters = chain.from_iterable(
        (stem, f"{stem}_total", f"{stem}_created") for stem in (name.removesuffix("_total") for name in VLLM_COUNTERS)
    )
    histograms = (f"{name}_{suffix}" for name in VLLM_HISTOGRAMS for suffix in ("bucket", "sum", "count", "created"))
    return {f"vllm_{name}" for name in chain(plain, counters, histograms)}


def test_no_two_metrics_share_a_name_on_the_page() -> None:
    tally = Tally(chain.from_iterable(map(sample_names, CATALOG)))
    assert [name for name, times in tally.items() if times > 1] == []


def test_no_two_metrics_share_an_opentelemetry_name() -> None:
    assert len({metric.name for metric in CATALOG}) == len(CATALOG)


def test_no_name_is_one_of_vllms_with_its_colon_rewritten() -> None:
    taken = vllm_sample_names()
    assert len(taken) > 300
    assert {name for metric in CATALOG for name in sample_names(metric)} & taken == set()


def test_every_metric_is_in_one_group() -> None:
    assert list(CATALOG) == [metric for group in GROUPS.values() for metric in group]


def broken(rule: Callable[[Metric[Any]], bool], metrics: Iterable[Metric[Any]] = CATALOG) -> list[str]:
    """Return the names of the metrics that break a rule."""
    return [metric.name for metric in metrics if not rule(metric)]


def test_names_are_dotted_lower_case() -> None:
    assert not broken(lambda m: bool(re.fullmatch(r"(vllm|vitals|gen_ai|hw)(\.[a-z][a-z0-9_]*)+", m.name)))


def test_names_hold_no_unit_or_total() -> None:
    words = {"total", "ratio", "seconds", "bytes", "percent", "count", "bucket", "sum", "created"}
    assert not broken(lambda m: not words & set(re.split(r"[._]", m.name)))


def test_prometheus_names_are_plain() -> None:
    assert not broken(lambda m: bool(re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", m.prometheus)))


def test_prometheus_names_tell_kind_and_unit() -> None:
    assert not broken(lambda m: m.prometheus.endswith("_total") == (m.kind == "counter"))
    with_unit = [metric for metric in CATALOG if metric.prometheus_unit]
    assert not broken(lambda m: m.prometheus.removesuffix("_total").endswith(f"_{m.prometheus_unit}"), with_unit)


def test_units_are_those_that_translate() -> None:
    assert not broken(lambda m: m.unit in {"", "1", *UNITS} or bool(re.fullmatch(r"\{[a-z_]+\}", m.unit)))


def test_helps_are_sentences() -> None:
    assert not broken(lambda m: bool(re.fullmatch(r"[A-Z0-9].*\S\.", m.help)))


def test_label_names_are_legal_and_distinct() -> None:
    reserved = {"le", "quantile", "job", "instance"}
    assert not broken(lambda m: all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in m.prometheus_labels))
    assert not broken(lambda m: not reserved & set(m.prometheus_labels))
    assert not broken(lambda m: len(set(m.prometheus_labels)) == len(m.prometheus_labels))


def test_labels_are_bounded() -> None:
    assert not broken(lambda m: all(0 < label.cap <= 200 for label in m.labels))
    assert not broken(lambda m: all(len(set(label.values)) == len(label.values) for label in m.labels))


def test_series_carry_model_and_engine_or_what_the_convention_asks_for() -> None:
    engine = [metric for metric in CATALOG if metric.scope is Scope.ENGINE]
    assert not broken(lambda m: m.prometheus_labels[:2] == ("model_name", "engine"), engine)
    assert not broken(lambda m: (m.scope is Scope.CONVENTION) == m.name.startswith("gen_ai."))


def test_bucket_families_exist_and_fit_the_unit() -> None:
    histograms = [metric for metric in CATALOG if isinstance(metric, Histogram)]
    assert {metric.buckets for metric in histograms} <= set(FAMILIES)
    assert not broken(lambda m: (m.unit == "{token}") == (m.buckets.endswith("_tokens")), histograms)


def test_what_metrics_need_are_features_that_an_engine_can_have() -> None:
    assert {metric.needs for metric in CATALOG} - {""} <= set(_features(None))


def test_since_is_a_release() -> None:
    assert not broken(lambda m: bool(re.fullmatch(r"(\d+\.\d+\.\d+)?", m.since)))


def natives(metric: Metric[Any]) -> set[str]:
    """Return vLLM's names for a metric; `{a,b}` and `[optional]` stand for several."""
    name = metric.native.removeprefix("vllm:")
    if braced := re.search(r"\{(.*)\}", name):
        return {name.replace(braced[0], word) for word in braced[1].split(",")}
    if optional := re.search(r"\[(.*)\]", name):
        return {name.replace(optional[0], ""), name.replace(optional[0], optional[1])}
    return {name} - {""}


def test_native_names_exist_in_vllm() -> None:
    known = {*VLLM_COUNTERS, *VLLM_GAUGES, *VLLM_HISTOGRAMS}
    assert not broken(lambda m: m.native == "" or m.native.startswith("vllm:"))
    assert not broken(lambda m: natives(m) <= known)


def says_something(metric: Metric[Any]) -> bool:
    """Tell whether a metric reads anything but zeros from an empty record."""
    read = reader(metric.read)(EMPTY[metric.of])
    values = read.values() if isinstance(read, Mapping) else [read]
    return any(bool(np.any(np.nan_to_num(value))) for value in values if value is not None)


def test_reading_an_empty_record_says_nothing_that_is_not_zero() -> None:
    always = ("vllm.requests.finished", "vllm.engine.info")
    read = [metric for metric in CATALOG if metric.of not in (None, Sleep, Rejection) and metric.name not in always]
    assert not broken(lambda m: not says_something(m), read)


def test_ceilings_can_be_read() -> None:
    with_ceiling = [metric for metric in CATALOG if isinstance(metric, Histogram) and metric.ceiling]
    assert with_ceiling
    assert not broken(lambda m: np.all(reader(m.ceiling)(EMPTY[m.of]) >= 0), with_ceiling)


def test_the_gauges_of_steps_are_momentary_and_no_others() -> None:
    gauges = [metric for metric in CATALOG if isinstance(metric, Gauge)]
    kept = (FREE_SEQUENCES, TIME_TO_FULL, SATURATION)  # by the collector, which makes them of steps
    assert not broken(lambda m: m.momentary == (m.of is Step or m in kept), gauges)


def test_a_scope_holds_its_labels() -> None:
    assert [type(scope.value) for scope in Scope] == [tuple] * len(Scope)
    assert Scope.PROCESS.value == ()
    assert Scope.ENGINE.value == ("model_name", "engine")
