"""The devices of one vendor that this vLLM uses: lost and found again, while the others are read on."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vllm_vitals._util.log import LOGGER, log_once
from vllm_vitals.gpu.source import Device, DownError, LostError, NoDriverError, Source
from vllm_vitals.gpu.visible import Listed
from vllm_vitals.records.gpu import FAILED, Gpu, Reading
from vllm_vitals.records.placement import NOBODY, Owner

SHORTEST_RETRY, LONGEST_RETRY = 5.0, 300.0
"""Seconds until the library is opened anew after a failure, doubled each time."""

Choose = Callable[[str, list[Listed]], list[str]]
"""Gives the ids to be watched of a vendor's devices."""
Place = Callable[[list[str]], Mapping[str, Owner]]
"""Gives those of them that are used, and whose each is."""


@dataclass
class Member:
    """A device that is watched. `device` is `None` while it cannot be had."""

    gpu: Gpu
    owner: Owner
    device: Device | None = None
    lost: bool = False
    """Whether the log has it that the device is lost."""


class Fleet:
    """Reads a source's devices. The log has each loss and each return once. For one thread."""

    def __init__(self, source: Source, choose: Choose, place: Place, now: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._choose = choose
        self._place = place
        self._now = now
        self._listed = self._watched = 0
        self._chosen: list[str] = []
        """What was chosen when every device said who it is: indices may stand for others once one is gone."""
        self._members: dict[str, Member] = {}
        self._down = ""
        self._told = False
        """Whether the log has it that the library does not work."""
        self._delay = 0.0
        self._due: float | None = -1.0
        """Monotonic seconds at which to open the source, `None` while all is well."""

    def read(self) -> list[Reading]:
        """Return what each device says; one that cannot be read is marked as failed."""
        if self._due is not None and self._now() >= self._due:
            self._open()
        readings = [self._ask(member) for member in self._members.values()]
        if self._due is None and all(reading.state != FAILED for reading in readings):
            self._delay = 0.0
        return readings

    @property
    def vendor(self) -> str:
        """Whose devices these are."""
        return self._source.vendor

    def found(self) -> str:
        """Return in words what was found: how many devices are watched, or why none is."""
        if self._down:
            return "none so far" if self._told else f"none ({self._down})"
        names = ", ".join(dict.fromkeys(member.gpu.name for member in self._members.values() if member.gpu.name))
        watched = f"{self._watched} of {self._listed} watched"
        return f"{watched} ({names})" if names else watched

    def close(self) -> None:
        """Let go of the library."""
        self._forget()
        self._source.close()

    def _open(self) -> None:
        self._forget()
        try:
            listed = list(self._source.open())
            self._gather(listed)
        except DownError as error:
            self._fail(str(error), quietly=isinstance(error, NoDriverError) and not self._members)
            return
        if self._down:
            LOGGER.info("The %s GPUs can be read now", self._source.vendor)
        self._down, self._told = "", False
        self._due = None
        self._listed = sum(len(each.parts) or 1 for each in listed)
        missing = any(member.device is None for member in self._members.values())
        if missing or "" in self._chosen or not listed:
            self._retry()
        elif not self._members:
            self._source.close()

    def _gather(self, listed: list[Listed]) -> None:
        """Get hold of each device that is to be watched, and of the GPUs that MIG devices are parts of."""
        if not self._chosen or "" in self._chosen:
            self._chosen = self._choose(self._source.vendor, listed)
        if "" in self._chosen:
            why = ", ".join(each.trouble for each in listed if not each.id)
            log_once(logging.WARNING, "GPUs that vLLM may use do not say who they are, asking again: %s", why)
        owners = dict(self._place(self._chosen))
        owners.pop("", None)
        self._watched = len(owners)
        for identity, owner in owners.items():
            self._hold(identity, owner)
        parents = {self._members[identity].gpu.parent for identity in owners} - {"", *owners}
        for parent in sorted(parents):
            self._hold(parent, NOBODY)  # all its parts have a share in it
        self._members = {identity: self._members[identity] for identity in (*owners, *sorted(parents))}

    def _hold(self, identity: str, owner: Owner) -> None:
        member = self._members.setdefault(identity, Member(Gpu(identity, vendor=self._source.vendor), owner))
        member.owner = owner
        try:
            member.device = self._source.device(identity)
            member.gpu = member.device.gpu
        except LostError as error:
            self._lose(member, str(error))

    def _ask(self, member: Member) -> Reading:
        reading = None
        try:
            reading = member.device.read(self._now()) if member.device else None
        except LostError as error:
            self._lose(member, str(error))
        except DownError as error:
            self._forget()
            self._fail(str(error))
        if reading is None:
            reading = Reading(member.gpu, FAILED)
        elif member.lost:
            member.lost = False
            LOGGER.info("%s %s answers again", member.gpu.name, member.gpu.id)
        reading.model, reading.engine = member.owner
        return reading

    def _lose(self, member: Member, why: str) -> None:
        if not member.lost:
            LOGGER.warning("%s %s is lost: %s. The others are read on", member.gpu.name or "GPU", member.gpu.id, why)
        member.lost, member.device = True, None
        if self._due is None:
            self._retry()

    def _fail(self, why: str, *, quietly: bool = False) -> None:
        if not self._told and not quietly:
            self._told = True
            level = logging.WARNING if self._members else logging.INFO  # perhaps there are none
            vendor = self._source.vendor
            LOGGER.log(level, "The %s GPUs cannot be read, trying again from time to time: %s", vendor, why)
        self._down = why
        self._retry()

    def _retry(self) -> None:
        self._delay = min(max(2 * self._delay, SHORTEST_RETRY), LONGEST_RETRY)
        self._due = self._now() + self._delay

    def _forget(self) -> None:
        for member in self._members.values():
            member.device = None
