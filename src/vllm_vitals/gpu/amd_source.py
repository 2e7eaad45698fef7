"""AMD's devices for the sampler: what a process of their own says of them, and what of it is new."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from vllm_vitals._util.log import log_once
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.gpu import amd_messages as messages
from vllm_vitals.gpu.amd_apart import Process
from vllm_vitals.gpu.counters import History
from vllm_vitals.gpu.processes import Family
from vllm_vitals.gpu.source import DownError, LostError, NoDriverError
from vllm_vitals.gpu.visible import AMD, Listed
from vllm_vitals.records.gpu import Gpu, Reading

DRIVER = (Path("/dev/kfd"), Path("/sys/module/amdgpu"))
"""One of these is there where the driver is loaded."""


class Link(Protocol):
    """A way to what asks AMD SMI."""

    def ask(self, request: messages.Request) -> messages.Answer:
        """Return the answer to a request; raises DownError when there is none."""

    def close(self) -> None:
        """Let go of what is at the other end; never raises."""


class AmdSource:
    """Every AMD GPU, and every partition of one, that the driver shows to a process started for that."""

    vendor = AMD

    def __init__(self, family: Family, link: Callable[[], Link] = Process) -> None:
        """`family`: the processes whose share of the memory is told."""
        self._family = family
        self._link = link()
        self._gpus: dict[str, Gpu] = {}
        self._histories: dict[str, History] = {}
        """By device, over all times that the library was opened: a device that returns goes on where it was."""

    def open(self) -> Sequence[Listed]:
        """Begin, or begin anew, and list what there is; raises DownError when the library or its driver fails."""
        self.close()
        if not any(path.exists() for path in DRIVER):
            raise NoDriverError("no driver: neither {} nor {} is there".format(*DRIVER))
        answer = self._ask(messages.Request())
        self._gpus = {gpu.id: gpu for gpu in answer.gpus}
        return answer.listed

    def close(self) -> None:
        """Let go of the process and with it of the library; never raises."""
        self._gpus.clear()
        self._link.close()

    def device(self, identity: str) -> "AmdGpu":
        """Return a device by its id; raises LostError when it is not there."""
        if identity not in self._gpus:
            raise LostError("the driver does not list it")
        return AmdGpu(self._ask, self._gpus[identity], self._histories.setdefault(identity, History()), self._family)

    def _ask(self, request: messages.Request) -> messages.Answer:
        answer = self._link.ask(request)
        if answer.down:
            raise DownError(answer.down)
        if answer.lost:
            raise LostError(answer.lost)
        return answer


class AmdGpu:
    """A device as long as its source is open."""

    def __init__(
        self, ask: Callable[[messages.Request], messages.Answer], gpu: Gpu, history: History, family: Family
    ) -> None:
        self.gpu = gpu
        self._ask = ask
        self._history = history
        self._family = family

    def read(self, clock: float) -> Reading:
        """Return what the device says at monotonic seconds `clock`; raises LostError or DownError."""
        checkpoint()
        said = self._ask(messages.Request(self.gpu.id, clock)).said
        if said is None:
            raise DownError("the process that asks AMD SMI answers something else")
        if self._history.vital and not said.vital:
            # The driver goes on telling what it knows by itself.
            raise LostError(f"none of its sensors answers: {said.trouble}")
        self._history.vital = said.vital
        if said.missing:
            log_once(logging.INFO, "%s %s does not tell: %s", self.gpu.name or "GPU", self.gpu.id, said.missing)
        checkpoint()
        reading, ours = said.reading, self._family.members(said.processes)
        if ours:  # in a container the processes may be out of sight: that is not 0
            reading.process_memory = sum(said.processes[pid] for pid in ours)
        if not self.gpu.parent:
            self._history.add(reading, said.counters, clock)
        return reading
