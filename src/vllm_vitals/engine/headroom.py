"""How much more an engine can take: what its requests typically need, how full it gets, how saturated it is."""

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
MANY_TOKENS = 32
"""Tokens computed of a prompt without which its prefill does not tell the speed of one."""
SPACING = 2.0
"""Seconds between two points of a trend."""
POINTS = 30
"""Points that a trend is made of at most: it looks back a minute."""
FEWEST = 8
"""Points without which there is no trend."""
AGREEING = 0.75
"""Share of all pairs of points that must rise before a trend is believed to."""
DEPARTED = 0.1
"""Share of the cache by which the present lies below the trend when that has ended, as where many requests left."""
FARTHEST = 3600.0
"""Seconds ahead beyond which nothing is foretold."""
MEMORY = 30.0
"""Seconds after which the past counts for a third in the saturation."""
FAINT = 1e-9
"""A saturation below which an idle engine has none: it would fade for six hours, and who scales to zero asks whether it is above 0."""


class Typical:
    """The tokens of an engine's latest finished requests, averaged; `None` before the first."""

    def __init__(self) -> None:
        self.prompt: float | None = None
        """Prompt tokens that were not cached: what a request needs to be let in."""
        self.length: float | None = None
        """Prompt and output tokens: what a request holds at its end."""

    def learn(self, requests: Requests) -> None:
        """Take finished requests into account."""
        given, made, cached = requests.input_tokens, requests.output_tokens, requests.cached_tokens
        known = (given >= 0) & np.isfinite(given) & (made > 0) & np.isfinite(made)
        count = int(known.sum())
        if not count:
            return
        reused = np.where(np.isfinite(cached), np.clip(cached, 0, given), 0.0)
        weight = 1 - math.exp(-count / RECENT_REQUESTS)
        self.prompt = _blend(self.prompt, float((given - reused)[known].mean()), weight)
        self.length = _blend(self.length, float((given + made)[known].mean()), weight)


def _blend(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)


class Prefill:
    """How long the engine takes to compute a prompt token, of its latest finished requests."""

    def __init__(self) -> None:
        self.seconds_per_token: float | None = None

    def saved(self, requests: Requests) -> float:
        """Return the seconds of prefill that cached tokens spared these requests, and learn from them.

        A request counts by what was left to compute of its prompt: few tokens say more of the overhead of a step.
        """
        given, cached, prefill = requests.input_tokens, requests.cached_tokens, requests.prefill
        given = np.where((given >= 0) & np.isfinite(given), given, 0.0)
        cached = np.where(np.isfinite(cached), np.clip(cached, 0, given), 0.0)
        left = given - cached
        known = (prefill > 0) & (prefill < requests.most) & (prefill <= MAX_LATENCY_SECONDS) & (left >= MANY_TOKENS)
        if count := int(known.sum()):
            each = float(prefill[known].sum() / left[known].sum())
            self.seconds_per_token = _blend(self.seconds_per_token, each, 1 - math.exp(-count / RECENT_REQUESTS))
        return float(cached.sum()) * (self.seconds_per_token or 0.0)


class Trend:
    """Where the use of the KV cache is heading.

    The slope is the median of the slopes between all pairs of points, which a few wild ones do not move.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=POINTS)
        self._usage = 0.0
        """The latest share in use."""
        self._line: tuple[float, float] | None = None
        """Slope of the points, per second, and where it was at the clock's 0."""
        self._drawn = False
        """Whether that is so of the present points."""

    def add(self, clock: float, usage: float) -> None:
        """Take note of the share in use at `clock`, monotonic seconds; what follows within `SPACING` is passed over."""
        self._usage = usage
        if not self._points or clock - self._points[-1][0] >= SPACING:
            self._points.append((clock, usage))
            self._drawn = False

    def seconds_to_full(self, clock: float) -> float | None:
        """Return the seconds from `clock` until all is in use, `None` when that is not where it is heading."""
        while self._points and clock - self._points[0][0] > POINTS * SPACING:
            self._points.popleft()
            self._drawn = False
        if not self._drawn:
            self._line, self._drawn = self._draw(), True
        if self._line is None:
            return None
        slope, origin = self._line
        level = origin + slope * clock
        if self._usage < min(level, 1.0) - DEPARTED:
            return None
        ahead = max(1.0 - level, 0.0) / slope if slope > 0 else math.inf
        return ahead if ahead <= FARTHEST else None

    def _draw(self) -> tuple[float, float] | None:
        """Return the line through the points, `None` if they do not rise together."""
        if len(self._points) < FEWEST:
            return None
        clocks, usages = np.array(self._points).T
        first, second = _pairs(len(clocks))
        slopes = (usages[second] - usages[first]) / (clocks[second] - clocks[first])
        if float((slopes > 0).mean()) < AGREEING:
            return None
        slope = float(np.median(slopes))
        return slope, float(np.median(usages - slope * clocks))


@lru_cache(maxsize=POINTS)
def _pairs(count: int) -> tuple[Indexes, Indexes]:
    """Return the first and the second of each pair of so many things."""
    first, second = np.triu_indices(count, 1)
    return first, second


class Saturation:
    """How near an engine is to turning work away, 0 to 1, averaged over about the last `MEMORY` seconds.

    At each moment it is 1 while requests wait for room, else the fuller of the batch and the KV cache.
    """

    def __init__(self, clock: float) -> None:
        """`clock`: monotonic seconds of the engine's start."""
        self._average = 0.0
        self._now = 0.0
        self._since = clock

    def step(self, clock: float, level: float) -> None:
        """Take note of how full the engine is from `clock` on, monotonic seconds."""
        self._settle(clock)
        self._now = level

    def at(self, clock: float) -> float:
        """Return the saturation at `clock`, monotonic seconds."""
        self._settle(clock)
        return self._average

    def _settle(self, clock: float) -> None:
        if clock > self._since:
            self._average = self._now + (self._average - self._now) * math.exp((self._since - clock) / MEMORY)
            if not self._now and self._average < FAINT:
                self._average = 0.0
            self._since = clock


def level(step: Step, most: int | None, limited: str) -> float:
    """Return how full an engine is at a step; `most` is max_num_seqs, `limited` what kept requests out of its batch."""
    if limited in {"max_num_seqs", "token_budget", "kv_cache"}:
        return 1.0
    batch = clamp((step.running or 0) / most) if most else 0.0
    return max(batch, clamp(step.kv_cache_usage))
