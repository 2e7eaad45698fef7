"""Queries as they are written, and what cannot be written."""

import pytest

from vllm_vitals.catalog import cache, engine, gpu, requests, self_metrics, slo
from vllm_vitals.mixin.promql import (
    Queries,
    Recording,
    Unavailable,
    Vector,
    absent,
    any_of,
    clamp,
    count_by,
    is_not,
    joined,
    matching,
    max_by,
    none_of,
    not_matching,
    over_time,
    ratio,
    relabelled,
    sum_by,
    topk,
)
from vllm_vitals.mixin.promql.vector import number

OURS = Queries(window="5m")
VLLMS = Queries(window="5m", source="native")


def test_a_gauge_is_summed_by_labels() -> None:
    assert str(OURS.sum(engine.RUNNING)) == "sum(vllm_engine_requests_running)"
    assert str(OURS.max(cache.KV_USAGE, ("engine", "instance"))) == (
        "max by (engine, instance) (vllm_kv_cache_usage_ratio)"
    )


def test_a_counter_is_rated_before_it_is_summed() -> None:
    assert str(OURS.rate(requests.FINISHED, ("model_name",), finish_reason="stop")) == (
        'sum by (model_name) (rate(vllm_requests_finished_total{finish_reason="stop"}[5m]))'
    )
    assert str(OURS.over("1h").increase(requests.PREEMPTED)) == "sum(increase(vllm_requests_preempted_total[1h]))"


def test_a_share_is_guarded_against_no_traffic() -> None:
    assert str(OURS.share(slo.REQUESTS, {"outcome": "good"}, ("slo",))) == (
        'sum by (slo) (rate(vllm_slo_requests_total{outcome="good"}[5m]))'
        " / (sum by (slo) (rate(vllm_slo_requests_total[5m])) > 0)"
    )


def test_a_mean_is_guarded_against_no_traffic() -> None:
    assert str(OURS.mean(requests.DURATION)) == (
        "sum(rate(vllm_request_duration_seconds_sum[5m])) / (sum(rate(vllm_request_duration_seconds_count[5m])) > 0)"
    )


def test_a_quantile_without_traffic_is_no_series() -> None:
    assert str(OURS.quantile(0.99, requests.TIME_TO_FIRST_TOKEN, ("engine",))) == (
        "histogram_quantile(0.99, sum by (le, engine) (rate(vllm_request_time_to_first_token_seconds_bucket[5m]))) >= 0"
    )


def test_exponential_histograms_have_no_buckets() -> None:
    made = Queries(window="5m", histograms="exponential")
    name = "vllm_request_duration_seconds"
    assert str(made.quantile(0.5, requests.DURATION)) == f"histogram_quantile(0.5, sum(rate({name}[5m]))) >= 0"
    assert str(made.mean(requests.DURATION, ("engine",))) == (
        f"histogram_sum(sum by (engine) (rate({name}[5m]))) / (histogram_count(sum by (engine) (rate({name}[5m]))) > 0)"
    )
    assert "_bucket" in str(Queries(source="native", histograms="exponential").quantile(0.5, requests.DURATION)), (
        "vLLM has classic ones only"
    )


def test_a_scope_is_applied_where_a_metric_has_the_label() -> None:
    made = OURS.within(cluster=matching("$cluster"), engine=matching("$engine"))
    assert str(made.sum(engine.RUNNING)) == (
        'sum(vllm_engine_requests_running{cluster=~"$cluster", engine=~"$engine"})'
    )
    assert str(made.rate(self_metrics.DROPPED)) == 'sum(rate(vitals_steps_dropped_total{cluster=~"$cluster"}[5m]))'


def test_a_label_named_like_a_parameter_can_be_matched() -> None:
    assert str(OURS.rate(self_metrics.REJECTED, metric="vllm.request.duration")) == (
        'sum(rate(vitals_values_rejected_total{metric="vllm.request.duration"}[5m]))'
    )


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("capacity", 'reason="capacity"'),
        (is_not("capacity"), 'reason!="capacity"'),
        (any_of("capacity", "deferred"), 'reason=~"capacity|deferred"'),
        (none_of("capacity"), 'reason!~"capacity"'),
        (matching("cap.*"), 'reason=~"cap.*"'),
        (not_matching("cap.*"), 'reason!~"cap.*"'),
    ],
)
def test_matchers(wanted, text) -> None:
    assert str(OURS.sum(engine.WAITING, reason=wanted)) == f"sum(vllm_engine_requests_waiting{{{text}}})"


