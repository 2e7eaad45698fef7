"""AMD's devices: which there are, and what each says. All of it runs in a process that does nothing else."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from vllm_vitals.gpu.amd_device import AmdDevice, Said
from vllm_vitals.gpu.amd_handle import Handle, number
from vllm_vitals.gpu.amd_library import Library
from vllm_vitals.gpu.source import AbsentError, DownError, LostError, TransientError
from vllm_vitals.gpu.visible import AMD, Listed
from vllm_vitals.records.gpu import Gpu


class Entry(NamedTuple):
    """A device as AMD SMI lists it: a GPU, or a partition of one."""

    handle: Any
    gpu: Gpu
    socket: str
    """Where it is on the bus, the same for all partitions of a GPU."""
    order: float | None
    """Its place in the order in which HIP counts."""
    alias: str
    """The UUID by which HIP knows it."""
    partition: float | None
    """Its number among the partitions of its GPU."""
    trouble: str = ""


class Amd:
    """Every AMD GPU that the driver shows to this process, and every partition of theirs."""

    def __init__(self) -> None:
        self._library = Library()
        self._devices: dict[str, AmdDevice] = {}

    def open(self) -> tuple[list[Listed], list[Gpu]]:
        """Begin; return what there is in the order in which HIP counts, and each device that can be read.

        Raises:
            DownError: when the library or its driver does not work.
        """
        self._library.open()
        try:
            handles = self._library.call("amdsmi_get_processor_handles")
        except (AbsentError, TransientError) as error:
            raise DownError(f"its devices cannot be listed: {error}") from error
        entries = [self._describe(handle, index) for index, handle in enumerate(handles)]
        listed = [entry for entry in entries if not entry.gpu.id]
        for group in _groups(entry for entry in entries if entry.gpu.id):
            listed += self._keep(group)
        if all(entry.order is not None for entry in listed):
            listed.sort(key=lambda entry: entry.order or 0)
        else:
            listed.sort(key=lambda entry: int(entry.gpu.index))
        return (
            [Listed(entry.gpu.id, (), entry.trouble, entry.alias) for entry in listed],
            [device.gpu for device in self._devices.values()],
        )

    def read(self, identity: str, clock: float) -> Said:
        """Return what a device says at monotonic seconds `clock`; raises LostError or DownError."""
        if identity not in self._devices:
            raise LostError("the driver does not list it")
        return self._devices[identity].read(clock)

    def _keep(self, group: Sequence[Entry]) -> Sequence[Entry]:
        """Take in a GPU, or the partitions of one and then the GPU as well."""
        first, whole = group[0], group[0].gpu
        self._devices[whole.id] = AmdDevice(Handle(self._library, first.handle), whole)
        if len(group) == 1:
            return group
        mode = self._text(first.handle, "amdsmi_get_gpu_compute_partition")
        name = " ".join(filter(None, (whole.name, mode)))
        parts = []
        for place, entry in enumerate(group):
            # In many releases all partitions of a GPU have its UUID.
            gpu = Gpu(f"{whole.id}/{place}", name, AMD, whole.id, entry.gpu.index, driver=whole.driver)
            self._devices[gpu.id] = AmdDevice(Handle(self._library, first.handle), gpu, place)
            parts.append(entry._replace(gpu=gpu))
        return parts

    def _describe(self, handle: Any, index: int) -> Entry:
        """Describe one device, without an id if it does not answer."""
        trouble = ""
        try:
            uuid = str(self._library.call("amdsmi_get_gpu_device_uuid", handle))
        except (AbsentError, TransientError) as error:
            uuid, trouble = "", str(error)
        asic, board = self._info(handle, "amdsmi_get_gpu_asic_info"), self._info(handle, "amdsmi_get_gpu_board_info")
        counted = self._info(handle, "amdsmi_get_gpu_enumeration_info")
        partition = number(self._info(handle, "amdsmi_get_gpu_kfd_info").get("current_partition_id"))
        order = number(counted.get("hip_id"))
        bus = self._text(handle, "amdsmi_get_gpu_device_bdf")
        gpu = Gpu(
            uuid,
            _text(asic, "market_name") or _text(board, "product_name"),
            AMD,
            index=str(index),
            bus=bus,
            serial=_text(board, "product_serial"),
            driver=_text(self._info(handle, "amdsmi_get_gpu_driver_info"), "driver_version"),
            firmware=_text(self._info(handle, "amdsmi_get_gpu_vbios_info"), "version"),
        )
        socket = bus.rpartition(".")[0] or str(index)
        return Entry(handle, gpu, socket, order, _text(counted, "hip_uuid"), partition, trouble)

    def _info(self, handle: Any, name: str) -> Mapping[str, Any]:
        try:
            found = self._library.call(name, handle)
        except (AbsentError, TransientError):
            return {}
        return found if isinstance(found, Mapping) else {}

    def _text(self, handle: Any, name: str) -> str:
        try:
            return str(self._library.call(name, handle))
        except (AbsentError, TransientError):
            return ""


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Give each GPU alone, and the partitions of one GPU together, in the order of their numbers."""
    for _, sharing in groupby(sorted(entries, key=attrgetter("socket")), attrgetter("socket")):
        group = list(sharing)
        numbers = {entry.partition for entry in group}
        if len(numbers) == len(group) and None not in numbers:
            yield sorted(group, key=lambda entry: entry.partition or 0)
        elif len({entry.gpu.id for entry in group}) == 1:
            yield group
        else:  # a virtual machine may have put several GPUs into one slot
            yield from ([entry] for entry in group)


def _text(info: Mapping[str, Any], name: str) -> str:
    value = str(info.get(name) or "")
    return "" if value == "N/A" else value
