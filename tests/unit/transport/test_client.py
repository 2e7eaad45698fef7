"""A serving process's end: what waits is bounded, the loss is told, and every outage ends by itself."""

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import at_checkpoints
from tests.unit.builders import facts, step
from tests.unit.wire import Collecting, numbered, numbers, path_
from tests.waiting import wait_until
from vllm_vitals.records.step import Floats, Gone, Health, Rejection, Sleep
from vllm_vitals.transport import client as connection
from vllm_vitals.transport import client as courier
from vllm_vitals.transport import client as outage
from vllm_vitals.transport import server as receiver
from vllm_vitals.transport.client import Sender
from vllm_vitals.transport.protocol import (
    MOST_FROM_CLIENT,
    PROTOCOL,
    Frames,
    Hello,
    Refusal,
    Taken,
    Welcome,
    deliver,
    encode,
    frame,
    from_client,
    receive,
)

__all__ = ["path_"]
ROOM = 1 << 20
ASLEEP = Sleep("m", "0", "sleeping")
LATENCIES = array("d", [0.01] * 1024)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(receiver, "TICK", 0.02)
    monkeypatch.setattr(courier, "FIRST_REST", 0.01)
    monkeypatch.setattr(courier, "LONGEST_REST", 0.05)
    monkeypatch.setattr(outage, "LOG_AFTER_SECONDS", 0.0)
    caplog.set_level(logging.INFO)


@pytest.fixture
def collecting(path: Path) -> Iterator[Callable[..., Collecting]]:
    """Start receivers, and stop them in the end."""
    made: list[Collecting] = []

    def make(name: str = "collector", **options: Any) -> Collecting:
        made.append(Collecting(path, name, **options))
        made[-1].receiver.start()
        return made[-1]

    yield make
    for each in made:
        each.receiver.stop()


@pytest.fixture
def sending(path: Path) -> Iterator[Callable[..., Sender]]:
    """Start senders, and stop them in the end."""
    made: list[Sender] = []

    def make(name: str = "0", buffer: int = ROOM) -> Sender:
        made.append(Sender(path, name, buffer))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop(0.0)


Collect = Callable[..., Collecting]
Send = Callable[..., Sender]


class Scripted:
    """A collector's process of which every byte is up to the test."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(path))
        self.socket.listen()
        self.socket.settimeout(20)

    def accept(self, *answers: Any) -> tuple[socket.socket, Frames, Hello]:
        conn, _ = self.socket.accept()
        frames = Frames(MOST_FROM_CLIENT)
        hello = from_client(receive(conn, frames))
        assert isinstance(hello, Hello)
        for answer in answers:
            deliver(conn, encode(answer))
        return conn, frames, hello


@pytest.fixture
def scripted(path: Path) -> Iterator[Scripted]:
    """Listen at the path."""
    made = Scripted(path)
    yield made
    made.socket.close()


@pytest.fixture
def resting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return what is set once a sender's thread does nothing but wait until it is woken."""
    rests, plain = threading.Event(), connection.Connection.wait

    def wait(self: connection.Connection, seconds: float | None, *, listen: bool) -> None:
        if not listen:
            rests.set()
        plain(self, seconds, listen=listen)

    monkeypatch.setattr(connection.Connection, "wait", wait)
    return rests


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_what_is_added_arrives_with_a_flush(collecting: Collect, sending: Send) -> None:
    collector, sender = collecting(), sending("7")
    wait_until(lambda: sender.connected)
    sender.add([facts(), *numbered(0, 3)])
    sender.add([ASLEEP])
    sender.flush(5.0)
    wait_until(lambda: len(collector.records) == 5)
    (peer, records, until) = collector.told[-1]
    assert (peer.name, peer.pid, until) == ("7", os.getpid(), 5.0)
    assert records == [facts(), *numbered(0, 3), ASLEEP]
    assert sender.connected
    sender.stop(5.0)
    assert sender._outbox.empty