def test_values_are_quoted() -> None:
    assert str(OURS.sum(cache.LORA_REQUESTS, adapter='a"b\\')) == r'sum(vllm_lora_requests{adapter="a\"b\\"})'
    assert str(OURS.sum(cache.LORA_REQUESTS, adapter=any_of("a.b"))) == r'sum(vllm_lora_requests{adapter=~"a\\.b"})'


def test_a_wrong_label_is_named_with_what_there_is() -> None:
    with pytest.raises(
        ValueError, match=r"vllm\.requests\.finished has no label 'reason'; its own: model_name, engine, finish_"
    ):
        OURS.rate(requests.FINISHED, reason="stop")
    with pytest.raises(ValueError, match=r"vllm\.requests\.finished has no label 'phase'"):
        OURS.rate(requests.FINISHED, ("phase",))


def test_a_wrong_value_is_named_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="no finish_reason='stopped'; there are: stop, length, abort"):
        OURS.rate(requests.FINISHED, finish_reason="stopped")
    with pytest.raises(ValueError, match="no finish_reason='halt'"):
        OURS.rate(requests.FINISHED, finish_reason=any_of("stop", "halt"))
    assert OURS.rate(requests.PROMPT_TOKENS, source="unknown"), "of an open label there are more"
    assert OURS.sum(cache.LORA_REQUESTS, adapter="mine")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: OURS.rate(engine.RUNNING),
        lambda: OURS.sum(requests.FINISHED),
        lambda: OURS.quantile(0.5, engine.RUNNING),
        lambda: OURS.select(requests.DURATION),
        lambda: OURS.mean(requests.FINISHED),
    ],
)
def test_a_metric_of_another_kind_is_refused(wrong) -> None:
    with pytest.raises(ValueError, match=r"is a (counter|gauge|histogram); this takes a"):
        wrong()


def test_a_rank_is_no_percentage() -> None:
    with pytest.raises(ValueError, match="99 is no rank"):
        OURS.quantile(99, requests.DURATION)


def test_arithmetic_keeps_its_order() -> None:
    a, b = OURS.sum(engine.RUNNING), OURS.sum(engine.WAITING)
    first, second = a.text, b.text
    assert str((a + b) / a) == f"({first} + {second}) / {first}"
    assert str(1 - a / b) == f"1 - ({first} / {second})"
    assert str(100 / (a + b)) == f"100 / ({first} + {second})"
    assert str((a - b) * 100) == f"({first} - {second}) * 100"
    assert str((a > 0).and_(b >= 2)) == f"({first} > 0) and ({second} >= 2)"
    assert str(a < 0.5) == f"{first} < 0.5"
    assert str(a <= b) == f"{first} <= {second}"
    assert str(a.is_(1).or_(b.is_not(0))) == f"({first} == 1) or ({second} != 0)"
    assert str(ratio(a, b)) == f"{first} / ({second} > 0)"


def test_vectors_with_other_labels_need_to_be_told_on_which_they_match() -> None:
    by_engine = OURS.sum(engine.RUNNING, ("engine",))
    by_slo = OURS.rate(slo.REQUESTS, ("slo",))
    with pytest.raises(ValueError, match=r"has the labels engine and .* has slo: say on which"):
        by_engine / by_slo
    with pytest.raises(ValueError, match="'slo' is not on both sides"):
        by_engine.combined("/", by_slo, on=("slo",))
    with pytest.raises(ValueError, match="none"):
        by_engine / OURS.sum(engine.RUNNING)


def test_matching_on_labels() -> None:
    bad = OURS.share(slo.REQUESTS, {"outcome": "bad"}, ("slo", "engine"))
    budget = 1 - OURS.max(slo.TARGET, ("slo",))
    made = bad.combined("/", budget, on=("slo",), group_left=())
    assert str(made) == f"({bad}) / on (slo) group_left () ({budget})"
    assert made.labels == {"slo", "engine"}
    assert OURS.select(engine.RUNNING).and_(OURS.select(engine.SLEEP, state="awake"), on=("engine",)).text == (
        'vllm_engine_requests_running and on (engine) vllm_engine_sleep{state="awake"}'
    )
    assert "unless on (engine)" in str(bad.unless(OURS.max(engine.UP, ("engine",)), on=("engine",)))
    facts = OURS.max(engine.INFO, ("engine", "vllm_version"))
    assert joined(OURS.sum(engine.RUNNING, ("engine",)), facts, ("engine",), ("vllm_version",)).labels == {
        "engine",
        "vllm_version",
    }


