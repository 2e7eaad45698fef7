"""What the phases of a request usually take, and which of them is to blame for a limit that was missed.

The axes of arrays are named: S is for the SLOs, N for the requests, M for the limits that were missed,
8 for the phases, in their order, twice over: their seconds, and then what these are in proportion to.
"""

import numpy as np
from numpy.typing import NDArray

from vllm_vitals._util.labels import UNKNOWN
from vllm_vitals.catalog.requests import PHASES
from vllm_vitals.catalog.slo import OBJECTIVES
from vllm_vitals.engine.headroom import REMEMBERED
from vllm_vitals.records.request_batch import Floats, Truths
from vllm_vitals.slo.times import DECODE, Times

Indexes = NDArray[np.intp]

BLAMED = (*PHASES, UNKNOWN)
"""What can be to blame."""
POSSIBLE = {"ttft": ("queue", "prefill", "frontend", UNKNOWN), "tpot": ("decode",), "e2e": BLAMED}
"""The same, by objective."""
FAINT = 1e-300
"""A sum that has faded below this tells nothing any more."""
DIGITS = 9
"""Decimals of a second beyond which two phases are equal: what is left is rounding."""
PHASE_COUNT = len(PHASES)
_TTFT, _TPOT = OBJECTIVES.index("ttft"), OBJECTIVES.index("tpot")


class Usual:
    """What the phases of one engine's requests usually take: for each SLO, in about the last `REMEMBERED` good ones."""

    def __init__(self, slos: int) -> None:
        """`slos`: how many there are."""
        self._sums = np.zeros((2 * PHASE_COUNT, slos))

    def follow(self, good: Truths, times: Times, slo: Indexes, request: Indexes) -> Floats:
        """Learn from requests in the order in which they ended, and return what some of them found for some SLO. 8 x M.

        A good one adds its seconds and their lengths, after what is there has faded. `good`: S x N. `slo`, `request`: M.
        What is returned are sums that share a factor, for each M its own.
        """
        known = ~np.isnan(times.parts.sum(0))
        amounts = np.where(known, times.parts, 0.0)
        amounts[:PHASE_COUNT] *= amounts[PHASE_COUNT:] > 0  # where there were no tokens they took no time
        learned = good & known
        fading = np.exp(learned.cumsum(1) / -REMEMBERED)
        weights = learned / fading
        before, self._sums = self._sums, (self._sums + amounts @ weights.T) * fading[:, -1]
        if not request.size:
            return np.empty((len(amounts), 0))
        added = amounts[:, None] * weights  # 8 x S x N
        added[..., 0] += before
        added.cumsum(2, out=added)
        found: Floats = added.reshape(len(added), -1).take(slo * len(known) + request, 1)
        return found


def blame(found: Floats, parts: Floats, objective: Indexes, limit: Floats) -> Indexes:
    """Return the place in `BLAMED` of the phase that went most beyond what it usually takes, for limits missed. M.

    `found`: what `follow` returned. `parts`: those of the request's `Times`. 8 x M.
    `objective`: its place. `limit`: its seconds. M.
    """
    usual = found[:PHASE_COUNT] / np.maximum(found[PHASE_COUNT:], FAINT) * parts[PHASE_COUNT:]
    to_first = objective == _TTFT
    usual[DECODE, to_first] = 0.0
    # What is too long for the limit even when all goes as usual is late for its length, in the phases that this is of.
    usual *= limit / np.maximum(usual.sum(0), limit)
    excess = (parts[:PHASE_COUNT] - usual).round(DIGITS)
    excess[DECODE, to_first] = -np.inf
    blamed = np.where(np.isnan(excess).any(0), BLAMED.index(UNKNOWN), excess.argmax(0))
    blamed[objective == _TPOT] = DECODE
    return blamed
