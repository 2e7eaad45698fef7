"""Base-2 exponential histograms, filled in bulk: the scale follows the data, at most 160 buckets."""

import numpy as np
from numpy.typing import NDArray

MOST_BUCKETS = 160
FINEST = 20
COARSEST = -10


class Exponential:
    """Counts of positive values by bucket index at `scale`; bucket i holds (2^(i/2^scale), 2^((i+1)/2^scale)].

    `counts[0]` is that of bucket `offset`; zeros are counted apart.
    """

    __slots__ = ("counts", "offset", "scale", "zeros")

    def __init__(
        self, scale: int = FINEST, offset: int = 0, counts: NDArray[np.int64] | None = None, zeros: int = 0
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
        while scale > COARSEST:
            shift = self.scale - scale
            low, high = _index(least, scale), _index(greatest, scale)
            if self.counts.size:
                low = min(low, self.offset >> shift)
                high = max(high, (self.offset + len(self.counts) - 1) >> shift)
            if high - low < MOST_BUCKETS:
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
