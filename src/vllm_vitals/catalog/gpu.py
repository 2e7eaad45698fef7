"""The GPUs that the engines work on: `hw.*` by the OpenTelemetry conventions, `vllm.gpu.*` for the rest."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_vitals.catalog.metric import MAX_JOULES, Counter, Gauge, Group, Key, Label, Scope
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
"""Labels of every metric: the UUID of the GPU, MIG device or partition, the UUID of its parent GPU, its engine."""
TYPE = Label("hw.type", ("gpu",))
DIRECTION = Label("network.io.direction", DIRECTIONS)
LOCATION = Label("hw.temperature.sensor_location", LOCATIONS)
FACTS = (
    Label("index", cap=64, help="the driver's index of the GPU"),
    Label("pci_bus", cap=64),
    Label("hw.serial_number", cap=64),
    Label("hw.driver_version", cap=16),
    Label("hw.firmware_version", cap=16),
)
MAX_BYTES, MAX_WATTS, MAX_DEGREES, MAX_HERTZ = 1e15, 1e5, 1e3, 1e12

Own = Mapping[Any, float | None] | float | None
"""The values of one device: a number, or a number for each value of the metric's own labels."""


def _read(own: Callable[[Reading], Own], *fixed: str) -> Callable[[Sample], dict[Key, float]]:
    """Return a function that reads all devices of a sample, by label values: device, fixed values, own values."""

    def read(sample: Sample) -> dict[Key, float]:
        values: dict[Key, float] = {}
        for reading in sample.readings:
            gpu, own_values = reading.gpu, own(reading)
            device = (gpu.id, gpu.name, gpu.vendor, gpu.parent, reading.model, reading.engine, *fixed)
            for label, value in own_values.items() if isinstance(own_values, Mapping) else (((), own_values),):
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


GPU = Group(
    "gpu",
    "GPUs",
    "The [GPUs](gpu.md) that the engines work on, by the OpenTelemetry conventions for hardware (status: Development) "
    "as far as these go. `hw_id` is the UUID of the GPU or MIG device, `hw_parent` the UUID of the GPU that it is a "
    "part of. `model_name` and `engine` name the owner of the GPU, where known.",
)

