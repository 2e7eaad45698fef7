"""How late the serving event loop wakes up while hostile clients are at the scrape endpoint."""

import asyncio
import contextlib
import multiprocessing
import resource
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

from typing_extensions import Self

from .attacker import ATTACKS, attacking
from .candidates import CANDIDATES
from .isolate import free_port, fresh
from .lag import EXPORT_SECONDS, Steps
from .lag import _measure as lags
from .options import Options
from .scraper import scraping
from .stats import StepMaker
from .table import Figure
from .usage import resident

RUNNING = 256
SCRAPERS = 2
PROBE_SECONDS = 0.1
PROBE_PATIENCE = 1.0
"""A kubelet's default."""
CLIENTS = ("none", "scrapers", *ATTACKS)


class Seen(NamedTuple):
    """Lateness of the loop in ms, processor seconds in a second, resident MiB that came on top, and probes: slowest, failed."""

    p50: float
    p99: float
    p999: float
    processor: float
    grown: float
    probe: float
    failed: int


class Probes:
    """Asks `/healthz` ten times a second, on a thread of this process."""

    def __init__(self, port: int) -> None:
        self.took: list[float] = []
        self.failed = 0
        self._url = f"http://127.0.0.1:{port}/healthz"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(PROBE_SECONDS):
            start = time.perf_counter()
            try:
                with urllib.request.urlopen(self._url, timeout=PROBE_PATIENCE):
                    self.took.append((time.perf_counter() - start) * 1e3)
            except OSError:
                self.failed += 1


def measure(clients: str, seconds: float, *, elsewhere: bool) -> Seen:
    """Return what one kind of clients does to the process; `elsewhere`: when they are clients of another one."""
    port = free_port()
    steps = Steps(CANDIDATES["ours"](1, port), [StepMaker(RUNNING)])
    before = resident()
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(_another()) if elsewhere else port
        if clients == "scrapers":
            for _ in range(SCRAPERS):
                stack.enter_context(scraping(target, every=EXPORT_SECONDS))
        elif clients in ATTACKS:
            stack.enter_context(attacking(target, clients))
        probes = stack.enter_context(Probes(port))
        start, used = time.perf_counter(), _processor()
        p50, p99, p999, _ = asyncio.run(lags(steps, seconds, None))
        processor = (_processor() - used) / (time.perf_counter() - start)
    slowest = max(probes.took, default=0.0)
    return Seen(p50, p99, p999, processor, resident() - before, slowest, probes.failed)


@contextlib.contextmanager
def _another() -> Iterator[int]:
    """Serve the same in another process, and give its port."""
    port = free_port()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(port,))
    process.start()
    try:
        yield port
    finally:
        process.kill()
        process.join()


def _serve(port: int) -> None:
    CANDIDATES["ours"](1, port)
    threading.Event().wait()


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(options: Options) -> Figure:
    """Compare all kinds of clients, which take turns in each round."""
    columns = ["clients", "p50", "p99", "p99.9", "p99 / scrapers", "of each round", "p99 / elsewhere", "of each round"]
    figure = Figure(
        "hostile",
        "lateness of the event loop under clients of the scrape endpoint, ms, median of rounds",
        [*columns, "cores", "MiB grown", "slowest probe", "probes failed"],
        f"Scrapers: {SCRAPERS}, once a second. Ratios are taken within a round. Elsewhere: the same clients at the same time,\n"
        "but of another process, so that they take cores of this machine and nothing else. Cores: processor seconds of the\n"
        "serving process in a second. Probes: GET /healthz ten times a second for 1 s at most, by a thread of the same\n"
        "process.",
    )
    here: dict[str, list[Seen]] = {clients: [] for clients in CLIENTS}
    elsewhere: dict[str, list[Seen]] = {clients: [] for clients in CLIENTS}
    for index in range(options.lag_rounds):
        turn = index % len(CLIENTS)
        for clients in CLIENTS[turn:] + CLIENTS[:turn]:
            here[clients].append(fresh(measure, clients, options.lag_seconds, elsewhere=False))
            elsewhere[clients].append(fresh(measure, clients, options.lag_seconds, elsewhere=True))
    for clients, rounds in here.items():
        p50, p99, p999, *others, _ = (statistics.median(values) for values in zip(*rounds, strict=True))
        ratios = (*_ratios(rounds, here["scrapers"]), *_ratios(rounds, elsewhere[clients]))
        figure.add(clients, p50, p99, p999, *ratios, *others, sum(each.failed for each in rounds))
    return figure


def _ratios(rounds: list[Seen], base: list[Seen]) -> tuple[float, str]:
    """Return by how much the 99th percentile exceeds that of others in the same round: the median, and the span."""
    found = [mine.p99 / theirs.p99 for mine, theirs in zip(rounds, base, strict=True)]
    return statistics.median(found), f"{min(found):.2f}..{max(found):.2f}"
