"""The record of the GPUs: what all devices of this vLLM said at about one moment.

Units are those of the OpenTelemetry conventions: bytes, seconds, watts, joules, degrees Celsius, hertz, shares of 1.
`None`, or a key that is not there, means that the device, its driver or this process's rights do not give it.
"""

from msgspec import Struct

OK, DEGRADED, FAILED = STATES = ("ok", "degraded", "failed")
"""Of a device: well; needs a reset or will fail; does not answer."""

DIRECTIONS = ("receive", "transmit")
LINKS = ("pcie", "nvlink", "xgmi")
LOCATIONS = ("gpu", "memory")
LIMITS = ("throttled", "high.critical")
CLOCKS = ("sm", "memory")
ERRORS = ("corrected", "uncorrected", "deferred")
"""`deferred`: an error that cannot be corrected, in memory that nothing has read yet; AMD tells of these."""
NVIDIA_REASONS = (
    "application_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown",
    "hw_power_brake_slowdown", "display_clocks",
)  # fmt: skip
AMD_REASONS = ("sw_power_cap", "prochot", "socket_thermal", "vr_thermal", "hbm_thermal", "unspecified")
REASONS = tuple(dict.fromkeys((*NVIDIA_REASONS, *AMD_REASONS)))
"""What keeps clocks down. More than one at a time may: `hw_slowdown` comes with the two below that it sums up."""


class Gpu(Struct, frozen=True):
    """Which device this is. `parent` is the id of the GPU that a MIG device or a partition is a part of."""

    id: str
    name: str = ""
    vendor: str = ""
    parent: str = ""
    index: str = ""
    bus: str = ""
    serial: str = ""
    driver: str = ""
    firmware: str = ""


class Reading(Struct):
    """What one device said.

    `energy`, `io`, `errors` and `throttled` are what came since the reading before; everything else is of the moment.
    """

    gpu: Gpu
    state: str = OK
    model: str = ""
    engine: str = ""
    """The engine that the device works for, `""` when that is not known or not one alone."""
    utilization: float | None = None
    memory_activity: float | None = None
    memory_usage: int | None = None
    memory_limit: int | None = None
    process_memory: int | None = None
    power: float | None = None
    power_limit: float | None = None
    energy: float | None = None
    temperatures: dict[str, float] = {}
    temperature_limits: dict[tuple[str, str], float] = {}
    """By location and kind of limit."""
    clocks: dict[str, float] = {}
    io: dict[tuple[str, str], float] = {}
    """Bytes by link and direction."""
    errors: dict[str, float] = {}
    throttled: dict[str, float] = {}
    """Seconds by reason."""


class Sample(Struct):
    """What all devices said, those that are lost included; `time` is Unix seconds, `clock` monotonic ones."""

    time: float
    clock: float
    readings: list[Reading]
