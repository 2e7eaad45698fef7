"""Batches on their way: those that the collector may have, and those that wait, in bounded room."""

import logging
import threading
from collections import deque

from msgspec import Struct, field
from msgspec.structs import replace

from vllm_vitals._util.log import log_once
from vllm_vitals.records.step import Facts, Gone, Health, Record, Rejection, Sleep, Step
from vllm_vitals.transport.protocol import ENCODER, Batch, check_record, encode, frame

MAX_KEPT = 500
"""Engines, and reasons of rejections, that are kept: beside them a batch holds what else it must."""

Key = tuple[str, str]


class Known:
    """What is so at present of each engine, and of this process: what was said of it last."""

    def __init__(self) -> None:
        self._engines: dict[Key, dict[type, Record]] = {}
        self._process: list[Record] = []

    def note(self, record: Record) -> None:
        """Take notice of a record, if it is one that says what is so."""
        if isinstance(record, Gone):
            self._engines.pop((record.model, record.engine), None)
        elif isinstance(record, Facts | Sleep):
            key = (record.model, record.engine)
            if key in self._engines or len(self._engines) < MAX_KEPT:
                self._engines.setdefault(key, {})[type(record)] = record
        elif isinstance(record, Health) and record.detached is not None:
            self._process = [Health(process=record.process, detached=record.detached)]

    def records(self) -> list[Record]:
        """Return what has to be known of all engines and of the process."""
        engines = (record for said in self._engines.values() for record in said.values())
        return [*engines, *self._process]

    def of(self, key: Key) -> list[Record]:
        """Return what is so of one engine: that it is gone if nothing is known."""
        return list(self._engines.get(key, {}).values()) or [Gone(*key)]


class Kept(Struct):
    """Of the records of a batch, or of several: whose state they told, and what has to be added up."""

    engines: set[Key] = set()
    rejections: dict[Key, int] = {}
    health: Health = field(default_factory=Health)

    def note(self, record: Record) -> None:
        """Take notice of a record, unless it is a step."""
        if isinstance(record, Facts | Sleep | Gone):
            self._engine((record.model, record.engine))
        elif isinstance(record, Rejection):
            self._reject((record.model, record.reason), record.count)
        elif isinstance(record, Health):
            self._ail(record)

    def merge(self, other: "Kept") -> None:
        """Take over what another keeps."""
        for key in other.engines:
            self._engine(key)
        for key, count in other.rejections.items():
            self._reject(key, count)
        self._ail(other.health)

    def records(self, known: Known, process: str) -> list[Record]:
        """Return what makes good for the lost records of a process, of which this is known now."""
        told = [record for key in self.engines for record in known.of(key)]
        told += [Rejection(model, reason, count) for (model, reason), count in self.rejections.items()]
        health = replace(self.health, process=process)
        return told if health == Health(process=process) else [*told, health]

    def _engine(self, key: Key) -> None:
        if len(self.engines) < MAX_KEPT:
            self.engines.add(key)

    def _reject(self, key: Key, count: int) -> None:
        if key in self.rejections or len(self.rejections) < MAX_KEPT:
            self.rejections[key] = self.rejections.get(key, 0) + count

    def _ail(self, health: Health) -> None:
        own = self.health
        own.dropped += health.dropped
        own.hook_time += health.hook_time
        own.detached = own.detached if health.detached is None else health.detached
        for stage, count in health.errors.items():
            own.errors[stage] = own.errors.get(stage, 0) + count


OVERHEAD = 512
"""Bytes that a batch takes beside its records."""
FEW = 8
"""Batches of which it may be unknown for a while whether they were taken; unheard answers block who gives them."""


class Parcel(Struct, frozen=True):
    """One batch as it is sent: `head` and `body` one after the other are a frame that holds so many steps."""

    sequence: int
    head: bytes
    body: bytearray
    steps: int
    kept: Kept

    @property
    def size(self) -> int:
        """Return how many bytes it takes."""
        return len(self.head) + len(self.body) + OVERHEAD


