"""Frames on a Unix socket: four bytes of length, big-endian, then so many bytes."""

import os
import socket
import struct
import time
from array import array
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from msgspec import Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from vllm_vitals.records.step import Clock, Floats, Record, floats

MOST_FROM_CLIENT = 16 << 20
MOST_FROM_SERVER = 64 << 10
"""Bytes of the largest frame in either direction."""
PIECE = 64 << 10
"""Most bytes that are received at once: no room is made for a length that is only claimed."""
WHOLE = 10.0
"""Seconds within which a frame that began must be whole."""
STOPPED = 1.0
"""Seconds after its deadline at which data can only come because this process was stopped meanwhile."""
HEADER = 4

CLOSED = "closed"
FOREIGN = "another protocol"
REFUSED = "refused"
SLOW = "slow"
TOO_LONG = "too long"
TOO_MANY = "too many"
TOO_MUCH = "too much at a time"
UNKNOWN = "not a known message"


class WireError(Exception):
    """The other side went away, or does not keep to what was agreed; `reason` is one of a few kinds."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


class Frames:
    """Cuts what comes through a socket into frames; holds no more than came."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of the largest frame."""
        self.limit = limit
        self._came = bytearray()

    @property
    def size(self) -> int:
        """Return how many bytes of a frame are here."""
        return len(self._came)

    def feed(self, data: bytes) -> None:
        """Take what a socket brought."""
        self._came += data

    def next(self) -> bytes | None:
        """Return the next frame's payload, `None` while it is not whole.

        Raises:
            WireError: when it is, or will be, longer than the limit.
        """
        if len(self._came) < HEADER:
            return None
        length = int.from_bytes(self._came[:HEADER], "big")
        if length > self.limit:
            raise WireError(TOO_LONG, f"{length} bytes, at most {self.limit}")
        end = HEADER + length
        if len(self._came) < end:
            return None
        with memoryview(self._came) as view:
            payload = bytes(view[HEADER:end])
        del self._came[:end]
        return payload


def frame(payload: bytes, more: int = 0) -> bytes:
    """Return the frame of a payload of which `more` bytes are sent apart."""
    return (len(payload) + more).to_bytes(HEADER, "big") + payload


def receive(
    conn: socket.socket,
    frames: Frames,
    *,
    idle: float = 0.0,
    whole: float = WHOLE,
    hold: Callable[[socket.socket, int], None] = lambda *_: None,
) -> bytes:
    """Wait for the next frame: it must begin within `idle` seconds (0: has begun) and be whole within `whole` more.

    `hold` is told how many bytes of it have come, each time that it is not whole yet.

    Raises:
        WireError: when it does not come in time, is too long, or the connection is closed.
    """
    begun = bool(frames.size) or not idle
    end = time.monotonic() + (whole if begun else idle)
    while (payload := frames.next()) is None:
        if frames.size:
            hold(conn, frames.size)
        frames.feed(_read(conn, end - time.monotonic()))
        if not begun or time.monotonic() > end + STOPPED:
            begun, end = True, time.monotonic() + whole
    return payload


def _read(conn: socket.socket, left: float) -> bytes:
    if left <= 0:
        raise WireError(SLOW)
    conn.settimeout(left)
    try:
        data = conn.recv(PIECE)
    except TimeoutError as error:
        raise WireError(SLOW) from error
    except OSError as error:
        raise WireError(CLOSED, os.strerror(error.errno or 0)) from error
    if not data:
        raise WireError(CLOSED)
    return data


def deliver(conn: socket.socket, payload: bytes, timeout: float = WHOLE) -> None:
    """Send a frame within `timeout` seconds.

    Raises:
        WireError: when the other side does not read, or has closed the connection.
    """
    conn.settimeout(timeout)
    try:
        conn.sendall(frame(payload), socket.MSG_NOSIGNAL)
    except TimeoutError as error:
        raise WireError(SLOW) from error
    except OSError as error:
        raise WireError(CLOSED, os.strerror(error.errno or 0)) from error


