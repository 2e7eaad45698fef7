"""What service level objectives limit, of many finished requests at once.

The axes of arrays are named: 3 is for the objectives, in their order, N for the requests.
"""

import numpy as np
from numpy.typing import NDArray

from vllm_vitals.catalog.metric import LONGEST, MOST
from vllm_vitals.catalog.requests import PHASES
from vllm_vitals.catalog.slo import UNKNOWN
from vllm_vitals.columns import Floats, Requests, Truths
from vllm_vitals.step import CLOCK_SLACK

BLAMED = (*PHASES, UNKNOWN)
"""What a time can have gone into."""
DECODE = BLAMED.index("decode")


class Times:
    """What objectives limit, of each finished request, in seconds."""

    def __init__(self, requests: Requests, aborted: Truths) -> None:
        """`aborted`: which of the requests were aborted. N."""
        duration = _believed(requests.duration, LONGEST)
        phases = np.stack([requests.queue, requests.prefill, requests.decode])
        self._duration = duration
        self._phases = _believed(phases, duration + CLOCK_SLACK)
        decode = self._phases[DECODE]
        tokens = _believed(requests.output_tokens, MOST)
        tokenless = tokens == 0
        # What is not decode came before the first token; the delivery of the last stands in for that of the first.
        first = np.where(tokenless, np.nan, np.maximum(duration - decode, 0.0))
        each = np.where(tokens < 2, 0.0, decode / np.maximum(tokens - 1, 1.0))  # noqa: PLR2004 - none after the first
        self.taken: Floats = np.stack([first, each, duration])
        """Time to first token, time per output token, duration; NaN where it is not known. 3 x N."""
        self.unknown: Truths = np.isnan(self.taken)
        """3 x N."""
        self.tokens: Floats = np.nan_to_num(tokens)
        """Tokens generated, 0 where that is not known. N."""
        # Who was cut off before the first token waited at least until then: enough to miss a limit, not to meet it.
        cut_off = aborted & tokenless
        self.taken[0, cut_off] = duration[cut_off]

    def blamed(self) -> NDArray[np.intp]:
        """Return the place in `BLAMED` of the phase that took most of each time. 3 x N."""
        frontend = np.maximum(self._duration - self._phases.sum(0), 0.0)
        shares = np.vstack([self._phases, frontend])
        of_all = shares.argmax(0)
        shares[DECODE] = -1.0  # it comes after the first token
        blamed = np.stack([shares.argmax(0), np.full_like(of_all, DECODE), of_all])
        blamed[::2, np.isnan(frontend)] = BLAMED.index(UNKNOWN)
        return blamed


def _believed(values: Floats, most: Floats | float) -> Floats:
    """Return values with NaN in place of what cannot be true."""
    return np.where((values >= 0) & (values <= most), values, np.nan)
