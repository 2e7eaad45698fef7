"""What the log is told of a collector that is away: once each time, and that it is back."""

import time
from pathlib import Path

from vllm_vitals._util.log import LOGGER

PATIENCE = 2.0
"""Seconds that the collector may be away before that is worth a line: at a start it may be the last to come."""


class Outage:
    """Keeps count of one outage at a time; the first lasts from the making to the first connection."""

    def __init__(self, path: Path, room: int) -> None:
        """`path` of the collector's socket, `room`: bytes of records that may wait."""
        self._path = path
        self._room = room
        self._since: float | None = time.monotonic()
        self._dropped = 0
        self._said = False
        self._full = False

    def away(self, why: object, dropped: int) -> None:
        """Take note that the collector cannot be reached, and why; so many steps were dropped up to now."""
        now = time.monotonic()
        if self._since is None:
            self._since, self._dropped, self._said = now, dropped, False
        if not self._said and now - self._since >= PATIENCE:
            self._said = True
            LOGGER.warning(
                "The collector at %s is away (%s). Trying on; up to %.1f MiB of records wait for it, beyond that the "
                "oldest are dropped",
                self._path,
                why,
                self._room / 2**20,
            )

    def back(self, dropped: int) -> None:
        """Take note that the collector is reached; so many steps were dropped up to now."""
        since, self._since = self._since, None
        lost = dropped - self._dropped
        if since is not None and (self._said or lost):
            away = time.monotonic() - since
            LOGGER.info("The collector at %s is back after %.1f s; %d steps were dropped", self._path, away, lost)

    def full(self) -> None:
        """Take note that records are being dropped."""
        if not self._full:
            self._full = True
            LOGGER.warning(
                "%.1f MiB of records wait for the collector at %s; now the oldest are dropped (vitals.steps.dropped)",
                self._room / 2**20,
                self._path,
            )

    def fits(self) -> None:
        """Take note that nothing waits any more."""
        self._full = False
