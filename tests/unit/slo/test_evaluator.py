"""What SLOs count, by examples worked out by hand."""

import math
from typing import Any

import pytest

from tests.unit.builders import MODEL, Sight, collect, facts, feed, finished, page, step
from tests.unit.slos import counted, request, slo, verdict, violations
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.records.step import Facts, Finished, Gone
from vllm_vitals.slo.evaluator import SloEvaluator

# --- What is measured


@pytest.mark.parametrize(("limit", "outcome"), [(3.6, "good"), (3.5, "good"), (3.4, "bad")])
def test_the_time_to_first_token_is_the_duration_less_decode(limit: float, outcome: str) -> None:
    assert verdict(slo(ttft=limit), request()) == outcome


@pytest.mark.parametrize(("limit", "outcome"), [(1.1, "good"), (1.0, "good"), (0.9, "bad")])
def test_the_time_per_output_token_is_decode_over_the_tokens_after_the_first(limit: float, outcome: str) -> None:
    assert verdict(slo(tpot=limit), request()) == outcome


@pytest.mark.parametrize(("limit", "outcome"), [(7.6, "good"), (7.5, "good"), (7.4, "bad")])
def test_end_to_end_is_the_duration(limit: float, outcome: str) -> None:
    assert verdict(slo(e2e=limit), request()) == outcome


def test_the_first_token_of_a_request_of_one_token_is_its_last() -> None:
    one = request(output_tokens=1, decode=0.0, duration=3.5)
    assert verdict(slo(ttft=3.5), one) == "good"
    assert verdict(slo(ttft=3.4), one) == "bad"


@pytest.mark.parametrize("tokens", [0, 1])
def test_requests_of_one_token_meet_any_tpot(tokens: int) -> None:
    assert verdict(slo(tpot=0.001), request(output_tokens=tokens, decode=0.0, duration=3.5)) == "good"


def test_a_negative_time_to_first_token_counts_as_0() -> None:
    """The duration and the phases are measured on different clocks."""
    assert verdict(slo(ttft=0.001), request(duration=3.9, queue=0.0, prefill=0.0)) == "good"


def test_a_good_request_meets_all_limits() -> None:
    both = slo(ttft=2.0, e2e=8.0)
    slow_start, slow_end = request(), request(duration=9.0, queue=0.5, prefill=1.0, decode=7.0)
    quick = request(duration=6.0, prefill=0.5)
    assert counted([both], slow_start, slow_end, quick)["requests"] == {("a", "good"): 1, ("a", "bad"): 2}


# --- Tokens


def test_tokens_are_those_generated_for_good_and_for_bad_requests() -> None:
    requests = [request(output_tokens=5), request(output_tokens=7, duration=8.5), request(output_tokens=11)]
    ignored = request("abort", output_tokens=100)
    found = counted([slo(e2e=8.0)], *requests, ignored)["tokens"]
    assert found == {("a", "good"): 16, ("a", "bad"): 7}


def test_unknown_tokens_add_none() -> None:
    found = counted([slo(e2e=8.0)], request(output_tokens=None), request(output_tokens=math.nan), request())
    assert found["requests"] == {("a", "good"): 3}
    assert found["tokens"] == {("a", "good"): 5}


# --- What is not known


@pytest.mark.parametrize("lost", [None, math.nan, math.inf, -1.0, 1e9])
def test_an_unknown_or_impossible_duration_excludes(lost: float | None) -> None:
    assert verdict(slo(e2e=8), request(duration=lost)) == "unknown"
    assert verdict(slo(ttft=8), request(duration=lost)) == "unknown"
    assert verdict(slo(tpot=8), request(duration=lost)) in ("good", "unknown")


@pytest.mark.parametrize("lost", [None, math.nan, -1.0, 9.0])
def test_unknown_or_impossible_decode_excludes(lost: float | None) -> None:
    assert verdict(slo(ttft=8), request(decode=lost)) == "unknown"
    assert verdict(slo(tpot=8), request(decode=lost)) == "unknown"
    assert verdict(slo(e2e=8), request(decode=lost)) == "good"


def test_an_unknown_time_without_a_limit_does_not_matter() -> None:
    assert verdict(slo(e2e=8), Finished("stop", duration=7.5)) == "good"


def test_one_miss_is_enough_even_if_other_times_are_unknown() -> None:
    assert verdict(slo(ttft=8, e2e=7), request(decode=None)) == "bad"
    assert violations(slo(ttft=8, e2e=7), request(decode=None)) == {("e2e", "unknown"): 1}


def test_no_token_means_no_first_one() -> None:
    assert verdict(slo(ttft=8), request(output_tokens=0, decode=0.0)) == "unknown"
    assert verdict(slo(e2e=8), request(output_tokens=0, decode=0.0)) == "good"


# --- Errors and aborts


