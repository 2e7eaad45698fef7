"""What the numbers mean: each test feeds records in and looks at what a scrape would show."""

import copy
import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vllm_vitals
from tests.unit.builders import (
    AGE,
    ENGINE,
    EPOCH,
    GEN_AI,
    MODEL,
    Clock,
    Sight,
    collect,
    examples,
    facts,
    feed,
    finished,
    iteration_stats,
    read,
    request_stats,
    step,
)
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog import CATALOG
from vllm_vitals.catalog.metric import Counter, Metric
from vllm_vitals.config.settings import Settings
from vllm_vitals.records.step import CacheUse, Evictions, Finished, Health, Rejection, Sleep, Speculation, Step
from vllm_vitals.store.series import HistogramCell, NumberCell

INTERVAL = "vllm_step_interval_seconds"
LATENCY = "vllm_request_inter_token_latency_seconds"
PHASE = "vllm_request_phase_duration_seconds"
QUERIED = "vllm_prefix_cache_queried_tokens_total"
HIT = "vllm_prefix_cache_hit_tokens_total"


def of_steps(*steps: Step) -> Sight:
    return Sight(collect(*steps))


# --- Steps


@pytest.mark.parametrize("busy", [{"running": 1}, {"running": 0, "waiting": 1}, {"running": 0, "deferred": 1}])
def test_the_interval_is_measured_between_steps_of_a_busy_engine(busy: dict[str, int]) -> None:
    see = of_steps(step(10.0, **busy), step(10.25, **busy), step(11.0, running=0))
    assert see(f"{INTERVAL}_count", **ENGINE) == 2
    assert see(f"{INTERVAL}_sum", **ENGINE) == 1.0


def test_no_interval_across_idle_time() -> None:
    see = of_steps(step(10.0, running=1), step(10.5, running=0), step(50.0, running=1), step(50.25, running=1))
    assert see(f"{INTERVAL}_count", **ENGINE) == 2
    assert see(f"{INTERVAL}_sum", **ENGINE) == 0.75


def test_no_interval_across_sleep() -> None:
    asleep, awake = (Sleep(MODEL, "0", state) for state in ("weights_offloaded", "awake"))
    see = Sight(collect(step(10.0, running=1), asleep, awake, step(90.0, running=1)))
    assert see(f"{INTERVAL}_count", **ENGINE) is None


def test_outputs_without_scheduler_stats_do_not_break_an_interval() -> None:
    see = of_steps(step(10.0, running=1), step(10.1, iterated=True, generation_tokens=1), step(10.5, running=1))
    assert see(f"{INTERVAL}_count", **ENGINE) == 1
    assert see(f"{INTERVAL}_sum", **ENGINE) == 0.5


def test_a_latency_that_many_requests_have_counts_for_each() -> None:
    see = of_steps(step(running=1, inter_token_latencies=array("d", [0.25]), inter_token_repeats=1000))
    below = [see(f"{LATENCY}_bucket", **ENGINE, le=le) for le in ("0.2", "0.3", "+Inf")]
    assert below == [0, 1000, 1000]
    assert see(f"{LATENCY}_count", **ENGINE) == 1000
    assert see(f"{LATENCY}_sum", **ENGINE) == 250.0


def test_each_engine_has_its_own_interval() -> None:
    steps = (step(10.0, running=1), step(10.1, engine="1", running=1), step(10.5, running=1),
             step(11.1, engine="1", running=1))  # fmt: skip
    see = of_steps(*steps)
    assert see.of_engine(f"{INTERVAL}_sum", "0") == 0.5
    assert see.of_engine(f"{INTERVAL}_sum", "1") == pytest.approx(1.0)


def test_a_late_step_counts_and_sets_nothing_back() -> None:
    see = of_steps(step(10.0, running=1), step(9.0, running=7, generation_tokens=2), step(11.0, running=2))
    assert see("vllm_tokens_generation_total", **ENGINE) == 2
    assert see("vllm_engine_requests_running", **ENGINE) == 2
    assert (see(f"{INTERVAL}_count", **ENGINE), see(f"{INTERVAL}_sum", **ENGINE)) == (1, 1.0)


def test_a_step_has_scheduler_stats_or_tokens() -> None:
    see = of_steps(
        step(running=0), step(generation_tokens=1), step(prompt_tokens={"unknown": 3}),
        step(iterated=True), step(multimodal_cache=CacheUse(1, 1)),
    )  # fmt: skip
    assert see("vitals_steps_total", **ENGINE) == 3


