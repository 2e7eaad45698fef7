"""How much of what its GPUs can do an engine makes use of, by vLLM's estimates: MFU and bandwidth."""

import logging
import math
from typing import Any

from vllm_vitals._util.amounts import amount, quotient
from vllm_vitals._util.log import log_once
from vllm_vitals.catalog.engine import FLOPS_LIMIT, MEMORY_TRAFFIC_LIMIT, MEMORY_TRAFFIC_UTILIZATION, MFU
from vllm_vitals.catalog.metric import MAX_COUNT, Gauge
from vllm_vitals.config.settings import PerfSettings
from vllm_vitals.engine.headroom import MEMORY
from vllm_vitals.gpu.peaks import peak
from vllm_vitals.records.step import Facts, Step

PATIENCE = 30.0
"""Seconds after its start that an engine's GPUs may take to say which they are."""


class Rate:
    """An amount per second, averaged over about the last `MEMORY` seconds: older amounts count less and less."""

    def __init__(self, clock: float) -> None:
        """`clock`: monotonic seconds of the start."""
        self._average = 0.0
        self._since = clock

    def add(self, clock: float, amount: float) -> None:
        """Take in what came at `clock`, monotonic seconds, in any order."""
        self._average = self.at(clock) + amount / MEMORY * math.exp((clock - self._since) / MEMORY)

    def at(self, clock: float) -> float:
        """Return the rate at `clock`, monotonic seconds."""
        if clock > self._since:
            self._average *= math.exp((self._since - clock) / MEMORY)
            self._since = clock
        return self._average


class Perf:
    """What one engine makes of its GPUs."""

    def __init__(self, clock: float) -> None:
        """`clock`: monotonic seconds of the engine's start."""
        self.gpu = ""
        """Name of the engine's GPUs, `""` while it is not known or they are of several kinds."""
        self._estimated = False
        """Whether vLLM estimates anything."""
        self._start = clock
        self._precisions: tuple[str, ...] = ()
        self._flops, self._traffic = Rate(clock), Rate(clock)

    def learn(self, facts: Facts) -> None:
        """Take note of what is fixed."""
        self._precisions = facts.precisions

    def step(self, step: Step) -> None:
        """Take in what vLLM estimates of a step."""
        if flops := amount(step.flops, MAX_COUNT):
            self._estimated = True
            self._flops.add(step.clock, flops)
        if step.memory_traffic and (
            moved := sum(amount(each, MAX_COUNT) or 0.0 for each in step.memory_traffic.values())
        ):
            self._traffic.add(step.clock, moved)

    def gauges(self, clock: float, settings: PerfSettings) -> dict[Gauge[Any], float | None]:
        """Return what is shown at `clock`, monotonic seconds; `None` where that cannot be told."""
        if not self._estimated:
            return {}
        known = peak(self.gpu)
        flops = settings.peak_flops or (known.flops(self._precisions) if known else None)
        bandwidth = settings.peak_bandwidth or (known.bandwidth if known else None)
        if not (flops and bandwidth) and clock - self._start > PATIENCE:
            self._complain(flops, bandwidth)
        return {
            FLOPS_LIMIT: flops,
            MEMORY_TRAFFIC_LIMIT: bandwidth,
            MFU: quotient(self._flops.at(clock), flops) if flops else None,
            MEMORY_TRAFFIC_UTILIZATION: quotient(self._traffic.at(clock), bandwidth) if bandwidth else None,
        }

    def _complain(self, flops: float | None, bandwidth: float | None) -> None:
        settings = {
            "perf.peak_flops (VITALS_PERF__PEAK_FLOPS)": flops,
            "perf.peak_bandwidth (VITALS_PERF__PEAK_BANDWIDTH)": bandwidth,
        }
        missing = " and ".join(name for name, value in settings.items() if not value)
        gpu = repr(self.gpu) if self.gpu else "GPUs that do not say which they are"
        precision = " or ".join(self._precisions) or "a precision that the configuration does not tell"
        message = "What %s can do at most, at %s, is not known, so there is no utilization of it: set %s"
        log_once(logging.WARNING, message, gpu, precision, missing)
