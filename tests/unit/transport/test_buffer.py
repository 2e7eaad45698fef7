"""Batches wait in bounded room; each step of them ends as taken or as counted, whatever happens in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import examples, facts, step
from vllm_vitals.records.step import Gone, Health, Record, Rejection, Sleep
from vllm_vitals.transport.buffer import FEW, LARGEST_RECORD, MAX_KEPT, OVERHEAD, Kept, Known, Outbox, Packer, Parcel
from vllm_vitals.transport.protocol import MOST_RECORDS, Batch, from_client

SIZE = 1000
ASLEEP, AWAKE = Sleep("m", "0", "sleeping"), Sleep("m", "0", "awake")


def parcel(sequence: int, steps: int = 1, *records: Record) -> Parcel:
    kept = Kept()
    for record in records:
        kept.note(record)
    return Parcel(sequence, b"", bytearray(SIZE - OVERHEAD), steps, kept)


def outbox(room: int, *parcels: Parcel) -> Outbox:
    """Return one that has room for so many batches, and these are in it."""
    made = Outbox(room * SIZE)
    for each in parcels:
        made.put(each)
    return made


def sent(outbox: Outbox) -> list[int]:
    """Send all that may be; return the sequences."""
    return [each.sequence for each in iter(outbox.next, None)]


def unpacked(parcel: Parcel) -> Batch:
    batch = from_client((parcel.head + parcel.body)[4:])
    assert isinstance(batch, Batch)
    return batch


class Bookkeeper:
    """Drives an outbox at random and knows what must come of it."""

    def __init__(self, room: int) -> None:
        self.outbox = outbox(room)
        self.sequence = self.put = self.taken = 0
        self.under_way: list[int] = []
        self.collector = 0
        """The highest sequence that the collector has, whether it said so or not."""

    def add(self) -> None:
        self.sequence += 1
        self.put += 1
        self.outbox.put(parcel(self.sequence))

    def send(self) -> None:
        parcel = self.outbox.next()
        if parcel is not None:
            assert not self.under_way or parcel.sequence > self.under_way[-1]
            self.under_way.append(parcel.sequence)

    def take(self) -> None:
        """Let the collector have the oldest batch that is under way; nobody says so yet."""
        if self.under_way:
            self.collector = self.under_way.pop(0)
            self.taken += 1

    def hear(self) -> None:
        self.outbox.taken(self.collector)

    def reconnect(self) -> None:
        self.outbox.resend(self.collector)
        self.under_way = []

    def refuse(self) -> None:
        self.hear()
        self.outbox.refused()
        self.reconnect()


ACTIONS = [Bookkeeper.add, Bookkeeper.send, Bookkeeper.take, Bookkeeper.hear, Bookkeeper.reconnect, Bookkeeper.refuse]


@examples(300)
@given(st.integers(1, 6), st.lists(st.sampled_from(ACTIONS), max_size=60))
def test_each_step_is_taken_or_counted_but_not_both(room: int, actions: list) -> None:
    keeper = Bookkeeper(room)
    for action in actions:
        action(keeper)
        assert keeper.outbox._size <= room * SIZE
    keeper.reconnect()
    while not keeper.outbox.empty:
        keeper.send()
        keeper.take()
        keeper.hear()
    assert keeper.taken + keeper.outbox.dropped == keeper.put
    assert (keeper.outbox._size, keeper.outbox._size_sent) == (0, 0)
    assert keeper.outbox.lost().health.dropped == keeper.outbox.dropped


def test_the_oldest_make_way() -> None:
    box = outbox(3, *[parcel(number, number) for number in range(1, 6)])
    assert box.dropped == 1 + 2
    box.resend(0)
    first = box.next()
    assert first is not None
    assert first.sequence == 3


def test_what_may_have_been_taken_does_not_make_way() -> None:
    box = outbox(4, parcel(1), parcel(2), parcel(3))
    assert sent(box) == [1, 2]
    for number in range(4, 9):
        box.put(parcel(number))
    assert box.dropped == 4
    box.resend(taken=1)
    assert sent(box) == [2, 7]


def test_not_everything_is_sent_before_anything_is_taken() -> None:
    box = outbox(4, *[parcel(number) for number in range(1, 5)])
    assert sent(box) == [1, 2]
    box.taken(1)
    assert sent(box) == [3]
    assert not box.idle
    box.taken(3)
    assert sent(box) == [4]
    assert box.idle
    assert not box.empty


def test_a_few_batches_may_be_under_way_unheard_of() -> None:
    box = outbox(100, *[parcel(number) for number in range(FEW + 1)])
    assert not box.calm
    sent(box)
    assert (box.idle, box.calm) == (True, False)
    box.taken(0)
    assert box.calm


def test_a_batch_without_room_is_dropped_itself() -> None:
    box = Outbox(SIZE - 1)
    box.put(parcel(1))
    assert (box.empty, box.dropped) == (True, 1)


def test_a_refused_batch_is_dropped() -> None:
    box = outbox(4, parcel(1), parcel(2, 5), parcel(3))
    assert sent(box) == [1, 2]
    box.taken(1)
    box.refused()
    assert box.dropped == 5
    box.resend(taken=1)
    assert sent(box) == [3]
    box.refused()
    box.refused()
    assert box.dropped == 6


def test_what_came_with_dropped_steps_is_made_good_for() -> None:
    ailing = Health(dropped=3, hook_time=0.5, errors={"read": 1}, process="2")
    box = outbox(1, parcel(1, 7, facts(), ASLEEP, Rejection("m", "full", 2), ailing))
    box.put(parcel(2, 1, Rejection("m", "full", 1), ailing))
    box.put(parcel(3))
    known = Known()
    known.note(facts())
    known.note(AWAKE)
    told = box.lost().records(known, "2")
    health = Health(dropped=3 + 3 + 7 + 1, hook_time=1.0, errors={"read": 2}, process="2")
    assert told == [facts(), AWAKE, Rejection("m", "full", 3), health]
    assert box.lost().records(known, "2") == []


def test_an_engine_that_is_back_is_not_said_to_be_gone() -> None:
    known, kept = Known(), Kept()
    for record in (facts(), Gone("m", "0"), facts("1"), Gone("m", "1")):
        known.note(record)
        kept.note(record)
    known.note(facts(max_num_seqs=5))
    told = kept.records(known, "0")
    assert sorted(told, key=repr) == [facts(max_num_seqs=5), Gone("m", "1")]


def test_what_is_kept_is_bounded() -> None:
    known, kept = Known(), Kept()
    for number in range(2 * MAX_KEPT):
        for record in (facts(str(number)), Sleep("m", str(number), "awake"), Rejection("m", str(number))):
            known.note(record)
            kept.note(record)
    assert len(known.records()) == 2 * MAX_KEPT
    packer = Packer("0", 1 << 30)
    packer.known = known
    while not packer.full:
        packer.add(step())
    assert len(unpacked(packer.seal(0.0, kept)).records) <= MOST_RECORDS


def test_a_batch_holds_what_makes_good_and_then_what_was_added() -> None:
    packer = Packer("3", 1000)
    records = [facts(), ASLEEP, step(1.0), step(2.0)]
    for record in records:
        packer.add(record)
    lost = Kept(health=Health(dropped=4, errors={"read": 1}))
    packed = packer.seal(1.5, lost)
    told = Health(dropped=4, errors={"read": 1}, process="3")
    assert unpacked(packed) == Batch(1, 1.5, [told, *records])
    assert packed.steps == 2
    assert packed.kept.records(packer.known, "3") == [facts(), ASLEEP, told]
    assert unpacked(packer.seal(2.0, Kept())) == Batch(2, 2.0, [])


def test_health_is_that_of_this_process() -> None:
    packer = Packer("3", 1000)
    packer.add(Health(dropped=1))
    assert unpacked(packer.seal(0.0, Kept())).records == [Health(dropped=1, process="3")]


def test_a_batch_is_full_in_time() -> None:
    packer = Packer("0", 1000)
    packer.add(step())
    assert not packer.full
    packer.add(step(prompt_tokens={"x" * 1000: 1}))
    assert packer.full


@pytest.mark.parametrize(
    "broken",
    [
        step(running=1 << 70),
        step(prompt_tokens={"\ud800": 1}),
        step(prompt_tokens={"x": object()}),
        step(prompt_tokens={"x" * LARGEST_RECORD: 1}),
    ],
    ids=["number", "text", "object", "size"],
)
def test_a_step_that_cannot_be_sent_is_left_out_and_counted(broken: Record) -> None:
    packer = Packer("3", 1000)
    for record in (step(1.0), broken, step(2.0)):
        packer.add(record)
    told = Health(dropped=1, errors={"wire": 1}, process="3")
    assert unpacked(packer.seal(0.0, Kept())).records == [step(1.0), told, step(2.0)]
    assert packer.dropped == 1


@pytest.mark.parametrize("broken", [facts(max_num_seqs="many"), Health(dropped=None)], ids=["facts", "health"])
def test_what_would_be_told_again_and_again_is_checked_first(broken: Record) -> None:
    packer = Packer("3", 1000)
    packer.add(broken)
    assert packer.known.records() == []
    assert unpacked(packer.seal(0.0, Kept())).records == [Health(errors={"wire": 1}, process="3")]
    assert packer.dropped == 0


def test_that_a_process_is_called_no_more_is_told_to_every_collector_and_made_good_for() -> None:
    packer = Packer("3", SIZE)
    for told in (Health(dropped=1), Health(detached=True), Health(hook_time=0.5)):
        packer.add(told)
    assert packer.known.records() == [Health(process="3", detached=True)]
    lost = packer.seal(0.0, Kept()).kept
    assert lost.records(Known(), "3") == [Health(dropped=1, hook_time=0.5, process="3", detached=True)]
    packer.add(Health(detached=False))
    assert packer.known.records() == [Health(process="3", detached=False)]
