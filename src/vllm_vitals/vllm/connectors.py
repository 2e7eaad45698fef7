"""What KV connectors report, whatever their class and the release, as numbers of our metrics.

A format is known by what is in it, not by the name of the class: of those of vLLM 0.11 to 0.33 there are lists of
numbers by name, lists of operations by their kind, and numbers that say of themselves what they are. What a known
format has beyond the tables of `reports` is passed over, as is a class of whose report nothing is known.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Raw, msgpack

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.labels import named
from vllm_vitals._util.log import LOGGER
from vllm_vitals.catalog.kv_reports import (
    DESCRIBED,
    DIRECTION_OF_CLASS,
    DIRECTIONS_BY_CLASS,
    FAILED,
    LISTS,
    OFFLOAD,
    OPERATIONS,
    SAME_LABEL,
    Rules,
)
from vllm_vitals.ingest.step_queue import Call
from vllm_vitals.records.step import Reported
from vllm_vitals.vllm.fields import Fields

_ENCODER = msgpack.Encoder()
MOST_CONNECTORS = 16
LONGEST_NAME = 200
"""Characters of the name of a class that are logged."""


class _Copied:
    """A scheduler's stats, with what its connectors reported as it was then."""

    __slots__ = ("_stats", "kv_connector_stats")

    def __init__(self, stats: Any) -> None:
        self._stats = stats
        self.kv_connector_stats = Raw(_ENCODER.encode(stats.kv_connector_stats))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stats, name)


def copied(call: Call) -> Call:
    """Return a call of `record()` of which nothing changes any more.

    vLLM's own log line adds up what connectors report between two of its lines, in the lists and mappings of the first
    report: who reads that one later finds all the others in it. This is for the event loop.

    Raises:
        BaseException: when the report is no plain data.
    """
    clock, scheduler, *rest = call
    if not getattr(scheduler, "kv_connector_stats", None):
        return call
    return (clock, _Copied(scheduler), *rest)


class Connectors:
    """Reads what the KV connectors of one `AsyncLLM` report."""

    def __init__(self, configured: str, fields: Fields) -> None:
        """Read for the class that vLLM is configured with, `""` where that is not known."""
        self._configured = configured or "unknown"
        self._fields = fields
        self._unknown: set[str] = set()
        """Classes whose reports were passed over."""

    def read(self, stats: Any) -> tuple[tuple[Reported, ...], tuple[str, ...]]:
        """Return what stats hold, and the classes, not met before, of whose report nothing is known.

        Raises:
            BaseException: when they are no plain data.
        """
        if isinstance(stats, Raw):
            stats = msgpack.decode(stats)
        reported: list[Reported] = []
        unknown: list[str] = []
        for connector, content in self._parts(stats):
            told = list(self._of(connector, content))
            reported += filter(None, told)
            if not told and not self._fields.is_empty(content):
                unknown.append(connector)
        return tuple(reported), self._new(unknown)

    def _parts(self, stats: Any) -> list[tuple[str, Any]]:
        """Return each connector's class and what it reports: a MultiConnector's are by the names of the classes."""
        if isinstance(stats, dict):
            parts = [(name, each) for key, each in stats.items() if "Connector" in (name := named(key))]
            if parts:
                return [(name, _plain(each)) for name, each in parts[:MOST_CONNECTORS]]
        return [(self._configured, stats)]

    def _new(self, connectors: Iterable[str]) -> tuple[str, ...]:
        new = tuple(name for name in connectors if name not in self._unknown)
        new = new[: MOST_CONNECTORS - len(self._unknown)]
        self._unknown.update(new)
        for name in new:
            LOGGER.info(
                "The stats of the KV connector %s are not shown (vitals.connectors.unknown)", clean(name, LONGEST_NAME)
            )
        return new

    def _of(self, connector: str, content: Any) -> Iterator[Reported | None]:
        """Yield what a connector reports, `None` for what is known but not shown."""
        if not isinstance(content, dict):
            return
        if "types" in content and isinstance(content.get("data"), dict):
            yield from self._described(connector, content["data"])
            return
        for name, values in content.items():
            if rules := LISTS.get(name):
                yield from self._told(connector, name, rules, values)
            elif name in OPERATIONS and isinstance(values, list):
                yield from self._operations(connector, name, values)

    def _described(self, connector: str, data: Mapping[Any, Any]) -> Iterator[Reported | None]:
        if not data or any(named(name).startswith(OFFLOAD) for name in data):
            yield None
        for name, numbers in data.items():
            for labels, values in numbers.items() if isinstance(numbers, dict) else ():
                own = named(labels[0]) if isinstance(labels, tuple) and labels else ""
                yield from self._told(connector, name, DESCRIBED.get(name, ()), values, own)

    def _operations(self, connector: str, kind: str, operations: list[Any]) -> Iterator[Reported]:
        known = [each for each in operations if isinstance(each, dict)]
        for field, rules in OPERATIONS[kind].items():
            values = [each[field] for each in known if field in each]
            yield from self._told(connector, f"{kind}.{field}", rules, values)
        failed = [1.0 for each in known if each.get("status", "ok") != "ok"]
        yield from self._told(connector, kind, FAILED.get(kind, ()), failed)

    def _told(self, connector: str, name: str, rules: Rules, values: Any, own: str = "") -> Iterator[Reported]:
        if not rules:
            return
        numbers = self._numbers(values, f"kv_connector_stats of {connector}: {name}")
        places = {DIRECTION_OF_CLASS: DIRECTIONS_BY_CLASS.get(connector, ""), SAME_LABEL: own}
        for rule in rules:
            labels = (connector, *(places.get(label, label) for label in rule.labels))
            yield Reported(rule.metric.name, labels, numbers)

    def _numbers(self, values: Any, field: str) -> "array[float]":
        """Return a list of numbers, of which one may stand alone, as float64."""
        return self._fields.floats(values if isinstance(values, list) else [values], field)


def _plain(content: Any) -> Any:
    """Return the content of a report that vLLM up to 0.29 wraps: of it there is nothing but `data`."""
    return content["data"] if isinstance(content, dict) and content.keys() == {"data"} else content
