"""Nonsense never harms the receiver: VITALS_WIRE_FUZZ=1000000 tries that many frames instead of a few thousand."""

import os
import random
import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.msgpack import Ext
from msgspec.structs import fields

from tests.unit.builders import examples, facts, finished, step
from tests.unit.otlp import wait_until
from tests.unit.wire import GREETING, Client, Collecting, short_directory
from vllm_vitals.step import Evictions, Finished, Gone, Health, Rejection, Sleep, Speculation, Step, floats
from vllm_vitals.wire.frames import MOST_FROM_CLIENT, Frames, WireError, frame
from vllm_vitals.wire.messages import Batch, Hello, Taken, encode, from_client

TRIES = int(os.environ.get("VITALS_WIRE_FUZZ", "4000"))
GROWTH = 64 << 10
"""KiB by which this process may grow over all tries."""
LATENCIES = floats()
LATENCIES.extend([0.1, 0.2])
RECORDS = [
    step(running=1, kv_cache_usage=0.5, inter_token_latencies=LATENCIES, graph_tokens={"full": 5}),
    step(evictions=Evictions(LATENCIES), speculation=Speculation(1, 3, (1, 1, 0)), unknown_connectors=("X",)),
    finished(Finished("stop", time=1.0, duration=2.0, input_tokens=5, request_id="r"), Finished("length")),
    facts("0", "lora", buckets={"x": [1.0, 2.0]}, info={"a": "b"}),
    Sleep("m", "0", "awake"),
    Rejection("m", "full", 2),
    Gone("m", "0"),
    Health(dropped=1, errors={"read": 2}),
]
SEEDS = [
    frame(encode(Batch(1, 1.0, RECORDS))),
    frame(encode(Hello(1, "p", "0", 1, RECORDS[3:5]))),
    frame(encode(Batch(2, 2.0, []))),
]
SEEDS += [frame(encode(Batch(3, 1.0, [record]))) for record in RECORDS]
HEADS = [b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xde\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
         b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xc0", b"\xc1", b"\xcb" + b"\xff" * 8,
         b"\xcf" + b"\xff" * 8, b"\xd7\xff" + b"\xff" * 8, b"\x91" * 2000, b"\x81\xa0" * 500]  # fmt: skip
"""Beginnings of values that claim to be as long as can be, and values that are odd."""

ODD = [None, True, -1, 1 << 63, 1e308, float("nan"), float("inf"), "", "x" * 1000, b"", b"1234567", bytes(800), [], [[]],
       {}, {"": {}}, {"type": "Step"}, [None] * 1000, datetime(2026, 1, 1, tzinfo=timezone.utc), Ext(5, b"x")]  # fmt: skip


def mutant(chance: random.Random) -> bytes:
    """Return a frame with something wrong in it, or in its length."""
    data = bytearray(chance.choice(SEEDS))
    for _ in range(chance.choice([1, 1, 1, 2, 5, 20])):
        place = chance.randrange(len(data) + 1)
        other = chance.choice(SEEDS)
        match chance.randrange(6):
            case 0:
                data[place : place + 1] = chance.randbytes(1)
            case 1:
                data[place : place + chance.randrange(9)] = b""
            case 2:
                data[place:place] = chance.choice(HEADS)
            case 3:
                data[place : place + len(head)] = (head := chance.choice(HEADS))
            case 4:
                data[place:] = other[chance.randrange(len(other)) :]
            case _:
                data[place:place] = data[chance.randrange(len(data) + 1) :][:50]
    if chance.random() < 0.9:
        return frame(bytes(data[4:]))
    return bytes(data)


def stranger(chance: random.Random) -> bytes:
    """Return a frame in which one value, at whatever depth, is something else."""
    message = msgpack.decode(chance.choice(SEEDS)[4:])
    place = message
    while True:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.1:
            break
        place = place[key]
    place[key] = chance.choice(ODD)
    return frame(msgpack.encode(message))


def peak() -> int:
    """Return the most memory that this process ever had, KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read(stream: bytes) -> Iterator[Hello | Batch]:
    frames = Frames(MOST_FROM_CLIENT)
    frames.feed(stream)
    for payload in iter(frames.next, None):
        yield from_client(payload)


@examples(500)
@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_an_error(data: bytes) -> None:
    with suppress(WireError):
        assert isinstance(from_client(data), Hello | Batch)


def test_mutants_are_messages_or_errors() -> None:
    chance, before, understood = random.Random(4711), peak(), 0
    for _ in range(TRIES):
        with suppress(WireError):
            understood += len(list(read(mutant(chance))))
        with suppress(WireError):
            understood += len(list(read(stranger(chance))))
        with suppress(WireError):
            understood += len(list(read(chance.randbytes(chance.randrange(100)))))
    assert peak() - before < GROWTH
    assert 0 < understood < 2 * TRIES


@pytest.mark.parametrize("head", HEADS[:7], ids=bytes.hex)
def test_no_room_is_made_for_what_is_only_claimed(head: bytes) -> None:
    """Whichever field of a step makes the claim."""
    payload = msgpack.encode({"type": "Batch", "sequence": 1, "until": 0.0, "records": [{"type": "Step", "x": 1}]})
    tracemalloc.start()
    try:
        for name in [each.name for each in fields(Step)] + ["unknown"]:
            with pytest.raises(WireError):
                from_client(payload[:-3] + msgpack.encode(name) + head)
        for place in (b"records", b"sequence", b"type"):
            with pytest.raises(WireError):
                from_client(payload[: payload.index(place) + len(place)] + head)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_receiver_goes_on_whatever_is_sent_to_it() -> None:
    """As the first thing, and after a welcome; a good process goes on beside."""
    chance, before = random.Random(815), peak()
    with short_directory() as made:
        path: Path = made / "d" / "s"
        collector = Collecting(path, grace=0.0)
        collector.receiver.start()
        good = Client(path)
        good.greet()
        rounds = max(TRIES // 40, 1)
        for number in range(1, rounds + 1):
            bad = Client(path)
            with suppress(OSError):
                if number % 2:
                    bad.greet(Hello(1, "bad", "9", 1, []))
                for _ in range(5):
                    bad.socket.sendall(chance.choice([mutant, stranger])(chance))
            bad.close()
            assert good.tell(number, step(float(number))) == Taken(number)
        own = [records for peer, records, _ in collector.told if peer.process == GREETING.process]
        assert [record.clock for records in own for record in records] == [float(each) for each in range(1, rounds + 1)]
        wait_until(lambda: len(collector.receiver._open) == 1)
        assert collector.broken > 0
        good.close()
        collector.receiver.stop()
    assert peak() - before < GROWTH
