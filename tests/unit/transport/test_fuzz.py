"""Nonsense never harms the receiver: some thousand frames of it, always the same, or a million at random (`--effort=all`).

VITALS_WIRE_FUZZ says how many frames instead.
"""

import math
import os
import random
import resource
import time
import tracemalloc
from array import array
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, msgpack
from msgspec.msgpack import Ext
from msgspec.structs import fields

from tests.unit.builders import Sight, examples, facts, finished, page, step
from tests.unit.wire import GREETING, Client, short_directory
from tests.waiting import wait_until
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.aggregation.merge import Merger
from vllm_vitals.catalog.connectors import CONNECTORS
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.collector_server import CollectorServer
from vllm_vitals.records.step import (
    Evictions,
    Facts,
    Finished,
    Gap,
    Gone,
    Health,
    Record,
    Rejection,
    Reported,
    Sleep,
    Speculation,
    Step,
)
from vllm_vitals.store.series import HistogramCell
from vllm_vitals.transport import server as receiver
from vllm_vitals.transport.protocol import (
    MOST_FROM_CLIENT,
    PROTOCOL,
    Batch,
    Frames,
    Hello,
    Taken,
    WireError,
    encode,
    frame,
    from_client,
)

FEWEST = 4000
"""With fewer not everything that is waited for has come to pass."""
GROWTH = 64 << 10
"""KiB by which this process may grow over all of them, beside what the collector keeps."""
LATENCIES = array("d", [0.1, 0.2])
RECORDS: list[Record] = [
    step(
        running=1, kv_cache_usage=0.5, inter_token_latencies=LATENCIES, inter_token_repeats=3, graph_tokens={"full": 5}
    ),
    step(evictions=Evictions(LATENCIES), speculation=Speculation(1, 3, (1, 1, 0)), unknown_connectors=("X",)),
    step(connectors=tuple(Reported(each.name, ("a",) * len(each.labels), LATENCIES) for each in list(CONNECTORS)[:8])),
    finished(Finished("stop", time=1.0, duration=2.0, input_tokens=5, request_id="r"), Finished("length")),
    facts("0", "lora", buckets={"step": [1.0, 2.0]}, info={"a": "b"}, kv_cache_tokens=100, gpus=2),
    Sleep("m", "0", "awake", 1.0),
    Rejection("m", "full", 2),
    Gone("m", "0"),
    Gap(),
    Health(dropped=1, errors={"read": 2}),
]
SEEDS = [
    encode(Batch(1, 1.0, RECORDS)),
    encode(Hello(PROTOCOL, "p", "0", 1, RECORDS[4:6])),
    encode(Batch(2, 2.0, [])),
    *(encode(Batch(3, 1.0, [record])) for record in RECORDS),
]
ILL = [Raw(b"\xa1\xff"), Raw(b"\xc7\x05\xff12345"), Raw(b"\x81\x80\xc0")]
"""Values that are well-formed, but no text, no time, and a mapping by what is no key."""
HEADS = [b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xde\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
         b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xc0", b"\xc1", b"\xcb" + b"\xff" * 8,
         b"\xcf" + b"\xff" * 8, b"\xd7\xff" + b"\xff" * 8, b"\x91" * 2000, b"\x81\xa0" * 500, *map(bytes, ILL)]  # fmt: skip
"""Beginnings of values that claim to be as long as can be, and values that are odd."""

ODD = [None, True, False, -1, 0, 1, 7, 1 << 62, 1 << 63, -1.5, 0.0, 1e9, 1e308, float("nan"), float("inf"), "", "0", "m",
       "x" * 1000, b"", b"1234567", bytes(800), array("d", [math.nan, -1.0, 1e308]).tobytes(), [], [[]], [1.0, 1.0], {},
       {"": {}}, {"step": [0.0, math.inf]}, {"type": "Step"}, [None] * 1000, datetime(2026, 1, 1, tzinfo=timezone.utc),
       Ext(1, bytes(12)), Ext(5, b"x")]  # fmt: skip


@pytest.fixture
def frames(effort: str) -> int:
    """Return how many frames are tried."""
    return int(os.environ.get("VITALS_WIRE_FUZZ", FEWEST if effort == "test" else 1_000_000))


@pytest.fixture
def chance(seed: int) -> random.Random:
    return random.Random(seed)


