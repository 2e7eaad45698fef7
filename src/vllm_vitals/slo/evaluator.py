"""Many finished requests judged by every service level objective (SLO) at once.

The axes of arrays are named: S is for the SLOs, N for the requests, 3 for the objectives, in their order.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_vitals._util.labels import UNKNOWN
from vllm_vitals.catalog.metric import Key, Metric
from vllm_vitals.catalog.requests import FINISHED
from vllm_vitals.catalog.slo import COUNTERS, EXCLUDED, OBJECTIVES, REQUESTS, TOKENS, VIOLATIONS
from vllm_vitals.config.settings import Slo
from vllm_vitals.records.request_batch import Floats, Requests, Truths
from vllm_vitals.slo.baseline import BLAMED, POSSIBLE, Usual, blame
from vllm_vitals.slo.times import Times

Counts = dict[Metric[Any], NDArray[Any]]
"""How much to add to each series of a metric: an axis for each of its labels beside the engine's."""

REASONS = {reason: code for code, reason in enumerate(FINISHED.labels[0].values)}
OTHER_REASON = len(REASONS)
OUTCOMES = ("", "good", "bad", "abort", "error", UNKNOWN)
"""What becomes of a request: nothing if an SLO does not cover it; the last three are why it is not judged."""
GOOD, BAD = OUTCOMES.index("good"), OUTCOMES.index("bad")
TOGETHER = 8192
"""Verdicts at a time at most: more take longer each, and ever more memory."""


class Judge:
    """Judges finished requests by some SLOs."""

    def __init__(self, slos: Sequence[Slo]) -> None:
        self._slos = slos
        self.most = max(TOGETHER // len(slos), 1)
        """Requests to be judged at a time at most."""
        self._limits = np.array([[[_limit(slo, name)] for slo in slos] for name in OBJECTIVES])  # 3 x S x 1
        self._limited = np.isfinite(self._limits)
        self._presumed = np.array([[_presumed(slo, reason) for reason in (*REASONS, "")] for slo in slos])
        """Outcome by SLO and finish reason; only what is presumed to be good is judged."""
        ranges = [[slo.prompt_tokens for slo in slos], [slo.output_tokens for slo in slos]]
        self._filtered = any(each for row in ranges for each in row)
        self._ranges = np.array([[each or (None, None) for each in row] for row in ranges], dtype=np.float64)
        """Least and most tokens, NaN for any. 2 x S x 2."""
        self._rows = np.arange(len(slos))[:, None] * len(OUTCOMES)
        self.labels: dict[Metric[Any], list[Key]] = {metric: list(product(*self._axes(metric))) for metric in COUNTERS}
        """Labels of the series that counts belong to, in the order of the flattened counts."""

    def usual(self) -> Usual:
        """Return what an engine's requests usually take, as long as it had none."""
        return Usual(len(self._slos))

    def judge(self, requests: Requests, usual: Usual) -> Counts:
        """Return how much to add up for these requests of one engine, and learn what they `usual`ly take."""
        reasons = np.array([REASONS.get(reason, OTHER_REASON) for reason in requests.reason])  # N
        outcome = self._presumed[:, reasons]  # S x N
        if self._filtered:
            outcome = np.where(self._covers(requests), outcome, 0)
        times = Times(requests, reasons == REASONS["abort"])
        judged = outcome == GOOD
        missed = judged & (times.taken[:, None] > self._limits)  # 3 x S x N
        outcome[judged & (times.unknown[:, None] & self._limited).any(0)] = OUTCOMES.index(UNKNOWN)
        outcome[missed.any(0)] = BAD  # whatever else is not known
        of_each = self._sums(outcome)
        return {
            REQUESTS: of_each[:, GOOD : BAD + 1],
            TOKENS: self._sums(outcome, times.tokens)[:, GOOD : BAD + 1],
            EXCLUDED: of_each[:, BAD + 1 :],
            VIOLATIONS: self._violations(missed, times, outcome == GOOD, usual),
        }

    def series(self, metric: Metric[Any]) -> Iterator[Key]:
        """Yield the labels of every series that a counter can come to have."""
        limits = {slo.name: [name for name in OBJECTIVES if getattr(slo, name) is not None] for slo in self._slos}
        for labels in self.labels[metric]:
            if metric is not VIOLATIONS or (labels[1] in limits[labels[0]] and labels[2] in POSSIBLE[labels[1]]):
                yield labels

    def _axes(self, metric: Metric[Any]) -> Iterator[Sequence[str]]:
        yield [slo.name for slo in self._slos]
        yield from (label.values for label in metric.labels[1:])

    def _covers(self, requests: Requests) -> Truths:
        """Tell which requests have as many tokens as each SLO is about; where that is not known, none is. S x N."""
        tokens = np.stack([requests.input_tokens, requests.output_tokens])[:, None]
        least, most = self._ranges[..., :1], self._ranges[..., 1:]  # 2 x S x 1
        any_number = np.isnan(least) & np.isnan(most)
        within = any_number | (np.isfinite(tokens) & ~(tokens < least) & ~(tokens > most))
        covers: Truths = within[0] & within[1]
        return covers

    def _sums(self, outcome: NDArray[np.intp], each: Floats | None = None) -> NDArray[Any]:
        """Return the number of requests of each outcome, or the sum of what `each` says of them. S x OUTCOMES."""
        weights = None if each is None else np.broadcast_to(each, outcome.shape).ravel()
        sums = np.bincount((outcome + self._rows).ravel(), weights, minlength=self._rows.size * len(OUTCOMES))
        return sums.reshape(-1, len(OUTCOMES))

    def _violations(self, missed: Truths, times: Times, good: Truths, usual: Usual) -> NDArray[Any]:
        shape = (len(self._slos), len(OBJECTIVES), len(BLAMED))
        objective, slo, request = missed.nonzero()
        found = usual.follow(good, times, slo, request)
        if not request.size:
            return np.zeros(shape, dtype=np.intp)
        blamed = blame(found, times.parts.take(request, 1), objective, self._limits[objective, slo, 0])
        places = (slo * len(OBJECTIVES) + objective) * len(BLAMED) + blamed
        return np.bincount(places, minlength=math.prod(shape)).reshape(shape)


def _limit(slo: Slo, objective: str) -> float:
    limit: float | None = getattr(slo, objective)
    return np.inf if limit is None else limit


def _presumed(slo: Slo, reason: str) -> int:
    if slo.finish_reasons is not None and reason not in slo.finish_reasons:
        return 0
    handling = {"abort": slo.aborts, "error": slo.errors}.get(reason, "judge")
    return OUTCOMES.index({"judge": "good", "bad": "bad", "ignore": reason}[handling])
