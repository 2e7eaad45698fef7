"""What every exporter can do."""

from collections.abc import Mapping
from typing import Protocol

from vllm_vitals._util.log import LOGGER


class Exporter(Protocol):
    """Something that shows the collector's store to the world, on threads of its own."""

    def start(self) -> None:
        """Begin; must not block."""

    def stop(self) -> None:
        """End, in bounded time."""

    def after_fork_in_child(self) -> None:
        """Let go of what a fork copied, without touching threads or locks."""


def stop_all(exporters: Mapping[str, Exporter]) -> None:
    """End exporters; one that fails does not keep the others from ending in order."""
    for name, exporter in exporters.items():
        try:
            exporter.stop()
        except Exception:  # noqa: BLE001 - see above
            LOGGER.exception("%s could not be stopped in order", name)
