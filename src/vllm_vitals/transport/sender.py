"""The way from a serving process to the collector in another: a bounded store of batches, and what sends them."""

import os
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.records.step import Record
from vllm_vitals.transport.courier import Courier
from vllm_vitals.transport.messages import PROTOCOL, Hello
from vllm_vitals.transport.outage import Outage
from vllm_vitals.transport.outbox import Outbox
from vllm_vitals.transport.packer import Packer

FULL = 256 << 10
"""Bytes after which a batch is full. One is decoded at a stretch, maybe in a process that serves: 0.1 ms for so many."""


class Sender:
    """Sends the records of this process to whoever listens at a path, as soon as anyone does.

    `add` and `flush` never wait for the other side. vLLM's event loop must not call them all the same.
    """

    def __init__(self, path: Path, name: str, buffer: int) -> None:
        """`name`: number of this process among the API servers. `buffer`: bytes of records that may wait."""
        self._name = name
        self._process = uuid.uuid4().hex
        self._packer = Packer(name, min(FULL, buffer // 8))
        self._adding = threading.Lock()
        """Held by who adds, for as long as that takes; the courier takes it only to present this process."""
        self._until = 0.0
        self._outbox = Outbox(buffer)
        self._outage = Outage(path, buffer)
        self._courier = Courier(path, self._hello, self._outbox, self._outage)

    @property
    def connected(self) -> bool:
        """Tell whether a collector has welcomed this process."""
        return self._courier.connected

    @property
    def dropped(self) -> int:
        """Return how many steps the collector will never have."""
        return self._outbox.dropped + self._packer.dropped

    def start(self) -> None:
        """Begin to connect, on another thread; what is added before waits."""
        self._courier.start()

    def add(self, records: Sequence[Record]) -> None:
        """Take records, oldest first; they leave with the next flush, or when there are enough for a batch."""
        with self._adding:
            for record in records:
                self._packer.add(record)
                if self._packer.full:
                    self._seal()
                checkpoint()

    def flush(self, until: float) -> None:
        """Let everything leave that was added: this is all up to `until`, monotonic seconds.

        If there is nothing, just that is told, unless there is something on the way that is to be told before.
        """
        with self._adding:
            self._until = max(self._until, until)
            if not self._packer.empty or self._outbox.idle:
                self._seal()

    def stop(self, timeout: float) -> None:
        """Send what is left and close, in at most `timeout` seconds."""
        self.flush(self._until)
        self._courier.stop(timeout)

    def after_fork_in_child(self) -> None:
        """Close what a fork copied, without touching threads or locks."""
        self._courier.after_fork_in_child()

    def _seal(self) -> None:
        dropped = self._outbox.dropped
        if self._outbox.idle:
            self._outage.fits()
        self._outbox.put(self._packer.seal(self._until, self._outbox.lost()))
        if self._outbox.dropped > dropped:
            self._outage.full()
        self._courier.carry()

    def _hello(self) -> Hello:
        with self._adding:
            known = self._packer.known.records()
        return Hello(PROTOCOL, self._process, self._name, os.getpid(), known)