@pytest.mark.parametrize(("errors", "outcome"), [("bad", "bad"), ("ignore", "error")])
@pytest.mark.parametrize("duration", [0.1, 100.0, None])
def test_errors_are_not_judged_by_their_times(errors: str, outcome: str, duration: float | None) -> None:
    of = slo(e2e=8, errors=errors)
    failed = Finished("error", duration=duration)
    assert verdict(of, failed) == outcome
    assert violations(of, failed) == {}


@pytest.mark.parametrize(
    ("aborts", "quick", "slow"), [("ignore", "abort", "abort"), ("bad", "bad", "bad"), ("judge", "good", "bad")]
)
def test_aborts(aborts: str, quick: str, slow: str) -> None:
    of = slo(e2e=8, aborts=aborts)
    assert verdict(of, request("abort")) == quick
    assert verdict(of, request("abort", duration=9.0)) == slow
    assert bool(violations(of, request("abort", duration=9.0))) == (aborts == "judge")


@pytest.mark.parametrize(("waited", "outcome"), [(0.9, "unknown"), (1.0, "unknown"), (1.1, "bad")])
def test_an_abort_without_a_token_misses_ttft_if_it_waited_longer(waited: float, outcome: str) -> None:
    cut_off = Finished("abort", duration=waited, queue=0.5, output_tokens=0)
    assert verdict(slo(ttft=1, aborts="judge"), cut_off) == outcome
    assert verdict(slo(tpot=1, aborts="judge"), cut_off) == "good"


def test_neither_is_the_default_for_the_other() -> None:
    found = counted([slo(e2e=8)], request("abort"), request("error"), request())
    assert found["requests"] == {("a", "good"): 1, ("a", "bad"): 1}
    assert found["excluded"] == {("a", "abort"): 1}


# --- Filters


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [([100, 200], [100, 150, 200]), ([None, 100], [0, 99, 100]), ([100, None], [100, 150, 200, 201, 10**6]), ([150, 150], [150]),
     ([None, None], [0, 99, 100, 150, 200, 201, 10**6, None])],
)  # fmt: skip
@pytest.mark.parametrize("which", ["prompt_tokens", "output_tokens"])
def test_lengths(which: str, limits: list[int | None], tokens: list[int | None]) -> None:
    field = which.replace("prompt", "input")
    lengths = [0, 99, 100, 150, 200, 201, 10**6, None]
    passed = [each for each in lengths if verdict(slo(e2e=8, **{which: limits}), request(**{field: each}))]
    assert passed == [each for each in lengths if each in tokens]


def test_finish_reasons() -> None:
    of = slo(e2e=8, finish_reasons=["length", "error"])
    reasons = ("stop", "length", "abort", "error", "repetition", "unknown", "never heard of")
    assert {reason: verdict(of, request(reason)) for reason in reasons if verdict(of, request(reason))} == {
        "length": "good", "error": "bad",
    }  # fmt: skip
    assert {verdict(slo(e2e=8), request(reason)) for reason in ("repetition", "unknown", "never heard of")} == {"good"}


def test_filtered_requests_are_not_excluded_either() -> None:
    of = slo(e2e=8, prompt_tokens=[0, 50])
    found = counted([of], request("abort"), request("error"), request(duration=None), request(duration=99.0))
    assert not any(found.values())


def test_filters_apply_together() -> None:
    of = slo(e2e=8, prompt_tokens=[0, 50], output_tokens=[2, None], finish_reasons=["stop"])
    assert verdict(of, request(input_tokens=50, output_tokens=2)) == "good"
    assert verdict(of, request(input_tokens=51, output_tokens=2)) == ""
    assert verdict(of, request(input_tokens=50, output_tokens=1)) == ""
    assert verdict(of, request("length", input_tokens=50, output_tokens=2)) == ""


def test_each_slo_judges_for_itself() -> None:
    slos = [slo(name="short", prompt_tokens=[0, 99], ttft=1), slo(name="long", prompt_tokens=[100, None], ttft=4),
            slo(name="all", e2e=7)]  # fmt: skip
    found = counted(slos, request(), request(input_tokens=10, duration=6.5))
    assert found["requests"] == {
        ("long", "good"): 1, ("short", "bad"): 1, ("all", "good"): 1, ("all", "bad"): 1,
    }  # fmt: skip
    assert found["violations"] == {("short", "ttft", "prefill"): 1, ("all", "e2e", "decode"): 1}


# --- In the store

TWO = [{"name": "chat", "target": "99%", "ttft": "4s", "tpot": "2s"}, {"name": "bulk", "target": 0.9, "e2e": 7}]


