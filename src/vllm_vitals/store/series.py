"""The state of one series: a number, or a histogram that is filled in bulk, with explicit or exponential buckets."""

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vllm_vitals._util.amounts import LARGEST

MAX_PENDING = 16384
"""Values that a histogram keeps before it sorts them into buckets. A read sorts them in any case."""

MAX_PENDING_REPEATED = 256
"""The same, for values that come many times each."""

MIN_BULK = 24
"""From this many values on, comparing them all at once is faster."""

MAX_BUCKETS = 160
MAX_SCALE = 20
MIN_SCALE = -10

Rejects = Counter[tuple[str, str]]
"""Number of rejected values by metric name and reason."""


class Exponential:
    """A base-2 exponential histogram, filled in bulk: the scale follows the data.

    It counts positive values by bucket index at `scale`; bucket i holds (2^(i/2^scale), 2^((i+1)/2^scale)]. `counts[0]`
    belongs to bucket `offset`. Zeros have a count of their own.
    """

    __slots__ = ("counts", "offset", "scale", "zeros")

    def __init__(
        self, scale: int = MAX_SCALE, offset: int = 0, counts: NDArray[np.int64] | None = None, zeros: int = 0
    ) -> None:
        self.scale = scale
        self.offset = offset
        self.counts = np.zeros(0, dtype=np.int64) if counts is None else counts
        self.zeros = zeros

    def add(self, values: NDArray[np.float64], times: NDArray[np.int64] | None = None) -> None:
        """Add values, none of them negative or infinite; `times`: the number of each value, if not one."""
        above = values > 0
        positive, weights = values[above], None if times is None else times[above]
        self.zeros += len(values) - len(positive) if times is None else int(times[~above].sum())
        if not positive.size:
            return
        logs = np.log2(positive)
        self._make_room(float(logs.min()), float(logs.max()))
        indexes = np.ceil(np.ldexp(logs, self.scale)).astype(np.int64) - 1
        low, high = int(indexes.min()), int(indexes.max())
        if self.counts.size:
            low, high = min(low, self.offset), max(high, self.offset + len(self.counts) - 1)
        grown = np.zeros(high - low + 1, dtype=np.int64)
        grown[self.offset - low : self.offset - low + len(self.counts)] = self.counts
        grown += np.bincount(indexes - low, weights, len(grown)).astype(np.int64)
        self.offset, self.counts = low, grown

    def _make_room(self, least: float, greatest: float) -> None:
        """Lower the scale until the present counts and new values within these base-2 logarithms fit."""
        scale = self.scale
        while scale > MIN_SCALE:
            shift = self.scale - scale
            low, high = _index(least, scale), _index(greatest, scale)
            if self.counts.size:
                low = min(low, self.offset >> shift)
                high = max(high, (self.offset + len(self.counts) - 1) >> shift)
            if high - low < MAX_BUCKETS:
                break
            scale -= 1
        coarser = self.at(scale)
        self.scale, self.offset, self.counts = scale, coarser.offset, coarser.counts

    def at(self, scale: int) -> "Exponential":
        """Return a copy at the same or a coarser scale."""
        shift = self.scale - scale
        if not shift or not self.counts.size:
            return Exponential(scale, self.offset >> shift, self.counts.copy(), self.zeros)
        indexes = np.arange(self.offset, self.offset + len(self.counts)) >> shift
        low = int(indexes[0])
        merged = np.bincount(indexes - low, weights=self.counts).astype(np.int64)
        return Exponential(scale, low, merged, self.zeros)

    def since(self, earlier: "Exponential") -> "Exponential":
        """Return the values added after an earlier state of the same histogram."""
        before = earlier.at(self.scale)
        counts = self.counts.copy()
        if before.counts.size:
            start = before.offset - self.offset
            counts[start : start + len(before.counts)] -= before.counts
        return Exponential(self.scale, self.offset, counts, self.zeros - before.zeros)

    def copy(self) -> "Exponential":
        """Return a copy that does not change any more."""
        return self.at(self.scale)


def _index(log: float, scale: int) -> int:
    return int(np.ceil(np.ldexp(log, scale))) - 1


class Exemplar(NamedTuple):
    """The value of one request, shown beside the bucket that it fell into."""

    request_id: str
    value: float
    time: float


