"""Show a real vLLM under load, seen only through this project's endpoint, until Ctrl-C.

On a terminal a table is drawn anew each second. Elsewhere, as in a file, a line is printed every few seconds. In the end
what the endpoint shows stands beside what the client counted itself.
"""

import argparse
import asyncio
import contextlib
import math
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.live.bootstrap import CACHE
from tests.live.load import LoadReport, run_until_cancelled
from tests.live.model import make_model
from tests.live.server import ServerError, VllmServer, fetch
from vllm_vitals.catalog import cache, engine, requests, self_metrics

NAMES = {
    "running": engine.RUNNING.prometheus,
    "waiting": engine.WAITING.prometheus,
    "kv": cache.KV_USAGE.prometheus,
    "prompt": requests.PROMPT_TOKENS.prometheus,
    "generation": requests.GENERATION_TOKENS.prometheus,
    "finished": requests.FINISHED.prometheus,
    "ttft": f"{requests.TIME_TO_FIRST_TOKEN.prometheus}_bucket",
    "itl": f"{requests.INTER_TOKEN_LATENCY.prometheus}_bucket",
    "e2e": f"{requests.DURATION.prometheus}_bucket",
    "queries": cache.PREFIX_QUERIES.prometheus,
    "hits": cache.PREFIX_HITS.prometheus,
    "steps": self_metrics.STEPS.prometheus,
    "dropped": self_metrics.DROPPED.prometheus,
    "errors": self_metrics.ERRORS.prometheus,
    "hook": self_metrics.HOOK_TIME.prometheus,
}
# A small batch and a small cache, so that there is something to see: waiting, and a cache in use.
ARGS = ("--max-num-seqs", "8", "--num-gpu-blocks-override", "48")
CONCURRENCY = 12
EVERY = 3.0
"""Seconds between two lines where there is no terminal."""
LINES = 15
"""Lines after which the head of the columns is repeated."""
WIDTH = 100
"""Characters of a table where there is no terminal."""
Sample = tuple[dict[str, str], float]
Rows = list[tuple[str, str]]


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why."""


@dataclass
class Scrape:
    """One page of the endpoint and when it was read."""

    text: str
    at: float = field(default_factory=time.monotonic)
    samples: dict[str, list[Sample]] = field(init=False)

    def __post_init__(self) -> None:
        self.samples = {}
        for family in text_string_to_metric_families(self.text):
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def by(self, key: str, label: str) -> dict[str, float]:
        """Return the values of a metric, added up by one of its labels."""
        sums: dict[str, float] = {}
        for labels, value in self.samples.get(NAMES[key], []):
            sums[labels.get(label, "")] = sums.get(labels.get(label, ""), 0.0) + value
        return sums

    def total(self, key: str) -> float:
        """Return a metric added up over everything, NaN when the page lacks it."""
        values = [value for _, value in self.samples.get(NAMES[key], [])]
        return sum(values) if values else math.nan

    def quantile(self, key: str, q: float) -> float:
        """Return a quantile estimated from a histogram's buckets, NaN when it is empty."""
        buckets = sorted((float(bound), count) for bound, count in self.by(key, "le").items())
        if not buckets or not buckets[-1][1]:
            return math.nan
        rank, below, low = q * buckets[-1][1], 0.0, 0.0
        for bound, count in buckets:
            if count >= rank and count > below:
                share = (rank - below) / (count - below)
                return low if math.isinf(bound) else low + (bound - low) * share
            below, low = count, bound
        return low


def figures(now: Scrape, before: Scrape, sent: int) -> Rows:
    """Return what the page says, as labels and texts; rates are since ``before``."""
    return [
        ("requests sent by this demo", f"{sent}"),
        ("running", _text(now.total("running"))),
        ("waiting", _parts(now.by("waiting", "reason"))),
        ("KV cache in use", _text(now.total("kv"), ".1%")),
        ("prompt tokens", _rate(now, before, "prompt")),
        ("generation tokens", _rate(now, before, "generation")),
        ("finished", _parts(now.by("finished", "finish_reason"))),
        ("time to first token", _quantiles(now, "ttft")),
        ("inter-token latency", _quantiles(now, "itl")),
        ("request duration", _quantiles(now, "e2e")),
        ("prefix cache hits", _text(_ratio(now.total("hits"), now.total("queries")), ".1%")),
        ("steps", f"{_text(now.total('steps'))}, dropped {_text(now.total('dropped'))}"),
        ("errors swallowed", _parts(now.by("errors", "stage"))),
        ("cost per step", _text(_ratio(now.total("hook"), now.total("steps")) * 1e9) + " ns"),
    ]