def test_all_series_are_there_from_the_start_and_no_others() -> None:
    see = Sight(collect(facts(), slos=TWO))
    assert see.of_engine("vllm_slo_requests_total", slo="chat", outcome="good") == 0
    shown = {name: [(each["slo"], each.get("objective"), each.get("phase")) for each in see.labels(name)]
             for name in ("vllm_slo_violations_total", "vllm_slo_requests_total", "vllm_slo_tokens_total")}  # fmt: skip
    assert sorted(shown["vllm_slo_violations_total"]) == sorted(
        [("chat", "ttft", phase) for phase in ("queue", "prefill", "frontend", "unknown")] + [("chat", "tpot", "decode")]
        + [("bulk", "e2e", phase) for phase in ("queue", "prefill", "decode", "frontend", "unknown")]
    )  # fmt: skip
    assert len(shown["vllm_slo_requests_total"]) == len(shown["vllm_slo_tokens_total"]) == 4
    assert len(see.labels("vllm_slo_excluded_total")) == 6


def test_targets_and_limits_can_be_read_before_there_is_an_engine() -> None:
    see = Sight(collect(slos=TWO))
    assert (see("vllm_slo_target_ratio", slo="chat"), see("vllm_slo_target_ratio", slo="bulk")) == (0.99, 0.9)
    limits = {(each["slo"], each["objective"]) for each in see.labels("vllm_slo_threshold_seconds")}
    assert limits == {("chat", "ttft"), ("chat", "tpot"), ("bulk", "e2e")}
    assert see("vllm_slo_threshold_seconds", slo="chat", objective="ttft") == 4
    assert see.labels("vllm_slo_requests_total") == []


def test_without_slos_nothing_is_shown_of_them() -> None:
    aggregator = collect(facts(), finished(request()), slos=[])
    assert "slo" not in page(aggregator)


def test_finished_requests_are_counted_where_they_finish() -> None:
    aggregator = collect(facts("0"), facts("1"), slos=TWO)
    feed(aggregator, finished(request(), request(duration=8.5)), finished(request(), engine="1"), step(engine="1"))
    see = Sight(aggregator)
    for engine, good, bad, tokens in (("0", 1, 1, 5), ("1", 1, 0, 5)):
        assert see.of_engine("vllm_slo_requests_total", engine, slo="chat", outcome="good") == good
        assert see.of_engine("vllm_slo_requests_total", engine, slo="chat", outcome="bad") == bad
        assert see.of_engine("vllm_slo_tokens_total", engine, slo="chat", outcome="good") == tokens
    assert see.of_engine("vllm_slo_requests_total", slo="bulk", outcome="bad") == 2
    # Queue and prefill were as those of the good request before it, frontend was 1.5 s instead of 0.5 s.
    assert see.of_engine("vllm_slo_violations_total", slo="chat", objective="ttft", phase="frontend") == 1
    assert see.of_engine("vllm_slo_violations_total", slo="bulk", objective="e2e", phase="decode") == 2


def test_many_requests_at_a_time_are_all_counted() -> None:
    aggregator = collect(facts(), slos=TWO)
    for _ in range(10):
        aggregator.add([finished(*(request() for _ in range(50))) for _ in range(3)])
    assert Sight(aggregator).of_engine("vllm_slo_requests_total", slo="chat", outcome="good") == 1500


def test_counts_outlive_a_restart_of_the_engine() -> None:
    known = Facts(MODEL, "0")
    see = Sight(collect(known, finished(request()), Gone(MODEL, "0"), known, finished(request()), slos=TWO))
    assert see.of_engine("vllm_slo_requests_total", slo="chat", outcome="good") == 2


def test_an_engine_without_facts_counts_too() -> None:
    see = Sight(collect(finished(request()), slos=TWO))
    assert see.of_engine("vllm_slo_requests_total", slo="chat", outcome="good") == 1


def test_the_maximum_number_of_slos_is_counted() -> None:
    slos = [{"name": f"slo-{number}", "target": 0.5, "e2e": number + 1} for number in range(32)]
    see = Sight(collect(facts(), finished(request()), slos=slos))
    outcomes = [see.of_engine("vllm_slo_requests_total", slo=each["name"], outcome="good") for each in slos]
    assert outcomes == [0] * 7 + [1] * 25
    assert not [each for each in see.labels("vllm_slo_requests_total") if each["slo"] == "_other"]


def test_a_failing_evaluator_costs_the_other_metrics_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any) -> Any:
        raise RuntimeError("boom")

    monkeypatch.setattr(SloEvaluator, "evaluate", explode)
    see = Sight(collect(facts(), finished(request()), slos=TWO))
    assert see.of_engine("vllm_request_duration_seconds_count") == 1
    assert see("vitals_errors_total", process="0", stage="collect") == 1


def test_only_settings_with_slos_make_an_evaluator() -> None:
    assert Aggregator(Settings(slos=TWO))._slo_evaluator is not None  # type: ignore[arg-type]
    assert Aggregator(Settings())._slo_evaluator is None