def test_waiting_requests_are_split_by_reason() -> None:
    see = of_steps(step(running=1, waiting=3, deferred=2))
    assert see("vllm_engine_requests_waiting", **ENGINE, reason="capacity") == 3
    assert see("vllm_engine_requests_waiting", **ENGINE, reason="deferred") == 2


def test_cached_and_transferred_tokens_do_not_count_as_work_of_a_step() -> None:
    tokens = {"local_compute": 12, "local_cache_hit": 768, "external_kv_transfer": 8448}
    see = of_steps(step(iterated=True, prompt_tokens=tokens, computed_tokens=12, generation_tokens=3))
    assert see("vllm_step_tokens_sum", **ENGINE) == 15
    assert {source: see("vllm_tokens_prompt_total", **ENGINE, source=source) for source in tokens} == tokens


def test_kv_transfer_stages_go_to_zero_when_no_fetch_is_left() -> None:
    see = of_steps(step(running=1, kv_fetch={"in_progress": 3}), step(running=1))
    assert not see("vllm_engine_requests_kv_fetch", **ENGINE, stage="in_progress")


# --- The KV cache


def test_free_tokens_are_capacity_times_the_unused_share() -> None:
    aggregator = collect(facts(kv_cache_tokens=1000))
    see = Sight(aggregator)
    assert see("vllm_kv_cache_capacity", **ENGINE) == see("vllm_kv_cache_free", **ENGINE) == 1000
    feed(aggregator, step(running=1, kv_cache_usage=0.25))
    assert see("vllm_kv_cache_free", **ENGINE) == 750
    assert see("vllm_kv_cache_usage_ratio", **ENGINE) == 0.25


def test_free_tokens_are_unknown_without_a_capacity() -> None:
    see = Sight(collect(facts(), step(running=1, kv_cache_usage=0.25)))
    assert see("vllm_kv_cache_free", **ENGINE) is None
    assert see("vllm_kv_cache_usage_ratio", **ENGINE) == 0.25


@pytest.mark.parametrize(("usage", "reason"), [(1.5, "absurd"), (-0.1, "negative"), (math.nan, "not_finite")])
def test_an_impossible_usage_changes_nothing(usage: float, reason: str) -> None:
    first = step(running=1, kv_cache_usage=0.5)
    see = Sight(collect(facts(kv_cache_tokens=1000), first, step(running=1, kv_cache_usage=usage)))
    assert see("vllm_kv_cache_usage_ratio", **ENGINE) == 0.5
    assert see.rejected("vllm.kv_cache.usage", reason) == 1


@given(st.integers(-5, 50), st.integers(-5, 50))
@examples(40)
def test_hits_never_exceed_queries(queries: int, hits: int) -> None:
    class Stats:
        num_running_reqs = 1
        prefix_cache_stats = type("PrefixCacheStats", (), {"queries": queries, "hits": hits})

    see = of_steps(read(Stats))
    queried = see(QUERIED, **ENGINE, tier="local") or 0
    hit = see(HIT, **ENGINE, tier="local") or 0
    assert 0 <= hit <= queried == max(queries, 0)


# --- Gauges of an engine that has gone quiet

MOMENTARY = ("vllm_engine_requests_running", "vllm_kv_cache_usage_ratio", "vllm_kv_cache_free")


def seen(see: Sight) -> list[float | None]:
    return [see(name, **ENGINE) for name in MOMENTARY]


def test_gauges_of_an_engine_that_stops_reporting_at_work_expire_and_return(clock: Clock) -> None:
    aggregator = collect(facts(kv_cache_tokens=100), stale_after=60)
    see = Sight(aggregator)
    feed(aggregator, step(clock.now, running=106, waiting=1, kv_cache_usage=0.9))
    clock.now += 59.5
    assert seen(see) == [106, 0.9, pytest.approx(10)]
    clock.now += 1
    assert seen(see) == [None, None, None]
    assert see("vllm_engine_requests_waiting", **ENGINE, reason="capacity") is None
    assert see("vllm_kv_cache_capacity", **ENGINE) == 100
    feed(aggregator, step(clock.now, running=2, waiting=1, kv_cache_usage=0.5))
    assert seen(see) == [2, 0.5, 50]
    clock.now += 61
    assert seen(see) == [None, None, None]


def test_only_the_silent_engine_loses_its_gauges(clock: Clock) -> None:
    aggregator = collect(step(clock.now, running=1), step(clock.now, engine="1", running=1))
    clock.now += 50
    feed(aggregator, step(clock.now, engine="1", running=5))
    clock.now += 11
    see = Sight(aggregator)
    assert see.of_engine("vllm_engine_requests_running", "0") is None
    assert see.of_engine("vllm_engine_requests_running", "1") == 5


