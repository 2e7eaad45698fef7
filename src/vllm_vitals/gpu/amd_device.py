"""What one AMD device says through AMD SMI, in the units of the conventions, its counters as they stand."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from vllm_vitals.gpu.amd_handle import Handle, first, number, scaled
from vllm_vitals.gpu.counters import Counters
from vllm_vitals.records.gpu import AMD_REASONS, CLOCKS, DEGRADED, DIRECTIONS, ERRORS, LIMITS, Gpu, Reading

SELDOM = 10.0
"""Seconds between two readings of what costs the driver more (errors, pages, processes), and of what hardly changes."""
METRICS = "amdsmi_get_gpu_metrics_info"
POWERS = ("current_socket_power", "average_socket_power")
"""Watts: of the moment (from MI300 on), and the mean that the firmware takes."""
HOTSPOT, EDGE, VRAM = (f"AmdSmiTemperatureType.{name}" for name in ("HOTSPOT", "EDGE", "VRAM"))
CURRENT, *THRESHOLDS = (f"AmdSmiTemperatureMetric.{name}" for name in ("CURRENT", "CRITICAL", "EMERGENCY"))
TEMPERATURES = {
    "gpu": (("temperature_hotspot", HOTSPOT), ("temperature_edge", EDGE)),
    "memory": (("temperature_mem", VRAM),),
}
"""Degrees Celsius in the metrics, and sensors. The hotspot's count first: MI300 has no other, and the limits are its."""
CLOCK_TYPES = dict(zip(CLOCKS, ("AmdSmiClkType.GFX", "AmdSmiClkType.MEM"), strict=True))
LINKS = dict(zip(DIRECTIONS, ("xgmi_read_data_acc", "xgmi_write_data_acc"), strict=True))
"""Kilobytes by link."""
RESIDENCIES = dict(
    zip(AMD_REASONS, ("ppt_residency_acc", "prochot_residency_acc", "socket_thm_residency_acc", "vr_thm_residency_acc",
                      "hbm_thm_residency_acc"), strict=False)
)  # fmt: skip
THROTTLES = ("indep_throttle_status", "throttle_status")
"""In the metrics of what has no residencies: whether anything at all keeps clocks down."""
UNSPECIFIED = AMD_REASONS[-1]
ERROR_COUNTS = dict(zip(ERRORS, ("correctable_count", "uncorrectable_count", "deferred_count"), strict=True))
RESERVED = 0
"""AMDSMI_MEM_PAGE_STATUS_RESERVED: a bad page that is out of use, as it should be."""
FULL = 2**64 - 1


class Said(Struct):
    """What a device said. `reading` lacks what has to be reckoned from `counters` and `processes`."""

    reading: Reading
    counters: Counters
    processes: dict[int, int] = {}
    """Bytes of the device's memory by process id."""
    vital: bool = False
    """Whether its sensors answered, not the driver alone."""
    trouble: str = ""
    """If not, why."""
    missing: str = ""
    """What it does not tell, and why; said once, when that is clear."""


