"""The collector's end takes each batch once, whoever connects, in whatever order, and whatever they send."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.builders import facts, step
from tests.unit.wire import GREETING, Client, Collecting, connect_, numbered, path_
from tests.waiting import wait_until
from vllm_vitals.records.step import Gap
from vllm_vitals.transport import peers as processes
from vllm_vitals.transport import server as receiver
from vllm_vitals.transport import server as session
from vllm_vitals.transport.protocol import CLOSED, PROTOCOL, Batch, Refusal, Taken, Welcome, WireError, encode, frame
from vllm_vitals.transport.server import Peer

__all__ = ["connect_", "path_"]
PEER = Peer(GREETING.process, GREETING.name, GREETING.pid)
Make = Callable[..., Collecting]
Connect = Callable[[], Client]


def batch(sequence: int) -> bytes:
    return encode(Batch(sequence, 1.0, [step(float(sequence))]))


@pytest.fixture
def collecting(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Start receivers that look around often, and stop them in the end."""
    monkeypatch.setattr(receiver, "TICK", 0.02)
    made: list[Collecting] = []

    def make(**options: Any) -> Collecting:
        made.append(Collecting(path, **{"grace": 0.1, **options}))
        made[-1].receiver.start()
        return made[-1]

    yield make
    for each in made:
        each.receiver.stop()


def test_what_is_sent_is_handed_on(collecting: Make, connect: Connect) -> None:
    collector, client = collecting(), connect()
    assert client.greet(replace(GREETING, records=[facts()])) == Welcome(PROTOCOL, "collector", 0)
    assert client.tell(1, *numbered(0, 2), until=5.0) == Taken(1)
    assert client.tell(2, until=6.0) == Taken(2)
    assert collector.told == [(PEER, [facts()], 0.0), (PEER, numbered(0, 2), 5.0), (PEER, [], 6.0)]
    assert collector.broken == 0


def test_a_batch_counts_once(collecting: Make, connect: Connect) -> None:
    collector, client = collecting(), connect()
    client.greet()
    for sequence in (1, 1, 3, 2, 3):
        assert client.tell(sequence, step(float(sequence))) == Taken(sequence)
    assert collector.steps == [1, 3]


def test_that_batches_are_missing_is_handed_on_before_what_follows(collecting: Make, connect: Connect) -> None:
    collector, client = collecting(grace=60.0), connect()
    client.greet()
    for sequence in (4, 5, 8):  # that a collector has nothing of what was told before it came is no gap
        client.tell(sequence, step(float(sequence)))
    client.close()
    again = connect()
    again.greet()
    again.tell(10, step(10.0))
    missing = [number for number, record in enumerate(collector.records) if record == Gap()]
    assert collector.steps == [4, 5, 8, 10]
    assert missing == [2, 4]


def test_what_was_taken_is_remembered_beyond_the_connection(collecting: Make, connect: Connect) -> None:
    collector, client = collecting(grace=60.0), connect()
    client.greet()
    client.tell(5, step(5.0))
    client.close()
    again, other = connect(), connect()
    assert again.greet().taken == 5
    assert other.greet(replace(GREETING, process="other")).taken == 0
    again.tell(5, step(5.0))
    again.tell(6, step(6.0))
    assert collector.steps == [5, 6]
    assert collector.gone == []


def test_a_second_connection_takes_the_place_of_the_first(collecting: Make, connect: Connect) -> None:
    """The first sent something that nobody has looked at yet, and the process counts it as dropped since."""
    collector, first, second = collecting(), connect(), connect()
    first.greet()
    process = collector.receiver._processes._known[GREETING.process]
    former = process.connection
    with collector.holding:
        for sequence in (1, 2, 3):
            first.socket.sendall(frame(batch(sequence)))
        wait_until(lambda: collector.begun == 2)  # it is at the first batch, after the greeting
        second.send(GREETING)
        wait_until(lambda: process.connection is not former)
    assert second.hear() == Welcome(PROTOCOL, "collector", 1)
    assert second.tell(4, step(4.0)) == Taken(4)
    assert first.ended()
    assert collector.steps == [1, 4]


def test_a_process_that_does_not_come_back_is_gone(collecting: Make, connect: Connect) -> None:
    collector, client = collecting(), connect()
    client.greet()
    time.sleep(0.2)
    assert collector.gone == []
    client.close()
    wait_until(lambda: collector.gone)
    again = connect()
    again.greet()
    again.tell(1, step())
    again.close()
    wait_until(lambda: len(collector.gone) == 2)
    time.sleep(0.1)
    assert collector.gone == [PEER, PEER]


def test_a_process_that_comes_back_in_time_is_not_gone(
    collecting: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, client = collecting(grace=3600.0), connect()
    client.greet()
    known = collector.receiver._processes
    process = known._known[GREETING.process]
    client.close()
    wait_until(lambda: process.left is not None)
    connect().greet()
    real, looked = time.monotonic, threading.Event()
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: looked.set() or real() + 7200.0))
    assert looked.wait(60)  # the grace is over, had it not come back
    looked.clear()
    assert looked.wait(60)
    assert collector.gone == []


