"""A reading in which a device says all that one can say."""

from typing import Any

from vllm_vitals.records.gpu import Gpu, Reading

WHOLE = Gpu("GPU-a", "H100", "NVIDIA", "", "3", "00:1B", "165", "550.54", "96.00")


def full(**more: Any) -> Reading:
    """Return what an H100 says that works for the engine 4 of the model m, but for what is given."""
    said: dict[str, Any] = {
        "model": "m", "engine": "4", "utilization": 0.87, "memory_activity": 0.4, "memory_usage": 60, "memory_limit": 80,
        "process_memory": 50, "power": 412.5, "power_limit": 700.0, "energy": 400.0,
        "temperatures": {"gpu": 66, "memory": 78}, "temperature_limits": {("gpu", "throttled"): 87},
        "clocks": {"sm": 1.98e9, "memory": 2.6e9}, "errors": {"corrected": 2.0, "uncorrected": 0.0},
        "io": {("pcie", "receive"): 7.0, ("nvlink", "transmit"): 9.0}, "throttled": {"sw_power_cap": 1.0}, **more,
    }  # fmt: skip
    return Reading(WHOLE, **said)
