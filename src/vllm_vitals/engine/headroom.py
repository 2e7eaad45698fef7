"""The headroom of an engine: the needs of its typical request, the trend of its KV cache, and its saturation."""

import math
from collections import deque
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vllm_vitals._util.amounts import clamp
from vllm_vitals.catalog.metric import MAX_LATENCY_SECONDS
from vllm_vitals.records.request_batch import Requests
from vllm_vitals.records.step import Step

Indexes = NDArray[np.intp]

RECENT_REQUESTS = 200.0
"""Averages fade over this many finished requests: older ones count less and less."""
MIN_PREFILL_TOKENS = 32
"""A prefill of fewer computed tokens mostly measures the overhead of a step."""
POINT_INTERVAL = 2.0
"""Seconds between two points of a trend."""
MAX_POINTS = 30
"""Points of a trend at most: it looks back one minute."""
MIN_POINTS = 8
"""Fewer points make no trend."""
MIN_RISING_SHARE = 0.75
"""Share of all pairs of points that must rise for a rising trend."""
MAX_DROP = 0.1
"""A usage below the trend by more than this share of the cache ends the trend, as when many requests leave."""
MAX_FORECAST_SECONDS = 3600.0
"""There is no forecast beyond this time."""
AVERAGING_SECONDS = 30.0
"""Time constant of the averages: what is older than this has a weight of about a third."""
EPSILON = 1e-9
"""A saturation below this is 0 in an idle engine. It would fade for hours, and scaling to zero compares it with 0."""


class TypicalRequest:
    """The average request of an engine's latest finished ones; `None` before the first."""

    def __init__(self) -> None:
        self.uncached_prompt_tokens: float | None = None
        """Prompt tokens that were not cached: the room that a request needs to be admitted."""
        self.total_tokens: float | None = None
        """Prompt and output tokens: the room that a request holds at its end."""

    def update(self, requests: Requests) -> None:
        """Add finished requests to the averages."""
        prompt, output, cached = requests.input_tokens, requests.output_tokens, requests.cached_tokens
        known = (prompt >= 0) & np.isfinite(prompt) & (output > 0) & np.isfinite(output)
        count = int(known.sum())
        if not count:
            return
        reused = np.where(np.isfinite(cached), np.clip(cached, 0, prompt), 0.0)
        weight = 1 - math.exp(-count / RECENT_REQUESTS)
        self.uncached_prompt_tokens = _blend(
            self.uncached_prompt_tokens, float((prompt - reused)[known].mean()), weight
        )
        self.total_tokens = _blend(self.total_tokens, float((prompt + output)[known].mean()), weight)


def _blend(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)


class PrefillSpeed:
    """The time that an engine takes to compute a prompt token, averaged over its latest finished requests."""

    def __init__(self) -> None:
        self.seconds_per_token: float | None = None

    def saved_seconds(self, requests: Requests) -> float:
        """Return the prefill time that cached tokens saved these requests, and add them to the average.

        Only requests with enough prompt tokens left to compute count for the average.
        """
        prompt, cached, prefill = requests.input_tokens, requests.cached_tokens, requests.prefill
        prompt = np.where((prompt >= 0) & np.isfinite(prompt), prompt, 0.0)
        cached = np.where(np.isfinite(cached), np.clip(cached, 0, prompt), 0.0)
        left = prompt - cached
        known = (
            (prefill > 0)
            & (prefill < requests.max_phase)
            & (prefill <= MAX_LATENCY_SECONDS)
            & (left >= MIN_PREFILL_TOKENS)
        )
        if count := int(known.sum()):
            each = float(prefill[known].sum() / left[known].sum())
            self.seconds_per_token = _blend(self.seconds_per_token, each, 1 - math.exp(-count / RECENT_REQUESTS))
        return float(cached.sum()) * (self.seconds_per_token or 0.0)


class Trend:
    """The trend of the KV cache's usage.

    The slope is the median of the slopes between all pairs of points, which outliers do not move.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=MAX_POINTS)
        self._usage = 0.0
        """The latest share in use."""
        self._line: tuple[float, float] | None = None
        """Slope per second, and the usage at clock 0."""
        self._is_fitted = False
        """Whether the line is fitted to the present points."""

    def add(self, clock: float, usage: float) -> None:
        """Add the share in use at `clock`, monotonic seconds; points closer than `POINT_INTERVAL` are skipped."""
        self._usage = usage
        if not self._points or clock - self._points[-1][0] >= POINT_INTERVAL:
            self._points.append((clock, usage))
            self._is_fitted = False

    def seconds_to_full(self, clock: float) -> float | None:
        """Return the seconds from `clock` until the cache is full; `None` if it does not fill."""
        while self._points and clock - self._points[0][0] > MAX_POINTS * POINT_INTERVAL:
            self._points.popleft()
            self._is_fitted = False
        if not self._is_fitted:
            self._line, self._is_fitted = self._fit(), True
        if self._line is None:
            return None
        slope, origin = self._line
        level = origin + slope * clock
        if self._usage < min(level, 1.0) - MAX_DROP:
            return None
        ahead = max(1.0 - level, 0.0) / slope if slope > 0 else math.inf
        return ahead if ahead <= MAX_FORECAST_SECONDS else None

    def _fit(self) -> tuple[float, float] | None:
        """Return the line through the points; `None` if they do not rise together."""
        if len(self._points) < MIN_POINTS:
            return None
        clocks, usages = np.array(self._points).T
        first, second = _pairs(len(clocks))
        slopes = (usages[second] - usages[first]) / (clocks[second] - clocks[first])
        if float((slopes > 0).mean()) < MIN_RISING_SHARE:
            return None
        slope = float(np.median(slopes))
        return slope, float(np.median(usages - slope * clocks))


@lru_cache(maxsize=MAX_POINTS)
def _pairs(count: int) -> tuple[Indexes, Indexes]:
    """Return the indexes of the first and the second item of each pair of `count` items."""
    first, second = np.triu_indices(count, 1)
    return first, second


class Saturation:
    """The nearness of an engine to turning work away, from 0 to 1, averaged over about the last `AVERAGING_SECONDS`.

    At each moment it is 1 while requests wait for room, else the fuller of the batch and the KV cache.
    """

    def __init__(self, clock: float) -> None:
        """`clock`: monotonic seconds of the engine's start."""
        self._average = 0.0
        self._level = 0.0
        self._clock = clock

    def set_level(self, clock: float, level: float) -> None:
        """Set the fill level from `clock` on, monotonic seconds."""
        self._settle(clock)
        self._level = level

    def at(self, clock: float) -> float:
        """Return the saturation at `clock`, monotonic seconds."""
        self._settle(clock)
        return self._average

    def _settle(self, clock: float) -> None:
        if clock > self._clock:
            decay = math.exp((self._clock - clock) / AVERAGING_SECONDS)
            self._average = self._level + (self._average - self._level) * decay
            if not self._level and self._average < EPSILON:
                self._average = 0.0
            self._clock = clock


def fill_level(step: Step, max_num_seqs: int | None, limited_by: str) -> float:
    """Return the fill level of an engine at a step; `limited_by`: the result of `limiter` for it."""
    if limited_by in {"max_num_seqs", "token_budget", "kv_cache"}:
        return 1.0
    batch = clamp((step.running or 0) / max_num_seqs) if max_num_seqs else 0.0
    return max(batch, clamp(step.kv_cache_usage))
