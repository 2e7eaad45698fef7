"""What one NVIDIA device says through NVML, in the units of the conventions."""

from vllm_vitals.gpu.counters import Counters, History
from vllm_vitals.gpu.nvml_handle import Handle
from vllm_vitals.gpu.processes import Family
from vllm_vitals.records.gpu import (
    CLOCKS,
    DEGRADED,
    DIRECTIONS,
    ERRORS,
    LIMITS,
    LOCATIONS,
    NVIDIA_REASONS,
    Gpu,
    Reading,
)

REASON_BITS = dict(zip((0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100), NVIDIA_REASONS, strict=True))
"""nvmlClocksEventReason*, without that of a device that is idle."""
CORE_SENSOR, SLOWDOWN, SHUTDOWN, MEMORY_SLOWDOWN = 0, 1, 0, 2
"""NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_{SLOWDOWN,SHUTDOWN,MEM_MAX}."""
CLOCK_DOMAINS = dict(zip(CLOCKS, (1, 2), strict=True))
"""NVML_CLOCK_SM, NVML_CLOCK_MEM."""
PCIE_COUNTERS = dict(zip(DIRECTIONS, (1, 0), strict=True))
"""NVML_PCIE_UTIL_{RX,TX}_BYTES."""
VOLATILE = 0
MEMORY_TEMPERATURE, NVLINK_SENT, NVLINK_RECEIVED = 82, 138, 139
"""NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{TX,RX}."""
EVERY_LINK = 2**32 - 1
FIELDS = {
    "memory temperature": (MEMORY_TEMPERATURE, 0),
    "NVLink receive": (NVLINK_RECEIVED, EVERY_LINK),
    "NVLink transmit": (NVLINK_SENT, EVERY_LINK),
}
MEMORY_VERSION = 0x02000028
"""nvmlMemory_v2: what the driver keeps for itself is not in use, as nvidia-smi has it."""


class NvmlDevice:
    """A GPU or a MIG device. What it cannot tell is not asked for again until the library is opened anew."""

    def __init__(self, handle: Handle, gpu: Gpu, history: History, family: Family) -> None:
        self.gpu = gpu
        self._handle = handle
        self._ask = handle.ask
        self._history = history
        self._family = family
        self._limits: dict[tuple[str, str], float] | None = None

    def read(self, clock: float) -> Reading:
        """Return what the device says at monotonic seconds `clock`; raises LostError or DownError."""
        self._handle.begin()
        reading, counters = Reading(self.gpu), Counters()
        self._read_memory(reading)
        self._read_utilization(reading)
        if not self.gpu.parent:  # what a MIG device said of these would be its GPU's
            fields = self._handle.fields(FIELDS)
            self._read_power(reading, counters)
            self._read_temperatures(reading, fields)
            self._read_clocks(reading, counters)
            self._read_links(counters, fields)
            self._read_errors(reading, counters)
        self._handle.finish()
        if not self.gpu.parent:
            self._history.add(reading, counters, clock)
        return reading

    def _read_memory(self, reading: Reading) -> None:
        memory = self._ask("memory", ("nvmlDeviceGetMemoryInfo", MEMORY_VERSION), ("nvmlDeviceGetMemoryInfo",))
        if memory is not None:
            reading.memory_usage, reading.memory_limit = memory.used, memory.total
        processes = self._ask("memory of processes", ("nvmlDeviceGetComputeRunningProcesses",)) or ()
        ours = self._family.members([process.pid for process in processes])
        held = [process.usedGpuMemory for process in processes if process.pid in ours]
        if held and None not in held:  # in a container the processes may be out of sight: that is not 0
            reading.process_memory = sum(held)

    def _read_utilization(self, reading: Reading) -> None:
        rates = self._ask("utilization", ("nvmlDeviceGetUtilizationRates",))
        if rates is not None:
            reading.utilization, reading.memory_activity = rates.gpu / 100, rates.memory / 100

    def _read_power(self, reading: Reading, counters: Counters) -> None:
        reading.power = _scaled(self._ask("power", ("nvmlDeviceGetPowerUsage",)), 1e-3)
        reading.power_limit = _scaled(self._ask("power limit", ("nvmlDeviceGetEnforcedPowerLimit",)), 1e-3)
        counters.energy = _scaled(self._ask("energy", ("nvmlDeviceGetTotalEnergyConsumption",)), 1e-3)

    def _read_temperatures(self, reading: Reading, fields: dict[str, float]) -> None:
        old, new = "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"
        core = self._ask("temperature", (new, CORE_SENSOR), (old, CORE_SENSOR))
        found = zip(LOCATIONS, (core, fields.get("memory temperature")), strict=True)
        reading.temperatures = {location: value for location, value in found if value is not None}
        if self._limits is None:  # they stand
            thresholds = zip(
                (("gpu", LIMITS[0]), ("gpu", LIMITS[1]), ("memory", LIMITS[0])),
                (SLOWDOWN, SHUTDOWN, MEMORY_SLOWDOWN),
                strict=True,
            )
            limits = {place: self._limit(*place, number) for place, number in thresholds}
            self._limits = {place: limit for place, limit in limits.items() if limit is not None}
        reading.temperature_limits = self._limits

    def _limit(self, location: str, kind: str, threshold: int) -> float | None:
        name = f"{kind} limit of {location} temperature"
        limit: float | None = self._ask(name, ("nvmlDeviceGetTemperatureThreshold", threshold))
        return limit

    def _read_clocks(self, reading: Reading, counters: Counters) -> None:
        clocks = {
            domain: self._ask(f"{domain} clock", ("nvmlDeviceGetClockInfo", number))
            for domain, number in CLOCK_DOMAINS.items()
        }
        reading.clocks = {domain: megahertz * 1e6 for domain, megahertz in clocks.items() if megahertz is not None}
        old, new = "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetCurrentClocksEventReasons"
        bits = self._ask("throttle reasons", (new,), (old,))
        if bits is not None:
            counters.throttles = {reason: bool(bits & bit) for bit, reason in REASON_BITS.items()}

    def _read_links(self, counters: Counters, fields: dict[str, float]) -> None:
        for direction in DIRECTIONS:
            counter = PCIE_COUNTERS[direction]
            # Kilobytes per second in a window of 20 ms. There is a counter of bytes, but it wraps around at 4 GiB,
            # which a busy link does several times between two readings.
            rate = self._ask(f"PCIe {direction}", ("nvmlDeviceGetPcieThroughput", counter))
            kibibytes = fields.get(f"NVLink {direction}")
            if rate is not None:
                counters.rates["pcie", direction] = rate * 1e3
            if kibibytes is not None:
                counters.io["nvlink", direction, 0] = kibibytes * 1024

    def _read_errors(self, reading: Reading, counters: Counters) -> None:
        for number, kind in enumerate(ERRORS[:2]):  # the number is NVML_MEMORY_ERROR_TYPE_*
            count = self._ask(f"{kind} errors", ("nvmlDeviceGetTotalEccErrors", number, VOLATILE))
            if count is not None:
                counters.errors[kind] = count
        _, _, pending, failed = self._ask("remapped rows", ("nvmlDeviceGetRemappedRows",)) or (0, 0, 0, 0)
        if pending or failed:  # broken rows of memory wait for a reset to be replaced, or cannot be
            reading.state = DEGRADED


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
