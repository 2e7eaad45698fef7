"""GPUs."""

from tests.rules.fleet import MODEL, WHERE_SERVICE, engine, replica, series, where
from tests.rules.promtool import Fires, Scenario

SLOW, MEMORY, DEGRADED, LOST, IDLE = (
    "VllmGpuThrottled", "VllmGpuMemoryErrors", "VllmGpuDegraded", "VllmGpuLost", "VllmGpuIdleWhileBilled",
)  # fmt: skip


def device(place: int = 0) -> dict[str, str]:
    return {**engine(place), "hw_id": f"GPU-{place}", "hw_name": "H200"}


def whose(place: int = 0) -> str:
    return f"GPU GPU-{place} (H200, engine 0 of m)"


def throttled(reason: str, values: str, place: int = 0) -> dict[str, str]:
    return {
        series(
            "vllm_gpu_throttled_duration_seconds_total", {**device(place), "hw_vendor": "nvidia"}, reason=reason
        ): values
    }


def status(ok: str, degraded: str, failed: str, place: int = 0) -> dict[str, str]:
    states = {"ok": ok, "degraded": degraded, "failed": failed}
    return {
        series("hw_status", {**device(place), "hw_type": "gpu"}, hw_state=state): values
        for state, values in states.items()
    }


def errors(kind: str, values: str, labels: dict[str, str] | None = None) -> dict[str, str]:
    return {
        series(
            "hw_errors_total", {**(device() if labels is None else labels), "hw_type": "gpu"}, error_type=kind
        ): values
    }


def gpu_time(busy: str, idle: str, asleep: str, gpus: str, place: int = 0) -> dict[str, str]:
    states = {"busy": busy, "idle": idle, "asleep": asleep}
    name = "vllm_engine_gpu_time_seconds_total"
    return {
        **{series(name, engine(place), state=state): values for state, values in states.items()},
        series("vllm_engine_gpus", engine(place)): gpus,
    }


SCENARIOS = (
    # 15 s of each minute
    Scenario(SLOW, "too hot for a quarter of the time", throttled("hw_thermal_slowdown", "0+15x60") | throttled("hw_thermal_slowdown", "0x60", 1), {
        "5m": [],
        "20m": [Fires({**device(), "reason": "hw_thermal_slowdown", "severity": "warning"},
                      f"{whose()} was slowed down for 25% of the last 10m (hw_thermal_slowdown){where()}")],
    }),
    Scenario(SLOW, "an AMD GPU, too hot", throttled("hbm_thermal", "0+30x60"), {
        "20m": [Fires({**device(), "reason": "hbm_thermal", "severity": "warning"},
                      f"{whose()} was slowed down for 50% of the last 10m (hbm_thermal){where()}")],
    }),
    Scenario(SLOW, "at its power cap under load, which is as it should be", throttled("sw_power_cap", "0+60x60"), {"20m": [], "40m": []}),
    Scenario(SLOW, "too hot for 3 s of each minute", throttled("hw_thermal_slowdown", "0+3x60"), {"20m": [], "40m": []}),
    Scenario(MEMORY, "two that ECC did not correct", errors("uncorrected", "0x9 2x60"), {
        "9m": [],
        "40m": [Fires({**device(), "severity": "critical"}, f"{whose()} had 2 uncorrected memory errors in the last 1h{where()}")],
    }),
    Scenario(MEMORY, "one that nothing has read yet, and one that something has",
             errors("uncorrected", "0x9 1x60") | errors("deferred", "0x9 1x60"), {
        "40m": [Fires({**device(), "severity": "critical"}, f"{whose()} had 2 uncorrected memory errors in the last 1h{where()}")],
    }),
    Scenario(MEMORY, "on a GPU of which nobody knows whose it is", errors(
        "uncorrected", "0+60x100", {**replica(), "hw_id": "GPU-9", "hw_name": "H200"}), {
        "90m": [Fires({**replica(), "hw_id": "GPU-9", "hw_name": "H200", "severity": "critical"},
                      f"GPU GPU-9 (H200) had 3600 uncorrected memory errors in the last 1h{where()}")],
    }),
    Scenario(MEMORY, "corrected ones", errors("corrected", "0+10x60") | errors("uncorrected", "0x60"), {"20m": [], "50m": []}),
    Scenario(DEGRADED, "rows wait for a reset", status("1x4 0x60", "0x4 1x60", "0x60"), {
        "10m": [],
        "25m": [Fires({**device(), "severity": "warning"},
                      f"{whose()} has broken memory rows that wait for a reset, or that cannot be replaced{where()}")],
    }),
    Scenario(DEGRADED, "well", status("1x60", "0x60", "0x60"), {"10m": [], "50m": []}),
    Scenario(LOST, "one of two falls off the bus", status("1x60", "0x60", "0x60") | status("1x4 0x60", "0x60", "0x4 1x60", 1), {
        "4m": [],
        "8m": [Fires({**device(1), "severity": "critical"},
                     f"{whose(1)} does not answer its driver: it fell off the bus, hangs, or the driver is gone{where(1)}")],
    }),
    Scenario(LOST, "back within a minute", status("1x4 0 1x60", "0x60", "0x4 1 0x60"), {"5m": [], "6m": [], "8m": []}),
    Scenario(LOST, "the pod is gone", status("1x4 stale", "0x4 stale", "0x4 stale"), {"8m": []}),
    # 1 of 60 s busy, on each of two replicas
    Scenario(IDLE, "hardly any work for six hours",
             gpu_time("0+1x500", "0+59x500", "0x500", "1x500") | gpu_time("0+1x500", "0+29x500", "0+30x500", "1x500", 1), {
        "30m": [], "5h": [],
        "7h": [Fires({**MODEL, "severity": "info"}, f"The GPUs of m were without work for 98.33% of the last 6h{WHERE_SERVICE}")],
    }),
    Scenario(IDLE, "idle for seven hours, then scaled to zero: what the window remembers costs nothing any more",
             gpu_time("0x420 stale", "0+60x420 stale", "0x420 stale", "1x420 stale"), {
        "6h55m": [Fires({**MODEL, "severity": "info"}, f"The GPUs of m were without work for 100% of the last 6h{WHERE_SERVICE}")],
        "7h10m": [], "9h": [], "12h": [],
    }),
    Scenario(IDLE, "busy a tenth of the time", gpu_time("0+6x500", "0+54x500", "0x500", "1x500"), {"7h": []}),
    Scenario(IDLE, "started two hours ago", gpu_time("_x300 0x200", "_x300 0+60x200", "_x300 0x200", "_x300 1x200"), {"7h": []}),
    Scenario(IDLE, "scaled to zero", gpu_time("0x60 stale", "0+60x60 stale", "0x60 stale", "1x60 stale"), {"2h": [], "8h": []}),
)  # fmt: skip