class Reading(NamedTuple):
    """The content of a cell at one moment. A histogram has counts by bucket, not cumulated, and exemplars."""

    version: int
    value: float
    counts: Sequence[int] = ()
    exemplars: Mapping[int, Exemplar] = {}
    exponential: Exponential | None = None
    least: float = math.inf
    greatest: float = -math.inf


def rejection_reason(value: float, limit: float) -> str:
    """Return the reason why a value is impossible; `""` if it is possible."""
    try:
        if not math.isfinite(value):
            return "not_finite"
    except OverflowError:  # a whole number beyond what a float can hold
        return "absurd" if value > 0 else "negative"
    if value < 0:
        return "negative"
    return "absurd" if value > limit else ""


class NumberCell:
    """A counter's sum, or a gauge's latest value with its Unix time."""

    __slots__ = ("_limit", "_metric", "_rejects", "time", "value", "version")

    def __init__(self, metric: str, limit: float, rejects: Rejects) -> None:
        self.value = 0.0
        self.time = 0.0
        self.version = 0
        self._metric = metric
        self._limit = limit
        self._rejects = rejects

    def add(self, *values: float) -> None:
        """Add to a counter. Impossible values, and values that the sum cannot hold, are rejected and counted."""
        try:
            total = self.value + sum(values)
        except OverflowError:  # a whole number beyond what a float can hold
            total = math.inf
        if 0 <= min(values) <= max(values) <= self._limit and total < math.inf:
            if total != self.value:
                self.value = total
                self.version += 1
        else:
            self._add_each(values, self._limit)

    def _add_each(self, values: Iterable[float], limit: float) -> None:
        for value in values:
            reason = rejection_reason(value, limit)
            if reason or self.value + value == math.inf:
                self._rejects[self._metric, reason or "absurd"] += 1
            elif value:
                self.value += value
                self.version += 1

    def set(self, value: float, time: float) -> None:
        """Set a gauge. An impossible value is rejected and counted."""
        if 0 <= value <= self._limit:
            self.time = time
            if value != self.value:
                self.value = float(value)
                self.version += 1
        else:
            self._rejects[self._metric, rejection_reason(value, self._limit)] += 1

    def merge(self, more: float) -> None:
        """Add the growth of another counter, over a time so long that the limit of one step does not apply."""
        self._add_each((more,), math.inf)

    def read(self) -> Reading:
        """Return the content."""
        return Reading(self.version, self.value)


