"""What is written down in one process and read in another is what would have been read at once."""

import tracemalloc
from collections.abc import Sequence
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.unit.builders import examples
from tests.unit.vllm.test_hostile_stats import COMPLETE, REQUEST, full, iterations, schedulers, shown, values
from vllm_vitals.ingest.step_queue import Tap
from vllm_vitals.records.step import LARGEST_CONTENT, Dialect, Health, Record, Step, Unread
from vllm_vitals.transport.messages import Batch, encode, from_client
from vllm_vitals.vllm import recall
from vllm_vitals.vllm.reader import Reader
from vllm_vitals.vllm.recall import Recall
from vllm_vitals.vllm.told import OBJECTS, Bearer, write

EPOCH = 1_700_000_000.0


class Reason(IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2


def quiet(*_: Any) -> None:
    pass


def true(value: Any, *, objects: bool = True) -> Any:
    """Return a value with mappings for the objects where vLLM has none, and what enums hold for these."""
    if isinstance(value, Enum):
        return value.value
    if type(value) is dict and objects:
        value = SimpleNamespace(**{str(name): each for name, each in value.items()})
    if type(value) is SimpleNamespace:
        fields = {name: true(each, objects=name in OBJECTS) for name, each in vars(value).items()}
        return SimpleNamespace(**fields) if objects else fields
    return [true(each, objects=objects) for each in value] if type(value) is list else value


def over_the_wire(records: Sequence[Record]) -> list[Record]:
    batch = from_client(encode(Batch(1, 0.0, list(records))))
    assert isinstance(batch, Batch)
    return batch.records


def told(calls: list[Any], dialect: Dialect) -> tuple[list[Record], list[Record]]:
    """Return what is sent of calls, and what is read of that."""
    tap = Tap(len(calls), write)
    for _, *call in calls:
        tap.record(*call)
    kept = [(clock, *kept[1:]) for (clock, *_), kept in zip(calls, tap.queue, strict=True)]
    sent = [dialect, *Bearer(dialect.tap, Reader.of(dialect, quiet)).bear(kept, EPOCH)]
    return sent, Recall().read("p", over_the_wire(sent), EPOCH)


def at_once(calls: list[Any], dialect: Dialect) -> list[Step]:
    return Reader.of(dialect, quiet).read(list(calls), EPOCH)


def steps(records: Sequence[Record]) -> list[Step]:
    return [record for record in records if isinstance(record, Step)]


@examples(400, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(schedulers, iterations, values), min_size=1, max_size=4))
def test_it_reads_as_if_it_had_been_read_at_once(calls: list[tuple[Any, Any, Any]]) -> None:
    given_ = [(float(place), true(full(s)), true(full(i)), true(m), 0) for place, (s, i, m) in enumerate(calls)]
    dialect = Dialect("m", 0.0)
    there, here = steps(told(given_, dialect)[1]), at_once(given_, dialect)
    assert new_connectors(there) == new_connectors(here)
    assert shown(there) == shown(here)


def new_connectors(read: list[Step]) -> set[str]:
    """Take away which connectors are new, and return them: each end has its own first step with one."""
    found = {name for each in read for name in each.unknown_connectors}
    for each in read:
        each.unknown_connectors = ()
    return found


def request(reason: Any, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{**vars(COMPLETE), "finish_reason": reason, "request_id": "r", "num_generation_tokens": 3, **fields}
    )


def test_finish_reasons_keep_their_names() -> None:
    ended = SimpleNamespace(finished_requests=[request(Reason.LENGTH), request(Reason.STOP), request("error")])
    sent, read = told(
        [(1.0, None, ended, None, 0)],
        Dialect("m", 0.0, reasons={int(reason): reason.name.lower() for reason in Reason}),
    )
    assert type(sent[1]) is Unread
    assert [each.reason for each in steps(read)[0].finished] == ["length", "stop", "error"]


