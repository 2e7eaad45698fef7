"""How late the serving event loop wakes up while steps are recorded, and what there is is scraped or pushed."""

import asyncio
import contextlib
import os
import socket
import statistics
import time
from collections.abc import Iterator
from typing import NamedTuple

from .candidates import CANDIDATES, PUSHING, Record
from .isolate import free_port, fresh
from .options import Options
from .receiver import Receiver
from .scraper import scraping
from .serve import serve_builtin
from .stats import STEP_SECONDS, StepMaker
from .table import Figure, percentile, ratio

PROBE_SECONDS = 0.001
WARM_UP_SECONDS = 1.0
EXPORT_SECONDS = 1.0
MOST_DEBT = 0.1
"""Seconds of steps that are made up for at most: an engine goes on while its front end is late, but not for ever."""

OUT = ("refusing", "hanging")
"""Ways in which a receiver takes nothing: nobody listens, or somebody who never answers."""

EXPORTED_AT = 1024
PERCENTILES = (50.0, 99.0, 99.9)


class Case(NamedTuple):
    """A candidate, and whether what it has is scraped or pushed every second, or pushed to a receiver that is `OUT`."""

    candidate: str
    exported: str = "no"


class Situation(NamedTuple):
    """What the engines do, `running` requests being shared by them, and the cases that are compared."""

    running: int
    engines: int
    cases: tuple[Case, ...]


class Lags(NamedTuple):
    """Percentiles of the lateness of a 1 ms sleep, in milliseconds, and the steps that each engine made in a second."""

    p50: float
    p99: float
    p999: float
    steps: float


PLAIN = tuple(map(Case, CANDIDATES))
SCRAPED = (Case("builtin", "scraped"), Case("ours", "scraped"), Case("sidecar", "scraped"))
EXPORTED = (*SCRAPED, Case("otel", "pushed"), Case("ours", "pushed"))
OUTAGES = tuple(Case("ours", out) for out in OUT)


def situations(options: Options) -> list[Situation]:
    """Return one engine at every batch size, then eight of them."""
    more = EXPORTED + OUTAGES
    alone = [Situation(running, 1, PLAIN + more * (running == EXPORTED_AT)) for running in options.running]
    return [*alone, Situation(EXPORTED_AT, 8, (Case("none"), Case("sidecar"), *EXPORTED))]


def measure(case: Case, running: int, engines: int, seconds: float) -> Lags:
    """Return how late the event loop is."""
    port = free_port()
    makers = [StepMaker(running // engines, seed=index) for index in range(engines)]
    with contextlib.ExitStack() as stack:
        if case.exported in ("pushed", *OUT):
            receiver = stack.enter_context(Receiver("http/protobuf"))
            os.environ |= receiver.variables(interval=EXPORT_SECONDS)
        if case.exported in OUT:
            os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = stack.enter_context(_nobody(listens=case.exported == "hanging"))
        ways = PUSHING if case.exported in ("pushed", *OUT) else CANDIDATES
        steps = Steps(ways[case.candidate](engines, port), makers)
        if case.exported == "scraped":
            stack.enter_context(scraping(port, every=EXPORT_SECONDS))
        lags = asyncio.run(_measure(steps, seconds, port if case == Case("builtin", "scraped") else None))
        if case.exported == "pushed" and not receiver.taken().pushes:
            raise RuntimeError("nothing was pushed")
    return lags


@contextlib.contextmanager
def _nobody(*, listens: bool) -> Iterator[str]:
    """Give an endpoint that takes nothing: it refuses, or it `listens` and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        endpoint = f"http://127.0.0.1:{held.getsockname()[1]}"
        if not listens:
            held.close()
        yield endpoint


async def _measure(steps: "Steps", seconds: float, port: int | None) -> Lags:
    """Record and probe on one loop; vLLM renders the built-in logger's page, at `port`, on that loop too."""
    tasks = [asyncio.create_task(steps.make())]
    if port is not None:
        tasks.append(asyncio.create_task(serve_builtin(port)))
    await asyncio.sleep(WARM_UP_SECONDS)
    made, start = steps.made, time.perf_counter()
    lags = await _probe(seconds)
    rate = (steps.made - made) / (time.perf_counter() - start)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    p50, p99, p999 = (percentile(lags, percent) for percent in PERCENTILES)
    return Lags(p50, p99, p999, rate)


class Steps:
    """Makes a step of every engine 100 times a second, or as often as the recording allows."""

    def __init__(self, record: Record, makers: list[StepMaker]) -> None:
        self.made = 0
        self._record = record
        self._makers = makers

    async def make(self) -> None:
        """Go on until cancelled."""
        due = time.perf_counter()
        while True:
            for engine, make in enumerate(self._makers):
                self._record(*make(), mm_cache_stats=None, engine_idx=engine)
                await asyncio.sleep(0)
            self.made += 1
            now = time.perf_counter()
            due = max(due + STEP_SECONDS, now - MOST_DEBT)
            await asyncio.sleep(max(0.0, due - now))


async def _probe(seconds: float) -> list[float]:
    """Return the milliseconds by which each of many short sleeps overran."""
    lags, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        await asyncio.sleep(PROBE_SECONDS)
        lags.append((time.perf_counter() - start - PROBE_SECONDS) * 1e3)
    return lags


def run(options: Options) -> Figure:
    """Compare every candidate at every batch size, and scraped or pushed with one engine and with eight."""
    columns = ["running", "engines", "exported", "candidate", "steps/s", "p50", "p99", "p99.9", "p99 / none"]
    figure = Figure(
        "lag",
        "lateness of the event loop at 100 steps/s per engine, ms, median of rounds",
        [*columns, "of each round", "p99.9 / none"],
        "Candidates take turns in each round and a ratio is taken within its round. Scraped or pushed: once a second; `none`\n"
        "never is. Refusing, hanging: pushed to a receiver that takes nothing. Steps/s below 100: recording takes all the\n"
        "time of the loop. `sidecar`: the lateness of the process that serves; the sidecar is on the same machine.",
    )
    for situation in situations(options):
        _compare(figure, options, situation)
    return figure


def _compare(figure: Figure, options: Options, situation: Situation) -> None:
    """Add rows for one situation: rounds of every case after the other, each round in another order."""
    running, engines, _ = situation
    cases = [case for case in situation.cases if case.candidate in options.candidates]
    lags: dict[Case, list[Lags]] = {case: [] for case in cases}
    for index in range(options.lag_rounds):
        turn = index % len(cases)
        for case in cases[turn:] + cases[:turn]:
            lags[case].append(fresh(measure, case, running, engines, options.lag_seconds))
    for case in cases:
        *medians, steps = [statistics.median(values) for values in zip(*lags[case], strict=True)]
        p99s, p999s = (_ratios(lags[case], lags.get(Case("none")), column) for column in (1, 2))
        spread = f"{min(p99s):.2f}..{max(p99s):.2f}" if p99s else None
        ratios = [statistics.median(values) if values else None for values in (p99s, p999s)]
        figure.add(running, engines, case.exported, case.candidate, steps, *medians, ratios[0], spread, ratios[1])


def _ratios(lags: list[Lags], base: list[Lags] | None, column: int) -> list[float]:
    """Return what each round's percentile is in units of the same round's `none`."""
    pairs = zip(lags, base or [], strict=False)
    return [value for mine, none in pairs if (value := ratio(mine[column], none[column])) is not None]
