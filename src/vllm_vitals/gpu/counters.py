"""What a device's own counters show, and what of it has come since the reading before."""

import math
from collections import defaultdict

from msgspec import Struct

from vllm_vitals.gpu.growth import Elapsed, Growth, Integral, Residency
from vllm_vitals.records.gpu import Reading

MOST_POWER = 10_000.0
"""Watts that no device draws."""
MOST_TRAFFIC = 1e13
"""Bytes per second that no link carries."""

Way = tuple[str, str]
"""A kind of link and a direction."""


class Counters(Struct):
    """What stands in a device's counters, `None` or no key for what it does not tell."""

    energy: float | None = None
    """Joules."""
    io: dict[tuple[str, str, int], float] = {}
    """Bytes by kind of link, direction and number of the link."""
    rates: dict[Way, float] = {}
    """Bytes per second, for links that do not count."""
    errors: dict[str, float] = {}
    throttles: dict[str, bool] = {}
    """By reason, whether it keeps clocks down at the moment."""
    residencies: dict[str, float] = {}
    """By reason, for how many of `cycles` it kept clocks down."""
    cycles: float = 0.0


class History:
    """What has to be remembered of a device from one reading to the next, however often its library is opened."""

    def __init__(self) -> None:
        self.vital = False
        """Whether its sensors have ever answered."""
        self._energy = Growth(MOST_POWER)
        self._counted = False
        self._drawn = Integral()
        self._io: dict[tuple[str, str, int], Growth] = defaultdict(lambda: Growth(MOST_TRAFFIC))
        self._rates: dict[Way, Integral] = defaultdict(Integral)
        self._errors: dict[str, Growth] = defaultdict(lambda: Growth(math.inf))
        self._residencies: dict[str, Residency] = defaultdict(Residency)
        self._elapsed = Elapsed()

    def add(self, reading: Reading, counters: Counters, clock: float) -> None:
        """Put into a whole reading what has come up to monotonic seconds `clock`.

        Only then: what a reading that is given up has seen will be seen again, so that nothing is lost.
        """
        drawn, counted = self._drawn(reading.power, clock), self._energy(counters.energy, clock)
        self._counted = self._counted or counted is not None
        reading.energy = counted if self._counted else drawn
        found = [
            *((place[:2], self._io[place](value, clock)) for place, value in counters.io.items()),
            *((way, self._rates[way](rate, clock)) for way, rate in counters.rates.items()),
        ]
        for way, grown in found:
            reading.io[way] = reading.io.get(way, 0.0) + (grown or 0.0)
        for kind, count in counters.errors.items():
            reading.errors[kind] = self._errors[kind](count, clock) or 0.0
        elapsed = self._elapsed(clock)
        for reason, held in counters.throttles.items():
            reading.throttled[reason] = elapsed if held else 0.0
        for reason, cycles in counters.residencies.items():
            reading.throttled[reason] = self._residencies[reason](cycles, counters.cycles, clock)
