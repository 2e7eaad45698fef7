"""Time that the serving event loop spends inside `record()`."""

import statistics
import time
from collections.abc import Iterator

from .candidates import CANDIDATES, Record
from .isolate import free_port, fresh
from .options import Options
from .stats import StepMaker
from .table import Figure, percentile, ratio

BURST = 4
"""Calls between two pauses, few enough for a background thread to keep up."""

PAUSE = 0.01
WARM_UP = 0.1


def measure(name: str, running: int, seconds: float) -> tuple[int, float, float]:
    """Return the calls, and median and 99th percentile of the time inside `record()`, in microseconds."""
    record = CANDIDATES[name](1, free_port())
    times = list(_times(record, StepMaker(running), seconds))
    kept = times[int(len(times) * WARM_UP) :]
    return len(kept), statistics.median(kept), percentile(kept, 99)


def _times(record: Record, make: StepMaker, seconds: float) -> Iterator[float]:
    """Yield the microseconds of one call after the other, each with stats made just before it."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(BURST):
            scheduler, iteration = make()
            start = time.perf_counter_ns()
            record(scheduler, iteration, mm_cache_stats=None, engine_idx=0)
            yield (time.perf_counter_ns() - start) / 1e3
        time.sleep(PAUSE)


def run(options: Options) -> Figure:
    """Compare every candidate at every batch size."""
    figure = Figure(
        "hook",
        "time inside record() on the caller, us",
        ["running", "candidate", "calls", "median", "p99", "above none", "above none, x ours"],
        "`none` is an empty function: its row is what the clock and the call itself cost.",
    )
    for running in options.running:
        results = {name: fresh(measure, name, running, options.seconds) for name in options.pick(*CANDIDATES)}
        base = results["none"][1] if "none" in results else 0.0
        above = {name: median - base for name, (_, median, _) in results.items()}
        for name, (calls, median, p99) in results.items():
            figure.add(running, name, calls, median, p99, above[name], ratio(above[name], above.get("ours")))
    return figure
