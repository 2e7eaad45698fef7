"""Processor time of the whole process per step, background threads included."""

import asyncio
import statistics
import time

from .candidates import CANDIDATES, Record
from .isolate import free_port, fresh
from .options import Options
from .stats import STEP_SECONDS, StepMaker
from .table import Figure, ratio

WARM_UP_SECONDS = 1.5


def measure(name: str, running: int, seconds: float) -> float:
    """Return microseconds of processor time per step at 100 steps a second."""
    return asyncio.run(_measure(CANDIDATES[name](1, free_port()), StepMaker(running), seconds))


async def _measure(record: Record, make: StepMaker, seconds: float) -> float:
    """Record on an event loop, as vLLM does."""
    await _steps(record, make, WARM_UP_SECONDS)
    start = time.process_time()
    steps = await _steps(record, make, seconds)
    return (time.process_time() - start) / steps * 1e6


async def _steps(record: Record, make: StepMaker, seconds: float) -> int:
    """Record for a while at the pace of an engine, or as fast as the candidate allows if that is slower."""
    steps, now = 0, time.perf_counter()
    end, due = now + seconds, now
    while now < end:
        record(*make(), mm_cache_stats=None, engine_idx=0)
        steps, due = steps + 1, due + STEP_SECONDS
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        now = time.perf_counter()
    return steps


def run(options: Options) -> Figure:
    """Compare every candidate at every batch size, above what making the stats costs."""
    names = options.pick(*CANDIDATES)
    figure = Figure(
        "cpu",
        "processor time of the process per step at 100 steps/s, us, median of rounds",
        ["running", "candidate", "per step", "above none", "above none, x ours"],
        "`sidecar`: what is left to the serving process; the sidecar's own time is not in it.",
    )
    for running in options.running:
        turns = range(options.rounds)
        rounds = [{name: fresh(measure, name, running, options.seconds) for name in names} for _ in turns]
        medians = {name: statistics.median(each[name] for each in rounds) for name in names}
        above = {name: cost - medians.get("none", 0.0) for name, cost in medians.items()}
        for name in names:
            figure.add(running, name, medians[name], above[name], ratio(above[name], above.get("ours")))
    return figure
