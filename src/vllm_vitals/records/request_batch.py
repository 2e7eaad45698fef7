"""Many finished requests at once, by column, so that numpy does the work."""

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from vllm_vitals.records.step import CLOCK_SLACK, Finished

Floats = NDArray[np.float64]
Truths = NDArray[np.bool_]


class Requests:
    """Finished requests: each numeric field of `Finished` as an array, NaN where vLLM did not report it."""

    duration: Floats
    queue: Floats
    prefill: Floats
    decode: Floats
    inference: Floats
    time_per_output_token: Floats
    input_tokens: Floats
    output_tokens: Floats
    cached_tokens: Floats
    max_tokens: Floats
    preemptions: Floats

    def __init__(self, requests: Sequence[Finished]) -> None:
        self.requests = requests
        self.reason = [request.reason for request in requests]

    def __getattr__(self, name: str) -> Floats:
        """Make a column at its first use."""
        if name not in type(self).__annotations__:
            raise AttributeError(name)
        column = _column(list(map(attrgetter(name), self.requests)))
        setattr(self, name, column)
        return column

    @property
    def max_phase(self) -> Floats:
        """Return the largest possible length of a phase of each request, in seconds."""
        return self.duration + CLOCK_SLACK

    def ended(self, *reasons: str) -> Truths:
        """Return which requests ended for one of these reasons."""
        return np.array([reason in reasons for reason in self.reason], dtype=np.bool_)


def _column(values: Sequence[float | None]) -> Floats:
    column = np.array(values, dtype=np.float64)  # `None` becomes NaN
    unknown = np.isnan(column)
    if unknown.any():  # NaN from vLLM is rejected and counted, unlike a missing value
        column[unknown & np.array([value is not None for value in values])] = np.inf
    return column
