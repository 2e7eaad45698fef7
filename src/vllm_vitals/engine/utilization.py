"""The share of its GPUs' peak that an engine uses, by vLLM's estimates: MFU and memory bandwidth."""

import logging
import math
from typing import Any

from vllm_vitals._util.amounts import amount, quotient
from vllm_vitals._util.log import log_once
from vllm_vitals.catalog.engine import FLOPS_LIMIT, MEMORY_TRAFFIC_LIMIT, MEMORY_TRAFFIC_UTILIZATION, MFU
from vllm_vitals.catalog.metric import MAX_COUNT, Gauge
from vllm_vitals.config.settings import PerfSettings
from vllm_vitals.engine.headroom import AVERAGING_SECONDS
from vllm_vitals.gpu.peaks import peak
from vllm_vitals.records.step import Facts, Step

GPU_NAME_TIMEOUT = 30.0
"""Seconds after an engine's start in which the names of its GPUs may still come."""


class Rate:
    """An amount per second, averaged over about the last `AVERAGING_SECONDS`: older amounts count less and less."""

    def __init__(self, clock: float) -> None:
        """`clock`: monotonic seconds of the start."""
        self._average = 0.0
        self._clock = clock

    def add(self, clock: float, amount: float) -> None:
        """Add an amount of `clock`, monotonic seconds, in any order."""
        self._average = self.at(clock) + amount / AVERAGING_SECONDS * math.exp(
            (clock - self._clock) / AVERAGING_SECONDS
        )

    def at(self, clock: float) -> float:
        """Return the rate at `clock`, monotonic seconds."""
        if clock > self._clock:
            self._average *= math.exp((self._clock - clock) / AVERAGING_SECONDS)
            self._clock = clock
        return self._average


class GpuUtilization:
    """The use that one engine makes of its GPUs."""

    def __init__(self, clock: float) -> None:
        """`clock`: monotonic seconds of the engine's start."""
        self.gpu = ""
        """Name of the engine's GPUs; `""` while unknown, or if they are of several kinds."""
        self._estimated = False
        """Whether vLLM reports estimates."""
        self._start = clock
        self._precisions: tuple[str, ...] = ()
        self._flops, self._traffic = Rate(clock), Rate(clock)

    def set_facts(self, facts: Facts) -> None:
        """Take the engine's facts."""
        self._precisions = facts.precisions

    def add_step(self, step: Step) -> None:
        """Add vLLM's estimates of a step."""
        if flops := amount(step.flops, MAX_COUNT):
            self._estimated = True
            self._flops.add(step.clock, flops)
        if step.memory_traffic:
            moved = sum(amount(each, MAX_COUNT) or 0.0 for each in step.memory_traffic.values())
            if moved:
                self._traffic.add(step.clock, moved)

    def gauges(self, clock: float, settings: PerfSettings) -> dict[Gauge[Any], float | None]:
        """Return the gauges at `clock`, monotonic seconds; `None` for an unknown value."""
        if not self._estimated:
            return {}
        known = peak(self.gpu)
        flops = settings.peak_flops or (known.flops(self._precisions) if known else None)
        bandwidth = settings.peak_bandwidth or (known.bandwidth if known else None)
        if not (flops and bandwidth) and clock - self._start > GPU_NAME_TIMEOUT:
            self._warn_unknown_peak(flops, bandwidth)
        return {
            FLOPS_LIMIT: flops,
            MEMORY_TRAFFIC_LIMIT: bandwidth,
            MFU: quotient(self._flops.at(clock), flops) if flops else None,
            MEMORY_TRAFFIC_UTILIZATION: quotient(self._traffic.at(clock), bandwidth) if bandwidth else None,
        }

    def _warn_unknown_peak(self, flops: float | None, bandwidth: float | None) -> None:
        settings = {
            "perf.peak_flops (VITALS_PERF__PEAK_FLOPS)": flops,
            "perf.peak_bandwidth (VITALS_PERF__PEAK_BANDWIDTH)": bandwidth,
        }
        missing = " and ".join(name for name, value in settings.items() if not value)
        gpu = repr(self.gpu) if self.gpu else "GPUs of unknown name"
        precision = " or ".join(self._precisions) or "an unknown precision"
        message = "The peak performance of %s at %s is unknown, so there is no utilization metric for it: set %s"
        log_once(logging.WARNING, message, gpu, precision, missing)
