"""One recording rule of each kind against numbers that are worked out by hand."""

from pathlib import Path
from typing import Any

from tests.rules.fleet import MODEL, engine, healthy, replica, series
from tests.rules.promtool import recorded, run
from vllm_vitals.mixin.rules import RulesConfig

TTFT = "vllm_request_time_to_first_token_seconds_bucket"


def buckets(place: int, rates: dict[str, int]) -> dict[str, str]:
    """Return a histogram whose buckets grow by so much a minute."""
    return {series(TTFT, engine(place), le=bound): f"0+{rate}x60" for bound, rate in rates.items()}


def per_engine(name: str, values: str, place: int = 0, **more: str) -> dict[str, str]:
    return {series(name, engine(place), **more): values}


CASES = {
    # 0.4 and 0.8
    "the mean of a gauge": (
        healthy(0, saturation="0.4x60") | healthy(1, saturation="0.8x60"),
        "model:vllm_engine_saturation_ratio:avg", series("model:vllm_engine_saturation_ratio:avg", MODEL), 0.6,
    ),
    "the largest of a gauge": (
        healthy(0, saturation="0.4x60") | healthy(1, saturation="0.8x60"),
        "model:vllm_engine_saturation_ratio:max", series("model:vllm_engine_saturation_ratio:max", MODEL), 0.8,
    ),
    # 8 run, 5 + 2 wait
    "a sum over two gauges": (
        healthy(capacity="5x60", deferred="2x60"),
        "engine:vllm_engine_requests:sum", series("engine:vllm_engine_requests:sum", engine()), 15,
    ),
    # 30 bad of 30 + 90, 6 bad of 6 + 474: 36 of 600
    "a share of two replicas": (
        per_engine("vllm_slo_requests_total", "0+30x60", slo="s", outcome="bad")
        | per_engine("vllm_slo_requests_total", "0+90x60", slo="s", outcome="good")
        | per_engine("vllm_slo_requests_total", "0+6x60", 1, slo="s", outcome="bad")
        | per_engine("vllm_slo_requests_total", "0+474x60", 1, slo="s", outcome="good"),
        "model_slo:vllm_slo_requests_bad_per_requests:ratio_rate30m",
        series("model_slo:vllm_slo_requests_bad_per_requests:ratio_rate30m", {**MODEL, "slo": "s"}), 0.06,
    ),
    # 30 + 6 a minute
    "a rate by outcome": (
        per_engine("vllm_slo_requests_total", "0+30x60", slo="s", outcome="bad")
        | per_engine("vllm_slo_requests_total", "0+6x60", 1, slo="s", outcome="bad"),
        "model_slo_outcome:vllm_slo_requests:rate5m",
        series("model_slo_outcome:vllm_slo_requests:rate5m", {**MODEL, "slo": "s", "outcome": "bad"}), 0.6,
    ),
    "the strictest of two targets": (
        {
            **per_engine("vllm_slo_requests_total", "0x60", slo="s", outcome="bad"),
            **per_engine("vllm_slo_requests_total", "0x60", 1, slo="s", outcome="bad"),
            series("vllm_slo_target_ratio", replica(0), slo="s"): "0.9x60",
            series("vllm_slo_target_ratio", replica(1), slo="s"): "0.95x60",
        },
        "model_slo:vllm_slo_target_ratio:max", series("model_slo:vllm_slo_target_ratio:max", {**MODEL, "slo": "s"}), 0.95,
    ),
    # 60 + 20 of 100 + 60 up to 0.1, 140 up to 0.5, all 160 up to 1: the 90th of 100 is the 144th of 160, 4 of 20 above 0.5
    "a quantile over two replicas": (
        buckets(0, {"0.1": 60, "0.5": 90, "1.0": 100, "+Inf": 100}) | buckets(1, {"0.1": 20, "0.5": 50, "1.0": 60, "+Inf": 60}),
        'model_quantile:vllm_request_time_to_first_token_seconds:histogram_quantile_rate5m{quantile="0.9"}',
        series("model_quantile:vllm_request_time_to_first_token_seconds:histogram_quantile_rate5m", MODEL, quantile="0.9"), 0.6,
    ),
    # 3000 + 6000 J busy and 1000 J idle a minute, 400 + 100 tokens
    "energy by token, with that of idle time": (
        per_engine("vllm_engine_energy_joules_total", "0+3000x60", state="busy")
        | per_engine("vllm_engine_energy_joules_total", "0+6000x60", 1, state="busy")
        | per_engine("vllm_engine_energy_joules_total", "0+1000x60", 1, state="idle")
        | per_engine("vllm_tokens_generation_total", "0+400x60") | per_engine("vllm_tokens_generation_total", "0+100x60", 1),
        "model:vllm_engine_energy_joules_per_tokens:ratio_rate5m",
        series("model:vllm_engine_energy_joules_per_tokens:ratio_rate5m", MODEL), 20,
    ),
    # 10000 J, 250 tokens of good requests
    "energy by good token": (
        per_engine("vllm_engine_energy_joules_total", "0+10000x60", state="busy")
        | per_engine("vllm_slo_tokens_total", "0+250x60", slo="s", outcome="good")
        | per_engine("vllm_slo_tokens_total", "0+150x60", slo="s", outcome="bad"),
        "model_slo:vllm_engine_energy_joules_per_good_tokens:ratio_rate5m",
        series("model_slo:vllm_engine_energy_joules_per_good_tokens:ratio_rate5m", {**MODEL, "slo": "s"}), 40,
    ),
    # 0.04 + 0.01 EUR and 20000 tokens a minute
    "money by a million tokens": (
        per_engine("vllm_engine_cost_total", "0+0.04x60", state="busy", currency="EUR")
        | per_engine("vllm_engine_cost_total", "0+0.01x60", state="idle", currency="EUR")
        | per_engine("vllm_tokens_generation_total", "0+20000x60"),
        "model_currency:vllm_engine_cost_per_million_tokens:ratio_rate5m",
        series("model_currency:vllm_engine_cost_per_million_tokens:ratio_rate5m", {**MODEL, "currency": "EUR"}), 2.5,
    ),
    # 45 of 60 s
    "GPU time without work": (
        per_engine("vllm_engine_gpu_time_seconds_total", "0+15x90", state="busy")
        | per_engine("vllm_engine_gpu_time_seconds_total", "0+40x90", state="idle")
        | per_engine("vllm_engine_gpu_time_seconds_total", "0+5x90", state="asleep"),
        "model:vllm_engine_gpu_time_unused_per_gpu_time:ratio_rate1h",
        series("model:vllm_engine_gpu_time_unused_per_gpu_time:ratio_rate1h", MODEL), 0.75,
    ),
    # 600 of 1000 and 100 of 400
    "a hit ratio": (
        per_engine("vllm_prefix_cache_queried_tokens_total", "0+1000x60", tier="local")
        | per_engine("vllm_prefix_cache_hit_tokens_total", "0+600x60", tier="local")
        | per_engine("vllm_prefix_cache_queried_tokens_total", "0+400x60", 1, tier="local")
        | per_engine("vllm_prefix_cache_hit_tokens_total", "0+100x60", 1, tier="local"),
        "model_tier:vllm_prefix_cache_hit_tokens_per_queried_tokens:ratio_rate30m",
        series("model_tier:vllm_prefix_cache_hit_tokens_per_queried_tokens:ratio_rate30m", {**MODEL, "tier": "local"}), 0.5,
    ),
}  # fmt: skip