class Column(NamedTuple):
    """One of the columns that are printed where there is no terminal."""

    title: str
    unit: str
    width: int
    text: Callable[[Scrape, Scrape, LoadReport], str]
    """Gives what stands there, of a page, the one before it, and what the client has counted."""


def _gauge(key: str) -> Callable[[Scrape, Scrape, LoadReport], str]:
    return lambda now, *_: _text(now.total(key))


def _percent(part: str, whole: str = "") -> Callable[[Scrape, Scrape, LoadReport], str]:
    def text(now: Scrape, *_: object) -> str:
        return _text(100 * (_ratio(now.total(part), now.total(whole)) if whole else now.total(part)))

    return text


def _per_second(key: str) -> Callable[[Scrape, Scrape, LoadReport], str]:
    return lambda now, before, _: _text((now.total(key) - before.total(key)) / (now.at - before.at))


def _latency(key: str, q: float, scale: float, form: str) -> Callable[[Scrape, Scrape, LoadReport], str]:
    return lambda now, *_: _text(now.quantile(key, q) * scale, form)


COLUMNS = (
    Column("sent", "requests", 8, lambda _now, _before, report: str(report.sent)),
    Column("finished", "sequences", 9, _gauge("finished")),
    Column("running", "now", 7, _gauge("running")),
    Column("waiting", "now", 7, _gauge("waiting")),
    Column("KV used", "%", 7, _percent("kv")),
    Column("prompt", "tokens/s", 8, _per_second("prompt")),
    Column("output", "tokens/s", 8, _per_second("generation")),
    Column("TTFT p50", "ms", 8, _latency("ttft", 0.5, 1000, ".0f")),
    Column("p95", "ms", 6, _latency("ttft", 0.95, 1000, ".0f")),
    Column("ITL p50", "ms", 7, _latency("itl", 0.5, 1000, ".1f")),
    Column("p95", "ms", 6, _latency("itl", 0.95, 1000, ".1f")),
    Column("prefix", "% hits", 8, _percent("hits", "queries")),
)
ABOUT = """\
TTFT: time to first token, ITL: time between two tokens, both of all requests so far. KV used: of the KV cache, now.
Rates are since the line before. A request may ask for several sequences."""


def lines(seconds: float, now: Scrape, before: Scrape, report: LoadReport, *, head: bool) -> list[str]:
    """Return a line of figures, below those that head it if these are asked for."""
    texts = [f"{seconds:.0f}", *(column.text(now, before, report) for column in COLUMNS)]
    found = [texts]
    if head:
        found = [["time", *(column.title for column in COLUMNS)], ["s", *(column.unit for column in COLUMNS)], texts]
    widths = (5, *(column.width for column in COLUMNS))
    return ["  ".join(text.rjust(width) for text, width in zip(each, widths, strict=True)) for each in found]