class AmdDevice:
    """A GPU, or a partition of one. What it cannot tell is not asked for again until the library is opened anew."""

    def __init__(self, handle: Handle, gpu: Gpu, partition: int = 0) -> None:
        """`handle`: of the whole GPU, also for a partition, whose number `partition` is."""
        self.gpu = gpu
        self._handle = handle
        self._ask = handle.ask
        self._partition = partition
        self._due = 0.0
        self._seldom = Said(Reading(gpu), Counters())
        """What was told last of that which is asked for seldom."""
        self._limits: dict[tuple[str, str], float] | None = None

    def read(self, clock: float) -> Said:
        """Return what the device says at monotonic seconds `clock`; raises LostError or DownError."""
        self._handle.begin()
        metrics = self._ask("metrics", METRICS, pick=dict) or {}
        said = Said(Reading(self.gpu), Counters())
        if self.gpu.parent:  # what a partition said of all else would be its GPU's
            said.reading.utilization = self._handle.seen("load of the partition", self._load(metrics))
        else:
            self._read_load(said.reading, metrics)
            self._read_power(said, metrics)
            self._read_temperatures(said.reading, metrics)
            self._read_clocks(said, metrics)
            self._read_links(said.counters, metrics)
            self._read_seldom(said, clock)
        said.missing, said.vital = self._handle.finish(), self._handle.vital
        said.trouble = "" if said.vital else self._handle.trouble()
        return said

    def _load(self, metrics: Mapping[str, Any]) -> float | None:
        """Return the mean load of the partition's compute dies."""
        partitions = metrics.get("xcp_stats.gfx_busy_inst", [])
        dies = partitions[self._partition] if self._partition < len(partitions) else []
        busy = [share for share in map(number, dies) if share is not None]
        return sum(busy) / len(busy) / 100 if busy else None

    def _read_load(self, reading: Reading, metrics: Mapping[str, Any]) -> None:
        gfx, umc = first(metrics, "average_gfx_activity"), first(metrics, "average_umc_activity")
        if gfx is None:
            activity = self._ask("utilization", "amdsmi_get_gpu_activity", pick=dict) or {}
            gfx, umc = first(activity, "gfx_activity"), first(activity, "umc_activity")
        reading.utilization, reading.memory_activity = scaled(gfx, 0.01), scaled(umc, 0.01)
        self._handle.seen("memory activity", umc)
        reading.memory_limit = self._ask(
            "memory limit", "amdsmi_get_gpu_memory_total", "AmdSmiMemoryType.VRAM", sensor=False
        )
        reading.memory_usage = self._ask(
            "memory usage", "amdsmi_get_gpu_memory_usage", "AmdSmiMemoryType.VRAM", sensor=False
        )

    def _read_power(self, said: Said, metrics: Mapping[str, Any]) -> None:
        power = first(metrics, *POWERS)
        if power is None:
            power = self._ask("power", "amdsmi_get_power_info", pick=lambda info: first(info, "socket_power", *POWERS))
        said.reading.power = power
        said.counters.energy = self._ask("energy", "amdsmi_get_energy_count", pick=_joules)

    def _read_temperatures(self, reading: Reading, metrics: Mapping[str, Any]) -> None:
        for location, sensors in TEMPERATURES.items():
            value = first(metrics, *(name for name, _ in sensors))
            for _, sensor in sensors:
                if value is None:
                    value = self._temperature(sensor, CURRENT)
            if value is not None:
                reading.temperatures[location] = value
        if self._limits is None:  # they stand
            found = {
                (location, kind): self._temperature(sensors[0][1], threshold, sensor=False)
                for location, sensors in TEMPERATURES.items()
                for kind, threshold in zip(LIMITS, THRESHOLDS, strict=True)
            }
            self._limits = {place: limit for place, limit in found.items() if limit}
        reading.temperature_limits = self._limits

    def _temperature(self, place: str, metric: str, *, sensor: bool = True) -> float | None:
        key = " ".join(path.rpartition(".")[2].lower() for path in (place, "temperature", metric))
        value: float | None = self._ask(key, "amdsmi_get_temp_metric", place, metric, sensor=sensor)
        return value

    def _read_clocks(self, said: Said, metrics: Mapping[str, Any]) -> None:
        for domain, kind in CLOCK_TYPES.items():
            hertz = self._ask(f"{domain} clock", "amdsmi_get_clock_info", kind, pick=_hertz)
            if hertz is not None:
                said.reading.clocks[domain] = hertz
        held = {reason: first(metrics, name) for reason, name in RESIDENCIES.items()}
        cycles = first(metrics, "accumulation_counter")
        throttled = next((metrics[name] for name in THROTTLES if isinstance(metrics.get(name), bool)), None)
        if cycles is not None:
            said.counters.cycles = cycles
            said.counters.residencies = {reason: value for reason, value in held.items() if value is not None}
        elif throttled is not None:
            said.counters.throttles = {UNSPECIFIED: throttled}
        self._handle.seen("throttle reasons", said.counters.residencies or said.counters.throttles or None)

    def _read_links(self, counters: Counters, metrics: Mapping[str, Any]) -> None:
        for direction, name in LINKS.items():
            for link, kilobytes in enumerate(map(number, metrics.get(name, ()))):
                if kilobytes is not None:
                    counters.io["xgmi", direction, link] = kilobytes * 1024
        self._handle.seen("XGMI traffic", counters.io or None)

    def _read_seldom(self, said: Said, clock: float) -> None:
        """Read what is read seldom, or repeat it."""
        if clock >= self._due:
            self._due = clock + SELDOM
            self._seldom = Said(Reading(self.gpu), Counters())
            self._refresh(self._seldom)
        said.reading.power_limit, said.reading.state = self._seldom.reading.power_limit, self._seldom.reading.state
        said.counters.errors, said.processes = self._seldom.counters.errors, self._seldom.processes

    def _refresh(self, said: Said) -> None:
        cap = self._ask(
            "power limit", "amdsmi_get_power_cap_info", pick=lambda info: first(info, "power_cap"), sensor=False
        )
        said.reading.power_limit = scaled(cap or None, 1e-6)
        counts = self._ask("errors", "amdsmi_get_gpu_total_ecc_count", pick=dict, sensor=False) or {}
        found = {kind: first(counts, name) for kind, name in ERROR_COUNTS.items()}
        said.counters.errors = {kind: count for kind, count in found.items() if count is not None}
        said.processes = self._ask("processes", "amdsmi_get_gpu_process_list", pick=_held, sensor=False) or {}
        pages = self._ask("bad pages", "amdsmi_get_gpu_bad_page_info", pick=list, sensor=False) or []
        if any(isinstance(page, Mapping) and page.get("status") != RESERVED for page in pages):
            said.reading.state = DEGRADED


def _joules(info: Mapping[str, Any]) -> float | None:
    """Return a counter that counts in units of some microjoules; 0 and all ones stand for none."""
    count, unit = first(info, "energy_accumulator", "power"), first(info, "counter_resolution")
    return count * unit * 1e-6 if count and count != FULL and unit else None


def _hertz(info: Mapping[str, Any]) -> float | None:
    return scaled(first(info, "clk", "cur_clk"), 1e6)


def _held(processes: list[Mapping[str, Any]]) -> dict[int, int]:
    held = {}
    for process in processes:
        memory = first(process.get("memory_usage", {}), "vram_mem")
        held[int(process["pid"])] = int(memory if memory is not None else process["mem"])
    return held
