"""Which connection has to go when another comes."""

import socket
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.exporters.prometheus.connections import Client, Slots, State, peer_of

MOVES = st.tuples(st.integers(0, 5), st.sampled_from(("come", "come", "come", "wait", "answer", "go")))


def client(peer: bytes = b"a", state: State = State.READING) -> Client:
    made = Client(socket.socket(), peer, 0.0)
    made.connection.close()
    made.state = state
    return made


def entered(slots: Slots, *clients: Client) -> Slots:
    for each in clients:
        slots.enter(each)
    return slots


def move(slots: Slots, moved: Client, state: State) -> None:
    slots.leave(moved)
    moved.state = state
    slots.enter(moved)


@given(st.lists(MOVES, max_size=60))
def test_there_is_always_room_and_nobody_loses_a_page_that_is_rendered(moves: list[tuple[int, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"CLIENTS": 8, "ADDRESS_CLIENTS": 5, "WAITING": 6, "ADDRESS_WAITING": 4}.items():
            patch.setattr(limits, name, value)
        slots = Slots()
        for number, what in moves:
            peer = bytes([number])
            own = [each for each in slots if each.peer == peer]
            reading = next((each for each in own if each.state is State.READING), None)
            if what == "come":
                while gone := slots.surplus(peer):
                    assert gone.state is not State.WAITING
                    slots.leave(gone)
                slots.enter(client(peer))
            elif what == "go" and own:
                slots.leave(own[0])
            elif what == "wait" and reading and slots.may_wait(peer):
                move(slots, reading, State.WAITING)
            elif what == "answer" and own:
                move(slots, own[0], State.ANSWERING)
            assert len(slots) == len(list(slots)) <= 8
            assert max(Counter(each.peer for each in slots).values(), default=0) <= 5


def test_who_has_no_whole_request_goes_before_who_reads_an_answer_and_the_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "ADDRESS_CLIENTS", 4)
    answering, old, new, waiting = client(state=State.ANSWERING), client(), client(), client(state=State.WAITING)
    slots = entered(Slots(), answering, old, new, waiting)
    for expected in (old, new, answering):
        assert slots.surplus(b"a") is expected
        slots.leave(expected)
        slots.enter(client(state=State.WAITING))


def test_the_address_with_the_most_connections_loses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENTS", 4)
    honest, hostile = client(b"honest"), [client(b"hostile") for _ in range(3)]
    assert entered(Slots(), honest, *hostile).surplus(b"new") is hostile[0]


def test_an_ipv6_network_counts_as_one_address() -> None:
    assert peer_of("2001:db8::1") == peer_of("2001:db8::ffff:1") != peer_of("2001:db8:0:1::1")
    assert peer_of("::ffff:10.0.0.1") == peer_of("10.0.0.1") != peer_of("::ffff:10.0.0.2")
    assert peer_of("fe80::1%eth0") == peer_of("fe80::2")


def test_the_reserve_is_what_cannot_wait_for_a_page() -> None:
    assert limits.WAITING < limits.CLIENTS
    assert limits.ADDRESS_WAITING < limits.ADDRESS_CLIENTS < limits.CLIENTS