def test_that_a_batch_was_taken_is_heard_with_the_next(
    collecting: Collect, sending: Send, resting: threading.Event
) -> None:
    collector, sender = collecting(), sending()
    assert resting.wait(20)
    for until in range(1, 4):
        sender.flush(float(until))
        wait_until(lambda until=until: len(collector.told) == 1 + until)
        assert len(sender._outbox._sent) == 1
        assert select.select([sender._courier._connection._socket], [], [], 20)[0]  # it is said to be taken


def test_what_the_socket_takes_at_once_wakes_no_thread(
    collecting: Collect, sending: Send, resting: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, sender = collecting(), sending()
    assert resting.wait(20)
    woken: list[courier.Wake] = []
    monkeypatch.setattr(courier.Wake, "set", lambda self: woken.append(self))  # noqa: PLW0108 - a method
    for number in range(20):
        sender.add(numbered(number, number + 1))
        sender.flush(float(number))
        wait_until(lambda number=number: collector.steps == list(range(number + 1)))
    assert woken == []
    with collector.holding:  # more than the socket holds is the thread's to bring
        sender.add(numbered(20, 60, inter_token_latencies=Floats("d", LATENCIES.tobytes())))
        for number in range(20, 60):
            sender.add(numbered(100, 104, inter_token_latencies=Floats("d", LATENCIES.tobytes())))
            sender.flush(float(number))
        assert woken != []


def test_who_left_is_noticed_by_who_sends_and_the_next_one_has_it_all(scripted: Scripted, sending: Send) -> None:
    sender = sending()
    conn, *_ = scripted.accept(Welcome(PROTOCOL, "first", 0))
    wait_until(lambda: sender.connected)
    with sender._courier._moving:  # the thread cannot see that it leaves before the sender does
        deliver(conn, encode(Refusal("enough")))
        conn.close()
        time.sleep(0.05)
    sender.add(numbered(0, 3))
    sender.flush(1.0)
    conn, frames, _ = scripted.accept(Welcome(PROTOCOL, "second", 0))
    with conn:
        assert numbers(from_client(receive(conn, frames)).records) == [0, 1, 2]


def test_a_flush_of_nothing_tells_the_time(collecting: Collect, sending: Send) -> None:
    collector, sender = collecting(), sending()
    wait_until(lambda: sender.connected)
    for until in (1.0, 2.0):
        sender.flush(until)
        wait_until(lambda until=until: len(collector.told) == 1 + until)
    assert [(records, until) for _, records, until in collector.told] == [([], 0.0), ([], 1.0), ([], 2.0)]


def test_nothing_is_said_again_and_again_while_nobody_hears_it(sending: Send) -> None:
    sender = sending()
    for until in range(100):
        sender.flush(float(until))
    assert len(sender._outbox._waiting) == 1


def test_much_leaves_in_pieces_without_a_flush(collecting: Collect, sending: Send) -> None:
    collector, sender = collecting(), sending(buffer=64 * ROOM)
    rests: list[int] = []
    with at_checkpoints(lambda: rests.append(1)):
        sender.add(numbered(0, 300, inter_token_latencies=LATENCIES))
    assert len(rests) >= 300
    wait_until(lambda: len(collector.steps) > 200)
    sender.flush(1.0)
    wait_until(lambda: collector.steps == list(range(300)))
    assert len(collector.told) == 1 + 10


def test_who_connects_says_first_what_is_so(collecting: Collect, sending: Send) -> None:
    first, sender = collecting("first"), sending()
    sender.add([facts("0"), facts("1"), facts("2", max_num_seqs=1), ASLEEP])
    sender.add([Gone("m", "1"), facts("2", max_num_seqs=2), Rejection("m", "full")])
    sender.flush(1.0)
    wait_until(lambda: Rejection("m", "full") in first.records)
    first.receiver.stop()
    second = collecting("second")
    wait_until(lambda: second.told)
    assert second.told[0][1:] == ([facts("0"), ASLEEP, facts("2", max_num_seqs=2)], 0.0)


def test_a_new_collector_gets_what_nobody_said_to_have(scripted: Scripted, sending: Send) -> None:
    sender = sending()
    conn, frames, _ = scripted.accept(Welcome(PROTOCOL, "first", 0))
    for number in (1, 2, 3):
        sender.add([step(float(number))])
        sender.flush(1.0)
    for number in (1, 2):
        assert from_client(receive(conn, frames)).sequence == number
    deliver(conn, encode(Taken(1)))
    conn.close()
    conn, frames, _ = scripted.accept(Welcome(PROTOCOL, "second", 0))
    assert [from_client(receive(conn, frames)).sequence for _ in range(2)] == [2, 3]
    conn.close()


def test_the_same_collector_does_not_get_again_what_it_has(scripted: Scripted, sending: Send) -> None:
    sender = sending()
    sender.add(numbered(0, 2))
    sender.flush(1.0)
    conn, _, first = scripted.accept(Welcome(PROTOCOL, "collector", 0))
    conn.close()
    sender.add(numbered(2, 4))
    sender.flush(2.0)
    conn, frames, second = scripted.accept(Welcome(PROTOCOL, "collector", 1))
    assert from_client(receive(conn, frames)).records == numbered(2, 4)
    assert first.process == second.process
    conn.close()


def test_without_room_the_oldest_are_dropped_and_that_is_told(
    collecting: Collect, sending: Send, caplog: pytest.LogCaptureFixture
) -> None:
    sender = sending("3", ROOM)
    for number in range(0, 1000, 10):
        sender.add(numbered(number, number + 10, inter_token_latencies=LATENCIES))
        sender.flush(1.0)
        assert sender._outbox._size <= ROOM
    assert 800 < sender.dropped < 1000
    assert said(caplog, "now the oldest are dropped") == 1
    collector = collecting()
    wait_until(lambda: sender._outbox.idle)
    sender.flush(2.0)
    wait_until(lambda: collector.dropped == sender.dropped)
    assert collector.steps == list(range(1000))[sender.dropped :]
    assert {record.process for record in collector.records if isinstance(record, Health)} == {"3"}
    assert said(caplog, f"{sender.dropped} steps were dropped") == 1


def test_rarer_records_survive_that_their_steps_are_dropped(collecting: Collect, sending: Send) -> None:
    """And what a collector is told that was stopped meanwhile, so that it was not greeted again."""
    collector, sender = collecting(), sending()
    wait_until(lambda: sender.connected)
    with collector.holding:
        sender.add(numbered(0, 10))
        sender.flush(1.0)
        for number in range(10, 500, 10):
            sender.add(numbered(number, number + 10, inter_token_latencies=LATENCIES))
            if number == 100:
                rare = [facts("5"), Rejection("m", "full", 3), Health(dropped=2, hook_time=0.5)]
                sender.add([*rare, Gone("m", "6")])
            sender.flush(1.0)
    wait_until(lambda: sender._outbox.idle)
    sender.flush(2.0)
    wait_until(lambda: collector.dropped == sender.dropped + 2)
    rest = [record for record in collector.records if not isinstance(record, Health) and record not in numbered(0, 10)]
    assert [each for each in rest if each in (facts("5"), Rejection("m", "full", 3), Gone("m", "6"))].count(
        facts("5")
    ) == 1
    assert Rejection("m", "full", 3) in rest
    assert Gone("m", "6") in rest
    assert len(collector.steps) + sender.dropped == 500


def test_a_step_that_cannot_be_sent_is_counted(collecting: Collect, sending: Send) -> None:
    collector, sender = collecting(), sending()
    sender.add([step(1.0), step(running=1 << 70), step(2.0)])
    sender.flush(1.0)
    wait_until(lambda: collector.steps == [1, 2])
    assert collector.dropped == sender.dropped == 1


def test_a_step_that_cannot_be_read_does_not_stop_the_others(
    collecting: Collect, sending: Send, caplog: pytest.LogCaptureFixture
) -> None:
    collector, sender = collecting(), sending()
    for number, running in enumerate([1, "many", 2]):
        sender.add([step(float(number), running=running)])
        sender.flush(1.0)
    wait_until(lambda: collector.steps == [0, 2])
    wait_until(lambda: sender._outbox.idle)
    sender.flush(2.0)
    wait_until(lambda: collector.dropped == 1)
    assert sender.dropped == 1
    wait_until(lambda: collector.broken == 1)
    assert said(caplog, "refuses a batch, which is dropped") == 1


def test_an_outage_is_told_once(
    collecting: Collect, sending: Send, caplog: pytest.LogCaptureFixture, path: Path
) -> None:
    sender = sending()
    wait_until(lambda: said(caplog, f"{path} is away ([Errno 2] No such file or directory)"))
    assert said(caplog, "up to 1.0 MiB of records wait") == 1
    for number in range(2):
        collector = collecting(str(number))
        wait_until(lambda number=number: said(caplog, "is back after") == number + 1)
        wait_until(lambda: sender.connected)
        collector.receiver.stop()
        wait_until(lambda number=number: said(caplog, "is away") == number + 2)
        wait_until(lambda: not sender.connected)
    time.sleep(0.2)
    assert said(caplog, "is away") == 3
    assert said(caplog, "0 steps were dropped") == 2


def test_a_collector_that_comes_a_little_later_is_no_outage(
    collecting: Collect, sending: Send, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "LOG_AFTER_SECONDS", 60.0)
    sender = sending()
    time.sleep(0.1)
    collecting()
    wait_until(lambda: sender.connected)
    assert caplog.records == []


@pytest.mark.parametrize(
    "answer", [Refusal("the process speaks protocol 1, the collector 2"), Welcome(PROTOCOL - 1, "c", 0), Taken(1)]
)
def test_without_a_welcome_nothing_is_sent(
    scripted: Scripted, sending: Send, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sender = sending()
    sender.add([step()])
    sender.flush(1.0)
    conn, frames, _ = scripted.accept(answer)
    wait_until(lambda: said(caplog, "is away") == 1)
    assert not frames.size
    assert conn.recv(1) == b""
    assert sender.dropped == 0
    conn.close()
    if isinstance(answer, Refusal):
        assert answer.reason in caplog.text


@pytest.mark.parametrize("garbage", [frame(b"\xc1"), b"\xff" * 8])
def test_a_collector_that_talks_nonsense_is_left(scripted: Scripted, sending: Send, garbage: bytes) -> None:
    sender = sending()
    conn, _, _ = scripted.accept(Welcome(PROTOCOL, "c", 0))
    conn.sendall(garbage)
    sender.add([step()])
    sender.flush(1.0)
    while conn.recv(1000):
        pass
    conn.close()
    conn, frames, _ = scripted.accept(Welcome(PROTOCOL, "c", 0))
    assert from_client(receive(conn, frames)).records == [step()]
    conn.close()


def test_a_collector_that_does_not_answer_is_left(
    scripted: Scripted, sending: Send, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(courier, "WELCOME_SECONDS", 0.1)
    sending()
    conn, _, _ = scripted.accept()
    assert conn.recv(1) == b""
    conn.close()
    assert "slow: no answer in 0.1 s" in caplog.text


def test_a_full_queue_is_no_end(path: Path, sending: Send, caplog: pytest.LogCaptureFixture) -> None:
    """As of a collector that is stopped: nobody accepts."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as other:
            other.connect(str(path))
            sending()
            wait_until(lambda: "it takes no more" in caplog.text)


def test_another_user_s_socket_is_not_trusted(
    collecting: Collect, sending: Send, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "trusted", lambda _: False)
    collector, sender = collecting(), sending()
    wait_until(lambda: "another user listens there" in caplog.text)
    assert not sender.connected
    assert collector.told == []


def test_many_small_batches_do_not_block_both_sides(collecting: Collect, sending: Send) -> None:
    """The collector does not read on while nobody hears what it has taken."""
    sender = sending(buffer=64 * ROOM)
    for number in range(3000):
        sender.add([step(float(number))])
        sender.flush(1.0)
    collector = collecting()
    wait_until(lambda: collector.steps == list(range(3000)))


def test_the_last_records_leave_before_the_end(collecting: Collect, sending: Send) -> None:
    collector, sender = collecting(), sending()
    sender.add(numbered(0, 3))
    sender.stop(5.0)
    assert collector.steps == [0, 1, 2]
    assert not sender.connected
    sender.flush(9.0)


def test_the_end_waits_for_a_collector_that_comes_back(collecting: Collect, sending: Send) -> None:
    sender = sending()
    sender.add(numbered(0, 3))
    made: list[Collecting] = []
    threading.Timer(0.2, lambda: made.append(collecting())).start()
    sender.stop(5.0)
    assert made[0].steps == [0, 1, 2]


@pytest.mark.parametrize("away", [True, False])
def test_the_end_does_not_wait_for_ever(collecting: Collect, sending: Send, away: bool) -> None:  # noqa: FBT001
    sender = sending()
    sender.add(numbered(0, 3))
    collector = None if away else collecting()
    if collector is not None:
        collector.holding.acquire()
    begun = time.monotonic()
    sender.stop(0.2)
    assert 0.1 < time.monotonic() - begun < 60.0  # what it does not wait for never comes
    sender._courier._thread.join(20.0)
    assert not sender._courier._thread.is_alive()
    if collector is not None:
        collector.holding.release()


def test_a_sender_that_never_began_ends() -> None:
    sender = Sender(Path("/nowhere/s"), "0", ROOM)
    sender.add([step()])
    sender.stop(5.0)


def test_a_failure_of_our_own_is_told_and_overcome(
    collecting: Collect, sending: Send, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sound = courier.Connection

    def fail(*_: object) -> None:
        monkeypatch.setattr(courier, "Connection", sound)
        raise RuntimeError

    monkeypatch.setattr(courier, "Connection", fail)
    collecting()
    sender = sending()
    wait_until(lambda: sender.connected)
    assert said(caplog, "Sending to the collector failed") == 1


def test_a_failure_of_our_own_in_who_sends_is_the_threads_to_overcome(
    collecting: Collect, sending: Send, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collector, sender = collecting(), sending()
    sender.flush(1.0)
    wait_until(lambda: len(collector.told) == 2)
    sound = sender._outbox.next

    def fail() -> None:
        monkeypatch.setattr(sender._outbox, "next", sound)
        raise RuntimeError

    monkeypatch.setattr(sender._outbox, "next", fail)
    sender.add(numbered(0, 3))
    sender.flush(2.0)
    wait_until(lambda: collector.steps == [0, 1, 2])
    assert said(caplog, "Sending to the collector failed") == 1


def test_two_threads_may_add(collecting: Collect, sending: Send) -> None:
    collector, sender = collecting(), sending(buffer=64 * ROOM)

    def add(engine: str) -> None:
        for number in range(500):
            sender.add(numbered(number, number + 1, engine=engine, inter_token_latencies=LATENCIES))
            sender.flush(1.0)

    threads = [threading.Thread(target=add, args=[str(engine)]) for engine in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    wait_until(lambda: len(collector.steps) == 1000)
    for engine in ("0", "1"):
        own = [record.clock for record in collector.records if record.engine == engine]
        assert own == [float(number) for number in range(500)]


def test_a_fork_lets_go_of_the_connection(collecting: Collect, path: Path) -> None:
    """Its parent is killed, and the collector must hear of it."""
    script = f"""
import os, time
from pathlib import Path
from vllm_vitals.transport.client import Sender
sender = Sender(Path({str(path)!r}), "0", 1 << 20)
sender.start()
while not sender.connected:
    time.sleep(0.01)
if os.fork() == 0:
    sender.after_fork_in_child()
    os.close(1)
    time.sleep(30)
print("forked", flush=True)
time.sleep(30)
"""
    collector = collecting(grace=0.1)
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        process.kill()
        wait_until(lambda: len(collector.gone) == 1)
        os.killpg(process.pid, signal.SIGKILL)