UTILIZATION = GPU.add(
    Gauge(
        "hw.gpu.utilization",
        "1",
        "Share of the time in which the GPU did any work, as measured by its driver.",
        record=Sample,
        read=_read(lambda r: r.utilization, "gpu", "general"),
        scope=Scope.PROCESS,
        limit=1.0,
        labels=(*DEVICE, TYPE, Label("hw.gpu.task", ("general",))),
    )
)
MEMORY_LIMIT = GPU.add(
    Gauge(
        "hw.gpu.memory.limit",
        "By",
        "Size of the GPU memory.",
        record=Sample,
        read=_read(lambda r: r.memory_limit, "gpu"),
        scope=Scope.PROCESS,
        limit=MAX_BYTES,
        labels=(*DEVICE, TYPE),
    )
)
MEMORY_USAGE = GPU.add(
    Gauge(
        "hw.gpu.memory.usage",
        "By",
        "GPU memory in use by all processes.",
        record=Sample,
        read=_read(lambda r: r.memory_usage, "gpu"),
        scope=Scope.PROCESS,
        limit=MAX_BYTES,
        labels=(*DEVICE, TYPE),
    )
)
MEMORY_UTILIZATION = GPU.add(
    Gauge(
        "hw.gpu.memory.utilization",
        "1",
        "Share of the GPU memory in use.",
        record=Sample,
        read=_read(_memory_share, "gpu"),
        scope=Scope.PROCESS,
        limit=1.0,
        labels=(*DEVICE, TYPE),
    )
)
IO = GPU.add(
    Counter(
        "hw.gpu.io",
        "By",
        "Bytes that the GPU received and transmitted. NVLink and XGMI have counters. PCIe is extrapolated from a "
        "window of 20 ms at each sample.",
        record=Sample,
        read=_read(lambda r: {(direction, link): value for (link, direction), value in r.io.items()}, "gpu"),
        scope=Scope.PROCESS,
        limit=MAX_BYTES,
        labels=(*DEVICE, TYPE, DIRECTION, Label("link", LINKS)),
    )
)
ENERGY = GPU.add(
    Counter(
        "hw.energy",
        "J",
        "Energy used by the GPU: from its own counter, or computed from its power where it has none.",
        record=Sample,
        read=_read(lambda r: r.energy, "gpu"),
        scope=Scope.PROCESS,
        limit=MAX_JOULES,
        labels=(*DEVICE, TYPE),
    )
)
POWER = GPU.add(
    Gauge(
        "hw.power",
        "W",
        "Power draw of the GPU. Many models report the mean of the last second.",
        record=Sample,
        read=_read(lambda r: r.power, "gpu"),
        scope=Scope.PROCESS,
        limit=MAX_WATTS,
        labels=(*DEVICE, TYPE),
    )
)
TEMPERATURE = GPU.add(
    Gauge(
        "hw.temperature",
        "Cel",
        "Temperature of the GPU and of its memory.",
        record=Sample,
        read=_read(lambda r: r.temperatures),
        scope=Scope.PROCESS,
        limit=MAX_DEGREES,
        labels=(*DEVICE, LOCATION),
    )
)
TEMPERATURE_LIMIT = GPU.add(
    Gauge(
        "hw.temperature.limit",
        "Cel",
        "Temperature at which the GPU slows down (throttled) or turns off (high.critical).",
        record=Sample,
        read=_read(lambda r: r.temperature_limits),
        scope=Scope.PROCESS,
        limit=MAX_DEGREES,
        labels=(*DEVICE, LOCATION, Label("hw.limit_type", LIMITS)),
    )
)
HARDWARE_ERRORS = GPU.add(
    Counter(
        "hw.errors",
        "{error}",
        "Memory errors of the GPU (ECC), with AMD also errors of its other units.",
        record=Sample,
        read=_read(lambda r: r.errors, "gpu"),
        scope=Scope.PROCESS,
        labels=(*DEVICE, TYPE, Label("error.type", ERRORS, help="deferred (AMD): uncorrectable, not read yet")),
    )
)
STATUS = GPU.add(
    Gauge(
        "hw.status",
        "",
        "1 for the present state of the GPU, 0 for the others.",
        record=Sample,
        read=_read(lambda r: {state: float(state == r.state) for state in STATES}, "gpu"),
        scope=Scope.PROCESS,
        labels=(
            *DEVICE,
            TYPE,
            Label(
                "hw.state",
                STATES,
                help="degraded: broken memory rows wait for a reset to be remapped, or cannot be remapped. failed: "
                "the GPU does not respond",
            ),
        ),
    )
)
INFO = GPU.add(
    Gauge(
        "vllm.gpu.info",
        "",
        "Always 1; the labels describe the GPU.",
        record=Sample,
        read=_read(_facts),
        scope=Scope.PROCESS,
        labels=(*DEVICE, *FACTS),
    )
)
MEMORY_ACTIVITY = GPU.add(
    Gauge(
        "vllm.gpu.memory.activity",
        "1",
        "Share of the time in which the GPU memory was read or written.",
        record=Sample,
        read=_read(lambda r: r.memory_activity),
        scope=Scope.PROCESS,
        limit=1.0,
        labels=DEVICE,
    )
)
PROCESS_MEMORY = GPU.add(
    Gauge(
        "vllm.gpu.process.memory",
        "By",
        "GPU memory used by the processes of this vLLM.",
        record=Sample,
        read=_read(lambda r: r.process_memory),
        scope=Scope.PROCESS,
        limit=MAX_BYTES,
        labels=DEVICE,
    )
)
POWER_LIMIT = GPU.add(
    Gauge(
        "vllm.gpu.power.limit",
        "W",
        "Power limit of the GPU.",
        record=Sample,
        read=_read(lambda r: r.power_limit),
        scope=Scope.PROCESS,
        limit=MAX_WATTS,
        labels=DEVICE,
    )
)
CLOCK = GPU.add(
    Gauge(
        "vllm.gpu.clock",
        "Hz",
        "Clock frequencies of the GPU.",
        record=Sample,
        read=_read(lambda r: r.clocks),
        scope=Scope.PROCESS,
        limit=MAX_HERTZ,
        labels=(*DEVICE, Label("domain", CLOCKS, help="sm: streaming multiprocessors, or AMD's compute engine")),
    )
)
THROTTLED = GPU.add(
    Counter(
        "vllm.gpu.throttled.duration",
        "s",
        "Time in which the clocks were reduced, by reason. Precise to one sample interval, or exact where the GPU "
        "counts it (AMD from MI300 on).",
        record=Sample,
        read=_read(lambda r: r.throttled),
        scope=Scope.PROCESS,
        labels=(*DEVICE, Label("reason", REASONS, help="several can apply at once; gpu.md lists them by vendor")),
    )
)
