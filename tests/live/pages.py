"""What a running server's pages show once they are at rest."""

import math
import time
from collections.abc import Callable, Container, Iterator
from typing import NamedTuple, Protocol

from tests.live.server import VllmServer
from tests.parity import Samples, differences, parse, value
from vllm_vitals.catalog.cost import COST, ENERGY, GPU_TIME
from vllm_vitals.catalog.engine import LIMITED

TIMED = {LIMITED, GPU_TIME, COST, ENERGY}
"""Counters that go on while nothing happens."""
LATE = 4.0
"""Seconds after which everything is counted: of several servers, who hung up shows three after the engine is idle."""
AT_REST = 1.5
"""The same of one server."""


def settled(server: VllmServer, *, within: float = 60.0, apart: Container[str] = ()) -> tuple[Samples, Samples]:
    """Return vLLM's page and ours once the engine is idle and neither moves any more, and they agree but for `apart`."""
    before, begun, late = None, time.monotonic(), LATE if server.several else AT_REST
    for _ in until(within):
        native, ours = parse(server.metrics_text()), parse(server.vitals_text())
        idle = not value(native, "vllm:num_requests_running") and not value(native, "vllm:num_requests_waiting")
        counted = {name: samples for name, samples in native.items() if name.startswith("vllm:")}
        if not idle or counted != before:
            before, begun = counted, time.monotonic()
        elif time.monotonic() - begun >= late and not list(differences(native, ours, apart=apart)):
            break
    return native, ours


class Reading(NamedTuple):
    """A page of ours, and between which moments it was made, monotonic seconds."""

    page: Samples
    asked: float
    answered: float

    def since(self, before: "Reading") -> tuple[float, float]:
        """Return the least and the most seconds that have passed since another reading."""
        return self.asked - before.answered, self.answered - before.asked


def read(server: VllmServer) -> Reading:
    """Read our page."""
    asked = time.monotonic()
    return Reading(parse(server.vitals_text()), asked, time.monotonic())


def until(seconds: float, pause: float = 0.25) -> Iterator[None]:
    """Yield again and again until the seconds are over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(pause)


def eventually(check: Callable[[], bool], seconds: float = 60.0, pause: float = 0.25) -> bool:
    """Tell whether a check comes true within some seconds."""
    return took(check, seconds, pause) < math.inf


def took(check: Callable[[], bool], seconds: float, pause: float = 0.25) -> float:
    """Return the seconds until a check came true, infinity if it did not within `seconds`."""
    begun = time.monotonic()
    return time.monotonic() - begun if any(check() for _ in until(seconds, pause)) else math.inf


class Recovers(Protocol):
    """Tells whether a check comes true within some seconds, and has the summary say how many of them it took."""

    def __call__(
        self, check: Callable[[], bool], seconds: float, *, since: float | None = None, what: str = "recovered"
    ) -> bool:
        """Wait for the check; what it took counts from `since`, monotonic seconds, by default from now."""


def running(server: VllmServer) -> float:
    """Return how many requests the engines work on."""
    return value(parse(server.vitals_text()), "vllm_engine_requests_running")


def waiting(server: VllmServer) -> float:
    """Return how many requests wait for room."""
    return value(parse(server.vitals_text()), "vllm_engine_requests_waiting", reason="capacity")


def faults(page: Samples) -> float:
    """Return how many errors a page shows, but for those of exports.

    One fails while a server starts that has no receiver yet, or goes without vLLM's own metrics when those are late.
    """
    return sum(number for labels, number in page["vitals_errors_total"].items() if ("stage", "export") not in labels)


def idle(server: VllmServer) -> bool:
    """Tell whether the engines have nothing to do."""
    return running(server) == waiting(server) == 0
