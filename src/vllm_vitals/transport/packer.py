"""Records made into batches, encoded one after another where they will stay."""

import logging

from msgspec.structs import replace

from vllm_vitals._util.log import log_once
from vllm_vitals.records.step import Health, Record, Step
from vllm_vitals.transport.frames import frame
from vllm_vitals.transport.kept import Kept, Known
from vllm_vitals.transport.messages import ENCODER, Batch, check_record, encode
from vllm_vitals.transport.outbox import Parcel

LARGEST_RECORD = 8 << 20
"""Bytes; a batch that ends in one is well below the largest frame."""
MOST = 64
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
        return len(self._body) >= self._size or self._count >= MOST

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
