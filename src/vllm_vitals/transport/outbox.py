"""Batches on their way: those that the collector may have, and those that wait, in bounded room."""

import threading
from collections import deque

from msgspec import Struct

from vllm_vitals.transport.kept import Kept

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
