"""What connections hold together has one limit, a frame has one deadline, and neither costs another process anything."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.builders import step
from tests.unit.wire import GREETING, Client, Collecting, connect_, numbered, path_
from tests.waiting import wait_until
from vllm_vitals.transport import server as receiver
from vllm_vitals.transport import server as session
from vllm_vitals.transport.peers import Room
from vllm_vitals.transport.protocol import (
    SLOW,
    TOO_MUCH,
    UNKNOWN,
    Batch,
    Frames,
    Taken,
    WireError,
    encode,
    frame,
    from_client,
    receive,
)

__all__ = ["connect_", "path_"]
KIB = 1 << 10
Make = Callable[..., Collecting]
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def collecting(path: Path) -> Iterator[Make]:
    """Start receivers whose connections may hold a given number of bytes together."""
    made: list[Collecting] = []

    def make(room: int = 512 * KIB, **options: Any) -> Collecting:
        made.append(Collecting(path, **options))
        made[-1].receiver._room = Room(room)
        made[-1].receiver.start()
        return made[-1]

    yield make
    for each in made:
        each.receiver.stop()


@pytest.fixture
def connections() -> Iterator[list[Pair]]:
    made = [socket.socketpair() for _ in range(4)]
    yield made
    for pair in made:
        for end in pair:
            end.close()


def ended(conn: socket.socket) -> bool:
    """Tell whether the other end was hung up on."""
    conn.settimeout(0)
    try:
        return conn.recv(1) == b""
    except BlockingIOError:
        return False


def test_who_holds_most_must_go(connections: list[Pair]) -> None:
    room = Room(100)
    for (conn, _), size in zip(connections, (10, 60, 20, 5), strict=True):
        room.hold(conn, size)
    assert room.held == 95
    room.hold(connections[0][0], 30)
    assert [ended(other) for _, other in connections] == [False, True, False, False]
    assert room.held == 55
    with pytest.raises(WireError, match="100 bytes together") as caught:
        room.hold(connections[2][0], 70)
    assert caught.value.reason == TOO_MUCH
    assert [room.leave(conn) for conn, _ in connections] == [False, True, True, False]
    assert room.held == 0


def test_what_waits_to_be_read_counts_and_stays(connections: list[Pair]) -> None:
    room, (waiting, arriving) = Room(100), [conn for conn, _ in connections[:2]]
    room.hold(waiting, 80)
    with room.turn(waiting, 80):
        assert room.held == 80
        with pytest.raises(WireError, match="100 bytes together"):
            room.hold(arriving, 30)
        assert not ended(connections[0][1])
    assert room.held == 0


def test_one_frame_is_read_at_a_time_and_greetings_do_not_wait_for_batches(connections: list[Pair]) -> None:
    room, conns = Room(100), [conn for conn, _ in connections]
    came: list[str] = []

    def come(name: str, conn: socket.socket, *, greeting: bool) -> None:
        with room.turn(conn, 1, greeting=greeting):
            came.append(name)

    with room.turn(conns[0], 1):
        threads = [
            threading.Thread(target=come, args=("batch", conns[1]), kwargs={"greeting": False}),
            threading.Thread(target=come, args=("greeting", conns[2]), kwargs={"greeting": True}),
        ]
        for thread in threads:
            thread.start()
        threads[1].join(30)
        assert came == ["greeting"]
    threads[0].join(30)
    assert came == ["greeting", "batch"]


def test_large_frames_that_never_end_cost_nobody_else_anything(collecting: Make, connect: Callable[[], Client]) -> None:
    """Twelve connections that claim 16 MiB each send as much as they can; one that keeps to the rules goes on."""
    collector = collecting()
    good = connect()
    good.greet()
    stop = threading.Event()

    def flood(number: int) -> None:
        while not stop.is_set():
            with suppress(OSError, WireError):
                client = connect()
                client.greet(replace(GREETING, process=f"bad{number}"))
                client.socket.sendall((16 << 20).to_bytes(4, "big"))
                while not stop.is_set():
                    client.socket.sendall(bytes(64 * KIB))

    floods = [threading.Thread(target=flood, args=(number,), daemon=True) for number in range(12)]
    for each in floods:
        each.start()
    most = 0
    for sequence in range(1, 40):
        assert good.tell(sequence, *numbered(10 * sequence, 10 * sequence + 10)) == Taken(sequence)
        most = max(most, collector.receiver._room.held)
    wait_until(lambda: collector.broken, 60)
    stop.set()
    for each in floods:
        each.join(30)
    assert most <= 512 * KIB + 64 * KIB
    assert collector.steps == list(range(10, 400))


def test_a_frame_that_trickles_in_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte of it comes."""
    now = [100.0]
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    monkeypatch.setattr("vllm_vitals.transport.protocol.time", clock)

    class Trickling:
        """Each read brings a byte, a second later."""

        def __init__(self) -> None:
            self.left = iter(frame(bytes(1000)))

        def settimeout(self, left: float) -> None:
            assert 0 < left <= 60.0

        def recv(self, _: int) -> bytes:
            now[0] += 1.0
            return bytes([next(self.left)])

    for options in ({"whole": 5.0}, {"idle": 60.0, "whole": 5.0}):
        begun = now[0]
        with pytest.raises(WireError, match=SLOW):
            receive(Trickling(), Frames(2000), **options)  # type: ignore[arg-type]
        assert now[0] - begun <= 7.0


