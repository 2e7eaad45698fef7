"""What runs where. The topology of a process is decided once, before anything is built, and never changes.

- Alone: the process that serves also aggregates and exports.
- Several API servers: each of them sends its steps to a socket. One of them, the leader, holds that socket, and
  aggregates and exports for all.
- With a sidecar: every serving process sends its steps to the socket of the sidecar, which aggregates and exports.
- From a page: no plugin runs. A sidecar reads vLLM's own `/metrics`, and exports that under our names.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from vllm_vitals.config.load import SettingsError
from vllm_vitals.config.settings import Settings, WireSettings

SIDECAR = "sidecar"


@dataclass(frozen=True)
class Topology:
    """The part of one process."""

    process: str = "0"
    """Label of this process: the number of its API server."""
    socket: Path | None = None
    """The socket that serving processes send their steps to. `None`: steps stay in this process."""
    aggregates: bool = True
    """Whether this process can hold the aggregator and the exporters."""
    serves: bool = True
    """Whether requests are served in this process, so that all work here must be done in small pieces."""
    page_url: str | None = None
    """The page of vLLM's metrics that is read instead of steps."""
    ancestors: tuple[int, ...] = field(default_factory=lambda: (os.getpid(),))
    """The process ids that all processes of this vLLM descend from."""

    @property
    def sends(self) -> bool:
        """Return whether this process sends its steps to a socket."""
        return self.serves and self.socket is not None


def of_serving_process(wire: WireSettings, rank: int, count: int) -> Topology:
    """Return the topology of the API server `rank` of `count`.

    Raises:
        OSError: if the API servers have no place for their socket.
    """
    ancestors = (os.getppid() if count > 1 else os.getpid(),)  # API servers and engines are children of one process
    if wire.sidecar is not None:
        return Topology(str(rank), wire.sidecar, aggregates=False, ancestors=ancestors)
    if count == 1:
        return Topology(ancestors=ancestors)
    from vllm_vitals.deployment.leader_lock import meeting_point  # noqa: PLC0415 - only if there are several

    return Topology(str(rank), wire.socket or meeting_point(make=True), ancestors=ancestors)


def of_sidecar(settings: Settings) -> Topology:
    """Return the topology of a sidecar.

    Raises:
        SettingsError: if the settings name no source of metrics, or two.
    """
    socket, url = settings.wire.sidecar, settings.native.url
    if socket is not None and url is not None:
        raise SettingsError(
            "wire.sidecar and native.url are both set: a sidecar receives steps or fetches metrics, not both"
        )
    if socket is None and url is None:
        raise SettingsError(
            "neither wire.sidecar nor native.url is set: give the socket with --socket (VITALS_WIRE__SIDECAR), or the "
            "URL of vLLM's /metrics with --native-url (VITALS_NATIVE__URL)"
        )
    return Topology(SIDECAR, socket, serves=False, page_url=url)
