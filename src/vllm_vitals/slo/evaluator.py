"""Judge many finished requests by every service level objective (SLO) at once, and attribute each miss to a phase.

Array axes are named in comments and docstrings:

- S: the SLOs.
- N: the requests.
- M: the limits that were missed.
- 3: the objectives, in the order of `OBJECTIVES`.
- 8: the phases, in the order of `PHASES`, twice: first their seconds, then the sizes that these are proportional to.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_vitals._util.labels import UNKNOWN
from vllm_vitals.catalog.metric import MAX_COUNT, MAX_LATENCY_SECONDS, Key, Metric
from vllm_vitals.catalog.requests import FINISHED, PHASES
from vllm_vitals.catalog.slo import COUNTERS, EXCLUDED, OBJECTIVES, REQUESTS, TOKENS, VIOLATIONS
from vllm_vitals.config.settings import Slo
from vllm_vitals.records.request_batch import Floats, Requests, Truths
from vllm_vitals.records.step import CLOCK_SLACK

Counts = dict[Metric[Any], NDArray[Any]]
"""The amount to add to each series of a metric: one axis for each label beside the engine's."""
Indexes = NDArray[np.intp]

REASONS = {reason: code for code, reason in enumerate(FINISHED.labels[0].values)}
OTHER_REASON = len(REASONS)
OUTCOMES = ("", "good", "bad", "abort", "error", UNKNOWN)
"""The outcomes of a request: the first where the SLO does not cover it; the last three are reasons not to judge it."""
GOOD, BAD = OUTCOMES.index("good"), OUTCOMES.index("bad")
ATTRIBUTIONS = (*PHASES, UNKNOWN)
"""The phases that a miss can be attributed to."""
POSSIBLE = {"ttft": ("queue", "prefill", "frontend", UNKNOWN), "tpot": ("decode",), "e2e": ATTRIBUTIONS}
"""The same, by objective."""
BATCH_VERDICTS = 8192
"""Verdicts in one batch at most: larger batches take longer per verdict, and more memory."""
BASELINE_REQUESTS = 200.0
"""A baseline fades over this many good requests: older ones count less and less."""
MIN_SUM = 1e-300
"""A sum that has faded below this holds no information."""
DIGITS = 9
"""Decimals of a second that are compared: beyond them is rounding."""
PHASE_COUNT = len(PHASES)
DECODE = tuple(PHASES).index("decode")
_TTFT, _TPOT = OBJECTIVES.index("ttft"), OBJECTIVES.index("tpot")
_MAX_VALUES = np.array([[MAX_LATENCY_SECONDS], [MAX_COUNT], [MAX_COUNT]])


class Times:
    """The times that objectives limit, for many finished requests, and the phases and tokens that they consist of."""

    def __init__(self, requests: Requests, aborted: Truths) -> None:
        """`aborted`: which of the requests were aborted. N."""
        reported = np.stack([requests.duration, requests.input_tokens, requests.output_tokens])
        duration, prompt, tokens = _plausible(reported, _MAX_VALUES)
        phases = np.stack([requests.queue, requests.prefill, requests.decode])
        phases = _plausible(phases, duration + CLOCK_SLACK)
        frontend = np.maximum(duration - phases.sum(0), 0.0)
        decode = phases[DECODE]
        tokenless = tokens == 0
        later = np.maximum(tokens - 1.0, 0.0)
        # All but decode came before the first token; the delivery of the last token stands in for that of the first.
        first = np.where(tokenless, np.nan, np.maximum(duration - decode, 0.0))
        each = np.where(later == 0, 0.0, decode / np.maximum(later, 1.0))
        self.measured: Floats = np.stack([first, each, duration])
        """Time to first token, time per output token, duration; NaN where unknown. 3 x N."""
        self.unknown: Truths = np.isnan(self.measured)
        """3 x N."""
        self.tokens: Floats = np.nan_to_num(tokens)
        """Generated tokens, 0 where unknown. N."""
        once = np.ones_like(duration)
        self.parts: Floats = np.vstack([phases, frontend, once, prompt, later, once])
        """Seconds by phase; then, by phase: 1, prompt tokens, tokens after the first, 1. NaN where unknown. 8 x N."""
        # A request aborted before its first token waited at least until then: enough to miss a limit, not to meet it.
        cut_off = aborted & tokenless
        self.measured[0, cut_off] = duration[cut_off]


