"""Varied, seeded traffic for a vLLM server, with exact counts of what the client saw."""

import asyncio
import contextlib
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp

from tests.live.model import VOCAB
from tests.live.server import MODEL_NAME, VllmServer

Cut = Literal["never", "early", "late"]
Body = dict[str, Any]

# Prefix cache hits come in whole blocks of 128 tokens: this prefix is four of them.
SHARED_PREFIX = [2 + (7 * index) % (VOCAB - 2) for index in range(512)]


@dataclass(frozen=True)
class Request:
    """One completion to ask for, and when the client hangs up."""

    kind: str
    body: Body
    cut: Cut = "never"

    @property
    def choices(self) -> int:
        """How many sequences the engine runs for it: each is a request in vLLM's counts."""
        return int(self.body.get("n", 1))


@dataclass
class LoadReport:
    """What the client saw; only requests that were answered to the end move the token counts."""

    sent: int = 0
    finished: Counter[str] = field(default_factory=Counter)  # choices by finish_reason
    kinds: Counter[str] = field(default_factory=Counter)  # requests sent by kind
    prompt_tokens: int = 0  # as `usage` says: once per request
    engine_prompt_tokens: int = 0  # as vLLM counts: once per choice
    completion_tokens: int = 0
    disconnected: Counter[Cut] = field(default_factory=Counter)
    late_prompt_tokens: int = 0  # prompts of the late disconnects, which vLLM counts too
    interrupted: int = 0  # in flight when the load was cancelled
    failures: list[str] = field(default_factory=list)
    ttft: list[float] = field(default_factory=list)  # seconds, of streaming requests
    e2e: list[float] = field(default_factory=list)  # seconds, of answered requests


def plan(
    seed: int, *, disconnects: bool = True, seeded: bool = True, models: tuple[str, ...] = (MODEL_NAME,)
) -> Iterator[Request]:
    """Yield requests without end; the same seed yields the same ones. `seeded`: sampling is seeded too."""
    rng = random.Random(seed)
    kinds = KINDS if disconnects else [kind for kind in KINDS if kind[1] == "never"]
    while True:
        # Every kind once per round, so that a short run has them all.
        for name, cut, build in rng.sample(kinds, len(kinds)):
            common: Body = {"model": rng.choice(models)}
            if seeded:
                common["seed"] = rng.randrange(2**31)
            yield Request(name, common | build(rng), cut)


async def run_load(
    url: str,
    *,
    count: int,
    seed: int = 0,
    concurrency: int = 8,
    disconnects: bool = True,
    seeded: bool = True,
    models: tuple[str, ...] = (MODEL_NAME,),
) -> LoadReport:
    """Send ``count`` planned requests to the server at ``url``; return when all are done."""
    report = LoadReport()
    requests = plan(seed, disconnects=disconnects, seeded=seeded, models=models)
    await _send_all(url, (next(requests) for _ in range(count)), concurrency, report)
    return report


def put_load(server: VllmServer, *, count: int, **options: Any) -> LoadReport:
    """Send requests as `run_load` does and return what the client saw; none may have failed."""
    report = asyncio.run(run_load(server.url, count=count, **options))
    assert not report.failures
    return report


async def complete(session: aiohttp.ClientSession, seed: int, *, prompt: int, **body: Any) -> int:
    """Ask for a completion of a prompt of so many random tokens, and return the status of the answer."""
    tokens = random.Random(seed).choices(range(2, VOCAB), k=prompt)
    ask = {"model": MODEL_NAME, "prompt": tokens, "ignore_eos": True, **body}
    async with session.post("/v1/completions", json=ask) as answer:
        await answer.read()
        return int(answer.status)


async def together(server: VllmServer, count: int, **asked: Any) -> list[int]:
    """Ask for so many completions at once, and return the statuses."""
    async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=300)) as session:
        return await asyncio.gather(*(complete(session, seed, **asked) for seed in range(count)))


@contextlib.contextmanager
def kept_busy(server: VllmServer, *, seed: int = 0, disconnects: bool = True) -> Iterator[LoadReport]:
    """Keep planned requests in flight, on a thread, and wait in the end for those under way; none may fail."""
    report, over = LoadReport(), threading.Event()
    requests = itertools.takewhile(lambda _: not over.is_set(), plan(seed, disconnects=disconnects))

    def work() -> None:
        asyncio.run(_send_all(server.url, requests, 8, report))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    try:
        yield report
    finally:
        over.set()
        worker.join()
    assert not report.failures


async def run_until_cancelled(
    url: str,
    report: LoadReport,
    *,
    seed: int = 0,
    concurrency: int = 8,
    disconnects: bool = True,
    models: tuple[str, ...] = (MODEL_NAME,),
) -> None:
    """Keep ``concurrency`` planned requests in flight, ``report`` current, until cancelled."""
    requests = plan(seed, disconnects=disconnects, models=models)
    await _send_all(url, requests, concurrency, report)


async def send(session: aiohttp.ClientSession, request: Request, report: LoadReport) -> None:
    """Send one request and count its end; only a cancellation is raised."""
    report.sent += 1
    report.kinds[request.kind] += 1
    start = time.perf_counter()
    try:
        if request.body.get("stream"):
            await _stream(session, request, report, start)
        else:
            await _whole(session, request, report, start)
    except asyncio.CancelledError:
        report.interrupted += 1
        raise
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as error:
        report.failures.append(f"{request.kind}: {error!r}")


