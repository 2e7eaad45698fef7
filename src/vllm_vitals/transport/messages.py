"""What a serving process and the one that holds the collector say to each other, as MessagePack."""

from array import array
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from msgspec import Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from vllm_vitals.records.step import Clock, Floats, Record, floats
from vllm_vitals.transport.frames import UNKNOWN, WireError

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
