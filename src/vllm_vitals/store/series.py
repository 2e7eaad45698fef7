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
"""Values that a histogram keeps before it sorts them into buckets; a read sorts them in any case."""

MAX_PENDING_REPEATED = 256
"""The same of values that come many times each."""

MIN_BULK = 24
"""Values from which comparing them all at once pays."""

MAX_BUCKETS = 160
MAX_SCALE = 20
MIN_SCALE = -10

Rejects = Counter[tuple[str, str]]
"""How many values were refused, by metric name and reason."""


class Exponential:
    """Counts of positive values by bucket index at `scale`; bucket i holds (2^(i/2^scale), 2^((i+1)/2^scale)].

    `counts[0]` is that of bucket `offset`; zeros are counted apart.
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
        """Take values in, none of them negative or infinite; `times`: how many of each there are, if not one."""
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
        """Lower the scale until all that is held, and values of these base-2 logarithms, fit."""
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
        """Return the same at a scale that is not finer."""
        shift = self.scale - scale
        if not shift or not self.counts.size:
            return Exponential(scale, self.offset >> shift, self.counts.copy(), self.zeros)
        indexes = np.arange(self.offset, self.offset + len(self.counts)) >> shift
        low = int(indexes[0])
        merged = np.bincount(indexes - low, weights=self.counts).astype(np.int64)
        return Exponential(scale, low, merged, self.zeros)

    def since(self, earlier: "Exponential") -> "Exponential":
        """Return what was taken in after an earlier state of the same histogram."""
        before = earlier.at(self.scale)
        counts = self.counts.copy()
        if before.counts.size:
            start = before.offset - self.offset
            counts[start : start + len(before.counts)] -= before.counts
        return Exponential(self.scale, self.offset, counts, self.zeros - before.zeros)

    def copy(self) -> "Exponential":
        """Return a state that does not change any more."""
        return self.at(self.scale)


def _index(log: float, scale: int) -> int:
    return int(np.ceil(np.ldexp(log, scale))) - 1


class Exemplar(NamedTuple):
    """A value of one request, to be shown beside the bucket that it fell into."""

    request_id: str
    value: float
    time: float


class Reading(NamedTuple):
    """What a cell held at one moment: of a histogram also its counts by bucket, not cumulated, and its exemplars."""

    version: int
    value: float
    counts: Sequence[int] = ()
    exemplars: Mapping[int, Exemplar] = {}
    exponential: Exponential | None = None
    least: float = math.inf
    greatest: float = -math.inf


def fault(value: float, limit: float) -> str:
    """Return why a value cannot be true, `""` when it can."""
    try:
        if not math.isfinite(value):
            return "not_finite"
    except OverflowError:  # a whole number beyond what a float can hold
        return "absurd" if value > 0 else "negative"
    if value < 0:
        return "negative"
    return "absurd" if value > limit else ""


class NumberCell:
    """A counter's sum or a gauge's latest value, with the Unix time it was observed."""

    __slots__ = ("_limit", "_metric", "_rejects", "time", "value", "version")

    def __init__(self, metric: str, limit: float, rejects: Rejects) -> None:
        self.value = 0.0
        self.time = 0.0
        self.version = 0
        self._metric = metric
        self._limit = limit
        self._rejects = rejects

    def add(self, *values: float) -> None:
        """Add to a counter; values that cannot be true, or that the sum cannot hold, are refused and counted."""
        try:
            total = self.value + sum(values)
        except OverflowError:  # a whole number beyond what a float can hold
            total = math.inf
        if 0 <= min(values) <= max(values) <= self._limit and total < math.inf:
            if total != self.value:
                self.value = total
                self.version += 1
        else:
            self._add_apart(values, self._limit)

    def _add_apart(self, values: Iterable[float], limit: float) -> None:
        for value in values:
            reason = fault(value, limit)
            if reason or self.value + value == math.inf:
                self._rejects[self._metric, reason or "absurd"] += 1
            elif value:
                self.value += value
                self.version += 1

    def set(self, value: float, time: float) -> None:
        """Set a gauge; a value that cannot be true is refused and counted."""
        if 0 <= value <= self._limit:
            self.time = time
            if value != self.value:
                self.value = float(value)
                self.version += 1
        else:
            self._rejects[self._metric, fault(value, self._limit)] += 1

    def merge(self, more: float) -> None:
        """Add what somebody else has counted, over a time so long that what a step can bring is no limit."""
        self._add_apart((more,), math.inf)

    def read(self) -> Reading:
        """Return what it holds."""
        return Reading(self.version, self.value)


class HistogramCell:
    """Bucket counts over ascending upper bounds (`counts` has one more, for +Inf), sum, least and greatest."""

    __slots__ = (
        "_counts", "_limit", "_metric", "_most", "_pending", "_rejects", "_repeated", "bounds", "exemplars",
        "exponential", "greatest", "least", "total", "version",
    )  # fmt: skip

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
        """The same values once more, by base-2 exponential buckets, where somebody wants them."""
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
        self._most = limit
        self._rejects = rejects

    def observe(self, value: float) -> None:
        """Take one value in; it is judged and sorted later, in bulk."""
        self.extend((value,))

    def extend(self, values: Iterable[float], most: float | None = None, times: int = 1) -> None:
        """Take values in, each so many `times`; they are judged and sorted later. `most`: what none of them can exceed."""
        if most is not None:
            self._most = min(self._limit, most)  # in this order: what is not a number is no limit
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
        """Add what another histogram of the same bounds has counted, of which no single value is known."""
        self.exponential = None  # it cannot be had from these counts
        if reason := fault(self.total + total, math.inf) or fault(min(counts), math.inf):
            self._rejects[self._metric, reason] += 1
        elif total or any(counts):
            self._counts = [own + more for own, more in zip(self._counts, counts, strict=True)]
            self.total += total
            self.version += 1

    def attach(self, exemplar: Exemplar) -> None:
        """Keep the latest exemplar of a bucket."""
        if not fault(exemplar.value, self._most):
            self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def settle(self) -> None:
        """Sort what is pending into the buckets, leaving out and counting what cannot be true."""
        self._settle_repeated()
        if not self._pending:
            return
        pending, self._pending = self._pending, array("d")
        values = np.frombuffer(pending, dtype=np.float64)
        least, greatest = float(values.min()), float(values.max())
        # Also where one is not a number, or their sum may be none.
        if not (least >= 0 and greatest <= self._most and self.total + greatest * len(values) < math.inf):
            values = self._believable(values)
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
        true = []
        for value, times in repeated:
            if 0 <= value <= self._most and (total := self.total + value * times) < math.inf:
                self._counts[bisect_left(self.bounds, value)] += times
                self.total = total
                true.append((value, times))
            else:
                self._rejects[self._metric, fault(value, self._most) or "absurd"] += times
        if not true:
            return
        values, counts = zip(*true, strict=True)
        self.least, self.greatest = min(self.least, *values), max(self.greatest, *values)
        if self.exponential is not None:
            self.exponential.add(np.array(values), np.array(counts, dtype=np.int64))

    def _believable(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        true = (values >= 0) & (values <= self._most)
        total, kept = self.total, values[true]
        if kept.size and not total + float(kept.max()) * kept.size < math.inf:  # their sum may be none
            for place in np.flatnonzero(true).tolist():
                true[place] = fits = total + float(values[place]) < math.inf
                total += float(values[place]) if fits else 0.0
        refused = [fault(value, self._most) or "absurd" for value in values[~true].tolist()]
        self._rejects.update((self._metric, reason) for reason in refused)
        return values[true]

    def _sort(self, values: NDArray[np.float64], first: int, last: int) -> None:
        """Count values into the buckets from the first to the last that any of them falls into."""
        if len(values) < MIN_BULK:
            for value in values.tolist():
                self._counts[bisect_left(self.bounds, value)] += 1
            return
        # Comparing all with each bound between is several times faster than searching the bound of each.
        below = 0
        for bucket in range(first, last):
            within = int(np.count_nonzero(values <= self.bounds[bucket]))
            self._counts[bucket] += within - below
            below = within
        self._counts[last] += len(values) - below

    def read(self) -> Reading:
        """Return what it holds; all that waits to be sorted is sorted first."""
        self.settle()
        exponential = self.exponential.copy() if self.exponential is not None else None
        exemplars = dict(self.exemplars) if self.exemplars else {}
        return Reading(self.version, self.total, self._counts.copy(), exemplars, exponential, self.least, self.greatest)

    @property
    def counts(self) -> list[int]:
        """Return the settled count of each bucket, not cumulated."""
        return list(self._counts)


Cell = NumberCell | HistogramCell
