"""The GPUs that the engines work on: `hw.*` by the OpenTelemetry conventions, `vllm.gpu.*` for what those lack."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_vitals.catalog.metric import MAX_JOULES, Counter, Gauge, Key, Label, Scope
from vllm_vitals.records.gpu import (
    CLOCKS,
    DIRECTIONS,
    ERRORS,
    LIMITS,
    LINKS,
    LOCATIONS,
    REASONS,
    STATES,
    Reading,
    Sample,
)

DEVICE = (
    Label("hw.id", cap=64),
    Label("hw.name"),
    Label("hw.vendor", cap=4),
    Label("hw.parent"),
    Label("model_name"),
    Label("engine", cap=64),
)
"""Of every metric: the UUID of the GPU, MIG device or partition, that of the GPU that it is a part of, its engine."""
TYPE = Label("hw.type", ("gpu",))
DIRECTION = Label("network.io.direction", DIRECTIONS)
LOCATION = Label("hw.temperature.sensor_location", LOCATIONS)
FACTS = (
    Label("index", cap=64, help="the number that the driver gives it"),
    Label("pci_bus", cap=64),
    Label("hw.serial_number", cap=64),
    Label("hw.driver_version", cap=16),
    Label("hw.firmware_version", cap=16),
)
MAX_BYTES, MAX_WATTS, MAX_DEGREES, MAX_HERTZ = 1e15, 1e5, 1e3, 1e12

Own = Mapping[Any, float | None] | float | None
"""What a device says: a number, or one for each value of the metric's own labels."""


def _read(own: Callable[[Reading], Own], *fixed: str) -> Callable[[Sample], dict[Key, float]]:
    """Return what reads all devices at once, by label values: the device's, what is fixed, its own."""

    def read(sample: Sample) -> dict[Key, float]:
        values: dict[Key, float] = {}
        for reading in sample.readings:
            gpu, said = reading.gpu, own(reading)
            device = (gpu.id, gpu.name, gpu.vendor, gpu.parent, reading.model, reading.engine, *fixed)
            for label, value in said.items() if isinstance(said, Mapping) else (((), said),):
                if value is not None:
                    values[device + (label if isinstance(label, tuple) else (label,))] = value
        return values

    return read


def _facts(reading: Reading) -> Own:
    gpu = reading.gpu
    return {(gpu.index, gpu.bus, gpu.serial, gpu.driver, gpu.firmware): 1.0}


def _memory_share(reading: Reading) -> float | None:
    usage, limit = reading.memory_usage, reading.memory_limit
    return usage / limit if usage is not None and limit else None