class HistogramCell:
    """Bucket counts over ascending upper bounds (`counts` has one more, for +Inf), sum, minimum and maximum."""

    __slots__ = (
        "_counts",
        "_limit",
        "_max_value",
        "_metric",
        "_pending",
        "_rejects",
        "_repeated",
        "bounds",
        "exemplars",
        "exponential",
        "greatest",
        "least",
        "total",
        "version",
    )

    def __init__(
        self,
        metric: str,
        limit: float,
        rejects: Rejects,
        bounds: tuple[float, ...],
        *,
        exponential: bool = False,
    ) -> None:
        self.bounds = bounds
        self.exponential = Exponential() if exponential else None
        """The same values in base-2 exponential buckets, where enabled."""
        self.total = 0.0
        self.least = math.inf
        self.greatest = -math.inf
        self.version = 0
        self.exemplars: dict[int, Exemplar] = {}
        self._counts = [0] * (len(bounds) + 1)
        self._pending = array("d")
        self._repeated: list[tuple[float, int]] = []
        self._metric = metric
        self._limit = limit
        self._max_value = limit
        self._rejects = rejects

    def observe(self, value: float) -> None:
        """Add one value. It is checked and sorted later, in bulk."""
        self.extend((value,))

    def extend(self, values: Iterable[float], max_value: float | None = None, times: int = 1) -> None:
        """Add values, each so many `times`; they are checked and sorted later. `max_value`: the largest possible."""
        if max_value is not None:
            self._max_value = min(self._limit, max_value)  # in this order, so that NaN is no limit
        if times != 1:
            self._repeat(values, times)
            return
        before = len(self._pending)
        if isinstance(values, np.ndarray):
            self._pending.frombytes(values.tobytes())
        else:
            self._pending.extend(values)
        self.version += len(self._pending) > before
        if len(self._pending) >= MAX_PENDING:
            self.settle()

    def _repeat(self, values: Iterable[float], times: int) -> None:
        self._repeated += ((value, times) for value in values)
        self.version += 1
        if len(self._repeated) >= MAX_PENDING_REPEATED:
            self._settle_repeated()

    def merge(self, counts: Sequence[int], total: float) -> None:
        """Add the counts of another histogram of the same bounds, whose single values are unknown."""
        self.exponential = None  # these counts cannot give it
        if reason := rejection_reason(self.total + total, math.inf) or rejection_reason(min(counts), math.inf):
            self._rejects[self._metric, reason] += 1
        elif total or any(counts):
            self._counts = [own + more for own, more in zip(self._counts, counts, strict=True)]
            self.total += total
            self.version += 1

    def attach(self, exemplar: Exemplar) -> None:
        """Keep the latest exemplar of a bucket."""
        if not rejection_reason(exemplar.value, self._max_value):
            self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def settle(self) -> None:
        """Sort the pending values into the buckets. Impossible values are rejected and counted."""
        self._settle_repeated()
        if not self._pending:
            return
        pending, self._pending = self._pending, array("d")
        values = np.frombuffer(pending, dtype=np.float64)
        least, greatest = float(values.min()), float(values.max())
        # Also true if a value is NaN, or if the sum may overflow.
        if not (least >= 0 and greatest <= self._max_value and self.total + greatest * len(values) < math.inf):
            values = self._possible(values)
            if not values.size:
                return
            least, greatest = float(values.min()), float(values.max())
        self.total = min(self.total + float(values.sum()), LARGEST)
        self.least = min(self.least, least)
        self.greatest = max(self.greatest, greatest)
        if self.exponential is not None:
            self.exponential.add(values)
        self._sort(values, bisect_left(self.bounds, least), bisect_left(self.bounds, greatest))

    def _settle_repeated(self) -> None:
        repeated, self._repeated = self._repeated, []
        accepted = []
        for value, times in repeated:
            if 0 <= value <= self._max_value and (total := self.total + value * times) < math.inf:
                self._counts[bisect_left(self.bounds, value)] += times
                self.total = total
                accepted.append((value, times))
            else:
                self._rejects[self._metric, rejection_reason(value, self._max_value) or "absurd"] += times
        if not accepted:
            return
        values, counts = zip(*accepted, strict=True)
        self.least, self.greatest = min(self.least, *values), max(self.greatest, *values)
        if self.exponential is not None:
            self.exponential.add(np.array(values), np.array(counts, dtype=np.int64))

    def _possible(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        possible = (values >= 0) & (values <= self._max_value)
        total, kept = self.total, values[possible]
        if kept.size and not total + float(kept.max()) * kept.size < math.inf:  # the sum may overflow
            for index in np.flatnonzero(possible).tolist():
                possible[index] = fits = total + float(values[index]) < math.inf
                total += float(values[index]) if fits else 0.0
        rejected = [rejection_reason(value, self._max_value) or "absurd" for value in values[~possible].tolist()]
        self._rejects.update((self._metric, reason) for reason in rejected)
        return values[possible]

    def _sort(self, values: NDArray[np.float64], first: int, last: int) -> None:
        """Count values into the buckets; `first` and `last` are those of the smallest and the largest value."""
        if len(values) < MIN_BULK:
            for value in values.tolist():
                self._counts[bisect_left(self.bounds, value)] += 1
            return
        # Comparing all values with each bound is several times faster than searching the bucket of each value.
        below = 0
        for bucket in range(first, last):
            within = int(np.count_nonzero(values <= self.bounds[bucket]))
            self._counts[bucket] += within - below
            below = within
        self._counts[last] += len(values) - below

    def read(self) -> Reading:
        """Return the content, after sorting the pending values."""
        self.settle()
        exponential = self.exponential.copy() if self.exponential is not None else None
        exemplars = dict(self.exemplars) if self.exemplars else {}
        return Reading(self.version, self.total, self._counts.copy(), exemplars, exponential, self.least, self.greatest)

    @property
    def counts(self) -> list[int]:
        """Return the settled count of each bucket, not cumulated."""
        return list(self._counts)


Cell = NumberCell | HistogramCell
