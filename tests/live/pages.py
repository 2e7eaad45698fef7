"""What a running server's pages show once they are at rest."""

import time
from collections.abc import Callable, Iterator

from tests.live.server import VllmServer
from tests.parity import Samples, differences, parse, value
from vllm_vitals.catalog.cost import COST, ENERGY, GPU_TIME
from vllm_vitals.catalog.engine import LIMITED

TIMED = {LIMITED, GPU_TIME, COST, ENERGY}
"""Counters that go on while nothing happens."""
LATE = 4.0
"""Seconds after which everything is counted: of several servers, who hung up shows three after the engine is idle."""


def settled(server: VllmServer, *, within: float = 20.0) -> tuple[Samples, Samples]:
    """Return vLLM's page and ours once the engine is idle and neither page moves any more."""
    before, begun = None, time.monotonic()
    for _ in until(within):
        native, ours = parse(server.metrics_text()), parse(server.vitals_text())
        idle = not value(native, "vllm:num_requests_running") and not value(native, "vllm:num_requests_waiting")
        counted = {name: samples for name, samples in native.items() if name.startswith("vllm:")}
        if not idle or counted != before:
            before, begun = counted, time.monotonic()
        elif time.monotonic() - begun >= LATE and not list(differences(native, ours)):
            break
    return native, ours


def until(seconds: float, pause: float = 0.25) -> Iterator[None]:
    """Yield again and again until the seconds are over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(pause)


def eventually(check: Callable[[], bool], seconds: float = 15.0) -> bool:
    """Tell whether a check comes true within some seconds."""
    return any(check() for _ in until(seconds))
