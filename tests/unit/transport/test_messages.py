"""Whatever is sent comes out as it went in, and nothing but what may be sent comes out."""

import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from tests.unit.builders import examples, facts, step
from tests.unit.wire import GREETING, RECORDS, numbered
from vllm_vitals.records.step import Record, Step
from vllm_vitals.transport.protocol import (
    MOST_RECORDS,
    PROTOCOL,
    UNKNOWN,
    Batch,
    Hello,
    Refusal,
    Taken,
    Welcome,
    WireError,
    check_record,
    encode,
    from_client,
    from_server,
    protocol_of,
)

NEVER = (math.nan, math.inf, -math.inf, -1.0, 1e300)
"""What no clock shows."""
WELCOME = Welcome(PROTOCOL, "collector", 0)


def as_batch(**fields: Any) -> bytes:
    """Return a batch with one step that has these fields, whatever they are."""
    record = {"type": "Step", "model": "m", "engine": "0", "time": 1.0, "clock": 1.0, "age": 1.0, **fields}
    return msgpack.encode({"type": "Batch", "sequence": 1, "until": 0.0, "records": [record]})


def with_record(kind: str, **fields: Any) -> bytes:
    """Return a batch with one record that has these fields, whatever they are."""
    return msgpack.encode({"type": "Batch", "sequence": 1, "until": 0.0, "records": [{"type": kind, **fields}]})


@examples(200)
@given(st.lists(RECORDS, max_size=5))
def test_any_records_arrive_as_they_were(records: list[Record]) -> None:
    batch = Batch(7, 1.5, records)
    assert from_client(encode(batch)) == batch
    hello = Hello(PROTOCOL, "process", "3", 4711, records)
    assert from_client(encode(hello)) == hello


def test_arrays_stay_arrays_to_the_last_bit() -> None:
    values = array("d", [0.1, -0.0, float("inf"), float("nan"), 5e-324])
    (record,) = from_client(encode(Batch(1, 0.0, [step(inter_token_latencies=values)]))).records
    assert record.inter_token_latencies.typecode == "d"
    assert record.inter_token_latencies.tobytes() == values.tobytes()


@pytest.mark.parametrize("message", [WELCOME, Taken(3), Refusal("no")], ids=lambda message: type(message).__name__)
def test_each_direction_has_its_own_messages(message: Any) -> None:
    assert from_server(encode(message)) == message
    with pytest.raises(WireError, match=UNKNOWN):
        from_client(encode(message))
    with pytest.raises(WireError, match=UNKNOWN):
        from_server(encode(GREETING))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xc0",
        msgpack.encode({"type": "Batch"}),
        msgpack.encode({"type": "Batch", "sequence": 0, "until": 0.0, "records": []}),
        msgpack.encode({"type": "Batch", "sequence": 1, "until": float("nan"), "records": []}),
        msgpack.encode({"type": "Batch", "sequence": 1, "until": float("inf"), "records": []}),
        msgpack.encode({"type": "Batch", "sequence": 1, "until": 0.0, "records": [{"type": "Other"}]}),
        msgpack.encode({"type": "Hello", "protocol": PROTOCOL, "process": "", "name": "0", "pid": 1, "records": []}),
        msgpack.encode(
            {"type": "Hello", "protocol": PROTOCOL, "process": "p", "name": "0" * 65, "pid": 1, "records": []}
        ),
        as_batch(running="many"),
        as_batch(running=True),
        as_batch(inter_token_latencies=[0.1]),
        as_batch(inter_token_repeats=0),
        as_batch(inter_token_repeats=2**32),
        as_batch(inter_token_latencies="12345678"),  # noqa: S106
        as_batch(inter_token_latencies=b"1234567"),
        as_batch().replace(b"\xa1m", b"\xa1\xff"),
        as_batch(model=1),
        *(as_batch(clock=odd) for odd in NEVER),
        *(as_batch(time=odd) for odd in NEVER),
        as_batch(age=math.nan),
        as_batch(age=math.inf),
        *(as_batch(finished=[{"reason": "stop", "time": odd}]) for odd in NEVER),
        *(with_record("Sleep", model="m", engine="0", state="awake", clock=odd) for odd in NEVER),
        as_batch() + b"\x00",
        b"\x91" * 100_000,
    ],
)
def test_what_is_no_message_is_an_error(payload: bytes) -> None:
    with pytest.raises(WireError, match=UNKNOWN):
        from_client(payload)


def test_an_error_does_not_repeat_what_was_sent_at_length() -> None:
    with pytest.raises(WireError) as caught:
        from_client(msgpack.encode({"type": "\n\x1b" + "x" * 10_000}))
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


def test_a_batch_has_an_end() -> None:
    assert len(from_client(encode(Batch(1, 0.0, numbered(0, MOST_RECORDS)))).records) == MOST_RECORDS
    with pytest.raises(WireError, match=str(MOST_RECORDS)):
        from_client(encode(Batch(1, 0.0, numbered(0, MOST_RECORDS + 1))))


def test_fields_of_a_later_release_are_passed_over() -> None:
    (record,) = from_client(as_batch(invented_later={"x": [1]})).records
    assert record == Step("m", "0", 1.0, 1.0, 1.0)


def test_the_protocol_is_known_whatever_else_a_hello_holds() -> None:
    assert protocol_of(msgpack.encode({"type": "Hello", "protocol": 9, "records": "changed"})) == 9
    with pytest.raises(WireError, match=UNKNOWN):
        protocol_of(encode(Batch(1, 0.0, [])))


def test_a_record_can_be_checked_alone() -> None:
    check_record(msgpack.encode(facts()))
    with pytest.raises(WireError, match=UNKNOWN):
        check_record(msgpack.encode({"type": "Facts", "model": "m", "engine": 0}))


def test_only_what_is_known_is_encoded() -> None:
    with pytest.raises(NotImplementedError, match="object"):
        encode(Batch(1, 0.0, [step(prompt_tokens={"x": object()})]))