def test_the_gauges_of_an_idle_engine_stay(clock: Clock) -> None:
    aggregator = collect(facts(kv_cache_tokens=100), step(clock.now, running=0, kv_cache_usage=0.0))
    clock.now += 100_000
    assert seen(Sight(aggregator)) == [0, 0, 100]


def test_the_gauges_of_an_engine_that_never_worked_stay(clock: Clock) -> None:
    aggregator = collect(facts(kv_cache_tokens=100))
    clock.now += 100_000
    assert seen(Sight(aggregator)) == [0, 0, 100]


def test_gauges_never_expire_if_so_configured(clock: Clock) -> None:
    aggregator = collect(step(clock.now, running=7), stale_after=0)
    clock.now += 100_000
    assert Sight(aggregator)("vllm_engine_requests_running", **ENGINE) == 7


def test_gauges_expire_when_an_engine_is_put_to_sleep_at_work(clock: Clock) -> None:
    aggregator = collect(step(clock.now, running=106, kv_cache_usage=0.9), Sleep(MODEL, "0", "weights_offloaded"))
    clock.now += 100_000
    see = Sight(aggregator)
    assert not see("vllm_engine_requests_running", **ENGINE)
    assert not see("vllm_kv_cache_usage_ratio", **ENGINE)


def test_counters_stay_when_gauges_go(clock: Clock) -> None:
    aggregator = collect(step(clock.now, running=1, iterated=True, generation_tokens=9))
    clock.now += 61
    assert Sight(aggregator)("vllm_tokens_generation_total", **ENGINE) == 9


def test_the_age_of_the_latest_step(clock: Clock) -> None:
    aggregator = collect(facts())
    see = Sight(aggregator)
    clock.now += 5
    assert see("vitals_step_age_seconds", **ENGINE) == 5
    feed(aggregator, step(clock.now, running=1))
    clock.now += 2
    assert see("vitals_step_age_seconds", **ENGINE) == 2


# --- From the start


def test_every_rank_is_there_from_the_start_with_zeros() -> None:
    see = Sight(collect(*(facts(str(rank), kv_cache_tokens=160, max_num_seqs=8) for rank in range(4))))
    for rank in map(str, range(4)):
        assert see.of_engine("vllm_engine_requests_running", rank) == 0
        assert see.of_engine("vllm_engine_requests_waiting", rank, reason="capacity") == 0
        assert see.of_engine("vllm_kv_cache_usage_ratio", rank) == 0
        assert see.of_engine("vllm_kv_cache_capacity", rank) == 160
        assert see.of_engine("vllm_engine_requests_limit", rank) == 8
        assert see.of_engine("vllm_requests_finished_total", rank, finish_reason="error") == 0
        assert see.of_engine("vllm_tokens_generation_total", rank) == 0
        assert see.of_engine("vllm_request_time_to_first_token_seconds_count", rank) == 0
        assert see.of_engine("vitals_steps_total", rank) == 0
    assert see("vllm_requests_rejected_total", model_name=MODEL, reason="max_num_queued_reqs") == 0
    assert see("gen_ai_server_request_duration_seconds_count", **GEN_AI, error_type="") == 0


NEEDING = {
    "speculation": "vllm_spec_decode_drafts_total",
    "kv_residency": "vllm_kv_cache_block_lifetime_seconds_count",
    "mfu": "vllm_perf_flops_total",
    "nan_check": "vllm_requests_corrupted_total",
    "iteration_details": "vllm_step_duration_seconds_count",
}


@pytest.mark.parametrize(("feature", "name"), NEEDING.items())
def test_what_needs_a_feature_is_zero_with_it_and_absent_without(feature: str, name: str) -> None:
    assert Sight(collect(facts("0", feature)))(name, **ENGINE) == 0
    assert Sight(collect(facts(), step(running=1, iterated=True)))(name, **ENGINE) is None


def test_what_needs_a_feature_shows_when_values_come_all_the_same() -> None:
    evictions = Evictions(lifetimes=array("d", [1.0, 2.0]))
    see = Sight(collect(facts(), step(speculation=Speculation(3, 9, (2, 1, 1)), evictions=evictions, flops=7)))
    assert see("vllm_spec_decode_drafts_total", **ENGINE) == 3
    assert see("vllm_kv_cache_block_lifetime_seconds_sum", **ENGINE) == 3.0
    assert see("vllm_perf_flops_total", **ENGINE) == 7
    accepted = [see("vllm_spec_decode_accepted_tokens_total", **ENGINE, position=str(n)) for n in range(4)]
    assert accepted == [2, 1, 1, None]


# --- Buckets