async def _send_all(url: str, requests: Iterable[Request], concurrency: int, report: LoadReport) -> None:
    waiting = iter(requests)
    # No reuse: a hang-up must close its connection, and a closed server must show as a failure.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    limits = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(url, connector=connector, timeout=limits) as session:

        async def work() -> None:
            for request in waiting:
                known = len(report.failures)
                await send(session, request, report)
                if len(report.failures) > known:
                    await asyncio.sleep(0.2)

        workers = [asyncio.create_task(work()) for _ in range(concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


async def _whole(session: aiohttp.ClientSession, request: Request, report: LoadReport, start: float) -> None:
    async with _post(session, request) as response:
        answer = await response.json()
    _count(request, answer["usage"], answer["choices"], report, start)


async def _stream(session: aiohttp.ClientSession, request: Request, report: LoadReport, start: float) -> None:
    ended: list[Body] = []
    usage: Body = {}
    first = True
    async with _post(session, request) as response:
        if request.cut == "early":
            # The headers came before any token; this is the time to get into the engine.
            await asyncio.sleep(0.005)
            _hang_up(request, response, report)
            return
        async for event in _events(response):
            if event["choices"] and first:
                first = False
                report.ttft.append(time.perf_counter() - start)
                if request.cut == "late":
                    _hang_up(request, response, report)
                    return
            ended += [choice for choice in event["choices"] if choice["finish_reason"]]
            usage = event.get("usage") or usage
    _count(request, usage, ended, report, start)


def _hang_up(request: Request, response: aiohttp.ClientResponse, report: LoadReport) -> None:
    response.close()
    report.disconnected[request.cut] += 1
    if request.cut == "late":
        report.late_prompt_tokens += len(request.body["prompt"])


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[Body]:
    async for line in response.content:
        if line.startswith(b"data: {"):
            event: Body = json.loads(line[6:])
            if "error" in event:
                raise ValueError(f"the stream broke off: {event['error']}")
            yield event


@contextlib.asynccontextmanager
async def _post(session: aiohttp.ClientSession, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
    async with session.post("/v1/completions", json=request.body) as response:
        if response.status != 200:
            raise ValueError(f"HTTP {response.status}: {(await response.text())[:200]}")
        yield response


def _count(request: Request, usage: Body, choices: list[Body], report: LoadReport, start: float) -> None:
    if not usage or len(choices) != request.choices:
        raise ValueError(f"{len(choices)} of {request.choices} choices ended, usage {usage}")
    report.e2e.append(time.perf_counter() - start)
    report.finished.update(choice["finish_reason"] for choice in choices)
    report.prompt_tokens += usage["prompt_tokens"]
    report.engine_prompt_tokens += usage["prompt_tokens"] * request.choices
    report.completion_tokens += usage["completion_tokens"]


def _prompt(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(2, VOCAB) for _ in range(rng.randint(low, high))]


def _short(rng: random.Random) -> Body:
    return {"prompt": _prompt(rng, 4, 40), "max_tokens": rng.randint(8, 64), "temperature": 0.7}


def _long(rng: random.Random) -> Body:
    return {"prompt": _prompt(rng, 300, 800), "max_tokens": rng.randint(8, 96), "temperature": 0}


def _shared(rng: random.Random) -> Body:
    prompt = SHARED_PREFIX + _prompt(rng, 8, 60)
    return {"prompt": prompt, "max_tokens": rng.randint(16, 48), "temperature": 0.3}


def _exact(rng: random.Random) -> Body:
    return _short(rng) | {"max_tokens": 100, "ignore_eos": True}


def _single(rng: random.Random) -> Body:
    return _short(rng) | {"max_tokens": 1}


def _several(rng: random.Random) -> Body:
    return _short(rng) | {"n": rng.randint(2, 4), "temperature": 1.0}


def _stop(rng: random.Random) -> Body:
    return _short(rng) | {"stop": list("aeio"), "max_tokens": 200}


def _repeating(rng: random.Random) -> Body:
    detection = {"max_pattern_size": 4, "min_count": 3}
    return _short(rng) | {"temperature": 0, "max_tokens": 300, "repetition_detection": detection}


def _endless(rng: random.Random) -> Body:
    # So long that the client always hangs up before the engine is done.
    return {"prompt": _prompt(rng, 100, 300), "max_tokens": 700, "ignore_eos": True}


def _streamed(build: Callable[[random.Random], Body]) -> Callable[[random.Random], Body]:
    stream: Body = {"stream": True, "stream_options": {"include_usage": True}}
    return lambda rng: build(rng) | stream


KINDS: list[tuple[str, Cut, Callable[[random.Random], Body]]] = [
    ("short", "never", _short),
    ("short stream", "never", _streamed(_short)),
    ("long", "never", _long),
    ("long stream", "never", _streamed(_long)),
    ("shared prefix", "never", _shared),
    ("shared prefix stream", "never", _streamed(_shared)),
    ("exact length stream", "never", _streamed(_exact)),
    ("one token", "never", _single),
    ("one token stream", "never", _streamed(_single)),
    ("several choices", "never", _several),
    ("several choices stream", "never", _streamed(_several)),
    ("stop string", "never", _stop),
    ("repetition", "never", _repeating),
    ("hang up before a token", "early", _streamed(_endless)),
    ("hang up after a token", "late", _streamed(_endless)),
]
