"""Frames are cut right wherever the stream breaks, and nobody is waited for too long or given room for a mere claim."""

import socket
import threading
import tracemalloc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals.transport import protocol as module
from vllm_vitals.transport.protocol import (
    CLOSED,
    MOST_FROM_CLIENT,
    SLOW,
    TOO_LONG,
    Frames,
    WireError,
    deliver,
    frame,
    receive,
)

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Return two connected sockets."""
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@examples(200)
@given(st.lists(st.binary(max_size=20)), st.data())
def test_frames_are_cut_right_wherever_the_stream_breaks(payloads: list[bytes], data: st.DataObject) -> None:
    stream, frames, found = b"".join(map(frame, payloads)), Frames(20), []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        frames.feed(stream[:count])
        stream = stream[count:]
        found += list(iter(frames.next, None))
    assert found == payloads
    assert not frames.size


def test_a_frame_can_be_sent_in_two_parts() -> None:
    assert frame(b"ab", more=3) + b"cde" == frame(b"abcde")


def test_a_frame_that_is_too_long_is_an_error_at_once(ends: Ends) -> None:
    ends[0].sendall((21).to_bytes(4, "big"))
    with pytest.raises(WireError, match="too long: 21 bytes, at most 20") as caught:
        receive(ends[1], Frames(20))
    assert caught.value.reason == TOO_LONG


def test_no_room_is_made_for_what_is_only_claimed(ends: Ends) -> None:
    ends[0].sendall(MOST_FROM_CLIENT.to_bytes(4, "big") + bytes(100))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=SLOW):
            receive(ends[1], Frames(MOST_FROM_CLIENT), whole=0.05)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sent", [b"", b"\0", b"\0\0\0\5abc"])
def test_the_end_of_a_connection_is_told(ends: Ends, sent: bytes) -> None:
    ends[0].sendall(sent)
    ends[0].close()
    with pytest.raises(WireError, match=CLOSED):
        receive(ends[1], Frames(20), idle=5.0)


def test_a_peer_may_be_idle_but_not_for_ever(ends: Ends) -> None:
    with pytest.raises(WireError, match=SLOW):
        receive(ends[1], Frames(20), idle=0.05)
    threading.Timer(0.1, ends[0].sendall, [frame(b"x")]).start()
    assert receive(ends[1], Frames(20), idle=5.0, whole=0.01) == b"x"


def test_a_trickling_peer_is_not_waited_for(ends: Ends) -> None:
    stopped = threading.Event()

    def trickle() -> None:
        ends[0].sendall((20_000).to_bytes(4, "big"))
        while not stopped.wait(0.02):
            ends[0].sendall(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(WireError, match=SLOW):
        receive(ends[1], Frames(20_000), idle=60.0, whole=0.1)
    stopped.set()
    thread.join()


def test_a_frame_is_not_late_because_its_reader_was_stopped(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by SIGSTOP: the wait for data ends long after the deadline, and there is data."""
    now = iter([0.0, 0.0, 100.0, 100.0, 100.0, 100.0, 100.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(now)))
    ends[0].sendall(frame(b"abc")[:5])
    frames = Frames(20)
    threading.Timer(0.1, ends[0].sendall, [b"bc"]).start()
    assert receive(ends[1], frames) == b"abc"


def test_a_peer_that_does_not_read_is_not_waited_for(ends: Ends) -> None:
    with pytest.raises(WireError, match=SLOW):
        deliver(ends[0], bytes(10 << 20), 0.05)


def test_sending_to_nobody_is_told(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(WireError, match=CLOSED):
        deliver(ends[0], b"x")