def test_token_buckets_follow_each_engines_model_length() -> None:
    see = Sight(collect(facts("0", max_model_len=10), facts("1", max_model_len=100)))
    short = ["1.0", "2.0", "5.0", "10.0"]
    assert see.edges("vllm_request_input_tokens", "0") == [*short, "+Inf"]
    assert see.edges("vllm_request_input_tokens", "1") == [*short, "20.0", "50.0", "100.0", "+Inf"]


@pytest.mark.parametrize(
    ("vllms", "ours", "expected"),
    [({"step": [1, 2]}, {"step": [5]}, ["5.0"]), ({"step": [1, 2]}, {}, ["1.0", "2.0"]),
     ({}, {"step": [5]}, ["5.0"]), ({"export": [1, 2]}, {"step": [5]}, ["5.0"])],
)  # fmt: skip
def test_our_buckets_win_over_vllms_and_vllms_over_the_default(
    vllms: dict[str, list[float]], ours: dict[str, list[float]], expected: list[str]
) -> None:
    see = Sight(collect(facts(buckets=vllms), buckets=ours))
    assert see.edges(INTERVAL) == [*expected, "+Inf"]


@pytest.mark.parametrize(
    "buckets", [{"step": [2.0, 1.0]}, {"step": [math.nan]}, {"step": []}, {"no_such": [1.0]}, {"step": [1.0] * 1000}]
)
def test_invalid_buckets_cost_nothing_else(buckets: dict[str, list[float]]) -> None:
    aggregator = collect(buckets={"time_to_first_token": [7]})
    aggregator.add([facts("0", buckets={**buckets, "request_latency": [3.0]}), facts("1"), step(running=1)])
    see = Sight(aggregator)
    assert see.of_engine("vllm_engine_up", "0") == see.of_engine("vllm_engine_up", "1") == 1
    assert see("vitals_steps_total", **ENGINE) == 1
    assert see.edges(INTERVAL, "0") == see.edges(INTERVAL, "1") != []
    assert see.edges("vllm_request_time_to_first_token_seconds", "0") == ["7.0", "+Inf"]
    assert see("vitals_errors_total", process="0", stage="collect") == 1


def test_our_buckets_hold_for_metrics_of_the_process_and_of_engines_without_facts() -> None:
    aggregator = collect(step(1.0, running=1), step(2.0, running=1), buckets={"step": [5], "export": [7]})
    aggregator.export("prometheus", 0.1)
    see = Sight(aggregator)
    assert see.edges(INTERVAL) == ["5.0", "+Inf"]
    assert see.edges("vitals_export_duration_seconds") == ["7.0", "+Inf"]


def test_values_land_in_the_engines_buckets() -> None:
    see = Sight(collect(facts(buckets={"step": [0.5, 1.0]}), *(step(at, running=1) for at in (1.0, 1.25, 2.25, 9.0))))
    assert [see(f"{INTERVAL}_bucket", **ENGINE, le=le) for le in ("0.5", "1.0", "+Inf")] == [1, 2, 3]


# --- What goes wrong


def explode(_: Any) -> float:
    raise RuntimeError("boom")


def with_bad_metric(of: type) -> Aggregator:
    bad: Metric[Any] = Counter("vllm.bad", "", "Bad.", record=of, read=explode)
    return Aggregator(Settings(), (bad, *CATALOG))