def case(title: str, off: float = 0.0) -> dict[str, Any]:
    """Return a case as promtool wants it; sums of binary fractions may be off in the last digits."""
    given, expression, made, value = CASES[title]
    unnamed = made[made.index("{") :]
    near = f"abs({expression} - {value + off}) < bool 1e-9"
    return recorded(title, given, {near: {unnamed: 1.0}}, "40m")


def test_values_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    """Promtool tells the expressions that are not."""
    assert run([case(title) for title in CASES], tmp_path, RulesConfig()) == ""


def test_another_value_is_found(tmp_path: Path) -> None:
    right, *wrong = "a hit ratio", "a quantile over two replicas", "the strictest of two targets"
    said = run([case(right), *(case(each, off=0.01) for each in wrong)], tmp_path, RulesConfig())
    assert "FAILED" in said
    named = [title for title in (right, *wrong) if CASES[title][1].replace('"', '\\"') in said]
    assert named == wrong, said


IDLE = {
    "no requests": (
        per_engine("vllm_slo_requests_total", "7x60", slo="s", outcome="bad")
        | per_engine("vllm_slo_requests_total", "7x60", slo="s", outcome="good"),
        "model_slo:vllm_slo_requests_bad_per_requests:ratio_rate30m",
    ),
    "no tokens": (
        per_engine("vllm_engine_energy_joules_total", "0+3000x60", state="idle") | per_engine("vllm_tokens_generation_total", "9x60"),
        "model:vllm_engine_energy_joules_per_tokens:ratio_rate5m",
    ),
    "no good tokens": (
        per_engine("vllm_engine_energy_joules_total", "0+3000x60", state="idle")
        | per_engine("vllm_slo_tokens_total", "9x60", slo="s", outcome="good"),
        "model_slo:vllm_engine_energy_joules_per_good_tokens:ratio_rate5m",
    ),
    "no latencies": (
        {series(TTFT, engine(), le=bound): "9x60" for bound in ("0.1", "+Inf")},
        "model_quantile:vllm_request_time_to_first_token_seconds:histogram_quantile_rate5m",
    ),
}  # fmt: skip


def test_there_is_no_series_and_no_nan_where_nothing_happens(tmp_path: Path) -> None:
    cases = [recorded(title, given, {expression: {}}, "40m") for title, (given, expression) in IDLE.items()]
    assert run(cases, tmp_path, RulesConfig()) == ""
