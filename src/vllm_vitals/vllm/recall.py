"""What serving processes left unread is read here, where nobody waits for it."""

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.log import log_once
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.ingest.drain import complain
from vllm_vitals.records.step import Dialect, Health, Record, Step, Unread
from vllm_vitals.vllm.reader import Reader
from vllm_vitals.vllm.told import recall

AT_ONCE = 1 << 20
"""Bytes that are read together at most, unless one step has more: in memory, nonsense takes up to 90 times as many."""
LONGEST_ERROR = 300
"""Characters of an error that are logged."""


class _Speaker:
    """Reads what one `AsyncLLM` of one process told."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._errors = 0
        self._dropped = 0
        self._reader = Reader.of(dialect, self._complain)

    def read(self, records: Sequence[Unread], epoch: float) -> Iterator[Record]:
        """Yield the steps, and what was wrong with them."""
        for some in _portions(records):
            yield from self._read(some, epoch)
        if self._errors:
            yield Health(dropped=self._dropped, errors={"read": self._errors}, process=self.dialect.process)
            self._errors = self._dropped = 0

    def _read(self, records: Sequence[Unread], epoch: float) -> Sequence[Step]:
        """Return the steps of records: of all, or of all that can be read."""
        errors = self._errors
        try:
            calls = []
            for record in records:
                calls.append(recall(record.content, record.clock, self.dialect.reasons))
                checkpoint()
            return self._reader.read(calls, epoch)
        except Exception as error:  # noqa: BLE001 - whatever the other end sent; the next steps count again
            if len(records) > 1:
                self._errors = errors
                return [step for record in records for step in self._read([record], epoch)]
            self._errors, self._dropped = errors + 1, self._dropped + 1
            log_once(
                logging.ERROR,
                "A step that a serving process told cannot be read and is dropped: %s: %s",
                type(error).__name__,
                clean(str(error), LONGEST_ERROR),
                key="recall",
            )
            return []

    def _complain(self, field: str, value: Any, expected: str) -> None:
        self._errors += 1
        complain(field, value, expected)


def _portions(records: Sequence[Unread]) -> Iterator[Sequence[Unread]]:
    """Cut records into as few parts as may be read together."""
    first = size = 0
    for place, record in enumerate(records):
        if place > first and size + len(record.content) > AT_ONCE:
            yield records[first:place]
            first, size = place, 0
        size += len(record.content)
    yield records[first:]


class Recall:
    """Reads what the processes of this host told. For one thread at a time."""

    def __init__(self) -> None:
        self._speakers: dict[tuple[str, int], _Speaker] = {}
        """By the process, and the number that it gave an `AsyncLLM`."""

    def read(self, process: str, records: Sequence[Record], epoch: float) -> list[Record]:
        """Return records in which everything is read; `epoch`: Unix seconds when the monotonic clock was 0."""
        if not any(isinstance(record, Unread | Dialect) for record in records):
            return list(records)
        known: list[Record] = []
        for (kind, tap), group in groupby(records, lambda record: (type(record), getattr(record, "tap", 0))):
            if kind is Dialect:
                for dialect in group:
                    self._learn(process, dialect)
            elif kind is Unread:
                known += self._of(process, tap, list(group), epoch)
            else:
                known += group
        return known

    def forget(self, process: str) -> None:
        """Forget a process that is gone."""
        for key in [key for key in self._speakers if key[0] == process]:
            del self._speakers[key]

    def _learn(self, process: str, dialect: Any) -> None:
        self._speakers[process, dialect.tap] = _Speaker(dialect)

    def _of(self, process: str, tap: int, told: list[Any], epoch: float) -> Iterator[Record]:
        speaker = self._speakers.get((process, tap))
        if speaker is None:  # it did not keep to the rules
            yield Health(dropped=len(told), errors={"wire": len(told)})
            return
        yield from speaker.read(told, epoch)