@pytest.mark.parametrize("of", [Step, Finished])
def test_a_read_that_raises_costs_only_its_own_metric_and_is_counted(
    of: type, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = with_bad_metric(of)
    for _ in range(3):
        feed(aggregator, finished(Finished("stop", duration=1.0), generation_tokens=2, running=1))
        aggregator.refresh()
    see = Sight(aggregator)
    assert see("vllm_tokens_generation_total", **ENGINE) == 6
    assert see("vllm_request_duration_seconds_count", **ENGINE) == 3
    assert see("vllm_bad_total", **ENGINE) is None
    assert see("vitals_errors_total", process="0", stage="collect") == 3
    assert ["vllm.bad" in record.getMessage() for record in caplog.records] == [True]


def test_the_next_step_counts_after_a_bad_record() -> None:
    broken: Any = step(running=1, prompt_tokens=7)
    see = Sight(collect(broken, step(running=2, generation_tokens=5)))
    assert see("vllm_engine_requests_running", **ENGINE) == 2
    assert see("vllm_tokens_generation_total", **ENGINE) == 5
    assert see("vitals_errors_total", process="0", stage="collect") == 1


def test_a_negative_increment_is_rejected_while_the_rest_of_the_step_counts() -> None:
    class PromptTokenStats:
        computed, local_cache_hit, external_kv_transfer = -7680, 768, 8448

    see = of_steps(read(None, iteration_stats(num_generation_tokens=3, prompt_token_stats=PromptTokenStats)))
    sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
    tokens = [see("vllm_tokens_prompt_total", **ENGINE, source=source) or 0 for source in sources]
    assert tokens == [0, 768, 8448]
    assert see.rejected("vllm.tokens.prompt", "negative") == 1
    assert see("vllm_tokens_generation_total", **ENGINE) == 3
    assert see("vllm_step_tokens_sum", **ENGINE) == 3


def test_health_adds_up() -> None:
    see = Sight(collect(Health(2, 0.5, {"hook": 1}), Health(1, 0.25, {"hook": 2, "read": 4})))
    assert see("vitals_steps_dropped_total", process="0") == 3
    assert see("vitals_hook_duration_seconds_total", process="0") == 0.75
    stages = ("hook", "read", "wire", "collect", "export")
    assert [see("vitals_errors_total", process="0", stage=stage) for stage in stages] == [3, 4, 0, 0, 0]


def test_exports_are_counted() -> None:
    aggregator = collect()
    for duration in (0.5, 0.25, None):
        aggregator.export("prometheus", duration)
    see = Sight(aggregator)
    assert see("vitals_exports_total", exporter="prometheus") == 2
    assert see("vitals_exports_failed_total", exporter="prometheus") == 1
    assert see("vitals_export_duration_seconds_sum", exporter="prometheus") == 0.75


def test_the_number_of_series_is_that_of_label_sets() -> None:
    see = Sight(collect(facts(), facts("1"), step(running=1, lora_running={"a": 1})))
    held, told = set(), 0.0
    for family in see.registry.collect():
        held |= {(family.name, frozenset({**sample.labels, "le": ""}.items())) for sample in family.samples}
        told = family.samples[0].value if family.name == "vitals_series" else told
    assert told == len(held)


def test_the_plugin_reports_its_version() -> None:
    (labels,) = Sight(collect()).labels("vitals_info")
    assert labels["version"] == vllm_vitals.__version__


# --- Sleep and admission


@pytest.mark.parametrize("state", ["awake", "paused", "weights_offloaded", "discard_all"])
def test_one_sleep_state_is_one_and_the_others_are_zero(state: str) -> None:
    see = Sight(collect(Sleep(MODEL, "0", "awake"), Sleep(MODEL, "0", state)))
    states = {labels["state"]: see("vllm_engine_sleep", **labels) for labels in see.labels("vllm_engine_sleep")}
    assert states == {"awake": 0, "paused": 0, "weights_offloaded": 0, "discard_all": 0} | {state: 1}


def test_rejections_are_counted_by_reason_without_an_engine() -> None:
    reasons = ("max_num_queued_reqs", "max_num_queued_reqs", "some_new_reason")
    see = Sight(collect(*(Rejection(MODEL, reason) for reason in reasons)))
    assert see("vllm_requests_rejected_total", model_name=MODEL, reason="max_num_queued_reqs") == 2
    assert see("vllm_requests_rejected_total", model_name=MODEL, reason="some_new_reason") == 1


# --- Finished requests

WHOLE = {"duration": 10.0, "queue": 1.0, "prefill": 2.0, "decode": 6.0, "inference": 8.0, "output_tokens": 4}


def phases(see: Sight) -> dict[str, float | None]:
    """Return the seconds of each phase, `None` where none was observed."""
    names = ("queue", "prefill", "decode", "frontend")
    observed = {name: see(f"{PHASE}_count", **ENGINE, phase=name) for name in names}
    return {name: see(f"{PHASE}_sum", **ENGINE, phase=name) if observed[name] else None for name in names}


def test_phases_add_up_to_the_duration() -> None:
    see = of_steps(finished(Finished("stop", **WHOLE)))
    assert phases(see) == {"queue": 1.0, "prefill": 2.0, "decode": 6.0, "frontend": 1.0}
    assert see("vllm_request_duration_seconds_sum", **ENGINE) == 10.0
    assert see("vllm_request_inference_duration_seconds_sum", **ENGINE) == 8.0


@given(st.lists(st.floats(0, 1000), min_size=4, max_size=4))
@examples(40)
def test_phases_of_any_request_add_up(parts: list[float]) -> None:
    queue, prefill, decode, frontend = parts
    request = Finished("stop", duration=math.fsum(parts), queue=queue, prefill=prefill, decode=decode)
    request.inference = prefill + decode
    total = sum(value or 0 for value in phases(of_steps(finished(request))).values())
    assert total == pytest.approx(math.fsum(parts))
    assert frontend >= 0


def test_phases_of_several_requests_are_counted_one_by_one() -> None:
    see = of_steps(finished(*(Finished("stop", **WHOLE) for _ in range(40))), finished(Finished("stop", **WHOLE)))
    assert see(f"{PHASE}_count", **ENGINE, phase="decode") == 41
    assert see(f"{PHASE}_sum", **ENGINE, phase="frontend") == 41.0
    assert see("vllm_requests_finished_total", **ENGINE, finish_reason="stop") == 41


def test_a_phase_longer_than_its_request_is_absurd() -> None:
    see = of_steps(finished(Finished("stop", **{**WHOLE, "duration": 2.0, "prefill": 3.0, "decode": 3.01})))
    assert see(f"{PHASE}_count", **ENGINE, phase="prefill") == 1  # a second is forgiven: the clocks differ
    assert not see(f"{PHASE}_count", **ENGINE, phase="decode")
    assert see.rejected("vllm.request.phase.duration", "absurd") == 1
    assert see.rejected("vllm.request.inference.duration", "absurd") == 1


UPTIME = 123456.0
"""What vLLM reports between a milestone and one that a request never reached, which reads 0."""


def test_times_since_the_boot_of_the_host_are_not_phases() -> None:
    uptime = {"queued_time": UPTIME, "prefill_time": UPTIME, "decode_time": 0.0, "inference_time": UPTIME}
    see = of_steps(read(None, iteration_stats(finished_requests=[request_stats("length", **uptime)])))
    assert phases(see) == {"queue": None, "prefill": None, "decode": 0.0, "frontend": None}
    assert not see("vllm_request_inference_duration_seconds_count", **ENGINE)
    assert see("vllm_request_duration_seconds_count", **ENGINE) == 1


def test_an_absurd_time_is_used_for_nothing() -> None:
    stats = request_stats("length", prefill_time=UPTIME, inference_time=UPTIME)
    see = of_steps(read(None, iteration_stats(finished_requests=[stats])))
    assert not see(f"{PHASE}_count", **ENGINE, phase="frontend")
    assert see.rejected("vllm.request.phase.duration", "absurd") == 1


@pytest.mark.parametrize(
    ("field", "metric"),
    [("first_token_latencies", "vllm.request.time_to_first_token"),
     ("inter_token_latencies", "vllm.request.inter_token_latency")],
)  # fmt: skip
def test_a_latency_longer_than_the_process_lives_is_absurd(field: str, metric: str) -> None:
    see = of_steps(step(iterated=True, **{field: array("d", [0.5, AGE + 1.0, AGE + 1.1])}))
    assert see(f"{metric.replace('.', '_')}_seconds_count", **ENGINE) == 2
    assert see.rejected(metric, "absurd") == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [(-1.0, "negative"), (math.nan, "not_finite"), (math.inf, "not_finite"), (8 * 86400.0, "absurd")],
)
def test_an_impossible_duration_is_rejected_and_counted(value: float, reason: str) -> None:
    see = of_steps(finished(Finished("stop", duration=value)))
    assert see.rejected("vllm.request.duration", reason) == 1
    assert not see("vllm_request_duration_seconds_count", **ENGINE)
    assert see("vllm_requests_finished_total", **ENGINE, finish_reason="stop") == 1