class Outbox:
    """Holds each batch until it is taken, or there is no room; the feeder and the sender's thread share it.

    A batch that was sent may have been taken even if nobody says so. It is therefore never dropped: half of the room
    is for such batches, and of the others the oldest make way. So each step is either taken or counted as dropped.
    """

    def __init__(self, room: int) -> None:
        """`room`: bytes of all batches together."""
        self.room = room
        self.dropped = 0
        """Steps that were dropped so far."""
        self._lock = threading.Lock()
        self._sent: deque[Parcel] = deque()
        self._waiting: deque[Parcel] = deque()
        self._size = 0
        self._size_sent = 0
        self._lost = Kept()

    def put(self, parcel: Parcel) -> None:
        """Add a batch; the oldest that were not sent are dropped if there is no room for it."""
        with self._lock:
            self._waiting.append(parcel)
            self._size += parcel.size
            while self._size > self.room and self._waiting:
                self._lose(self._waiting.popleft())

    def next(self) -> Parcel | None:
        """Return the batch that is to be sent now, `None` when there is none or enough is under way."""
        with self._lock:
            if not self._waiting:
                return None
            parcel = self._waiting[0]
            if self._sent and self._size_sent + parcel.size > self.room // 2:
                return None
            self._sent.append(self._waiting.popleft())
            self._size_sent += parcel.size
            return parcel

    def taken(self, sequence: int) -> None:
        """Forget what was sent up to a sequence: the collector has it."""
        with self._lock:
            while self._sent and self._sent[0].sequence <= sequence:
                self._size_sent -= self._sent[0].size
                self._size -= self._sent.popleft().size

    def resend(self, taken: int) -> None:
        """Let everything wait again but what this collector has taken."""
        with self._lock:
            self._waiting.extendleft(reversed(self._sent))
            self._sent.clear()
            self._size_sent = 0
            while self._waiting and self._waiting[0].sequence <= taken:
                self._size -= self._waiting.popleft().size

    def refused(self) -> None:
        """Drop the first batch that was sent and not taken."""
        with self._lock:
            if self._sent:
                self._size_sent -= self._sent[0].size
                self._lose(self._sent.popleft())

    def lost(self) -> Kept:
        """Return what has to be made good for, and forget it."""
        with self._lock:
            lost, self._lost = self._lost, Kept()
            return lost

    @property
    def idle(self) -> bool:
        """Tell whether nothing waits to be sent."""
        return not self._waiting

    @property
    def calm(self) -> bool:
        """Tell whether it can wait until the next batch that anybody hears which were taken."""
        return not self._waiting and len(self._sent) <= FEW

    @property
    def empty(self) -> bool:
        """Tell whether all was taken."""
        return not self._waiting and not self._sent

    def _lose(self, parcel: Parcel) -> None:
        self._size -= parcel.size
        self.dropped += parcel.steps
        self._lost.merge(parcel.kept)
        self._lost.health.dropped += parcel.steps


LARGEST_RECORD = 8 << 20
"""Bytes; a batch that ends in one is well below the largest frame."""
MAX_RECORDS = 64
"""Records after which a batch is full, however small: it is decoded at a stretch, in 0.2 ms."""
ARRAY = b"\xdd"
"""MessagePack's mark of an array whose length is given in four bytes, big-endian."""


class Packer:
    """Holds the batch that is being made."""

    def __init__(self, process: str, size: int) -> None:
        """`process`: number of this one. `size`: bytes after which a batch is full."""
        self.known = Known()
        """What a collector has to be told first."""
        self.dropped = 0
        """Steps that could not be sent."""
        self._process = process
        self._size = size
        self._sequence = 0
        self._begin()

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing in the batch."""
        return not self._count

    @property
    def full(self) -> bool:
        """Tell whether the batch has to be sealed."""
        return len(self._body) >= self._size or self._count >= MAX_RECORDS

    def add(self, record: Record) -> None:
        """Encode a record into the batch; one that cannot be sent is left out and counted."""
        if isinstance(record, Health):
            record = replace(record, process=self._process)
        begin = len(self._body)
        try:
            ENCODER.encode_into(record, self._body, -1)
            self._check(record, begin)
        except Exception:  # noqa: BLE001 - what vLLM made a record of may be anything
            del self._body[begin:]
            self._leave_out(record)
            return
        self._count += 1
        if isinstance(record, Step):
            self._steps += 1
        else:
            self.known.note(record)
            self._kept.note(record)

    def seal(self, until: float, lost: Kept) -> Parcel:
        """Return the batch, with what makes good for lost ones before it, and begin another."""
        self._sequence += 1
        restored = [ENCODER.encode(record) for record in lost.records(self.known, self._process)]
        lost.merge(self._kept)
        # A message without records ends in the mark of an empty array. What was encoded is never copied.
        head = encode(Batch(self._sequence, until, []))[:-1]
        head += ARRAY + (len(restored) + self._count).to_bytes(4, "big") + b"".join(restored)
        parcel = Parcel(self._sequence, frame(head, len(self._body)), self._body, self._steps, lost)
        self._begin()
        return parcel

    def _begin(self) -> None:
        self._body = bytearray()
        self._count = 0
        self._steps = 0
        self._kept = Kept()

    def _check(self, record: Record, begin: int) -> None:
        """Raise an error if a record is too large, or a rare one cannot be read: it would come again and again."""
        size = len(self._body) - begin
        if size > LARGEST_RECORD:
            raise ValueError(f"{size} bytes, at most {LARGEST_RECORD}")
        if not isinstance(record, Step):
            check_record(bytes(self._body[begin:]))

    def _leave_out(self, record: Record) -> None:
        kind = type(record).__name__
        log_once(logging.ERROR, "A %s cannot be sent to the collector and is left out", kind, traceback=True)
        lost = int(isinstance(record, Step))
        self.dropped += lost
        self.add(Health(dropped=lost, errors={"wire": 1}))
