"""The interface of exporters."""

from collections.abc import Mapping
from typing import Protocol

from vllm_vitals._util.log import LOGGER


class Exporter(Protocol):
    """Exports the store, on its own threads."""

    def start(self) -> None:
        """Start; must not block."""

    def stop(self) -> None:
        """Stop, in bounded time."""

    def after_fork_in_child(self) -> None:
        """Release copied resources in the child of a fork, without touching threads or locks."""


def stop_all(exporters: Mapping[str, Exporter]) -> None:
    """Stop exporters. If one fails, the others are still stopped in order."""
    for name, exporter in exporters.items():
        try:
            exporter.stop()
        except Exception:  # noqa: BLE001 - see above
            LOGGER.exception("%s could not be stopped", name)
