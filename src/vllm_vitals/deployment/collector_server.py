"""The collector of a whole deployment: what serving processes send comes in here, the exporters show it."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vllm_vitals._util.log import LOGGER
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.aggregation.merge import Merger
from vllm_vitals.exporters.base import Exporter, stop_all
from vllm_vitals.records.step import Record
from vllm_vitals.transport.server import Peer, Receiver


class CollectorServer:
    """A collector, the socket that feeds it, and its exporters."""

    def __init__(self, aggregator: Aggregator, socket: Path, *, serves: bool = True) -> None:
        """Begin with nothing; `serves`: requests are served in this process as well."""
        self.socket = socket
        self.exporters: dict[str, Exporter] = {}
        self._aggregator = aggregator
        self._merger = Merger(aggregator, serves=serves)
        self._receiver = Receiver(socket, uuid.uuid4().hex, self._take, self._gone, self._broken)

    def start(self, exporters: Mapping[str, Callable[[], Exporter]]) -> None:
        """Begin to listen and to export; `exporters` makes each exporter by its name.

        Raises:
            OSError: when the socket cannot be had; the message names it.
        """
        self._receiver.start()
        for name, make in exporters.items():
            try:
                self.expose(name, make)
            except Exception:  # noqa: BLE001 - the others, and the collector, shall go on
                self._aggregator.error("export", "%s could not start", name, key=f"start {name}")

    def expose(self, name: str, make: Callable[[], Exporter]) -> None:
        """Start one exporter unless it runs."""
        if name not in self.exporters:
            self.exporters[name] = make()
            self.exporters[name].start()

    def stop(self, farewell: float = 0.0) -> None:
        """Take what comes within `farewell` seconds, then nothing more; end the exporters, which may push once more."""
        end = time.monotonic() + farewell
        while self._receiver.connections and time.monotonic() < end:
            time.sleep(0.02)  # the other serving processes end now too, and have their last steps to tell
        self._receiver.stop()
        self._merger.finish()
        stop_all(self.exporters)

    def after_fork_in_child(self) -> None:
        """Let go of what a fork copied, without touching threads or locks."""
        self._receiver.after_fork_in_child()
        for exporter in self.exporters.values():
            exporter.after_fork_in_child()

    def settle(self) -> None:
        """Give the aggregator the steps that wait for other processes no longer."""
        self._merger.settle()

    def problem(self) -> str:
        """Return why nothing can come in, `""` when all is well."""
        return "" if self._receiver.ready else f"the socket {self.socket} is not there"

    def ended(self) -> str:
        """Return why nothing can come in until this process is restarted, `""` when all is well."""
        return self._receiver.ended()

    def _take(self, peer: Peer, records: Sequence[Record], until: float) -> None:
        self._merger.take(peer.process, records, until)

    def _gone(self, peer: Peer) -> None:
        LOGGER.warning("Serving process %s (pid %d) is gone", peer.name, peer.pid)
        self._merger.leave(peer.process)

    def _broken(self) -> None:
        self._aggregator.count_error("wire")
