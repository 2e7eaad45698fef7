"""What one scrape costs: rendering the page, and getting it over HTTP from another process."""

import statistics
import time
from collections.abc import Callable

from prometheus_client import start_http_server

from .candidates import CANDIDATES, PAGES
from .isolate import free_port, fresh
from .options import Options
from .scraper import Scraper, page
from .stats import StepMaker
from .table import Figure, ratio

RUNNING = 256
STEPS = 500
PAUSE_SECONDS = 0.004
"""Between two steps of every engine, so that none is dropped."""

SETTLE_SECONDS = 0.75
"""Long enough for a background thread that wakes up twice a second to take in every step that waits."""


def measure(name: str, engines: int, times: int) -> tuple[int, float, float, float]:
    """Return sample lines, and median milliseconds: to render, of a GET for its caller, of processor time per GET."""
    port = free_port()
    record, make = CANDIDATES[name](engines, port), StepMaker(RUNNING)

    def steps(count: int) -> None:
        for _ in range(count):
            for engine in range(engines):
                record(*make(), mm_cache_stats=None, engine_idx=engine)
            time.sleep(PAUSE_SECONDS)
        time.sleep(SETTLE_SECONDS)

    steps(STEPS)
    if name == "builtin":
        start_http_server(port, addr="127.0.0.1")
    scraper = Scraper(port)
    try:
        return _measure(port, lambda: steps(1), PAGES[name](), scraper.get, times)
    finally:
        scraper.close()


def _measure(
    port: int, change: Callable[[], None], render: Callable[[], object], get: Callable[[], float], times: int
) -> tuple[int, float, float, float]:
    """Render and GET in turns, each after a step that changed what is shown."""
    rendering, getting, cpu = [], [], []
    for _ in range(times):
        change()
        start = time.perf_counter()
        render()
        rendering.append((time.perf_counter() - start) * 1e3)
        change()
        before = time.process_time()
        getting.append(get())
        cpu.append((time.process_time() - before) * 1e3)
    series = sum(1 for line in page(port).splitlines() if line and not line.startswith("#"))
    return series, statistics.median(rendering), statistics.median(getting), statistics.median(cpu)


def run(options: Options) -> Figure:
    """Compare one engine and eight, in total and per series."""
    figure = Figure(
        "scrape",
        "one scrape, ms, median",
        ["engines", "candidate", "series", "render", "us/series", "GET", "cpu of GET", "render, x ours", "cpu, x ours"],
        "Render: text format, in process. GET: from another process, with Prometheus's headers (OpenMetrics, gzip); its\n"
        "processor time is the serving process's. Every engine makes a step before each.",
    )
    for engines in (1, 8):
        names = options.pick(*PAGES)
        results = {name: fresh(measure, name, engines, options.scrapes) for name in names}
        _, our_render, _, our_cpu = results.get("ours", (None, None, None, None))
        for name, (series, render, got, cpu) in results.items():
            per_series = render / series * 1e3
            ratios = ratio(render, our_render), ratio(cpu, our_cpu)
            figure.add(engines, name, series, render, per_series, got, cpu, *ratios)
    return figure
