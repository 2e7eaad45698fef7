"""How a metric is declared: once, as data, with how it is read from a record."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, TypeVar

from vllm_vitals.catalog.names import prometheus_label, prometheus_name, prometheus_unit

R = TypeVar("R")
Key = tuple[str, ...]
Reading = float | Mapping[Any, float] | None
"""What one record says: a number, or a number for each label value (a tuple of them for several labels)."""
Readings = float | Iterable[float] | Mapping[Any, Any] | None
"""What a record says of a distribution: a number or an array of them, or an array for each label value."""

MOST = float(2**63)
"""The largest count that one step can plausibly bring."""
MOST_JOULES = 1e12
"""The most energy that GPUs can have used from one reading to the next: a hundred of them in a week."""
LONGEST = 7 * 86400.0
"""The longest latency, in seconds, that is believed."""


class Scope(Enum):
    """Which labels every series of a metric carries."""

    ENGINE = ("model_name", "engine")
    MODEL = ("model_name",)
    CONVENTION = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
    PROCESS = ()

    def __new__(cls, *labels: str) -> "Scope":  # noqa: PYI034 - there is no Self before Python 3.11
        """Let the value be the labels even where there are none: Python 3.11.2 makes another object of `()`."""
        made = object.__new__(cls)
        made._value_ = labels
        return made


def reader(read: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    """Return what reads a value from a record: a field's name stands for reading that field."""
    return attrgetter(read) if isinstance(read, str) else read


@dataclass(frozen=True)
class Label:
    """A label beside those of the scope; `values` exist from the start, the rest is capped.

    Of an `open` one there are more values than those that exist from the start. `ahead` gives those of them that are
    known ahead: from the `Facts` of an engine, from the `Health` of a process, or, what is this process's, from
    the `Settings`.
    """

    name: str
    values: tuple[str, ...] = ()
    cap: int = 16
    help: str = ""
    open: bool = False
    ahead: Callable[[Any], Iterable[str]] | None = None

    def known(self, told: Any) -> tuple[str, ...]:
        """Return the values that exist from the start where a record, or the settings, tell this; `None` tells nothing."""
        more = tuple(self.ahead(told)) if self.ahead and told is not None else ()
        return tuple(dict.fromkeys((*self.values, *more[: self.cap])))


@dataclass(frozen=True, eq=False)
class Metric(Generic[R]):
    """One metric. `of` is the record type it is read from; `None`: the collector keeps it itself.

    `read` is a function of the record, or the name of a field of it. Finished requests are read many at a time:
    its argument is then a `Requests`, and what it returns is an array with one value for each of them.

    `native` names the vLLM metric that means the same, `needs` the engine feature without which
    there is no series, `since` the first vLLM that reports it.
    """

    name: str
    unit: str
    help: str
    of: type[R] | None = None
    read: Callable[[R], Any] | str | None = None
    labels: tuple[Label, ...] = ()
    scope: Scope = Scope.ENGINE
    native: str = ""
    needs: str = ""
    since: str = ""
    limit: float = MOST

    kind = "metric"

    @cached_property
    def labelnames(self) -> tuple[str, ...]:
        """Return the OpenTelemetry attribute names of every series, in order."""
        return (*self.scope.value, *(label.name for label in self.labels))

    @cached_property
    def prometheus_labels(self) -> tuple[str, ...]:
        """Return the Prometheus label names of every series, in order."""
        return tuple(map(prometheus_label, self.labelnames))

    @cached_property
    def prometheus(self) -> str:
        """Return the Prometheus family name (a counter's ends in `_total`)."""
        return prometheus_name(self.name, self.unit, gauge=self.kind == "gauge", counter=self.kind == "counter")

    @cached_property
    def prometheus_unit(self) -> str:
        """Return the Prometheus unit word, `""` when there is none."""
        return prometheus_unit(self.unit, gauge=self.kind == "gauge")


@dataclass(frozen=True, eq=False)
class Counter(Metric[R]):
    """A sum that only grows; `read` gives what one record adds."""

    read: Callable[[R], Reading] | str | None = None

    kind = "counter"


@dataclass(frozen=True, eq=False)
class Gauge(Metric[R]):
    """A value at a moment. `momentary` values go away when a working engine falls silent.

    `initial` is the value before the first record, `None` when there is none to tell.
    """

    read: Callable[[R], Reading] | str | None = None
    initial: float | None = None
    momentary: bool = False

    kind = "gauge"


@dataclass(frozen=True, eq=False)
class Histogram(Metric[R]):
    """A distribution over the bounds of a bucket family.

    `read` gives a value or an array of them. `ceiling` gives, from the record, what a value cannot honestly exceed, and
    `repeats` how many times each value of a record is to be observed.
    """

    read: Callable[[Any], Readings] | str | None = None
    buckets: str = ""
    ceiling: Callable[[Any], Any] | str | None = None
    repeats: Callable[[Any], int] | str | None = None

    kind = "histogram"
