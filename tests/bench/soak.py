"""Memory of the process over a long run under load."""

import statistics
import time

from .candidates import CANDIDATES, Record
from .isolate import Fresh, free_port
from .options import Options
from .scraper import scraping
from .stats import StepMaker
from .table import Figure
from .usage import resident

RUNNING = 1024
STEPS_PER_SECOND = 200
SAMPLE_SECONDS = 2.0
WARM_UP = 0.2
"""Share of the run that is left out: the allocator and the garbage collector find their level."""

EDGE = 0.1
"""Share of the rest over which each end of the growth is taken."""


def measure(name: str, seconds: float) -> list[float]:
    """Return resident memory in MiB, sampled at even intervals, while `name` records and is scraped every second."""
    port = free_port()
    record, make = CANDIDATES[name](1, port), StepMaker(RUNNING)
    if name != "ours":
        return _samples(record, make, seconds)
    with scraping(port, every=1.0):
        return _samples(record, make, seconds)


def _samples(record: Record, make: StepMaker, seconds: float) -> list[float]:
    """Record at an even pace and look at the memory now and then."""
    samples, start = [], time.perf_counter()
    for step in range(int(seconds * STEPS_PER_SECOND)):
        record(*make(), mm_cache_stats=None, engine_idx=0)
        if step % int(SAMPLE_SECONDS * STEPS_PER_SECOND) == 0:
            samples.append(resident())
        time.sleep(max(0.0, start + (step + 1) / STEPS_PER_SECOND - time.perf_counter()))
    return samples


def run(options: Options) -> Figure:
    """Compare all candidates at the same time: memory does not mind company."""
    names = options.pick("none", "builtin", "ours")
    figure = Figure(
        "soak",
        f"resident memory, MiB, {STEPS_PER_SECOND} steps/s of {RUNNING} requests for {options.soak_seconds:.0f} s",
        ["candidate", "samples", "after warm-up", "at the end", "growth", "MiB/hour"],
        f"The first {WARM_UP:.0%} is warm-up; each end is the median of {EDGE:.0%} of the rest. Ours is scraped once a second.",
    )
    under_way = {name: Fresh(measure, name, options.soak_seconds) for name in names}
    for name, samples in {name: run.result() for name, run in under_way.items()}.items():
        kept = samples[int(len(samples) * WARM_UP) :]
        edge = max(1, int(len(kept) * EDGE))
        first, last = statistics.median(kept[:edge]), statistics.median(kept[-edge:])
        hours = (len(kept) - edge) * SAMPLE_SECONDS / 3600
        figure.add(name, len(kept), first, last, last - first, (last - first) / hours if hours else None)
    return figure