def _plausible(values: Floats, limit: Floats) -> Floats:
    """Return the values, with NaN in place of impossible ones."""
    return np.where((values >= 0) & (values <= limit), values, np.nan)


class Baseline:
    """The usual length of each phase of one engine's requests, by SLO, over the last `BASELINE_REQUESTS` good ones."""

    def __init__(self, slos: int) -> None:
        """`slos`: the number of SLOs."""
        self._sums = np.zeros((2 * PHASE_COUNT, slos))

    def update(self, good: Truths, times: Times, slo: Indexes, request: Indexes) -> Floats:
        """Learn from requests, in the order in which they ended. Return the sums before each missed limit. 8 x M.

        A good request adds its seconds and sizes after the earlier sums have faded. `good`: S x N. `slo`, `request`:
        the SLO and the request of each missed limit, M. The sums of one M share an arbitrary factor, which cancels
        out in their ratios.
        """
        known = ~np.isnan(times.parts.sum(0))
        amounts = np.where(known, times.parts, 0.0)
        amounts[:PHASE_COUNT] *= amounts[PHASE_COUNT:] > 0  # where there were no tokens they took no time
        learned = good & known
        fading = np.exp(learned.cumsum(1) / -BASELINE_REQUESTS)
        weights = learned / fading
        before, self._sums = self._sums, (self._sums + amounts @ weights.T) * fading[:, -1]
        if not request.size:
            return np.empty((len(amounts), 0))
        added = amounts[:, None] * weights  # 8 x S x N
        added[..., 0] += before
        added.cumsum(2, out=added)
        found: Floats = added.reshape(len(added), -1).take(slo * len(known) + request, 1)
        return found


def attribute(baseline: Floats, parts: Floats, objective: Indexes, limit: Floats) -> Indexes:
    """Return for each missed limit the index in `ATTRIBUTIONS` of the phase that exceeded its usual length most. M.

    `baseline`: the sums that `Baseline.update` returned. `parts`: those of the request's `Times`. 8 x M.
    `objective`: its index. `limit`: its seconds. M.
    """
    usual = baseline[:PHASE_COUNT] / np.maximum(baseline[PHASE_COUNT:], MIN_SUM) * parts[PHASE_COUNT:]
    to_first = objective == _TTFT
    usual[DECODE, to_first] = 0.0
    # A request whose usual length exceeds the limit is late because of its size: its phases share the limit instead.
    usual *= limit / np.maximum(usual.sum(0), limit)
    excess = (parts[:PHASE_COUNT] - usual).round(DIGITS)
    excess[DECODE, to_first] = -np.inf
    attributed = np.where(np.isnan(excess).any(0), ATTRIBUTIONS.index(UNKNOWN), excess.argmax(0))
    attributed[objective == _TPOT] = DECODE
    return attributed


