"""What carries batches from the outbox to the collector, whatever becomes of either connection."""

import logging
import math
import os
import random
import select
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from vllm_vitals._util.directory import check_length
from vllm_vitals._util.log import LOGGER, log_once
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.records.step import Record
from vllm_vitals.transport.buffer import Outbox, Packer
from vllm_vitals.transport.protocol import (
    CLOSED,
    FOREIGN,
    MOST_FROM_SERVER,
    PIECE,
    PROTOCOL,
    REFUSED,
    SLOW,
    Frames,
    FromServer,
    Hello,
    Refusal,
    Taken,
    Welcome,
    WireError,
    encode,
    frame,
    from_server,
    trusted,
)
from vllm_vitals.transport.wakeup import Wake

LOG_AFTER_SECONDS = 2.0
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
        if not self._said and now - self._since >= LOG_AFTER_SECONDS:
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


ROOM = 1 << 20
"""Bytes that the kernel shall take at once, if it may: a batch that does not fit costs this thread another wake-up."""


class Connection:
    """Connects when it is made."""

    def __init__(self, path: Path, wake: Wake) -> None:
        """Connect to who listens at a path; `wake` ends a wait for it.

        Raises:
            OSError: when nobody does, it is another user, or the path is too long.
        """
        check_length(path)
        self._wake = wake
        self._frames = Frames(MOST_FROM_SERVER)
        self._pieces: deque[memoryview] = deque()
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
            self._socket.connect(str(path))
            if not trusted(self._socket):
                raise PermissionError("another user listens there")
        except OSError as error:
            self._socket.close()
            if isinstance(error, BlockingIOError):
                raise ConnectionError("so many wait there that it takes no more") from error
            raise
        self._poll = select.poll()
        self._poll.register(wake, select.POLLIN)

    @property
    def busy(self) -> bool:
        """Tell whether something is still to be written."""
        return bool(self._pieces)

    def send(self, *parts: bytes | bytearray) -> None:
        """Write as much as goes now, and the rest in the coming transfers."""
        self._pieces.extend(memoryview(part) for part in parts if part)
        self._write()

    def wait(self, seconds: float | None, *, listen: bool) -> None:
        """Wait until something can be written, the connection ends, or this is woken.

        To hear at once what is said wait for that too: `listen`.
        """
        # Who waits to write must listen too: the other side may read nothing more before it is heard.
        awaited = select.POLLIN | select.POLLOUT if self.busy else select.POLLIN if listen else 0
        self._poll.register(self._socket, awaited)
        self._poll.poll(None if seconds is None else max(seconds, 0.0) * 1000)
        self._wake.clear()

    def transfer(self) -> list[FromServer]:
        """Write what goes now, and return what was said. Never waits.

        Raises:
            WireError: when the connection is closed and all was read, or nonsense came.
        """
        self._write()
        return self._read()

    def close(self) -> None:
        """Close this process's end."""
        self._socket.close()

    def _read(self) -> list[FromServer]:
        try:
            data = self._socket.recv(PIECE)
        except BlockingIOError:
            return []
        except OSError as error:
            raise WireError(CLOSED, str(error.strerror)) from error
        if not data:
            raise WireError(CLOSED)
        self._frames.feed(data)
        return [from_server(payload) for payload in iter(self._frames.next, None)]

    def _write(self) -> None:
        try:
            while self._pieces:
                written = self._socket.sendmsg(self._pieces, (), socket.MSG_NOSIGNAL)
                while self._pieces and written >= len(self._pieces[0]):
                    written -= len(self._pieces.popleft())
                if written:
                    self._pieces[0] = self._pieces[0][written:]
        except BlockingIOError:
            return
        except OSError:
            self._pieces.clear()  # it is closed; what it said before is still to be read


FIRST_REST, LONGEST_REST = 0.1, 1.0
"""Seconds between tries to connect: each time twice as many."""
WELCOME_SECONDS = 10.0
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
        end = time.monotonic() + WELCOME_SECONDS
        while (left := min(end, self._end) - time.monotonic()) > 0:
            connection.wait(left, listen=True)
            for said in connection.transfer():
                return said
        raise WireError(SLOW, f"no answer in {WELCOME_SECONDS:g} s")

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
