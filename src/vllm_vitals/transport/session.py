"""The conversation with one serving process, at the collector's end."""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from vllm_vitals.records.step import Gap, Record
from vllm_vitals.transport.frames import (
    CLOSED,
    FOREIGN,
    MOST_FROM_CLIENT,
    SLOW,
    UNKNOWN,
    Frames,
    WireError,
    deliver,
    receive,
)
from vllm_vitals.transport.messages import (
    LONGEST_REASON,
    PROTOCOL,
    Batch,
    Hello,
    Refusal,
    Taken,
    Welcome,
    encode,
    from_client,
    protocol_of,
)
from vllm_vitals.transport.processes import Peer, Process, Processes
from vllm_vitals.transport.room import Room

HANDSHAKE = 5.0
"""Seconds from the connection within which a process must have presented itself."""
IDLE = 60.0
"""Seconds without a batch, be it an empty one, after which a process is taken to be stuck."""
MOST_OF_HELLO = 1 << 20
"""Bytes: until a process has presented itself, it is not given the room of a batch."""

PassOn = Callable[[Peer, Sequence[Record], float], None]
"""Takes records, and monotonic seconds up to which all was told; never raises."""


def converse(
    conn: socket.socket,
    collector: str,
    processes: Processes,
    pass_on: PassOn,
    room: Room,
    known: Callable[[], None] = lambda: None,
) -> None:
    """Hand on what a process sends, each batch once, until one side ends it; `known` is called once it has said who it is.

    Raises:
        WireError: always, with the reason of the end.
    """
    try:
        payload = receive(conn, frames := Frames(MOST_OF_HELLO), whole=HANDSHAKE, hold=room.hold)
        with room.turn(conn, len(payload), greeting=True):
            hello = _greeting(payload)
            process = processes.enter(Peer(hello.process, hello.name, hello.pid), conn)
            with process.telling:
                pass_on(process.peer, hello.records, 0.0)
                welcome = Welcome(PROTOCOL, collector, process.taken)
        del payload, hello
        try:
            known()
            deliver(conn, encode(welcome))
            frames.limit = MOST_FROM_CLIENT
            while True:
                _take(process, conn, receive(conn, frames, idle=IDLE, hold=room.hold), pass_on, room)
        finally:
            processes.leave(process, conn)
    except WireError as error:
        if room.leave(conn) and error.reason == CLOSED:
            raise room.reason from error
        if error.reason not in (CLOSED, SLOW):  # what is sent again is worth no more then
            with suppress(WireError):
                deliver(conn, encode(Refusal(str(error)[:LONGEST_REASON])), 1.0)
        raise
    finally:
        room.leave(conn)


def _greeting(payload: bytes) -> Hello:
    protocol = protocol_of(payload)
    if protocol != PROTOCOL:
        versions = f"the process speaks protocol {protocol}, the collector {PROTOCOL}"
        raise WireError(FOREIGN, f"{versions}; both need the same vllm-vitals")
    hello = from_client(payload)
    if not isinstance(hello, Hello):
        raise WireError(UNKNOWN, "not a Hello")
    return hello


def _take(process: Process, conn: socket.socket, payload: bytes, pass_on: PassOn, room: Room) -> None:
    """Hand a batch on unless it was before, and say so."""
    with room.turn(conn, len(payload)):
        batch = from_client(payload)
        if not isinstance(batch, Batch):
            raise WireError(UNKNOWN, "not a Batch")
        with process.telling:
            if process.connection is not conn:
                raise WireError(CLOSED, "there is a newer connection")
            if batch.sequence > process.taken:
                dropped = 0 < process.taken < batch.sequence - 1  # it says so only in a later one
                pass_on(process.peer, [Gap(), *batch.records] if dropped else batch.records, batch.until)
                process.taken = batch.sequence
    deliver(conn, encode(Taken(batch.sequence)))