class SloEvaluator:
    """Judges finished requests by some SLOs."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        self._slos = slos
        self.batch_size = max(BATCH_VERDICTS // len(slos), 1)
        """Requests to judge in one call at most."""
        self._limits = np.array([[[_limit(slo, name)] for slo in slos] for name in OBJECTIVES])  # 3 x S x 1
        self._limited = np.isfinite(self._limits)
        self._initial_outcomes = np.array(
            [[_initial_outcome(slo, reason) for reason in (*REASONS, "")] for slo in slos]
        )
        """Outcome by SLO and finish reason; only requests that are good so far are judged."""
        ranges = [[slo.prompt_tokens for slo in slos], [slo.output_tokens for slo in slos]]
        self._filtered = any(each for row in ranges for each in row)
        self._ranges = np.array([[each or (None, None) for each in row] for row in ranges], dtype=np.float64)
        """Least and most tokens, NaN for any. 2 x S x 2."""
        self._rows = np.arange(len(slos))[:, None] * len(OUTCOMES)
        self.labels: dict[Metric[Any], list[Key]] = {metric: list(product(*self._axes(metric))) for metric in COUNTERS}
        """Labels of the series that counts belong to, in the order of the flattened counts."""

    def new_baseline(self) -> Baseline:
        """Return the baseline of an engine that has served no request yet."""
        return Baseline(len(self._slos))

    def evaluate(self, requests: Requests, baseline: Baseline) -> Counts:
        """Return the amounts to add for these requests of one engine, and update its `baseline`."""
        reasons = np.array([REASONS.get(reason, OTHER_REASON) for reason in requests.reason])  # N
        outcome = self._initial_outcomes[:, reasons]  # S x N
        if self._filtered:
            outcome = np.where(self._covers(requests), outcome, 0)
        times = Times(requests, reasons == REASONS["abort"])
        judged = outcome == GOOD
        missed = judged & (times.measured[:, None] > self._limits)  # 3 x S x N
        outcome[judged & (times.unknown[:, None] & self._limited).any(0)] = OUTCOMES.index(UNKNOWN)
        outcome[missed.any(0)] = BAD  # also where another time is unknown
        requests_by_outcome = self._sums(outcome)
        return {
            REQUESTS: requests_by_outcome[:, GOOD : BAD + 1],
            TOKENS: self._sums(outcome, times.tokens)[:, GOOD : BAD + 1],
            EXCLUDED: requests_by_outcome[:, BAD + 1 :],
            VIOLATIONS: self._violations(missed, times, outcome == GOOD, baseline),
        }

    def series(self, metric: Metric[Any]) -> Iterator[Key]:
        """Yield the labels of every series that a counter can have."""
        limits = {slo.name: [name for name in OBJECTIVES if getattr(slo, name) is not None] for slo in self._slos}
        for labels in self.labels[metric]:
            if metric is not VIOLATIONS or (labels[1] in limits[labels[0]] and labels[2] in POSSIBLE[labels[1]]):
                yield labels

    def _axes(self, metric: Metric[Any]) -> Iterator[Sequence[str]]:
        yield [slo.name for slo in self._slos]
        yield from (label.values for label in metric.labels[1:])

    def _covers(self, requests: Requests) -> Truths:
        """Return whether each SLO covers requests of that many tokens; unknown numbers are not covered. S x N."""
        tokens = np.stack([requests.input_tokens, requests.output_tokens])[:, None]
        least, most = self._ranges[..., :1], self._ranges[..., 1:]  # 2 x S x 1
        any_number = np.isnan(least) & np.isnan(most)
        within = any_number | (np.isfinite(tokens) & ~(tokens < least) & ~(tokens > most))
        covers: Truths = within[0] & within[1]
        return covers

    def _sums(self, outcome: NDArray[np.intp], each: Floats | None = None) -> NDArray[Any]:
        """Return the number of requests of each outcome, or the sum of `each` over them. S x OUTCOMES."""
        weights = None if each is None else np.broadcast_to(each, outcome.shape).ravel()
        sums = np.bincount((outcome + self._rows).ravel(), weights, minlength=self._rows.size * len(OUTCOMES))
        return sums.reshape(-1, len(OUTCOMES))

    def _violations(self, missed: Truths, times: Times, good: Truths, baseline: Baseline) -> NDArray[Any]:
        shape = (len(self._slos), len(OBJECTIVES), len(ATTRIBUTIONS))
        objective, slo, request = missed.nonzero()
        found = baseline.update(good, times, slo, request)
        if not request.size:
            return np.zeros(shape, dtype=np.intp)
        attributed = attribute(found, times.parts.take(request, 1), objective, self._limits[objective, slo, 0])
        indexes = (slo * len(OBJECTIVES) + objective) * len(ATTRIBUTIONS) + attributed
        return np.bincount(indexes, minlength=math.prod(shape)).reshape(shape)


def _limit(slo: Slo, objective: str) -> float:
    limit: float | None = getattr(slo, objective)
    return np.inf if limit is None else limit


def _initial_outcome(slo: Slo, reason: str) -> int:
    if slo.finish_reasons is not None and reason not in slo.finish_reasons:
        return 0
    handling = {"abort": slo.aborts, "error": slo.errors}.get(reason, "judge")
    return OUTCOMES.index({"judge": "good", "bad": "bad", "ignore": reason}[handling])
