"""Processor time of the whole process per step, background threads included."""

import asyncio
import statistics
import time
from typing import NamedTuple

from .candidates import CANDIDATES, Record, none, settle
from .isolate import free_port, fresh
from .options import Options
from .stats import STEP_SECONDS, StepMaker
from .table import Figure, ratio

WARM_UP_SECONDS = 1.5
BLOCK_SECONDS = 1.0
"""Length of what takes turns: a noisy neighbour stays longer than that, and then disturbs both."""
IDLE_SECONDS = 3.0
STEPS_PER_SECOND = 1 / STEP_SECONDS


class Costs(NamedTuple):
    """Microseconds of processor time per step at 100 steps a second."""

    base: list[float]
    """Without any logger, of each turn."""
    more: list[float]
    """What a step costs more with the candidate, of each turn."""
    idle: float
    """What the candidate costs while there are no steps, as if there were."""


def measure(name: str, running: int, seconds: float) -> Costs:
    """Return what a candidate costs, from turns of about `seconds` in all."""
    return asyncio.run(_measure(name, StepMaker(running), max(round(seconds / BLOCK_SECONDS), 1)))


async def _measure(name: str, make: StepMaker, turns: int) -> Costs:
    """Take turns on one event loop, as vLLM has one: steps with the candidate, and as many with none."""
    before = await _idle()
    record, nothing = CANDIDATES[name](1, free_port()), none(1, 0)
    await _steps(record, make, WARM_UP_SECONDS)
    finish = settle(name)
    await asyncio.to_thread(finish)
    await asyncio.sleep(WARM_UP_SECONDS)
    costs = Costs([], [], await _idle() - before)
    for turn in range(turns):
        spent = {}
        for each in (record, nothing) if turn % 2 else (nothing, record):
            start = time.process_time()
            steps = await _steps(each, make, BLOCK_SECONDS)
            await asyncio.to_thread(finish if each is record else int)  # what is left to do of these steps
            spent[each] = (time.process_time() - start) / steps * 1e6
        costs.base.append(spent[nothing])
        costs.more.append(spent[record] - spent[nothing])
    return costs


async def _idle() -> float:
    start = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    return (time.process_time() - start) / IDLE_SECONDS / STEPS_PER_SECOND * 1e6


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
        "processor time of the process per step at 100 steps/s, us, median of turns",
        ["running", "candidate", "none", "above none", "quartiles", "of it idle", "above none, x ours"],
        "In each process, steps with the candidate and with none take turns of a second; `none` beside itself shows the\n"
        "noise. Idle: what it costs while there are no steps, by 100 of them; it is in `above none`. `sidecar`: what is left\n"
        "to the serving process; the sidecar's own time is not in it.",
    )
    for running in options.running:
        costs: dict[str, list[Costs]] = {name: [] for name in names}
        for _ in range(options.rounds):
            for name in names:
                costs[name].append(fresh(measure, name, running, options.seconds))
        above = {name: _above(each) for name, each in costs.items()}
        for name in names:
            base = statistics.median(value for each in costs[name] for value in each.base)
            low, middle, high, idle = above[name]
            x_ours = ratio(middle, above["ours"][1]) if "ours" in above else None
            figure.add(running, name, base, middle, f"{low:.0f}..{high:.0f}", idle, x_ours)
    return figure


def _above(costs: list[Costs]) -> tuple[float, float, float, float]:
    """Return the quartiles of what a step costs more, and how much of that is there without steps as well."""
    idle = statistics.median(each.idle for each in costs)
    more = [value + idle for each in costs for value in each.more]
    low, middle, high = statistics.quantiles(more, n=4) if len(more) > 1 else more * 3
    return low, middle, high, idle