@pytest.mark.parametrize("reason", ["stop", "length", "abort", "error", "repetition", "brand_new"])
def test_requests_are_counted_by_finish_reason(reason: str) -> None:
    see = of_steps(finished(Finished(reason)))
    assert see("vllm_requests_finished_total", **ENGINE, finish_reason=reason) == 1


def test_the_time_to_the_first_token_is_rebuilt_as_duration_minus_decode() -> None:
    see = of_steps(finished(Finished("stop", **WHOLE), Finished("length", duration=3.0, decode=0.0, output_tokens=1)))
    assert see("gen_ai_server_time_to_first_token_seconds_sum", **GEN_AI) == 7.0
    assert see("gen_ai_server_time_to_first_token_seconds_count", **GEN_AI) == 2


@pytest.mark.parametrize(
    "request_",
    [Finished("abort", **WHOLE), Finished("error", **WHOLE), Finished("stop", **{**WHOLE, "output_tokens": 0})],
)
def test_no_first_token_of_a_request_that_failed_or_had_none(request_: Finished) -> None:
    see = of_steps(finished(request_))
    assert see("gen_ai_server_time_to_first_token_seconds_count", **GEN_AI) is None


@pytest.mark.parametrize(
    ("reason", "error"), [("error", "error"), ("abort", ""), ("stop", ""), ("length", ""), ("repetition", "")]
)
def test_only_an_engine_error_has_an_error_type(reason: str, error: str) -> None:
    see = of_steps(finished(Finished(reason, duration=1.0)))
    (labels,) = see.labels("gen_ai_server_request_duration_seconds_count")
    assert labels == {**GEN_AI, "error_type": error}