@dataclass
class Demo:
    """A running server under load, watched through one URL."""

    server: VllmServer
    url: str
    seconds: float
    console: Console = field(default_factory=lambda: Console(width=None if sys.stdout.isatty() else WIDTH))
    report: LoadReport = field(default_factory=LoadReport)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> int:
        """Load the server and show the figures until told to stop; return the exit status."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.stop.set)
        first = await self._first_scrape()
        traffic = run_until_cancelled(self.server.url, self.report, concurrency=CONCURRENCY)
        load = asyncio.create_task(traffic)
        try:
            await self._show(first)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
        await asyncio.sleep(1)  # for the last steps to be counted
        return self._conclude(first, await self._scrape())

    async def _show(self, before: Scrape) -> None:
        if not self.console.is_terminal:
            await self._print(before)
            return
        end = time.monotonic() + self.seconds
        with Live(console=self.console, auto_refresh=False, transient=True) as view:
            while await self._wait(end, 1.0):
                now = await self._scrape()
                view.update(self._table(figures(now, before, self.report.sent), "Ctrl-C ends it"), refresh=True)
                before = now

    async def _print(self, before: Scrape) -> None:
        """Print a line of figures every few seconds."""
        print(f"\n{self.url} under load\n{ABOUT}", flush=True)
        begun, number = before.at, 0
        while await self._wait(begun + self.seconds, EVERY):
            now = await self._scrape()
            if now.at - before.at < EVERY / 2:
                break  # the end came so soon after a line that rates would say little
            head = number % LINES == 0
            found = lines(now.at - begun, now, before, self.report, head=head)
            print("\n".join(["", *found] if head else found), flush=True)
            before, number = now, number + 1
        print()

    async def _wait(self, end: float, seconds: float) -> bool:
        """Wait for some seconds, no longer than to the end; tell whether there is something to show then."""
        left = end - time.monotonic()
        if self.stop.is_set() or left <= 0:
            return False
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.stop.wait(), min(left, seconds))
        return True

    def _table(self, rows: Rows, caption: str = "") -> Table:
        table = Table("figure", "value", title=f"{self.url} under load", caption=caption)
        for row in rows:
            table.add_row(*row)
        return table

    def _comparison(self, page: Scrape) -> Table:
        """Return what the client counted beside what the endpoint shows."""
        table = Table("figure", "client", "endpoint", title="The same load, seen from both ends")
        shown = page.by("finished", "finish_reason")
        for reason, count in sorted(self.report.finished.items()):
            table.add_row(f"sequences that ended by {reason}", f"{count}", _text(shown.get(reason, math.nan)))
        for name, key, seen in (
            ("time to first token", "ttft", self.report.ttft), ("request duration", "e2e", self.report.e2e)
        ):  # fmt: skip
            table.add_row(name, _p50_p95([_exact(seen, q) for q in (0.5, 0.95)]), _quantiles(page, key))
        table.caption = (
            "The client leaves out whom it hung up on, and counts the way to the server and back; "
            "the endpoint's quantiles are estimated from buckets."
        )
        return table

    async def _first_scrape(self, patience: float = 20.0) -> Scrape:
        end = time.monotonic() + patience
        while True:
            try:
                return await self._scrape()
            except DemoError:
                if time.monotonic() > end or not self.server.alive():
                    raise
            await asyncio.sleep(0.5)

    async def _scrape(self) -> Scrape:
        try:
            return Scrape(await asyncio.to_thread(fetch, self.url))
        except (OSError, ValueError) as error:
            alive = self.server.alive()
            what = f"{self.url} does not answer: {error}" if alive else "vLLM has ended"
            log = f"the end of {self.server.log}:\n{self.server.log_tail()}"
            raise DemoError(f"{what}; {log}") from error

    def _conclude(self, first: Scrape, last: Scrape) -> int:
        self.console.print(self._table(figures(last, first, self.report.sent)))
        self.console.print(self._comparison(last))
        steps, failures = last.total("steps"), self.report.failures
        print(f"requests sent: {self.report.sent}, steps seen: {_text(steps)}, scraped: {self.url}")
        if failures:
            print(f"{len(failures)} requests failed, the first: {failures[0]}", file=sys.stderr)
        if not steps > 0:
            print(f"{self.url} has no step in {NAMES['steps']!r}", file=sys.stderr)
        return 1 if failures or not steps > 0 else 0


def _text(value: float, form: str = ".0f") -> str:
    return "-" if math.isnan(value) else format(value, form)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _parts(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in values.items()) or "-"


def _rate(now: Scrape, before: Scrape, key: str) -> str:
    rate = (now.total(key) - before.total(key)) / (now.at - before.at)
    return f"{_text(rate)} per second, {_text(now.total(key))} in all"


def _quantiles(now: Scrape, key: str) -> str:
    return _p50_p95([now.quantile(key, q) for q in (0.5, 0.95)])


def _p50_p95(seconds: Sequence[float]) -> str:
    median, tail = (_text(1000 * each, ".1f") for each in seconds)
    return f"p50 {median} ms, p95 {tail} ms"


def _exact(seen: Sequence[float], q: float) -> float:
    """Return a quantile of numbers, NaN of none."""
    return sorted(seen)[min(int(q * len(seen)), len(seen) - 1)] if seen else math.nan


def _tell_start(seconds: float) -> None:
    """Print a line every five seconds while vLLM starts; it is called twice a second."""
    if seconds % 5 < 0.5:
        print(f"[{seconds:4.0f} s] starting vLLM, usually 30 to 60 s", flush=True)


def _demonstrate(port: int, seconds: float) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise DemoError(f"port {port} cannot be had ({error}): try another --port") from error
    model, log = make_model(CACHE / "live" / "model"), CACHE / "live" / "demo.log"
    with VllmServer(model, args=ARGS, vitals_port=port, log=log, on_wait=_tell_start) as server:
        return asyncio.run(Demo(server, f"http://localhost:{port}/metrics", seconds).run())


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end by itself after so long")
    parser.add_argument("--port", type=int, default=9464, help="the endpoint's (%(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _demonstrate(options.port, options.seconds)
    except KeyboardInterrupt:
        print("stopped while starting or stopping", file=sys.stderr)
        return 130
    except (DemoError, ServerError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
