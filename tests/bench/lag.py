"""How late the serving event loop wakes up while steps are recorded, with and without a scraper."""

import asyncio
import statistics
import time
from typing import NamedTuple

from .candidates import CANDIDATES, Record
from .isolate import free_port, fresh
from .options import Options
from .scraper import scraping
from .serve import serve_builtin
from .stats import STEP_SECONDS, StepMaker
from .table import Figure, percentile, ratio

PROBE_SECONDS = 0.001
WARM_UP_SECONDS = 1.0
PERCENTILES = (50.0, 99.0, 99.9)

Lags = tuple[float, ...]


class Situation(NamedTuple):
    """What the engines do; `running` requests are shared by them."""

    running: int
    engines: int
    scraped: bool


SITUATIONS = (
    Situation(256, 1, scraped=False),
    Situation(1024, 1, scraped=False),
    Situation(1024, 1, scraped=True),
    Situation(1024, 8, scraped=True),
)


def measure(name: str, situation: Situation, seconds: float) -> Lags:
    """Return percentiles of the lateness of a 1 ms sleep, in milliseconds."""
    port, engines = free_port(), situation.engines
    record = CANDIDATES[name](engines, port)
    makers = [StepMaker(situation.running // engines, seed=index) for index in range(engines)]
    if situation.scraped and name != "none":
        with scraping(port, every=1.0):
            return asyncio.run(_measure(name, record, makers, seconds, port))
    return asyncio.run(_measure(name, record, makers, seconds, None))


async def _measure(name: str, record: Record, makers: list[StepMaker], seconds: float, port: int | None) -> Lags:
    """Record and probe on one loop; vLLM renders the built-in logger's page on that loop too."""
    tasks = [asyncio.create_task(_record(record, makers))]
    if name == "builtin" and port is not None:
        tasks.append(asyncio.create_task(serve_builtin(port)))
    await asyncio.sleep(WARM_UP_SECONDS)
    lags = await _probe(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return tuple(percentile(lags, percent) for percent in PERCENTILES)


async def _record(record: Record, makers: list[StepMaker]) -> None:
    """Make one step of every engine, 100 times a second."""
    due = time.perf_counter()
    while True:
        for engine, make in enumerate(makers):
            record(*make(), mm_cache_stats=None, engine_idx=engine)
            await asyncio.sleep(0)
        due += STEP_SECONDS
        await asyncio.sleep(max(0.0, due - time.perf_counter()))


async def _probe(seconds: float) -> list[float]:
    """Return the milliseconds by which each of many short sleeps overran."""
    lags, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        await asyncio.sleep(PROBE_SECONDS)
        lags.append((time.perf_counter() - start - PROBE_SECONDS) * 1e3)
    return lags


def run(options: Options) -> Figure:
    """Compare unscraped at two batch sizes, then scraped every second with one engine and with eight."""
    columns = ["running", "engines", "scraped", "candidate", "p50", "p99", "p99.9", "p99 / none", "of each round"]
    figure = Figure(
        "lag",
        "lateness of the event loop at 100 steps/s per engine, ms, median of rounds",
        [*columns, "p99.9 / none"],
        "Candidates take turns in each round and a ratio is taken within its round. `none` is never scraped.",
    )
    for situation in SITUATIONS:
        _compare(figure, options, situation)
    return figure


def _compare(figure: Figure, options: Options, situation: Situation) -> None:
    """Add rows for one situation: rounds of every candidate after the other, each round in another order."""
    names = options.pick("none", "builtin", "ours")
    lags: dict[str, list[Lags]] = {name: [] for name in names}
    for index in range(options.rounds):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            lags[name].append(fresh(measure, name, situation, options.seconds))
    for name in names:
        medians = [statistics.median(values) for values in zip(*lags[name], strict=True)]
        p99s, p999s = (_ratios(lags[name], lags.get("none"), column) for column in (1, 2))
        spread = f"{min(p99s):.2f}..{max(p99s):.2f}" if p99s else None
        ratios = [statistics.median(values) if values else None for values in (p99s, p999s)]
        scraped = "1/s" if situation.scraped else "no"
        figure.add(situation.running, situation.engines, scraped, name, *medians, ratios[0], spread, ratios[1])


def _ratios(lags: list[Lags], base: list[Lags] | None, column: int) -> list[float]:
    """Return what each round's percentile is in units of the same round's `none`."""
    pairs = zip(lags, base or [], strict=False)
    return [value for mine, none in pairs if (value := ratio(mine[column], none[column])) is not None]