def trusted(conn: socket.socket) -> bool:
    """Tell whether the process at the other end belongs to our user or to root."""
    credentials = conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return uid in (0, os.geteuid())


def hang_up(connection: socket.socket) -> None:
    """End a connection that another thread reads from, which will close it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is closed


PROTOCOL = 3
MOST_RECORDS = 4096
"""Records of one message."""
LONGEST_REASON = 300

Name = Annotated[str, Meta(pattern=r"\A[!-~]{1,64}\Z")]
"""Goes into the log, and becomes a label."""
Count = Annotated[int, Meta(ge=0)]
Records = Annotated[list[Record], Meta(max_length=MOST_RECORDS)]  # checked before any of them is decoded


class Greeting(Struct, frozen=True, tag="Hello"):
    """What every protocol's `Hello` begins with."""

    protocol: int


class Hello(Struct, frozen=True, tag=True):
    """A serving process presents itself.

    `process` is another at each of its starts, `name` its number among the API servers.
    """

    protocol: int
    process: Name
    name: Name
    pid: Count
    records: Records
    """What must be known first: the latest `Facts` and `Sleep` of each of its engines."""


class Batch(Struct, frozen=True, tag=True):
    """Records, oldest first. Sequences only grow; `until`: monotonic seconds up to which all has been told."""

    sequence: Annotated[int, Meta(gt=0)]
    until: Clock
    records: Records


class Welcome(Struct, frozen=True, tag=True):
    """The answer to a `Hello`.

    `collector` is another at each of its starts, `taken` the highest sequence that it took from this process.
    """

    protocol: int
    collector: Name
    taken: Count


class Taken(Struct, frozen=True, tag=True):
    """A batch need not be kept any longer."""

    sequence: Count


class Refusal(Struct, frozen=True, tag=True):
    """The connection is closed now: over the first batch that was not taken if there was a `Welcome`."""

    reason: Annotated[str, Meta(max_length=LONGEST_REASON)]


FromClient = Hello | Batch
FromServer = Welcome | Taken | Refusal
Message = TypeVar("Message")


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, array):
        return value.tobytes()
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")


def _to_floats(kind: type, value: Any) -> Floats:
    if kind is not array or not isinstance(value, bytes):
        raise TypeError("Expected `bytes`")
    made = floats()
    made.frombytes(value)  # raises ValueError for a part of a number
    return made


ENCODER = Encoder(enc_hook=_to_bytes)
_GREETING: Decoder[Greeting] = Decoder(Greeting)
_FROM_CLIENT: Decoder[FromClient] = Decoder(FromClient, dec_hook=_to_floats)
_FROM_SERVER: Decoder[FromServer] = Decoder(FromServer)
_RECORD: Decoder[Record] = Decoder(Record, dec_hook=_to_floats)


def encode(message: FromClient | FromServer) -> bytes:
    """Return a message as a frame's payload."""
    return ENCODER.encode(message)


def protocol_of(payload: bytes) -> int:
    """Return the protocol of a `Hello`, whatever else there is in it; raises WireError when it is none."""
    return _decoded(_GREETING.decode, payload).protocol


def from_client(payload: bytes) -> FromClient:
    """Return what a serving process says; raises WireError for anything but a message that it may send."""
    return _decoded(_FROM_CLIENT.decode, payload)


def from_server(payload: bytes) -> FromServer:
    """Return what the collector's process says; raises WireError for anything but a message that it may send."""
    return _decoded(_FROM_SERVER.decode, payload)


def check_record(payload: bytes) -> None:
    """Raise WireError if an encoded record cannot be read at the other end."""
    _decoded(_RECORD.decode, payload)


def _decoded(decode: Callable[[bytes], Message], payload: bytes) -> Message:
    try:
        return decode(payload)
    except (MsgspecError, RecursionError, ValueError, TypeError) as error:  # older msgspec let some of Python's out
        raise WireError(UNKNOWN, f"{str(error)[:200]!a}") from error
