"""A serving process's end of one connection: nothing waits but in one place, where it can be woken."""

import select
import socket
from collections import deque
from pathlib import Path

from vllm_vitals._util.directory import check_length
from vllm_vitals.transport.frames import CLOSED, MOST_FROM_SERVER, PIECE, Frames, WireError, trusted
from vllm_vitals.transport.messages import FromServer, from_server
from vllm_vitals.transport.wake import Wake

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