def test_who_comes_back_waits_until_all_know_that_it_was_gone(collecting: Make, connect: Connect) -> None:
    collector, client = collecting(grace=0.0), connect()
    client.greet()
    telling, told = threading.Event(), threading.Event()

    def gone(_: Peer) -> None:
        telling.set()
        told.wait(60)

    collector.receiver._gone = gone
    client.close()
    assert telling.wait(20)
    again = connect()
    again.send(GREETING)
    time.sleep(0.1)
    assert len(collector.told) == 1
    told.set()
    assert isinstance(again.hear(), Welcome)
    assert len(collector.told) == 2


def test_another_protocol_is_refused_by_name(
    collecting: Make, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    collector, client = collecting(), connect()
    client.send(replace(GREETING, protocol=9))
    refusal = client.hear()
    assert isinstance(refusal, Refusal)
    assert f"process speaks protocol 9, the collector {PROTOCOL}" in refusal.reason
    assert client.ended()
    wait_until(lambda: collector.broken == 1)
    assert refusal.reason in caplog.text


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(4), frame(b"\xc1"), b"\xff" * 100_000, frame(batch(1))],
    ids=["http", "empty", "no msgpack", "long", "no hello"],
)
def test_garbage_ends_the_connection_and_is_counted(collecting: Make, connect: Connect, garbage: bytes) -> None:
    collector, good, bad = collecting(), connect(), connect()
    good.greet()
    with suppress(BrokenPipeError, ConnectionResetError):  # it may hang up before it has read all
        bad.socket.sendall(garbage)
    with pytest.raises(WireError, match=CLOSED):  # noqa: PT012 - whichever comes first
        assert isinstance(bad.hear(), Refusal)
        bad.hear()
    wait_until(lambda: collector.broken == 1)
    assert good.tell(1, step()) == Taken(1)


