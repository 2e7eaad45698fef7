"""What carries batches from the outbox to the collector, whatever becomes of either connection."""

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from vllm_vitals._util.log import log_once
from vllm_vitals.transport.connection import Connection
from vllm_vitals.transport.frames import FOREIGN, REFUSED, SLOW, WireError, frame
from vllm_vitals.transport.messages import PROTOCOL, FromServer, Hello, Refusal, Taken, Welcome, encode
from vllm_vitals.transport.outage import Outage
from vllm_vitals.transport.outbox import Outbox
from vllm_vitals.transport.wake import Wake

FIRST_REST, LONGEST_REST = 0.1, 1.0
"""Seconds between tries to connect: each time twice as many."""
PATIENCE = 10.0
"""Seconds that a collector may take to welcome us."""


class Courier:
    """Connects, presents its process, sends one batch after another, and hears which were taken.

    It has a thread for all that takes time. What the socket takes at once is sent by who has it: waking a thread four
    times a second costs a serving process more than all that it sends.
    """

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
        self._moving = threading.Lock()
        """Held while something is put into the connection or taken out of it, never while waiting for anything."""
        self._failure: Exception | None = None
        """What went wrong where nobody could see to it, which is for the thread to do."""
        self._ending = threading.Event()
        self._end = math.inf
        """Monotonic seconds by which all is to be sent."""
        self._thread = threading.Thread(target=self._run, name="vitals-sender", daemon=True)

    def start(self) -> None:
        """Begin, on another thread."""
        self._thread.start()

    def carry(self) -> None:
        """Send what the outbox holds: as much as goes without waiting now, all else soon, on the thread."""
        if not (self.connected and self._carry_at_once()):
            self._wake.set()

    def _carry_at_once(self) -> bool:
        """Return whether nothing is left to do."""
        if not self._moving.acquire(blocking=False):
            return False
        try:
            if (connection := self._connection) is None or not self.connected:
                return False
            self._move(connection)
        except Exception as error:  # noqa: BLE001 - the thread raises it again, tells it, and starts anew
            self._failure = error
            return False
        else:
            return self._outbox.calm and not connection.busy
        finally:
            self._moving.release()

    def stop(self, timeout: float) -> None:
        """End when everything is sent, in at most `timeout` seconds."""
        self._end = time.monotonic() + timeout
        self._ending.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def after_fork_in_child(self) -> None:
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
            raise WireError(REFUSED, ascii(answer.reason))
        if not isinstance(answer, Welcome) or answer.protocol != PROTOCOL:
            raise WireError(FOREIGN, "the collector needs another vllm-vitals")
        # One that has just started has taken nothing. It gets all that nobody said to have: who may have had it is gone.
        self._outbox.resend(answer.taken)
        self._outage.back(self._outbox.dropped)
        self.connected = True

    def _answer(self, connection: Connection) -> FromServer:
        end = time.monotonic() + PATIENCE
        while (left := min(end, self._end) - time.monotonic()) > 0:
            connection.wait(left, listen=True)
            for said in connection.transfer():
                return said
        raise WireError(SLOW, f"no answer in {PATIENCE:g} s")

    def _exchange(self, connection: Connection) -> None:
        """Send one batch after another and hear which are taken, until the end or an error."""
        while not self._done():
            with self._moving:
                self._move(connection)
            # That a batch was taken is no reason to wake up, unless something waits for that: the next batch is.
            listen = self._ending.is_set() or not self._outbox.calm
            if not self._done():
                connection.wait(None if self._end == math.inf else self._end - time.monotonic(), listen=listen)

    def _move(self, connection: Connection) -> None:
        """Hear what was said, and send what goes now. Never waits."""
        if self._failure is not None:
            raise self._failure
        for said in connection.transfer():
            self._hear(said)
        while not connection.busy and (parcel := self._outbox.next()) is not None:
            connection.send(parcel.head, parcel.body)

    def _hear(self, said: FromServer) -> None:
        if isinstance(said, Taken):
            self._outbox.taken(said.sequence)
        elif isinstance(said, Refusal):
            self._outbox.refused()
            log_once(logging.ERROR, "The collector refuses a batch, which is dropped: %a", said.reason)
            raise WireError(REFUSED, ascii(said.reason))

    def _close(self) -> None:
        with self._moving:
            self.connected, self._failure = False, None
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
