"""Show a real vLLM under load, seen only through this project's endpoint, until Ctrl-C."""

import argparse
import asyncio
import contextlib
import math
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import NoReturn

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tests.live.bootstrap import CACHE
from tests.live.load import LoadReport, run_until_cancelled
from tests.live.model import make_model
from tests.live.server import ServerError, VllmServer, fetch
from vllm_vitals.catalog import cache, engine, itself, requests

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
    "steps": itself.STEPS.prometheus,
    "dropped": itself.DROPPED.prometheus,
    "errors": itself.ERRORS.prometheus,
    "hook": itself.HOOK_TIME.prometheus,
}
# A small batch and a small cache, so that there is something to see: waiting, and a cache in use.
ARGS = ("--max-num-seqs", "8", "--num-gpu-blocks-override", "48")
CONCURRENCY = 12
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


@dataclass
class Demo:
    """A running server under load, watched through one URL."""

    server: VllmServer
    url: str
    seconds: float
    console: Console = field(default_factory=Console)
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
        live = self.console.is_terminal
        end = time.monotonic() + self.seconds
        with Live(console=self.console, auto_refresh=False, transient=True) as view:
            while not self.stop.is_set() and (left := end - time.monotonic()) > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), min(left, 1.0 if live else 3.0))
                now = await self._scrape()
                rows = figures(now, before, self.report.sent)
                if live:
                    view.update(self._table(rows, "Ctrl-C ends it"), refresh=True)
                else:
                    print("; ".join(f"{name}: {text}" for name, text in rows), flush=True)
                before = now

    def _table(self, rows: Rows, caption: str = "") -> Table:
        table = Table("figure", "value", title=f"{self.url} under load", caption=caption)
        for row in rows:
            table.add_row(*row)
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
    median, tail = (now.quantile(key, q) * 1000 for q in (0.5, 0.95))
    return f"p50 {_text(median, '.1f')} ms, p95 {_text(tail, '.1f')} ms"


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