@pytest.mark.parametrize("others", [[], [0.5], [0.5, 0.5, 0.75], ["odd"], [None]])
def test_many_latencies_that_are_the_same_are_told_in_few_bytes(others: list[Any]) -> None:
    given_ = [(1.0, None, SimpleNamespace(inter_token_latencies_iter=[0.25] * 1000 + others), None, 0)]
    dialect = Dialect("m", 0.0)
    (unread,), read = [each for each in told(given_, dialect)[0] if isinstance(each, Unread)], told(given_, dialect)[1]
    assert (len(unread.content) < 100) == (not others)
    (there,), (here,) = steps(read), at_once(given_, dialect)
    for each in (there, here):
        assert list(each.inter_token_latencies or ()) * each.inter_token_repeats == [0.25] * 1000 + [
            other for other in others if isinstance(other, float)
        ]


def test_what_vllm_holds_is_left_as_it_is() -> None:
    stats = SimpleNamespace(inter_token_latencies_iter=[0.25] * 1000)
    write((1.0, None, stats, None, 0))
    assert stats.inter_token_latencies_iter == [0.25] * 1000


def ended_without_a_token(number: int) -> Unread:
    """Return what is told of a request that ended without a token, and whose first-token time is its duration."""
    ended = request("stop", num_generation_tokens=0, e2e_latency=5.0, prefill_time=1.0)
    return Unread(number, 10.0, write((0.0, None, SimpleNamespace(finished_requests=[ended]), None, 0)))


def test_each_of_two_that_serve_one_model_is_read_in_its_own_way() -> None:
    """A pooling model's requests end without a token by design; of another's such a one has no prefill."""
    given_ = [Dialect("m", 0.0, tap=0, pooling=True), Dialect("m", 0.0, tap=1),
              *map(ended_without_a_token, (0, 1, 0, 1))]  # fmt: skip
    read = steps(Recall().read("p", over_the_wire(given_), EPOCH, quiet))
    assert [each.finished[0].prefill for each in read] == [1.0, None, 1.0, None]


def test_each_process_is_read_in_its_own_way() -> None:
    both = Recall()
    for process, pooling in (("p", True), ("q", False)):
        both.read(process, [Dialect("m", 0.0, pooling=pooling)], EPOCH, quiet)
    read = [each for process in "pq" for each in both.read(process, [ended_without_a_token(0)], EPOCH, quiet)]
    assert [each.finished[0].prefill for each in steps(read)] == [1.0, None]


def test_a_process_that_is_gone_is_forgotten() -> None:
    one = Recall()
    one.read("p", [Dialect("m", 0.0)], EPOCH, quiet)
    one.forget("p")
    assert one.read("p", [ended_without_a_token(0)], EPOCH, quiet) == [Health(dropped=1, errors={"wire": 1})]


def nested(size: int) -> bytes:
    """Return content of so many bytes that holds one Python object for each of them."""
    return b"\x94\x00\xc0\xc0\xdd" + (size - 9).to_bytes(4, "big") + b"\x90" * (size - 9)


def test_little_nonsense_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "AT_ONCE", 1 << 13)
    reader = Recall()
    reader.read("p", [Dialect("m", 0.0)], EPOCH, quiet)
    records = [Unread(0, 1.0, nested(1 << 12)) for _ in range(32)]
    tracemalloc.start()
    try:
        reader.read("p", records, EPOCH, quiet)
        assert tracemalloc.get_traced_memory()[1] < 200 * (1 << 13)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sizes", [[1], [5, 5], [5, 6], [11], [11, 11], [1, 9, 1, 11, 10], [0, 0, 20, 0]])
def test_as_many_are_read_together_as_may_be(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "AT_ONCE", 10)
    records = [Unread(0, float(place), bytes(size)) for place, size in enumerate(sizes)]
    parts = list(recall._portions(records))
    assert [each for part in parts for each in part] == records
    assert all(len(part) == 1 or sum(len(each.content) for each in part) <= 10 for part in parts)
    first = [part[0] for part in parts[1:]]
    assert all(
        sum(len(each.content) for each in [*part, after]) > 10 for part, after in zip(parts, first, strict=False)
    )


def test_many_requests_that_end_at_once_can_be_told() -> None:
    ended = SimpleNamespace(**{**dict.fromkeys(REQUEST, 12345.678), "request_id": "chatcmpl-" + 32 * "0"})
    content = write((0.0, None, SimpleNamespace(finished_requests=[ended] * 4096), None, 0))
    assert len(content) < LARGEST_CONTENT
