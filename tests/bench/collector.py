"""What a sidecar can take in: steps as fast as it takes them, of one engine and of many."""

import statistics
import time
from typing import NamedTuple

from .isolate import free_port, fresh
from .options import Options
from .scraper import page
from .sidecar import Sidecar
from .stats import STEP_SECONDS
from .table import Figure
from .usage import processor_seconds, resident

RUNNING = 1024
WARM_UP_SECONDS = 1.0
COUNTER = "vitals_steps_total{"


class Fleet(NamedTuple):
    """So many engines, driven by so many serving processes."""

    engines: int
    processes: int


FLEETS = (Fleet(1, 1), Fleet(64, 8), Fleet(64, 64))


class Pace(NamedTuple):
    """Steps a second, microseconds of processor time for each, share of a core that was busy, resident MiB."""

    rate: float
    cpu: float
    busy: float
    memory: float


def measure(fleet: Fleet, seconds: float) -> Pace:
    """Return at what pace a sidecar takes the steps of a fleet."""
    # Imported here: other figures are measured without our package in the process.
    from .fleet import Process, steps

    port, made = free_port(), steps(RUNNING)
    names = [str(index) for index in range(fleet.engines)]
    with Sidecar(port) as sidecar:
        processes = [
            Process(sidecar.socket, str(index), names[index :: fleet.processes], made)
            for index in range(fleet.processes)
        ]

        def feed(seconds: float) -> int:
            """Send for a while, and return how many steps were taken meanwhile."""
            before, end = sum(each.taken for each in processes), time.perf_counter() + seconds
            while time.perf_counter() < end:
                for each in processes:
                    each.send()
            return sum(each.taken for each in processes) - before

        feed(WARM_UP_SECONDS)
        start, cpu = time.perf_counter(), processor_seconds(sidecar.pid)
        taken = feed(seconds)
        wall, cpu = time.perf_counter() - start, processor_seconds(sidecar.pid) - cpu
        memory = resident(sidecar.pid)
        for each in processes:
            each.finish()
        _check(port, sum(each.taken for each in processes))
    return Pace(taken / wall, cpu / taken * 1e6, cpu / wall, memory)


def _check(port: int, taken: int) -> None:
    """Raise `RuntimeError` unless so many steps are counted in the end."""
    counted = sum(float(line.split()[1]) for line in page(port).splitlines() if line.startswith(COUNTER))
    if counted != taken:
        raise RuntimeError(f"the sidecar took {taken} steps and shows {counted:.0f}")


def run(options: Options) -> Figure:
    """Compare one engine with a fleet, of few serving processes and of many."""
    figure = Figure(
        "collector",
        f"what a sidecar takes in, steps of {RUNNING} requests, median of rounds",
        ["engines", "processes", "steps/s", "busy", "us per step", "steps/s of a core", "engines of a core", "MiB"],
        "Encoded steps come as fast as they are taken, from a process of its own over so many connections. Steps/s: taken.\n"
        "Busy: share of a core that the sidecar used for it; the rest of the time it breathes, or waits. Us per step: of its\n"
        "processor time, whence the steps that a whole core can take, and the engines of 100 steps/s. MiB: resident.",
    )
    paces: dict[Fleet, list[Pace]] = {fleet: [] for fleet in FLEETS}
    for _ in range(options.rounds):
        for fleet in FLEETS:
            paces[fleet].append(fresh(measure, fleet, options.seconds))
    for fleet in FLEETS:
        rate, cpu, busy, memory = (statistics.median(values) for values in zip(*paces[fleet], strict=True))
        figure.add(*fleet, rate, busy, cpu, 1e6 / cpu, 1e6 / cpu * STEP_SECONDS, memory)
    return figure
