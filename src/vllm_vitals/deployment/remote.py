"""The way of a serving process to a collector outside of it, which it holds itself once it is elected."""

import threading
from collections.abc import Callable
from pathlib import Path

from vllm_vitals._util.log import LOGGER
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.deployment.collector_server import Host
from vllm_vitals.deployment.leader_lock import Election
from vllm_vitals.exporters.base import Exporter
from vllm_vitals.transport.sender import Sender

FAREWELL = 1.0
"""Seconds that the last steps may take to leave, and those of the others to come, when the process ends."""


class Link:
    """Sends steps to the collector at a socket, be it a sidecar's or that of one of the API servers."""

    def __init__(self, socket: Path, rank: int, buffer: int, aggregator: Aggregator | None) -> None:
        """`rank`: of this API server. `aggregator`: what to hold if elected; `None`: there is a sidecar for it."""
        self.sender = Sender(socket, str(rank), buffer)
        self._socket = socket
        self._aggregator = aggregator
        self._makers: dict[str, Callable[[], Exporter]] = {}
        self._host: Host | None = None
        self._leading = threading.Lock()
        self._election = Election(socket, rank, lambda: self.sender.connected, self._lead) if aggregator else None

    def start(self) -> None:
        """Begin to connect, and to stand for election."""
        self.sender.start()
        if self._election is not None:
            self._election.start()
        else:
            LOGGER.info("Steps go to the sidecar at %s, which exports them", self._socket)

    def expose(self, name: str, make: Callable[[], Exporter]) -> None:
        """Take note of an exporter, which runs where the collector is."""
        with self._leading:
            self._makers[name] = make
            if self._host is not None:
                self._host.expose(name, make)

    def stop(self) -> None:
        """Send what is left, within a bound, and end the exporters if they are here."""
        if self._election is not None:
            self._election.stop()
        self.sender.stop(FAREWELL)
        if self._host is not None:
            self._host.stop(FAREWELL)
        if self._election is not None:
            self._election.leave()

    def abandon(self) -> None:
        """Let go of what a fork copied, without touching threads or locks."""
        self.sender.abandon()
        if self._election is not None:
            self._election.abandon()
        if self._host is not None:
            self._host.abandon()

    def _lead(self) -> None:
        if self._aggregator is None:
            return
        with self._leading:
            host = Host(self._aggregator, self._socket)
            host.start(self._makers)
            self._host = host
        LOGGER.info("This API server holds the collector of all (%s)", self._socket)
