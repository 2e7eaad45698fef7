"""What serving processes left unread is read here, where nobody waits for it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

from vllm_vitals.feed.feed import complain
from vllm_vitals.logs import log_once
from vllm_vitals.step import Dialect, Health, Record, Unread
from vllm_vitals.vllm.reader import Reader
from vllm_vitals.vllm.told import recall


class _Speaker:
    """Reads what one `AsyncLLM` of one process told."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._errors = 0
        self._reader = Reader.of(dialect, self._complain)

    def read(self, records: Sequence[Unread], epoch: float, pause: Callable[[], None]) -> Iterator[Record]:
        """Yield the steps, and what was wrong with them."""
        calls = []
        for record in records:
            try:
                calls.append(recall(record.content, record.clock, self.dialect.reasons))
            except Exception as error:  # noqa: BLE001 - whatever the other end sent; the next steps count again
                self._errors += 1
                log_once(logging.ERROR, "A step that a serving process told cannot be read: %s", error, key="recall")
            pause()
        yield from self._reader.read(calls, epoch, pause) if calls else ()
        if self._errors:
            yield Health(errors={"read": self._errors}, process=self.dialect.process)
            self._errors = 0

    def _complain(self, field: str, value: Any, expected: str) -> None:
        self._errors += 1
        complain(field, value, expected)


class Recall:
    """Reads what the processes of this host told. For one thread at a time."""

    def __init__(self) -> None:
        self._speakers: dict[tuple[str, str], _Speaker] = {}

    def read(self, process: str, records: Sequence[Record], epoch: float, pause: Callable[[], None]) -> list[Record]:
        """Return records in which everything is read; `epoch`: Unix seconds when the monotonic clock was 0."""
        if not any(isinstance(record, Unread | Dialect) for record in records):
            return list(records)
        known: list[Record] = []
        for (kind, model), group in groupby(records, lambda record: (type(record), getattr(record, "model", ""))):
            if kind is Dialect:
                for dialect in group:
                    self._learn(process, dialect)
            elif kind is Unread:
                known += self._of(process, model, list(group), epoch, pause)
            else:
                known += group
        return known

    def forget(self, process: str) -> None:
        """Forget a process that is gone."""
        for key in [key for key in self._speakers if key[0] == process]:
            del self._speakers[key]

    def _learn(self, process: str, dialect: Any) -> None:
        self._speakers[process, dialect.model] = _Speaker(dialect)

    def _of(
        self, process: str, model: str, told: list[Any], epoch: float, pause: Callable[[], None]
    ) -> Iterator[Record]:
        speaker = self._speakers.get((process, model))
        if speaker is None:  # it did not keep to the rules
            yield Health(errors={"wire": len(told)})
            return
        yield from speaker.read(told, epoch, pause)
