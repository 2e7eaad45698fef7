"""NVIDIA's devices through NVML, the library of the driver, and nvidia-ml-py, which calls it.

Everything here runs on the sampler's thread. The calls let go of the interpreter while the driver works.
"""

from collections.abc import Sequence
from typing import Any

from vllm_vitals.gpu.counters import History
from vllm_vitals.gpu.nvml_device import NvmlDevice
from vllm_vitals.gpu.nvml_handle import Handle
from vllm_vitals.gpu.nvml_library import Library
from vllm_vitals.gpu.processes import Family
from vllm_vitals.gpu.source import AbsentError, DownError, LostError, TransientError
from vllm_vitals.gpu.visible import NVIDIA, Listed, Part
from vllm_vitals.records.gpu import Gpu


class Nvml:
    """Every NVIDIA GPU that the driver shows to this process, and every MIG device of theirs."""

    vendor = NVIDIA

    def __init__(self, family: Family) -> None:
        """`family`: the processes whose share of the memory is told."""
        self._family = family
        self._library = Library()
        self._handles: dict[str, tuple[Any, Gpu]] = {}
        self._histories: dict[str, History] = {}
        """By device, over all times that the library was opened: a device that returns goes on where it was."""

    def open(self) -> Sequence[Listed]:
        """Begin, or begin anew, and list what there is; raises DownError when the library or its driver fails."""
        self.close()
        self._library.open()
        try:
            driver = self._try("nvmlSystemGetDriverVersion") or ""
            count = self._library.call("nvmlDeviceGetCount")
            return [self._list(index, driver) for index in range(count)]
        except (AbsentError, TransientError, LostError) as error:  # of one device `_list` says so
            raise DownError(f"its devices cannot be listed: {error}") from error

    def close(self) -> None:
        """Let go of the library; never raises."""
        self._handles.clear()
        self._library.close()

    def device(self, identity: str) -> NvmlDevice:
        """Return a device by its UUID; raises LostError when it is not there."""
        try:
            handle, gpu = self._handles[identity]
        except KeyError:
            raise LostError("the driver does not list it") from None
        history = self._histories.setdefault(identity, History())
        return NvmlDevice(Handle(self._library, handle, gpu), gpu, history, self._family)

    def _list(self, index: int, driver: str) -> Listed:
        """List one GPU and its MIG devices, without an id if it does not answer."""
        try:
            handle = self._library.call("nvmlDeviceGetHandleByIndex", index)
            uuid = str(self._library.call("nvmlDeviceGetUUID", handle))
        except (AbsentError, TransientError, LostError) as error:
            return Listed("", trouble=str(error))
        self._handles[uuid] = handle, self._describe(handle, uuid, index, driver)
        try:
            return Listed(uuid, tuple(self._parts(handle, uuid, index, driver)))
        except LostError:
            return Listed(uuid)

    def _describe(self, handle: Any, uuid: str, index: int, driver: str, parent: str = "") -> Gpu:
        def text(name: str) -> str:
            try:
                return str(self._try(name, handle) or "")
            except LostError:  # its first reading will tell
                return ""

        bus = "" if parent else self._bus(handle)
        serial, firmware = ("", "") if parent else (text("nvmlDeviceGetSerial"), text("nvmlDeviceGetVbiosVersion"))
        return Gpu(uuid, text("nvmlDeviceGetName"), NVIDIA, parent, str(index), bus, serial, driver, firmware)

    def _bus(self, handle: Any) -> str:
        try:
            bus = getattr(self._try("nvmlDeviceGetPciInfo", handle), "busId", b"")
        except LostError:
            return ""
        return bus.decode("ascii", "replace") if isinstance(bus, bytes) else str(bus)

    def _parts(self, handle: Any, parent: str, index: int, driver: str) -> list[Part]:
        mode = self._try("nvmlDeviceGetMigMode", handle)
        parts: list[Part] = []
        for place in range(self._try("nvmlDeviceGetMaxMigDeviceCount", handle) or 0) if mode and mode[0] else ():
            part = self._try("nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            uuid = self._try("nvmlDeviceGetUUID", part) if part is not None else None
            if uuid:
                ids = (self._try(f"nvmlDeviceGet{kind}InstanceId", part) for kind in ("Gpu", "Compute"))
                parts.append(Part(uuid, "/".join((f"MIG-{parent}", *map(str, ids)))))
                self._handles[uuid] = part, self._describe(part, uuid, index, driver, parent)
        return parts

    def _try(self, name: str, *args: Any) -> Any:
        """Return what a function gives, `None` when this driver or device does not."""
        try:
            return self._library.call(name, *args)
        except (AbsentError, TransientError):
            return None
