"""The connection of a serving process to an aggregator elsewhere: in a sidecar, or in the leader of several API servers."""

import threading
from collections.abc import Callable
from pathlib import Path

from vllm_vitals._util.log import LOGGER
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.deployment.collector_server import CollectorServer
from vllm_vitals.deployment.leader_lock import LeaderLock
from vllm_vitals.exporters.base import Exporter
from vllm_vitals.transport.client import Sender

SHUTDOWN_GRACE_SECONDS = 1.0
"""Time for the last steps to leave, and for those of other processes to come, when the process ends."""


class RemoteCollector:
    """Sends steps to the socket of a deployment. The process that leads also holds that socket."""

    def __init__(self, socket: Path, process: str, buffer: int, aggregator: Aggregator | None) -> None:
        """`process`: number of this API server. `aggregator`: what it holds as the leader; `None` with a sidecar."""
        self.sender = Sender(socket, process, buffer)
        self._socket = socket
        self._aggregator = aggregator
        self._makers: dict[str, Callable[[], Exporter]] = {}
        self._server: CollectorServer | None = None
        self._changing = threading.Lock()
        self._started = False
        self._lock = (
            None
            if aggregator is None
            else LeaderLock(socket, int(process), lambda: self.sender.connected, lambda: self._lead(aggregator))
        )

    def start(self) -> None:
        """Begin to connect, and to wait for the lead, unless that has begun."""
        if self._started:
            return
        self._started = True
        self.sender.start()
        if self._lock is not None:
            self._lock.start()
        else:
            LOGGER.info("Steps go to the sidecar at %s, which exports them", self._socket)

    def expose(self, name: str, make: Callable[[], Exporter]) -> None:
        """Start an exporter if this process leads, now or later."""
        with self._changing:
            self._makers[name] = make
            if self._server is not None:
                self._server.expose(name, make)

    def stop(self) -> None:
        """Send the last steps within the grace period, and end the exporters of this process."""
        if self._lock is not None:
            self._lock.stop()
        self.sender.stop(SHUTDOWN_GRACE_SECONDS)
        if self._server is not None:
            self._server.stop(SHUTDOWN_GRACE_SECONDS)
        if self._lock is not None:
            self._lock.leave()

    def after_fork_in_child(self) -> None:
        """Let go of what the fork copied, without touching threads or locks."""
        self.sender.after_fork_in_child()
        if self._lock is not None:
            self._lock.after_fork_in_child()
        if self._server is not None:
            self._server.after_fork_in_child()

    def _lead(self, aggregator: Aggregator) -> None:
        with self._changing:
            server = CollectorServer(aggregator, self._socket)
            server.start(self._makers)
            self._server = server
        LOGGER.info("This API server holds the collector of all (%s)", self._socket)
