"""What service level objectives limit, of many finished requests at once.

The axes of arrays are named: 3 is for the objectives, in their order, N for the requests, 8 for the phases, in theirs,
twice over: their seconds, and then what these are in proportion to.
"""

import numpy as np

from vllm_vitals.catalog.metric import LONGEST, MOST
from vllm_vitals.catalog.requests import PHASES
from vllm_vitals.records.request_batch import Floats, Requests, Truths
from vllm_vitals.records.step import CLOCK_SLACK

DECODE = tuple(PHASES).index("decode")

_MOST = np.array([[LONGEST], [MOST], [MOST]])


class Times:
    """What objectives limit, of each finished request, in seconds, and what that went into."""

    def __init__(self, requests: Requests, aborted: Truths) -> None:
        """`aborted`: which of the requests were aborted. N."""
        told = np.stack([requests.duration, requests.input_tokens, requests.output_tokens])
        duration, prompt, tokens = _believed(told, _MOST)
        phases = np.stack([requests.queue, requests.prefill, requests.decode])
        phases = _believed(phases, duration + CLOCK_SLACK)
        frontend = np.maximum(duration - phases.sum(0), 0.0)
        decode = phases[DECODE]
        tokenless = tokens == 0
        later = np.maximum(tokens - 1.0, 0.0)
        # What is not decode came before the first token; the delivery of the last stands in for that of the first.
        first = np.where(tokenless, np.nan, np.maximum(duration - decode, 0.0))
        each = np.where(later == 0, 0.0, decode / np.maximum(later, 1.0))
        self.taken: Floats = np.stack([first, each, duration])
        """Time to first token, time per output token, duration; NaN where it is not known. 3 x N."""
        self.unknown: Truths = np.isnan(self.taken)
        """3 x N."""
        self.tokens: Floats = np.nan_to_num(tokens)
        """Tokens generated, 0 where that is not known. N."""
        once = np.ones_like(duration)
        self.parts: Floats = np.vstack([phases, frontend, once, prompt, later, once])
        """Seconds in each phase; then, by phase: 1, prompt tokens, tokens after the first, 1. NaN where not known. 8 x N."""
        # Who was cut off before the first token waited at least until then: enough to miss a limit, not to meet it.
        cut_off = aborted & tokenless
        self.taken[0, cut_off] = duration[cut_off]


def _believed(values: Floats, most: Floats) -> Floats:
    """Return values with NaN in place of what cannot be true."""
    return np.where((values >= 0) & (values <= most), values, np.nan)
