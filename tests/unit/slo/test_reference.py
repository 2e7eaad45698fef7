"""What SLOs count, against a judge that looks at one request at a time."""

import math
from collections import Counter as Tally
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals.catalog.requests import PHASES
from vllm_vitals.catalog.slo import COUNTERS, EXCLUDED, OBJECTIVES, REQUESTS, TOKENS, VIOLATIONS
from vllm_vitals.config.settings import Slo
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.records.step import Finished
from vllm_vitals.slo.evaluator import SloEvaluator


def known(value: float | None, most: float = 7 * 86400.0) -> float | None:
    return value if value is not None and 0 <= value <= most else None


class Before:
    """What the phases of good requests took so far, and what that is in proportion to."""

    def __init__(self) -> None:
        self.seconds, self.lengths = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)

    def learn(self, each: Finished) -> None:
        told = {phase: (split(each)[phase], length) for phase, length in measured(each).items()}
        if any(None in pair for pair in told.values()):
            return
        for phase, (seconds, length) in told.items():
            self.seconds[phase] = self.seconds[phase] * math.exp(-1 / 200) + (seconds or 0.0 if length else 0.0)
            self.lengths[phase] = self.lengths[phase] * math.exp(-1 / 200) + (length or 0)

    def of(self, each: Finished) -> dict[str, float]:
        usual = {}
        for phase, length in measured(each).items():
            pace = self.seconds[phase] / self.lengths[phase] if self.lengths[phase] else 0.0
            usual[phase] = math.nan if length is None else pace * length
        return usual


def split(each: Finished) -> dict[str, float | None]:
    """Return the seconds that each phase took."""
    duration = known(each.duration)
    longest = -1.0 if duration is None else duration + 1.0
    phases = {name: known(getattr(each, name), longest) for name in ("queue", "prefill", "decode")}
    parts = list(phases.values())
    phases["frontend"] = None if duration is None or None in parts else max(duration - sum(filter(None, parts)), 0.0)
    return phases


def measured(each: Finished) -> dict[str, float | None]:
    """Return what the seconds of each phase are in proportion to."""
    after_first = None if each.output_tokens is None else max(each.output_tokens - 1, 0)
    return {"queue": 1, "prefill": each.input_tokens, "decode": after_first, "frontend": 1}


def reference(slo: Slo, each: Finished, usual: Before) -> Tally[Any]:
    """Judge one request as the page says it."""
    counts: Tally[Any] = Tally()
    for limits, tokens in ((slo.prompt_tokens, each.input_tokens), (slo.output_tokens, each.output_tokens)):
        least, most = limits or (None, None)
        if (least, most) != (None, None) and (
            tokens is None or (least is not None and tokens < least) or (most is not None and tokens > most)
        ):
            return counts
    if slo.finish_reasons is not None and each.reason not in slo.finish_reasons:
        return counts
    handling = {"error": slo.errors, "abort": slo.aborts}.get(each.reason, "judge")
    if handling == "ignore":
        counts[EXCLUDED, each.reason] += 1
        return counts
    missed, unclear = measure(slo, each, usual) if handling == "judge" else ([], False)
    outcome = "bad" if missed or handling == "bad" else "good"
    if unclear and not missed:
        counts[EXCLUDED, "unknown"] += 1
        return counts
    if outcome == "good":
        usual.learn(each)
    counts[REQUESTS, outcome] += 1
    counts[TOKENS, outcome] += each.output_tokens or 0
    counts.update((VIOLATIONS, *miss) for miss in missed)
    return counts


def measure(slo: Slo, each: Finished, usual: Before) -> tuple[list[tuple[str, str]], bool]:
    """Return the limits that a request missed, each with the phase, and whether another could not be judged."""
    duration, phases = known(each.duration), split(each)
    missed, unclear = [], False
    for objective in OBJECTIVES:
        limit = getattr(slo, objective)
        if limit is None:
            continue
        taken, at_least = take(objective, each, duration, phases["decode"])
        if taken is not None and taken > limit:
            missed.append((objective, attribute(objective, limit, phases, usual.of(each))))
        elif taken is None or at_least:
            unclear = True
    return missed, unclear


