"""The thread that carries batches from the outbox to the collector, whatever becomes of either connection."""

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from vllm_vitals.logs import log_once
from vllm_vitals.wire.connection import Connection
from vllm_vitals.wire.frames import FOREIGN, REFUSED, SLOW, WireError, frame
from vllm_vitals.wire.messages import PROTOCOL, FromServer, Hello, Refusal, Taken, Welcome, encode
from vllm_vitals.wire.outage import Outage
from vllm_vitals.wire.outbox import Outbox
from vllm_vitals.wire.wake import Wake

FIRST_REST, LONGEST_REST = 0.1, 1.0
"""Seconds between tries to connect: each time twice as many."""
PATIENCE = 10.0
"""Seconds that a collector may take to welcome us."""


class Courier:
    """Connects, presents its process, sends one batch after another, and hears which were taken."""

    def __init__(self, path: Path, hello: Callable[[], Hello], outbox: Outbox, outage: Outage) -> None:
        """`hello` returns what presents this process as it is now."""
        self.connected = False
        """Whether a collector has welcomed this process."""
        self._path = path
        self._hello = hello
        self._outbox = outbox
        self._outage = outage
        self._wake = Wake()
        self._connection: Connection | None = None
        self._ending = threading.Event()
        self._end = math.inf
        """Monotonic seconds by which all is to be sent."""
        self._thread = threading.Thread(target=self._run, name="vitals-sender", daemon=True)

    def start(self) -> None:
        """Begin, on another thread."""
        self._thread.start()

    def wake(self) -> None:
        """Let it look into the outbox."""
        self._wake.set()

    def stop(self, timeout: float) -> None:
        """End when everything is sent, in at most `timeout` seconds."""
        self._end = time.monotonic() + timeout
        self._ending.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def abandon(self) -> None:
        """Close what a fork copied."""
        if self._connection is not None:
            self._connection.close()

    def _run(self) -> None:
        rest = FIRST_REST
        while not self._done():
            try:
                self._connection = Connection(self._path, self._wake)
                self._greet(self._connection)
                rest = FIRST_REST
                self._exchange(self._connection)
            except (OSError, WireError) as error:
                self._outage.away(error, self._outbox.dropped)
            except Exception:  # noqa: BLE001 - the thread must go on
                log_once(logging.ERROR, "Sending to the collector failed; trying on", traceback=True)
            self._close()
            self._rest(rest)
            rest = min(rest * 2, LONGEST_REST)

    def _done(self) -> bool:
        """Tell whether all is sent that has to be, or it is too late."""
        return self._ending.is_set() and (self._outbox.empty or time.monotonic() >= self._end)

    def _rest(self, seconds: float) -> None:
        """Wait before another try, not all processes equally long."""
        seconds = min(seconds * random.uniform(0.5, 1.0), max(self._end - time.monotonic(), 0.0))  # noqa: S311
        if not self._ending.is_set():
            self._ending.wait(seconds)
        elif not self._done():
            time.sleep(seconds)

    def _greet(self, connection: Connection) -> None:
        """Present this process, and find out what the collector has of it."""
        connection.send(frame(encode(self._hello())))
        answer = self._answer(connection)
        if isinstance(answer, Refusal):
            raise WireError(REFUSED, answer.reason)
        if not isinstance(answer, Welcome) or answer.protocol != PROTOCOL:
            raise WireError(FOREIGN, "the collector needs another vllm-vitals")
        # One that has just started has taken nothing. It gets all that nobody said to have: who may have had it is gone.
        self._outbox.resend(answer.taken)
        self._outage.back(self._outbox.dropped)
        self.connected = True

    def _answer(self, connection: Connection) -> FromServer:
        end = time.monotonic() + PATIENCE
        while (left := min(end, self._end) - time.monotonic()) > 0:
            for said in connection.turn(left, listen=True):
                return said
        raise WireError(SLOW, f"no answer in {PATIENCE:g} s")

    def _exchange(self, connection: Connection) -> None:
        """Send one batch after another and hear which are taken, until the end or an error."""
        while not self._done():
            while not connection.busy and (parcel := self._outbox.next()) is not None:
                connection.send(parcel.head, parcel.body)
            # That a batch was taken is no reason to wake up, unless something waits for that: the next batch is.
            listen = self._ending.is_set() or not self._outbox.calm
            left = None if self._end == math.inf else self._end - time.monotonic()
            for said in connection.turn(left, listen=listen):
                self._hear(said)

    def _hear(self, said: FromServer) -> None:
        if isinstance(said, Taken):
            self._outbox.taken(said.sequence)
        elif isinstance(said, Refusal):
            self._outbox.refused()
            log_once(logging.ERROR, "The collector refuses a batch, which is dropped: %s", said.reason)
            raise WireError(REFUSED, said.reason)

    def _close(self) -> None:
        self.connected = False
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