def mangled(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Return one of these with some of its bytes wrong."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice([1, 1, 1, 2, 5, 20])):
        place = chance.randrange(len(data) + 1)
        other = chance.choice(seeds)
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
    return bytes(data)


def strange(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Return one of these in which one value, at whatever depth, is something else, mostly of the same type."""
    message = msgpack.decode(chance.choice(seeds))
    place = message
    while True:
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.2:
            break
        place = place[key]
    alike = [odd for odd in ODD if type(odd) is type(place[key])] or ODD
    place[key] = chance.choice(chance.choices([alike, ODD, ILL], [6, 3, 1])[0])
    return msgpack.encode(message)


def mutant(chance: random.Random) -> bytes:
    """Return a frame with something wrong in it, or in its length."""
    data = mangled(chance, SEEDS)
    if chance.random() < 0.9:
        return frame(data)
    return frame(data)[: chance.randrange(len(data) + 4)] + data


def stranger(chance: random.Random) -> bytes:
    """Return a frame in which one value is something else."""
    return frame(strange(chance, SEEDS))


def noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(100))


def peak() -> int:
    """Return the most memory that this process ever had, KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def read(stream: bytes) -> Iterator[Hello | Batch]:
    frames = Frames(MOST_FROM_CLIENT)
    frames.feed(stream)
    for payload in iter(frames.next, None):
        yield from_client(payload)


class Good:
    """A process that keeps to the rules, and what has to be seen of it."""

    KNOWN = (Facts("good", "7", max_num_seqs=8), Sleep("good", "7", "awake"))

    def __init__(self) -> None:
        self.told = 0

    def step(self) -> Step:
        self.told += 1
        now = time.monotonic()
        return Step("good", "7", time.time(), now, 10.0, running=self.told % 5, iterated=True, generation_tokens=3)

    def is_shown(self, aggregator: Aggregator) -> bool:
        """Tell whether each of its steps counts, and the last one is what its engine is at."""
        own = {"model_name": "good", "engine": "7"}
        names = ("vitals_steps_total", "vllm_tokens_generation_total", "vllm_engine_requests_running", "vllm_engine_up")
        see = Sight(aggregator)
        return [see(name, **own) for name in names] == [self.told, 3 * self.told, self.told % 5, 1]


def check_what_is_shown(aggregator: Aggregator) -> None:
    """See that whoever asks gets an answer, and no number in it that cannot be true."""
    assert all(page(aggregator, openmetrics=openmetrics) for openmetrics in (False, True))
    for family in aggregator.store:
        for cell in family.cells.values():
            shown = [cell.total, *cell.counts] if isinstance(cell, HistogramCell) else [cell.value]
            assert all(math.isfinite(value) and value >= 0 for value in shown), family.metric.name


@examples(500)
@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_an_error(data: bytes) -> None:
    with suppress(WireError):
        assert isinstance(from_client(data), Hello | Batch)


def test_little_memory_is_taken_by_mutants(chance: random.Random, frames: int) -> None:
    before = peak()
    for number in range(frames):
        with suppress(WireError):
            list(read((mutant, stranger)[number % 2](chance)))
    assert peak() - before < GROWTH


def test_mutants_are_messages_or_errors_and_cost_nobody_else_a_step(chance: random.Random, frames: int) -> None:
    """What can be decoded is read and added up, beside what a good process tells."""
    understood, good = 0, Good()
    aggregator = Aggregator(Settings(exemplars=True))
    merger = Merger(aggregator, serves=False)
    merger.take("good", Good.KNOWN, 0.0)
    for number in range(frames):
        with suppress(WireError):
            for message in read((mutant, stranger, noise)[number % 3](chance)):
                understood += 1
                merger.take("bad", message.records, message.until if isinstance(message, Batch) else 0.0)
        if number % 20 == 0:
            merger.take("good", [good.step()], time.monotonic())
        if number % 2000 == 0:
            merger.leave("bad")
    merger.finish()
    assert good.is_shown(aggregator)
    check_what_is_shown(aggregator)
    assert frames // 20 < understood < frames
    assert any(aggregator.store.rejects), "some of it was added up"


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


def test_a_receiver_goes_on_whatever_is_sent_to_it(
    chance: random.Random, frames: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the first thing, and after a welcome; a good process goes on beside."""
    monkeypatch.setattr(receiver, "TICK", 0.05)
    good = Good()
    with short_directory() as made:
        path: Path = made / "d" / "s"
        aggregator = Aggregator(Settings())
        host = CollectorServer(aggregator, path, serves=False)
        host.start({})
        client = Client(path)
        client.greet(Hello(PROTOCOL, GREETING.process, "0", 1, list(Good.KNOWN)))
        for number in range(1, frames // 100 + 1):
            bad = Client(path)
            with suppress(OSError):
                if number % 2:
                    bad.greet(Hello(PROTOCOL, "bad", "9", 1, []))
                for _ in range(5):
                    bad.socket.sendall(chance.choice([mutant, stranger])(chance))
            bad.close()
            assert client.tell(number, good.step(), until=time.monotonic()) == Taken(number)
        wait_until(lambda: host._receiver.connections == 1)
        wait_until(lambda: good.is_shown(aggregator))
        check_what_is_shown(aggregator)
        client.close()
        host.stop()
    assert Sight(aggregator)("vitals_errors_total", process="0", stage="wire")
    assert "could not be added up" not in caplog.text
