"""What must reach the collector although the batch that it was in is dropped."""

from msgspec import Struct, field
from msgspec.structs import replace

from vllm_vitals.records.step import Facts, Gone, Health, Record, Rejection, Sleep

MOST = 500
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
            if key in self._engines or len(self._engines) < MOST:
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
        if len(self.engines) < MOST:
            self.engines.add(key)

    def _reject(self, key: Key, count: int) -> None:
        if key in self.rejections or len(self.rejections) < MOST:
            self.rejections[key] = self.rejections.get(key, 0) + count

    def _ail(self, health: Health) -> None:
        own = self.health
        own.dropped += health.dropped
        own.hook_time += health.hook_time
        own.detached = own.detached if health.detached is None else health.detached
        for stage, count in health.errors.items():
            own.errors[stage] = own.errors.get(stage, 0) + count
