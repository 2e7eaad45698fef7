"""Amounts that came between two readings: of counters that may begin anew, and of rates."""

from vllm_vitals._util.amounts import amount, clamp

LONGEST_GAP = 10.0
"""Seconds between two readings of a rate over which it is taken to have been steady."""


class Growth:
    """How much a device's counter has grown since it was last read; never less than nothing."""

    def __init__(self, most: float) -> None:
        """`most`: what the counter can grow by in a second; more than that is a glitch and counts as nothing."""
        self._most = most
        self._value: float | None = None
        self._clock = 0.0

    def __call__(self, value: float | None, clock: float) -> float | None:
        """Return the growth up to a reading at monotonic seconds `clock`, `None` when there is none that can be true.

        A counter that fell has begun anew, with its driver, after it was last read: all that it shows has come since.
        """
        value = amount(value)
        if value is None:
            return None
        before, elapsed = self._value, max(clock - self._clock, 1.0)
        self._value, self._clock = value, clock
        if before is None:
            return 0.0
        grown = value - before if value >= before else value
        return grown if grown <= self._most * elapsed else 0.0


class Integral:
    """The amount that a rate per second stands for, by the mean of two readings."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._clock = 0.0

    def __call__(self, rate: float | None, clock: float) -> float | None:
        """Return the amount since the reading before; nothing over a gap that is too long.

        `None` when there is no reading that can be true.
        """
        rate = amount(rate)
        if rate is None:
            return None
        before, elapsed = self._rate, clock - self._clock
        self._rate, self._clock = rate, clock
        if before is None or not 0 < elapsed <= LONGEST_GAP:
            return 0.0
        return amount((before / 2 + rate / 2) * elapsed) or 0.0


class Elapsed:
    """The seconds between two readings, 0 before the second and over a gap that is too long."""

    def __init__(self) -> None:
        self._clock: float | None = None

    def __call__(self, clock: float) -> float:
        """Return the seconds since the reading before."""
        elapsed = 0.0 if self._clock is None else clock - self._clock
        self._clock = clock
        return elapsed if 0 < elapsed <= LONGEST_GAP else 0.0


class Residency:
    """The seconds that something held for, of a device that counts cycles, and those of them in which it held."""

    def __init__(self) -> None:
        self._before: tuple[float, float, float] | None = None

    def __call__(self, held: float, cycles: float, clock: float) -> float:
        """Return the seconds since the reading before, over whatever gap; 0 where the counters began anew."""
        if amount(held) is None or amount(cycles) is None:
            return 0.0
        before, self._before = self._before, (held, cycles, clock)
        if before is None or held < before[0] or cycles <= before[1]:
            return 0.0
        share = (held - before[0]) / (cycles - before[1])
        return clamp(share) * max(clock - before[2], 0.0)
