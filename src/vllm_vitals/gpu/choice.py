"""Which of the devices that drivers show are watched, by the setting or by the environment."""

import sys
from collections.abc import Mapping, Sequence

from vllm_vitals.gpu.visible import AMD, NVIDIA, Listed, select, visible

VENDORS = (NVIDIA, AMD)
EVERY = "all"
"""The setting that stands for every device that the drivers show."""


class Choice:
    """Gives the ids to be watched, vendor by vendor, and remembers what it could not choose."""

    def __init__(self, devices: str | None, environ: Mapping[str, str]) -> None:
        """`devices`: the setting `gpu.devices`; without one the variables count, as they are now."""
        self._devices = devices
        self._environ = dict(environ)  # vLLM changes these variables for a moment when it starts engines
        self._missed: dict[str, str] = {}
        self._matched = False

    def __call__(self, vendor: str, listed: Sequence[Listed]) -> list[str]:
        """Return the ids of those of a vendor's devices that are to be watched."""
        if self._devices is None:
            return visible(self._environ, vendor, listed)
        if self._devices == EVERY:
            return [each for gpu in listed for each in [part.id for part in gpu.parts] or [gpu.id]]
        found = select(self._devices, listed)
        self._matched = self._matched or bool(found)
        if not found and listed:
            self._missed[vendor] = ", ".join(gpu.alias or gpu.id for gpu in listed)
        return found

    def trouble(self) -> str:
        """Return what is wrong with the setting, `""` for nothing so far."""
        if self._matched or not self._missed:
            return ""
        shown = "; ".join(f"{vendor} has: {names}" for vendor, names in self._missed.items())
        return f"gpu.devices={self._devices!r} (VITALS_GPU__DEVICES) stands for no device, so none is sampled; {shown}"


def vendors() -> tuple[str, ...]:
    """Return whose devices a vLLM in this process can work on, by what its PyTorch was built for; all if unknown."""
    version = getattr(sys.modules.get("torch"), "version", None)
    if isinstance(getattr(version, "hip", None), str):
        return (AMD,)
    return (NVIDIA,) if isinstance(getattr(version, "cuda", None), str) else VENDORS
