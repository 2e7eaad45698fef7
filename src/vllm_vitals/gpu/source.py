"""What every kind of GPU offers to the sampler, and the ways in which it may fail."""

from collections.abc import Sequence
from typing import Protocol

from vllm_vitals.gpu.visible import Listed
from vllm_vitals.records.gpu import Gpu, Reading


class DownError(Exception):
    """The library or its driver does not work; the message says why."""


class NoDriverError(DownError):
    """There is no sign of a driver: most likely there are no such GPUs here."""


class LostError(Exception):
    """A device does not answer any more; the message says why."""


class AbsentError(Exception):
    """The device, driver or process cannot have a value, now and until the library is opened again."""


class TransientError(Exception):
    """There is no value this time."""


class Device(Protocol):
    """One device, as long as its source is open."""

    @property
    def gpu(self) -> Gpu:
        """Which device this is."""

    def read(self, clock: float) -> Reading:
        """Return what it says at monotonic seconds `clock`.

        Raises:
            LostError: when the device is not there any more.
            DownError: when the library does not work any more.
        """


class Source(Protocol):
    """The devices of one vendor in this machine. For one thread."""

    vendor: str

    def open(self) -> Sequence[Listed]:
        """Begin, or begin anew, and list what there is; devices that were had before are of no use any more.

        Raises:
            DownError: when the library or its driver does not work.
        """

    def device(self, identity: str) -> Device:
        """Return a device by its id.

        Raises:
            LostError: when the device is not there.
            DownError: when the library does not work any more.
        """

    def close(self) -> None:
        """Let go of the library; never raises."""