UTILIZATION = Gauge(
    "hw.gpu.utilization", "1", "Share of the time during which the GPU worked on anything at all, as its driver measures it.",
    record=Sample, read=_read(lambda r: r.utilization, "gpu", "general"), scope=Scope.PROCESS, limit=1.0,
    labels=(*DEVICE, TYPE, Label("hw.gpu.task", ("general",))),
)  # fmt: skip
MEMORY_LIMIT = Gauge(
    "hw.gpu.memory.limit", "By", "Size of the GPU memory.",
    record=Sample, read=_read(lambda r: r.memory_limit, "gpu"), scope=Scope.PROCESS, limit=MAX_BYTES, labels=(*DEVICE, TYPE),
)  # fmt: skip
MEMORY_USAGE = Gauge(
    "hw.gpu.memory.usage", "By", "GPU memory in use, by whatever process.",
    record=Sample, read=_read(lambda r: r.memory_usage, "gpu"), scope=Scope.PROCESS, limit=MAX_BYTES, labels=(*DEVICE, TYPE),
)  # fmt: skip
MEMORY_UTILIZATION = Gauge(
    "hw.gpu.memory.utilization", "1", "Share of the GPU memory that is in use.",
    record=Sample, read=_read(_memory_share, "gpu"), scope=Scope.PROCESS, limit=1.0, labels=(*DEVICE, TYPE),
)  # fmt: skip
IO = Counter(
    "hw.gpu.io", "By", "Bytes that the GPU received and transmitted. NVLink's and XGMI's are counted; PCIe's are reckoned from a "
    "window of 20 ms at each sample.",
    record=Sample, read=_read(lambda r: {(direction, link): value for (link, direction), value in r.io.items()}, "gpu"),
    scope=Scope.PROCESS, limit=MAX_BYTES, labels=(*DEVICE, TYPE, DIRECTION, Label("link", LINKS)),
)  # fmt: skip
ENERGY = Counter(
    "hw.energy", "J", "Energy that the GPU used, by its own counter, or reckoned from its power where it has none.",
    record=Sample, read=_read(lambda r: r.energy, "gpu"), scope=Scope.PROCESS, limit=MAX_JOULES, labels=(*DEVICE, TYPE),
)  # fmt: skip
POWER = Gauge(
    "hw.power", "W", "Power that the GPU draws; many models give the mean of the latest second.",
    record=Sample, read=_read(lambda r: r.power, "gpu"), scope=Scope.PROCESS, limit=MAX_WATTS, labels=(*DEVICE, TYPE),
)  # fmt: skip
TEMPERATURE = Gauge(
    "hw.temperature", "Cel", "Temperature of the GPU and of its memory.",
    record=Sample, read=_read(lambda r: r.temperatures), scope=Scope.PROCESS, limit=MAX_DEGREES, labels=(*DEVICE, LOCATION),
)  # fmt: skip
TEMPERATURE_LIMIT = Gauge(
    "hw.temperature.limit", "Cel", "Temperature from which on the GPU slows down (throttled), or turns off (high.critical).",
    record=Sample, read=_read(lambda r: r.temperature_limits), scope=Scope.PROCESS, limit=MAX_DEGREES,
    labels=(*DEVICE, LOCATION, Label("hw.limit_type", LIMITS)),
)  # fmt: skip
HARDWARE_ERRORS = Counter(
    "hw.errors", "{error}", "Errors of the GPU's memories (ECC), with AMD of its other units too.",
    record=Sample, read=_read(lambda r: r.errors, "gpu"), scope=Scope.PROCESS, labels=(*DEVICE, TYPE, Label("error.type", ERRORS, help="deferred (AMD): not to be corrected, not read yet")),
)  # fmt: skip
STATUS = Gauge(
    "hw.status", "", "1 for the state that the GPU is in, 0 for the others.",
    record=Sample, read=_read(lambda r: {state: float(state == r.state) for state in STATES}, "gpu"), scope=Scope.PROCESS,
    labels=(*DEVICE, TYPE, Label("hw.state", STATES, help="degraded: broken rows of memory wait for a reset to be replaced, or "
                                 "cannot be. failed: it does not answer")),
)  # fmt: skip
INFO = Gauge(
    "vllm.gpu.info", "", "Always 1; the labels are facts of the GPU.",
    record=Sample, read=_read(_facts), scope=Scope.PROCESS, labels=(*DEVICE, *FACTS),
)  # fmt: skip
MEMORY_ACTIVITY = Gauge(
    "vllm.gpu.memory.activity", "1", "Share of the time during which the GPU memory was read or written.",
    record=Sample, read=_read(lambda r: r.memory_activity), scope=Scope.PROCESS, limit=1.0, labels=DEVICE,
)  # fmt: skip
PROCESS_MEMORY = Gauge(
    "vllm.gpu.process.memory", "By", "GPU memory that the processes of this vLLM hold.",
    record=Sample, read=_read(lambda r: r.process_memory), scope=Scope.PROCESS, limit=MAX_BYTES, labels=DEVICE,
)  # fmt: skip
POWER_LIMIT = Gauge(
    "vllm.gpu.power.limit", "W", "Power that the GPU may draw.",
    record=Sample, read=_read(lambda r: r.power_limit), scope=Scope.PROCESS, limit=MAX_WATTS, labels=DEVICE,
)  # fmt: skip
CLOCK = Gauge(
    "vllm.gpu.clock", "Hz", "Clocks of the GPU.",
    record=Sample, read=_read(lambda r: r.clocks), scope=Scope.PROCESS, limit=MAX_HERTZ,
    labels=(*DEVICE, Label("domain", CLOCKS, help="sm: the streaming multiprocessors, or AMD's compute engine")),
)  # fmt: skip
THROTTLED = Counter(
    "vllm.gpu.throttled.duration", "s", "Time during which something kept the clocks down; to within one sample, or as counted by "
    "the GPU (AMD from MI300 on).",
    record=Sample, read=_read(lambda r: r.throttled), scope=Scope.PROCESS,
    labels=(*DEVICE, Label("reason", REASONS, help="several may hold at once; gpu.md tells which are whose")),
)  # fmt: skip

GPU = (
    UTILIZATION, MEMORY_USAGE, MEMORY_LIMIT, MEMORY_UTILIZATION, IO, ENERGY, POWER, TEMPERATURE, TEMPERATURE_LIMIT,
    HARDWARE_ERRORS, STATUS, INFO, MEMORY_ACTIVITY, PROCESS_MEMORY, POWER_LIMIT, CLOCK, THROTTLED,
)  # fmt: skip