def test_the_conventions_metrics_can_be_switched_off_and_named() -> None:
    off = Sight(collect(facts(), finished(Finished("stop", **WHOLE)), gen_ai={"enabled": False}))
    assert not [family.name for family in off.registry.collect() if family.name.startswith("gen_ai")]
    named = {"operation_name": "text_completion", "provider_name": "acme"}
    see = Sight(collect(finished(Finished("stop", **WHOLE)), gen_ai=named))
    (labels,) = see.labels("gen_ai_server_request_duration_seconds_count")
    assert (labels["gen_ai_operation_name"], labels["gen_ai_provider_name"]) == ("text_completion", "acme")


@pytest.mark.parametrize(("settings", "operation"), [({}, "embeddings"), ({"operation_name": "chat"}, "chat")])
def test_a_pooling_model_makes_embeddings_unless_configured_otherwise(settings: dict[str, str], operation: str) -> None:
    ended = finished(Finished("stop", duration=1.0))
    see = Sight(collect(facts("0", "pooling"), ended, gen_ai=settings))
    named = {labels["gen_ai_operation_name"] for labels in see.labels("gen_ai_server_request_duration_seconds_count")}
    assert named == {operation}


@pytest.mark.parametrize(("tokens", "observed"), [(0, 0), (1, 0), (2, 1)])
def test_time_per_output_token_needs_two_tokens(tokens: int, observed: int) -> None:
    stats = request_stats(num_generation_tokens=tokens, mean_time_per_output_token=0.5)
    see = of_steps(read(None, iteration_stats(finished_requests=[stats])))
    assert (see("vllm_request_mean_time_per_output_token_seconds_count", **ENGINE) or 0) == observed
    assert (see("gen_ai_server_time_per_output_token_seconds_count", **GEN_AI) or 0) == observed


@pytest.mark.parametrize(
    ("reached", "queue"),
    [({"queued_time": 0.1, "prefill_time": -UPTIME, "inference_time": -UPTIME}, 0.1),
     ({"queued_time": -UPTIME, "prefill_time": 0.0, "inference_time": 0.0}, None),
     ({"queued_time": -UPTIME, "prefill_time": 0.0, "inference_time": UPTIME}, None)],
    ids=["scheduled", "not scheduled", "not scheduled but ended"],
)  # fmt: skip
def test_an_aborted_request_without_a_token_is_counted_but_has_no_latencies(
    reached: dict[str, float], queue: float | None
) -> None:
    cut_off = request_stats("abort", e2e_latency=5.0, decode_time=0.0, num_generation_tokens=0, **reached)
    stats = iteration_stats(finished_requests=[cut_off], time_to_first_tokens_iter=[5.0, 0.2])
    see = of_steps(read(None, stats))
    assert see("vllm_requests_finished_total", **ENGINE, finish_reason="abort") == 1
    assert see("vllm_request_duration_seconds_sum", **ENGINE) == 5.0
    assert see("vllm_request_time_to_first_token_seconds_count", **ENGINE) == 1
    assert see("vllm_request_time_to_first_token_seconds_sum", **ENGINE) == 0.2
    assert phases(see) == {"queue": queue, "prefill": None, "decode": None, "frontend": None}
    assert [see("vitals_values_rejected_total", **each) for each in see.labels("vitals_values_rejected_total")] == []


def test_exemplars_are_capped_with_the_name_of_their_label() -> None:
    request = Finished("stop", duration=0.7, request_id="r" * 500)
    aggregator = collect(finished(request), exemplars=True)
    aggregator.refresh()
    shown = [
        exemplar
        for family in aggregator.store
        for cell in family.cells.values()
        if isinstance(cell, HistogramCell)
        for exemplar in cell.exemplars.values()
    ]
    assert {len("request_id") + len(exemplar.request_id) for exemplar in shown} == {128}
    assert {exemplar.value for exemplar in shown} == {0.7}


def test_no_exemplars_by_default() -> None:
    aggregator = collect(finished(Finished("stop", duration=0.7, request_id="r")))
    aggregator.refresh()
    cells = [cell for family in aggregator.store for cell in family.cells.values()]
    assert not any(cell.exemplars for cell in cells if isinstance(cell, HistogramCell))


# --- Whatever comes

