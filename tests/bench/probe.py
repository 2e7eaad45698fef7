"""A thread that naps all the time, and sees by how late it wakes up who kept the interpreter."""

import statistics
import threading
import time
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from typing_extensions import Self

from .table import percentile

NAP = 50e-6
REST = 0.002
"""After a piece of work, so that the nap in progress at its end is not cut into by what comes next."""


class Gaps(NamedTuple):
    """Milliseconds between two wake-ups: what 99 in 100 do not exceed, the longest in a piece of work and in all, and lost.

    What is lost to a piece of work is what its gaps exceed the usual by; its median is kept, as that of the longest.
    """

    p99: float
    longest: float
    most: float
    lost: float


class Probe:
    """Naps on a thread of its own while the block lasts."""

    def __init__(self) -> None:
        self._gaps: list[float] = []
        self._windows: dict[str, list[slice]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(REST)
        self._ended.set()
        self._thread.join()

    def watch(self, name: str, work: Callable[[], object]) -> float:
        """Do a piece of work, and return the seconds it took; gaps are gathered by name."""
        first, start = len(self._gaps), time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        self._windows.setdefault(name, []).append(slice(first, len(self._gaps) + 1))
        time.sleep(REST)
        return seconds

    def gaps(self, name: str, idle: str) -> Gaps:
        """Return the gaps under a name; what is lost is counted from the median of those under `idle`."""
        usual = statistics.median(chain.from_iterable(self._of(idle)))
        pieces = self._of(name)
        lost = [sum(max(gap - usual, 0.0) for gap in piece) for piece in pieces]
        longest, found = list(map(max, pieces)), list(chain.from_iterable(pieces))
        return Gaps(percentile(found, 99), statistics.median(longest), max(longest), statistics.median(lost))

    def _of(self, name: str) -> list[list[float]]:
        """Return the milliseconds of the gaps of each piece of work."""
        return [[gap * 1e3 for gap in self._gaps[window]] for window in self._windows[name]]

    def _run(self) -> None:
        woken = time.perf_counter()
        while not self._ended.is_set():
            time.sleep(NAP)
            before, woken = woken, time.perf_counter()
            self._gaps.append(woken - before)