def take(objective: str, each: Finished, duration: float | None, decode: float | None) -> tuple[float | None, bool]:
    """Return the seconds that an objective is about, and whether it may have been more."""
    tokens = each.output_tokens
    if objective == "e2e":
        return duration, False
    if objective == "tpot":
        if tokens is None or (tokens > 1 and decode is None):
            return None, False
        return (decode or 0.0) / (tokens - 1) if tokens > 1 else 0.0, False
    if tokens == 0:
        return (duration if each.reason == "abort" else None), True
    return (None if duration is None or decode is None else max(duration - decode, 0.0)), False


def attribute(objective: str, limit: float, phases: dict[str, float | None], usual: dict[str, float]) -> str:
    if objective == "tpot":
        return "decode"
    if phases["frontend"] is None:
        return "unknown"
    names = [name for name in phases if objective == "e2e" or name != "decode"]
    whole = sum(usual[name] for name in names)
    if math.isnan(whole):
        return "unknown"
    scale = limit / whole if whole > limit else 1.0
    return max(names, key=lambda name: round((phases[name] or 0.0) - usual[name] * scale, 9))


few = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 3.0])
times = st.none() | few | st.sampled_from([-1.0, math.inf, 1e9])
tokens = st.none() | st.integers(0, 4)
requests = st.builds(
    Finished, st.sampled_from(["stop", "length", "abort", "error", "odd"]), duration=times | few.map(lambda s: s * 3),
    queue=times, prefill=times, decode=times, input_tokens=tokens, output_tokens=tokens,
)  # fmt: skip
limits = st.none() | st.sampled_from([0.5, 1.0, 2.0])
ranges = st.none() | st.tuples(st.none() | st.integers(0, 2), st.none() | st.integers(2, 4))
slos = st.lists(
    st.fixed_dictionaries(
        {"target": st.just(0.9), "ttft": limits, "tpot": limits, "e2e": limits, "prompt_tokens": ranges,
         "output_tokens": ranges, "errors": st.sampled_from(["bad", "ignore"]),
         "finish_reasons": st.none() | st.lists(st.sampled_from(["stop", "abort", "error"]), min_size=1),
         "aborts": st.sampled_from(["ignore", "bad", "judge"])}
    ).filter(lambda fields: any(fields[objective] for objective in OBJECTIVES)),
    min_size=1, max_size=4,
).map(lambda all_: [Slo(name=f"s{number}", **fields) for number, fields in enumerate(all_)])  # fmt: skip


@given(slos, st.lists(requests, min_size=1, max_size=12), st.sets(st.integers(1, 11)))
@examples(600)
def test_many_at_once_are_judged_as_one_at_a_time(slos: list[Slo], requests: list[Finished], cuts: set[int]) -> None:
    expected: Tally[Any] = Tally()
    for each in slos:
        usual = Before()
        for one in requests:
            expected.update({(metric, each.name, *own): n for (metric, *own), n in reference(each, one, usual).items()})
    evaluator = SloEvaluator(slos)
    baseline = evaluator.new_baseline()
    series = {metric: set(evaluator.series(metric)) for metric in COUNTERS}
    found: Tally[Any] = Tally()
    for first, end in pairwise([0, *sorted(cut for cut in cuts if cut < len(requests)), len(requests)]):
        got = evaluator.evaluate(Requests(requests[first:end]), baseline)
        for metric in COUNTERS:
            for labels, count in zip(evaluator.labels[metric], got[metric].ravel().tolist(), strict=True):
                if count:
                    found[(metric, *labels)] += count
                    assert labels in series[metric], "it was not there from the start"
    assert found == {key: count for key, count in expected.items() if count}