small = st.integers(-20, 20)
real = st.one_of(st.floats(-2, 20), st.floats())
reals = st.lists(real, max_size=3).map(lambda values: array("d", values))
uses = st.builds(CacheUse, small, small)
requests = st.builds(
    Finished, st.sampled_from(["stop", "abort", "error", "odd"]), duration=st.none() | real, queue=st.none() | real,
    prefill=st.none() | real, decode=st.none() | real, inference=st.none() | real, time_per_output_token=st.none() | real,
    input_tokens=st.none() | small, output_tokens=st.none() | small, cached_tokens=st.none() | small,
)  # fmt: skip
steps = st.builds(
    Step, st.just(MODEL), st.sampled_from(["0", "1"]), st.just(EPOCH), st.floats(0, 100), st.just(AGE),
    running=st.none() | small, waiting=small, deferred=small, kv_cache_usage=st.none() | real,
    prefix_cache=st.none() | uses, external_prefix_cache=st.none() | uses, flops=st.none() | small,
    speculation=st.none() | st.builds(Speculation, small, small, st.tuples(small, small)),
    duration=st.none() | real, iterated=st.booleans(), computed_tokens=small, generation_tokens=small,
    prompt_tokens=st.dictionaries(st.sampled_from("abc"), small), preempted=small, corrupted=small,
    scheduled_tokens=st.dictionaries(st.sampled_from(["prefill", "decode"]), small),
    first_token_latencies=reals, inter_token_latencies=reals, inter_token_repeats=st.integers(1, 5), finished=st.lists(requests, max_size=3),
    lora_running=st.dictionaries(st.text("xyz", min_size=1), small, max_size=3),
)  # fmt: skip


def cumulative(aggregator: Aggregator) -> dict[tuple[str, ...], tuple[float, ...]]:
    """Return every counter's value, and every histogram's counts and sum."""
    aggregator.refresh()
    held = {}
    for family in aggregator.store:
        for key, cell in family.cells.items():
            if isinstance(cell, HistogramCell):
                held[(family.metric.name, *key)] = (*cell.counts, cell.total)
            elif family.metric.kind == "counter" and isinstance(cell, NumberCell):
                held[(family.metric.name, *key)] = (cell.value,)
    return held


believable = st.builds(
    Step, st.just(MODEL), st.sampled_from(["0", "1"]), st.just(EPOCH), st.floats(0, 100), st.just(AGE),
    running=st.none() | st.integers(0, 9), waiting=st.integers(0, 9), kv_cache_usage=st.none() | st.floats(0, 1),
    generation_tokens=small, prompt_tokens=st.dictionaries(st.sampled_from("abc"), small), duration=st.none() | real,
    first_token_latencies=reals, inter_token_latencies=reals, inter_token_repeats=st.integers(1, 5),
    finished=st.lists(requests, max_size=3),
    lora_running=st.dictionaries(st.text("xyz", min_size=1), st.integers(0, 9), max_size=3),
)  # fmt: skip


def gauges(aggregator: Aggregator) -> dict[tuple[str, ...], float]:
    """Return the value of every gauge of an engine."""
    aggregator.refresh()
    return {
        (family.metric.name, *key): cell.value
        for family in aggregator.store
        for key, cell in family.cells.items()
        if isinstance(cell, NumberCell) and family.metric.kind == "gauge" and family.metric.name.startswith("vllm.")
    }


@given(st.lists(st.one_of(believable, st.builds(Sleep, st.just(MODEL), st.just("0"), st.just("awake"))), max_size=8))
@examples(60)
def test_records_together_count_as_one_by_one(records: list[Any]) -> None:
    known = facts(kv_cache_tokens=100)
    together, apart = collect(known), collect(known)
    together.add(copy.deepcopy(records))
    feed(apart, *records)
    summed, each = cumulative(together), cumulative(apart)
    assert summed.keys() == each.keys()
    for key, values in summed.items():
        assert values == pytest.approx(each[key]), key
    assert gauges(together) == pytest.approx(gauges(apart))


@given(st.lists(steps, max_size=6))
@examples(40)
def test_counters_and_histograms_never_go_down(records: list[Step]) -> None:
    aggregator = collect()
    before = cumulative(aggregator)
    for record in records:
        feed(aggregator, record)
        after = cumulative(aggregator)
        assert before.keys() <= after.keys()
        for key, values in before.items():
            assert all(new >= old for old, new in zip(values, after[key], strict=True)), key
        assert all(math.isfinite(value) for values in after.values() for value in values)
        before = after
    assert cumulative(aggregator).get(("vitals.errors", "collect"), (0.0,)) == (0.0,)