def test_functions() -> None:
    running = OURS.sum(engine.RUNNING, ("engine", "instance"))
    assert str(topk(3, running)) == f"topk(3, {running})"
    assert str(max_by(running, "engine")) == f"max by (engine) ({running})"
    assert str(clamp(running, 0, 1)) == f"clamp({running}, 0, 1)"
    assert str(absent(running)) == f"absent({running})"
    assert str(count_by(running > 1)) == f"count({running} > 1)"
    assert str(over_time("max_over_time", running > 1, "1h", "1m")) == f"max_over_time(({running} > 1)[1h:1m])"
    assert str(relabelled(running, "who", "engine")) == f'label_replace({running}, "who", "$1", "engine", "(.*)")'
    with pytest.raises(ValueError, match="no label 'model_name' to sum by"):
        sum_by(running, "model_name")


def test_zero_stands_in_for_a_vector_without_labels_only() -> None:
    assert str(OURS.rate(requests.REJECTED).or_zero()).endswith(" or vector(0)")
    with pytest.raises(ValueError, match="one series beside those by engine"):
        OURS.sum(engine.RUNNING, ("engine",)).or_zero()


def test_ranges() -> None:
    assert str(OURS.ranged("predict_linear", cache.KV_USAGE, 600)) == (
        "predict_linear(vllm_kv_cache_usage_ratio[5m], 600)"
    )
    assert str(OURS.select(requests.FINISHED, offset="1h")) == "vllm_requests_finished_total offset 1h"


def test_a_recording_is_selected_by_labels_that_it_has() -> None:
    recording = Recording("slo:bad:ratio_rate5m", frozenset({"slo"}))
    assert str(recording.select(slo="chat") > 0.1) == 'slo:bad:ratio_rate5m{slo="chat"} > 0.1'
    assert str(recording.select()) == "slo:bad:ratio_rate5m"
    with pytest.raises(ValueError, match="has no label 'engine'; it has: slo"):
        recording.select(engine="0")


def test_numbers() -> None:
    assert [number(value) for value in (0, 1.0, 0.99, 1e6, 2.5e-7)] == ["0", "1", "0.99", "1000000", "2.5e-07"]
    assert str(Vector("x") * 1e6) == "x * 1000000"


def test_vllms_own_metrics_of_the_same_shape() -> None:
    assert str(VLLMS.sum(engine.RUNNING, ("model_name",))) == "sum by (model_name) (vllm:num_requests_running)"
    assert str(VLLMS.rate(requests.GENERATION_TOKENS)) == "sum(rate(vllm:generation_tokens_total[5m]))"
    assert "rate(vllm:e2e_request_latency_seconds_bucket[5m])" in str(VLLMS.quantile(0.9, requests.DURATION))


def test_vllms_whole_where_the_parts_are_not_asked_for() -> None:
    assert str(VLLMS.sum(engine.WAITING)) == "sum(vllm:num_requests_waiting)"
    assert str(VLLMS.sum(engine.WAITING, ("reason",))) == "sum by (reason) (vllm:num_requests_waiting_by_reason)"


def test_vllms_parts_together_are_ours() -> None:
    assert str(VLLMS.mean(requests.PHASE_DURATION, phase="queue")) == (
        "sum(rate(vllm:request_queue_time_seconds_sum[5m])) / "
        "(sum(rate(vllm:request_queue_time_seconds_count[5m])) > 0)"
    )
    assert str(VLLMS.rate(cache.PREFIX_HITS, ("tier",))) == (
        'sum by (tier) (label_replace(rate(vllm:prefix_cache_hits_total[5m]), "tier", "local", "", "") or '
        'label_replace(rate(vllm:external_prefix_cache_hits_total[5m]), "tier", "external", "", ""))'
    )
    with pytest.raises(Unavailable, match="phase="):
        VLLMS.mean(requests.PHASE_DURATION, phase="frontend")


def test_vllms_labels_get_our_names() -> None:
    assert str(VLLMS.rate(requests.FINISHED, finish_reason="stop")) == (
        'sum(rate(vllm:request_success_total{finished_reason="stop"}[5m]))'
    )
    assert str(VLLMS.rate(requests.FINISHED, ("finish_reason",))) == (
        "sum by (finish_reason) (label_replace(rate(vllm:request_success_total[5m]), "
        '"finish_reason", "$1", "finished_reason", "(.*)"))'
    )


@pytest.mark.parametrize("metric", [engine.LIMITED, slo.REQUESTS, self_metrics.STEPS, gpu.ENERGY, cache.SAVED_PREFILL])
def test_what_vllm_lacks_is_refused(metric) -> None:
    with pytest.raises(Unavailable, match=f"no metric of vLLM's stands for {metric.name}"):
        VLLMS.rate(metric)