def test_a_greeting_that_trickles_in_is_dropped(
    collecting: Make, connect: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HANDSHAKE", 0.3)
    collector = collecting()
    client = connect()
    with suppress(OSError):
        for byte in frame(encode(GREETING)) * 100:
            client.socket.sendall(bytes([byte]))
            time.sleep(0.02)
    assert client.ended()
    wait_until(lambda: collector.broken == 1)
    assert collector.told == []


def test_silent_connections_make_way_and_a_known_one_never_does(
    collecting: Make, connect: Callable[[], Client]
) -> None:
    collector = collecting(most=4)
    known = [connect() for _ in range(2)]
    for number, client in enumerate(known):
        client.greet(replace(GREETING, process=str(number)))
    silent = [connect() for _ in range(3)]
    assert silent[0].ended()
    known.append(connect())
    known[-1].greet(replace(GREETING, process="2"))
    assert silent[1].ended()
    known.append(connect())
    known[-1].greet(replace(GREETING, process="3"))
    assert silent[2].ended()
    assert connect().ended(), "the fifth that is known finds no place"
    for number, client in enumerate(known):
        assert client.tell(1, step(float(number))) == Taken(1)
    assert collector.receiver.connections == 4


def test_names_that_are_long_or_could_forge_a_line_of_the_log_are_refused() -> None:
    for name in ("", "x" * 65, "a\nb", "a b", "\x1b[2J", "ü", "a\u2028b"):
        for field in ("process", "name"):
            with pytest.raises(WireError, match=UNKNOWN):
                from_client(encode(replace(GREETING, **{field: name})))
    for model in ("m" * 513, "m" * 100_000):
        with pytest.raises(WireError, match=UNKNOWN):
            from_client(encode(Batch(1, 1.0, [replace(step(), model=model)])))
    from_client(encode(Batch(1, 1.0, [replace(step(), model="m" * 512)])))


def test_a_thread_that_hangs_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector, going_on = Collecting(path), threading.Event()
    monkeypatch.setattr(receiver, "SILENT", 0.0)
    monkeypatch.setattr(collector.receiver, "_accept", lambda _: going_on.wait(60))
    collector.receiver.start()
    assert collector.receiver.ended() == "the thread that listens has hung for 0 s"
    going_on.set()
    collector.receiver.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_listens_no_more_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collecting(path)
    assert collector.receiver.ended() == ""
    collector.receiver.start()
    assert collector.receiver.ended() == ""

    def end(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(collector.receiver, "_accept", end)
    wait_until(lambda: collector.receiver.ended() == "the thread that listens has ended")
    assert not collector.receiver.ready
    collector.receiver.stop()
    assert collector.receiver.ended() == ""