@pytest.mark.parametrize("garbage", [frame(b"\xc1"), b"\x7f" * 8])
def test_garbage_after_the_welcome_refuses_the_batch(
    collecting: Make, connect: Connect, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    collector, client = collecting(), connect()
    client.greet()
    client.tell(1, step())
    client.socket.sendall(garbage)
    assert isinstance(client.hear(), Refusal)
    assert client.ended()
    wait_until(lambda: collector.broken == 1)
    wait_until(lambda: collector.gone == [PEER])
    assert len(caplog.records) == 1


def test_each_kind_of_garbage_is_logged_once(
    collecting: Make, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    collector = collecting()
    for count, garbage in enumerate([frame(b"\xc1"), b"\xff" * 4] * 3, 1):
        connect().socket.sendall(garbage)
        wait_until(lambda count=count: collector.broken == count)  # two at once might be logged twice
    assert len(caplog.records) == 2


def test_who_says_nothing_is_not_kept(collecting: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "IDLE", 0.1)
    collector, idle = collecting(), connect()
    idle.greet()
    monkeypatch.setattr(session, "HANDSHAKE", 0.1)
    silent = connect()
    assert silent.ended()
    assert idle.ended()
    wait_until(lambda: collector.broken == 2)


def test_an_end_is_no_garbage(collecting: Make, connect: Connect) -> None:
    """Serving processes are killed, in the middle of a frame if need be."""
    collector = collecting()
    connect().close()
    client = connect()
    client.greet()
    client.socket.sendall(frame(batch(1))[:-1])
    client.close()
    wait_until(lambda: collector.gone == [PEER])
    assert collector.broken == 0
    assert collector.steps == []


def test_what_cannot_be_taken_is_not_sent_again(collecting: Make, connect: Connect) -> None:
    collector, client = collecting(), connect()
    client.greet()

    def fail(*_: object) -> None:
        raise RuntimeError

    collector.receiver._take = fail
    assert client.tell(1, step()) == Taken(1)
    assert collector.broken == 1
    collector.receiver._broken = fail
    assert client.tell(2, step()) == Taken(2)


def test_there_is_an_end_to_connections(collecting: Make, connect: Connect) -> None:
    collector, clients = collecting(most=2), [connect(), connect()]
    for number, client in enumerate(clients):
        client.greet(replace(GREETING, process=str(number)))
    assert connect().ended()
    wait_until(lambda: collector.broken == 1)
    clients[0].close()
    wait_until(lambda: len(collector.receiver._open) == 1)
    connect().greet(replace(GREETING, process="2"))
    assert clients[1].tell(1, step()) == Taken(1)


def test_only_so_many_processes_are_remembered(
    collecting: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "REMEMBERED", 2)
    collector = collecting(grace=0.0)
    for number in range(4):
        client = connect()
        client.greet(replace(GREETING, process=str(number)))
        client.close()
        wait_until(lambda number=number: len(collector.gone) == number + 1)
    assert set(collector.receiver._processes._known) == {"2", "3"}


def test_no_process_is_forgotten_that_may_come_back(
    collecting: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "REMEMBERED", 2)
    collecting(grace=60.0)
    for name in ("connected", "away"):
        client = connect()
        client.greet(replace(GREETING, process=name))
        if name == "away":
            client.close()
    many = connect()
    many.send(GREETING)
    assert "too many" in many.hear().reason
    assert connect().greet(replace(GREETING, process="away")).taken == 0


def test_a_user_who_is_not_ours_is_turned_away(
    collecting: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "trusted", lambda _: False)
    collector = collecting()
    assert connect().ended()
    wait_until(lambda: collector.broken == 1)
    assert collector.told == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_kernel_tells_who_connects(collecting: Make, path: Path) -> None:
    collector = collecting()
    for each in (path.parent.parent, path.parent, path):
        each.chmod(0o777)
    script = f"""
import os, socket
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as conn:
    conn.connect({str(path)!r})
    print(conn.recv(1))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "b''\n"
    wait_until(lambda: collector.broken == 1)


def test_a_deleted_socket_is_made_anew(
    collecting: Make, connect: Connect, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collector, client = collecting(), connect()
    client.greet()
    path.parent.rename(path.parent.with_name("gone"))  # at once: it may look at any moment
    wait_until(lambda: "made anew" in caplog.text)
    wait_until(lambda: collector.receiver.ready)
    assert client.tell(1, step()) == Taken(1)
    assert connect().greet(replace(GREETING, process="other")).taken == 0


def test_a_socket_that_cannot_be_made_anew_is_said_and_tried_again(
    collecting: Make, connect: Connect, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collector = collecting()
    mine = path.with_name("mine")
    mine.write_text("mine")
    mine.replace(path)  # at once: it may look at any moment
    wait_until(lambda: not collector.receiver.ready)
    wait_until(lambda: "no socket" in caplog.text)
    time.sleep(0.1)
    assert len(caplog.records) == 1
    path.unlink()
    wait_until(lambda: collector.receiver.ready)
    connect().greet()


def test_a_stop_is_in_order(collecting: Make, connect: Connect, path: Path) -> None:
    collector, client = collecting(), connect()
    client.greet()
    assert collector.receiver.ready
    collector.receiver.stop()
    assert not collector.receiver.ready
    assert not path.exists()
    assert client.ended()
    assert collector.receiver._open == {}
    assert not collector.receiver._thread.is_alive()
    assert collector.gone == []
    collecting().receiver.stop()


def test_a_stop_leaves_another_s_socket_alone(collecting: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "TICK", 60.0)
    first = collecting()
    time.sleep(0.05)
    path.unlink()
    second = collecting()
    first.receiver.stop()
    assert path.exists()
    assert second.receiver.ready


def test_a_start_says_why_it_cannot_be(collecting: Make, path: Path) -> None:
    collecting()
    with pytest.raises(OSError, match=f"in use.*{path}"):
        collecting()


def test_no_thread_left_is_no_end(collecting: Make, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = collecting()
    start = threading.Thread.start

    def fail(_: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    assert connect().ended()
    wait_until(lambda: collector.broken == 1)
    connect().greet()
    assert len(collector.receiver._open) == 1


def test_a_fork_lets_go_of_what_it_copied(path: Path) -> None:
    """Its parent is killed: who was connected must hear of it, and the socket must be free."""
    script = f"""
import os, sys, time
from pathlib import Path
from tests.unit.wire import Client, Collecting, connect_, path_
collector = Collecting(Path({str(path)!r}))
collector.receiver.start()
print("up", flush=True)
while not collector.told:
    time.sleep(0.01)
if os.fork() == 0:
    collector.receiver.after_fork_in_child()
    os.close(1)
    time.sleep(30)
print("forked", flush=True)
time.sleep(30)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as it:
        assert it.stdout is not None
        assert it.stdout.readline() == "up\n"
        client = Client(path)
        client.greet()
        assert it.stdout.readline() == "forked\n"
        it.kill()
        assert client.ended()
        with socket.socket(socket.AF_UNIX) as probe:
            assert probe.connect_ex(str(path)) != 0
        os.killpg(it.pid, 9)
        client.close()


def test_a_thousand_times_garbage_does_not_disturb(collecting: Make, connect: Connect, path: Path) -> None:
    """Two thousand, in fact, as fast as they come."""
    collector, client = collecting(), connect()
    client.greet()
    for sequence in range(1, 21):
        bad = [Client(path) for _ in range(100)]
        for each in bad:
            with suppress(OSError):
                each.socket.sendall(os.urandom(64))
        for each in bad:
            each.close()
        assert client.tell(sequence, step(float(sequence))) == Taken(sequence)
    assert collector.steps == list(range(1, 21))
    wait_until(lambda: len(collector.receiver._open) == 1)
    assert collector.receiver.ready
