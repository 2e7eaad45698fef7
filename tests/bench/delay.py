"""How long it takes from a step to a scrape that shows it."""

import random
import statistics
import time

from .candidates import CANDIDATES
from .isolate import free_port, fresh
from .options import Options
from .stats import STEP_SECONDS, StepMaker
from .table import Figure, percentile
from .watcher import NAP, Watcher

RUNNING = 1024
COUNTER = "vllm_requests_preempted_total"
"""Grows by the marked steps only."""

LEAST, MOST = 50, 75
"""Steps from one marked step to the next: drains come at even times, and shall be met at any moment between them."""

SETTLE_STEPS = 150


def measure(name: str, tries: int) -> list[float]:
    """Return the milliseconds from each of some marked steps, of an engine at 100 steps/s, until a scrape shows it."""
    port = free_port()
    record, make = CANDIDATES[name](1, port), StepMaker(RUNNING)
    due, marked = time.perf_counter(), []

    def steps(count: int) -> None:
        """Record at the pace of an engine."""
        nonlocal due
        for _ in range(count):
            record(*make(), mm_cache_stats=None, engine_idx=0)
            due += STEP_SECONDS
            time.sleep(max(0.0, due - time.perf_counter()))

    steps(SETTLE_STEPS)
    with Watcher(port, COUNTER) as watcher:
        for _ in range(tries):
            steps(random.randint(LEAST, MOST))
            scheduler, iteration = make()
            iteration.num_preempted_reqs = 1
            marked.append(time.monotonic())
            record(scheduler, iteration, mm_cache_stats=None, engine_idx=0)
        steps(LEAST)
        seen = watcher.seen(tries)
    return [(shown - made) * 1e3 for made, shown in zip(marked, seen, strict=True)]


def run(options: Options) -> Figure:
    """Compare the collector in the serving process with the one in a sidecar."""
    figure = Figure(
        "delay",
        f"from record() to the first scrape that shows the step, ms, 100 steps/s of {RUNNING} requests",
        ["candidate", "steps", "shortest", "median", "p90", "longest"],
        f"One counter is scraped every {NAP * 1e3:.0f} ms from another process; a delay lasts to the end of the scrape.",
    )
    for name in options.pick("ours", "sidecar"):
        delays = fresh(measure, name, options.tries)
        figure.add(name, len(delays), min(delays), statistics.median(delays), percentile(delays, 90), max(delays))
    return figure
