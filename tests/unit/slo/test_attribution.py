"""The phase that a missed limit is attributed to: examples worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from tests.unit.builders import MODEL, Sight, collect, facts, finished
from tests.unit.slos import counted, request, slo, verdict, violations
from vllm_vitals.config.settings import Slo
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.records.step import Facts, Finished, Gone
from vllm_vitals.slo.evaluator import BATCH_VERDICTS, Baseline, Times

# A good request waits for 0.1 s, its prefill takes 4 ms for each of 100 prompt tokens, decode 1 s for each of 30 tokens
# after the first, and 0.1 s go by outside of the engine: 30.6 s.


def spent(queue: float = 0.1, prefill: float = 0.4, decode: float = 30.0, frontend: float = 0.1, *, prompt: int | None = 100,
          tokens: int | None = 31, reason: str = "stop") -> Finished:  # fmt: skip
    return Finished(reason, duration=queue + prefill + decode + frontend, queue=queue, prefill=prefill, decode=decode,
                    input_tokens=prompt, output_tokens=tokens)  # fmt: skip


def attributed(of: Slo, late: Finished, *before: Finished) -> str:
    """Return the phase that the one limit missed by a request is attributed to; requests before it missed none."""
    found = violations(of, *before, late)
    assert sum(found.values()) == 1
    return next(iter(found))[1]


@pytest.mark.parametrize(
    ("late", "phase"),
    [(spent(queue=10), "queue"),  # and then decoded for 30 s, as usual
     (spent(decode=40), "decode"),
     (spent(queue=5.9, decode=36), "decode"),  # 5.8 s and 6 s more than usual
     (spent(queue=6.2, decode=36), "queue"),  # 6.1 s and 6 s
     (spent(prefill=6), "prefill"),
     (spent(frontend=5), "frontend"),
     (spent(queue=10, prefill=10, frontend=10), "queue"),  # 9.9 s, 9.6 s, 9.9 s: the first of the same
     (spent(queue=16, decode=20, tokens=11), "queue"),  # 15.9 s and 10 s: ten tokens usually take 10 s
     (spent(queue=10, decode=26, tokens=11), "decode"),  # 9.9 s and 16 s
     (spent(queue=36, decode=0, tokens=1), "queue"),
     (spent(prefill=36, decode=0, tokens=1), "prefill")],
)  # fmt: skip
def test_a_miss_is_attributed_to_the_phase_with_the_largest_excess(late: Finished, phase: str) -> None:
    assert attributed(slo(e2e=35), late, spent()) == phase


@pytest.mark.parametrize(
    ("late", "phase"),
    # 60 tokens after the first usually take 60 s, all 60.6 s: scaled down to 35 s, decode may take 34.65 s, queue 0.06 s.
    [(spent(decode=60, tokens=61), "decode"),
     (spent(queue=20, decode=60, tokens=61), "decode"),  # 25.35 s and 19.94 s too much
     (spent(queue=30, decode=60, tokens=61), "queue"),  # 25.35 s and 29.94 s
     (spent(queue=36, decode=35, tokens=61), "queue"),
     # 10000 prompt tokens usually take 40 s, all 40.2 s: scaled down to 35 s, prefill may take 34.83 s.
     (spent(prefill=40, decode=0, prompt=10_000, tokens=1), "prefill"),
     (spent(prefill=40, decode=0, queue=6, prompt=10_000, tokens=1), "queue")],  # 5.17 s and 5.91 s
)  # fmt: skip
def test_a_request_too_large_for_its_limit_is_attributed_to_the_phase_that_it_lengthens(
    late: Finished, phase: str
) -> None:
    assert attributed(slo(e2e=35), late, spent()) == phase


@pytest.mark.parametrize(
    ("late", "phase"),
    [(spent(queue=1.6), "queue"),
     (spent(prefill=1.9), "prefill"),
     (spent(frontend=1.6), "frontend"),
     (spent(queue=1.6, decode=9000), "queue"),
     (spent(queue=0.9, prefill=1.2, prompt=300), "queue"),  # 0.8 s more than usual, and as usual
     # 500 prompt tokens usually take 2 s, all 2.2 s: scaled down to 2 s, prefill may take 1.82 s, queue 0.09 s.
     (spent(queue=0.2, prefill=2, prompt=500), "prefill"),  # 0.11 s and 0.18 s too much
     (spent(queue=0.3, prefill=2, prompt=500), "queue")],  # 0.21 s and 0.18 s
)  # fmt: skip
def test_a_late_first_token_is_attributed_to_the_phase_before_it_with_the_largest_excess(
    late: Finished, phase: str
) -> None:
    assert attributed(slo(ttft=2), late, spent()) == phase


@pytest.mark.parametrize("late", [spent(queue=10, prompt=None), spent(queue=10, tokens=None)])
def test_without_token_counts_there_is_no_attribution(late: Finished) -> None:
    assert attributed(slo(e2e=35), late, spent()) == "unknown"


def test_later_tokens_do_not_matter_to_the_first_token() -> None:
    late = spent(queue=4.5, tokens=None)
    assert verdict(slo(ttft=2), late) == "bad"
    assert attributed(slo(ttft=2), late, spent()) == "queue"


@pytest.mark.parametrize(
    "before",
    [[], [spent(reason="abort")], [spent(reason="error")], [spent(prompt=None)], [spent(tokens=None)],
     [Finished("stop", duration=30.6, queue=0.1, decode=30.0, input_tokens=100, output_tokens=31)],
     [Finished("stop", duration=30.6, queue=0.1, prefill=math.nan, decode=30.0, input_tokens=100, output_tokens=31)]],
    ids=["none", "abort", "error", "no prompt tokens", "no tokens", "no prefill", "prefill nan"],
)  # fmt: skip
def test_without_a_baseline_the_longest_phase_is_taken(before: list[Finished]) -> None:
    assert attributed(slo(e2e=35, errors="ignore"), spent(queue=10), *before) == "decode"
    assert attributed(slo(e2e=35, errors="ignore"), spent(queue=10), *before, spent()) == "queue"


def test_later_good_requests_are_not_in_the_baseline() -> None:
    late = spent(queue=10)
    assert violations(slo(e2e=35), late, spent(), late, spent()) == {("e2e", "decode"): 1, ("e2e", "queue"): 1}


def test_bad_requests_are_not_in_the_baseline() -> None:
    late = spent(queue=10)
    assert violations(slo(e2e=35), spent(), *[late] * 1000) == {("e2e", "queue"): 1000}


def test_an_abort_judged_good_is_in_the_baseline() -> None:
    of = slo(e2e=35, aborts="judge")
    assert attributed(of, spent(queue=10), spent(reason="abort")) == "queue"
    cut_off = Finished("abort", duration=1.0, queue=1.0, output_tokens=0)
    assert attributed(of, spent(queue=10), cut_off) == "decode"


def test_after_requests_of_one_token_all_of_decode_is_excess() -> None:
    of, one = slo(e2e=35), spent(decode=0, tokens=1)
    assert attributed(of, spent(queue=10), one) == "decode"
    assert attributed(of, spent(queue=36, decode=0, tokens=1), one) == "queue"


def test_each_slo_learns_from_the_requests_that_are_good_for_it() -> None:
    slos = [slo(name="short", e2e=35, output_tokens=[None, 31]), slo(name="long", e2e=35, output_tokens=[31, None])]
    found = counted(slos, spent(decode=5, tokens=6), spent(queue=10))
    assert found["violations"] == {("short", "e2e", "queue"): 1, ("long", "e2e", "decode"): 1}


def sums(*requests: Finished) -> list[list[float]]:
    """Return what the next request finds: seconds of each phase, and what these are in proportion to."""
    baseline, first = Baseline(1), np.array([0])
    for each in requests:
        columns = Requests([each])
        baseline.update(np.array([[True]]), Times(columns, columns.ended("abort")), first, first)
    columns = Requests([spent()])
    found = baseline.update(np.array([[False]]), Times(columns, columns.ended("abort")), first, first)
    return found.reshape(2, 4).tolist()


def test_the_baseline_is_the_mean_of_the_latest_good_requests_by_size() -> None:
    first, second = spent(), spent(queue=0.4, prefill=2.6, decode=8.0, frontend=0.3, prompt=500, tokens=5)
    faded = math.exp(-1 / 200)
    assert sums(first, second) == [
        pytest.approx([0.1 * faded + 0.4, 0.4 * faded + 2.6, 30 * faded + 8, 0.1 * faded + 0.3]),
        pytest.approx([faded + 1, 100 * faded + 500, 30 * faded + 4, faded + 1]),
    ]


def test_the_baseline_follows_the_last_200_requests_and_does_not_grow() -> None:
    seconds, count = sums(*[spent(queue=1)] * 1000, *[spent(queue=2)] * 1000)
    assert count[0] == pytest.approx(1 / (1 - math.exp(-1 / 200)), rel=1e-4)  # 200.5
    assert seconds[0] / count[0] == pytest.approx(2 - math.exp(-5) * (1 - math.exp(-5)) / (1 - math.exp(-10)))


@pytest.mark.parametrize(
    ("times", "phase"),
    [({"queue": 3.0, "prefill": 2.0, "duration": 9.5}, "queue"),
     ({"queue": 1.0, "prefill": 2.0}, "prefill"),
     ({"queue": 1.0, "prefill": 2.0, "duration": 9.5}, "frontend"),
     ({"queue": 2.0, "prefill": 2.0, "duration": 8.5}, "queue"),
     ({"queue": 0.0, "prefill": 1.5, "duration": 7.0}, "prefill")],
)  # fmt: skip
def test_without_a_baseline_a_late_first_token_is_attributed_to_the_longest_phase_before_it(
    times: dict[str, float], phase: str
) -> None:
    assert violations(slo(ttft=0.1), request(**times)) == {("ttft", phase): 1}


@pytest.mark.parametrize(
    ("times", "phase"),
    [({}, "decode"), ({"queue": 5.0, "duration": 11.5}, "queue"), ({"prefill": 5.0, "duration": 10.5}, "prefill"),
     ({"duration": 12.0}, "frontend"), ({"queue": 4.0, "duration": 10.5}, "queue")],
)  # fmt: skip
def test_without_a_baseline_a_long_request_is_attributed_to_its_longest_phase(
    times: dict[str, float], phase: str
) -> None:
    assert violations(slo(e2e=0.1), request(**times)) == {("e2e", phase): 1}


def test_slow_tokens_are_attributed_to_decode() -> None:
    assert violations(slo(tpot=0.9), request(queue=5.0, duration=11.5)) == {("tpot", "decode"): 1}
    assert attributed(slo(tpot=1.1), spent(queue=500, decode=40), spent()) == "decode"


def test_each_missed_limit_counts_and_the_request_once() -> None:
    found = counted([slo(ttft=1, tpot=0.5, e2e=7)], request(), request(output_tokens=9))
    assert found["violations"] == {
        ("a", "ttft", "prefill"): 2, ("a", "tpot", "decode"): 1, ("a", "e2e", "decode"): 2,
    }  # fmt: skip
    assert found["requests"] == {("a", "bad"): 2}


@pytest.mark.parametrize("lost", [{"queue": None}, {"prefill": None}, {"queue": math.inf}, {"prefill": -1.0}])
def test_a_miss_with_unknown_phases_has_no_phase(lost: dict[str, Any]) -> None:
    both = slo(ttft=1, e2e=1)
    assert violations(both, request(**lost)) == {("ttft", "unknown"): 1, ("e2e", "unknown"): 1}
    good = request(queue=0.1, prefill=0.1, decode=0.1, duration=0.4)
    assert violations(both, good, request(**lost)) == {("ttft", "unknown"): 1, ("e2e", "unknown"): 1}


def test_more_than_one_batch_counts_like_single_requests() -> None:
    late = spent(queue=10)
    aggregator = collect(facts(), slos=[{"name": "a", "target": 0.9, "e2e": 35}])
    aggregator.add([finished(late, spent(), *[late] * (2 * BATCH_VERDICTS))])
    see = Sight(aggregator)
    assert see.of_engine("vllm_slo_violations_total", slo="a", objective="e2e", phase="decode") == 1
    assert see.of_engine("vllm_slo_violations_total", slo="a", objective="e2e", phase="queue") == 2 * BATCH_VERDICTS
    assert see.of_engine("vllm_slo_requests_total", slo="a", outcome="good") == 1


def test_the_baseline_belongs_to_its_engine_and_ends_with_it() -> None:
    known, late = Facts(MODEL, "0"), finished(spent(queue=10))

    def counts(*records: Any) -> tuple[float | None, float | None]:
        see = Sight(collect(*records, slos=[{"name": "a", "target": 0.9, "e2e": 35}]))
        phases = ("queue", "decode")
        queue, decode = (see.of_engine("vllm_slo_violations_total", slo="a", objective="e2e", phase=p) for p in phases)
        return queue, decode

    assert counts(known, finished(spent()), late) == (1, 0)
    assert counts(known, facts("1"), finished(spent(), engine="1"), late) == (0, 1)
    assert counts(known, finished(spent()), Gone(MODEL, "0"), known, late) == (0, 1)
    assert counts(known, finished(spent()), known, late) == (0, 1)  # started anew
