"""The thread that samples the GPUs, off the serving path; one on a host for the devices of one vLLM."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from vllm_vitals._util.log import LOGGER, log_once
from vllm_vitals._util.pacing import paced
from vllm_vitals.gpu.amd_source import AmdSource
from vllm_vitals.gpu.choice import EVERY, VENDORS, Choice, vendors
from vllm_vitals.gpu.fleet import Fleet
from vllm_vitals.gpu.nvml import Nvml
from vllm_vitals.gpu.processes import Family
from vllm_vitals.gpu.source import Source
from vllm_vitals.gpu.visible import AMD, NVIDIA
from vllm_vitals.records.gpu import Sample
from vllm_vitals.records.placement import NOBODY, Owner, Placement, place

SOURCES: Mapping[str, Callable[[Family], Source]] = {NVIDIA: Nvml, AMD: AmdSource}
SHORTEST_REST = 0.1
"""Seconds between two samples at least, however long they take."""
IDLE_REST = 5.0
"""Seconds between two looks while there is nothing to sample."""


class Sink(Protocol):
    """Where samples go: the collector."""

    def add(self, records: Sequence[Sample]) -> None:
        """Take samples, oldest first."""


class Sampler:
    """Samples at each interval what all fleets say. Only its own thread touches a driver."""

    def __init__(self, sink: Sink, interval: float, fleets: Sequence[Fleet], trouble: Callable[[], str] = str) -> None:
        """`interval`: seconds between the beginnings of two samples. `trouble`: what is wrong with the settings."""
        self._sink = sink
        self._interval = interval
        self._fleets = fleets
        self._trouble = trouble
        self._told = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitals-gpu", daemon=True)

    def start(self) -> None:
        """Begin to sample, at once for the first time."""
        self._thread.start()

    def stop(self) -> None:
        """End, in bounded time even while a driver hangs."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def after_fork_in_child(self) -> None:
        """Let go of what a fork copied, without touching threads or locks."""
        self._stopped = threading.Event()
        self._stopped.set()

    @paced()
    def sample(self) -> bool:
        """Take one sample, and tell whether there was anything to sample; else nothing is told."""
        readings = [reading for fleet in self._fleets for reading in fleet.read()]
        self._tell()
        if readings:
            self._sink.add([Sample(time.time(), time.monotonic(), readings)])
        return bool(readings)

    def _tell(self) -> None:
        """Say in one line what was found when it was first looked for, and what is wrong with the settings."""
        if not self._told and self._fleets:
            self._told = True
            LOGGER.info("GPUs: %s", "; ".join(f"{fleet.vendor}: {fleet.found()}" for fleet in self._fleets))
        trouble = self._trouble()
        if trouble:
            log_once(logging.WARNING, "%s", trouble, key="gpu.devices")

    def _run(self) -> None:
        while not self._stopped.is_set():
            started, interval = time.monotonic(), self._interval
            try:
                if not self.sample():
                    interval = max(interval, IDLE_REST)
            except Exception:  # noqa: BLE001 - the thread must go on
                log_once(logging.ERROR, "The GPUs could not be sampled", traceback=True)
            self._stopped.wait(max(interval - (time.monotonic() - started), SHORTEST_REST))
        for fleet in self._fleets:
            fleet.close()


def sampler(
    sink: Sink,
    interval: float,
    devices: str | None = None,
    placements: Callable[[], Sequence[Placement]] = tuple,
    roots: Sequence[int] = (),
    environ: Mapping[str, str] = os.environ,
) -> Sampler:
    """Return the sampler of this process, not started yet.

    `devices`: those that vLLM may use, written as in `CUDA_VISIBLE_DEVICES`, by default those that `environ` names there;
    or `all`, to watch every one and ask no further; else those of the vendor whom this process's PyTorch is built for.
    `placements`: what is known of the engines here when a driver is
    opened. `roots`: the processes that vLLM's descend from, by default this one.
    """
    choice = Choice(devices, environ)

    def owners(ids: Sequence[str]) -> Mapping[str, Owner]:
        return dict.fromkeys(ids, NOBODY) if devices == EVERY else place(placements(), ids)

    # Not what is in the machine besides, such as the graphics unit of its processor.
    wanted = VENDORS if devices == EVERY else vendors()
    fleets = [Fleet(SOURCES[vendor](Family(roots)), choice, owners) for vendor in wanted]
    return Sampler(sink, interval, fleets, choice.trouble)
