"""The declaration of a metric: data, and how its value is read from a record."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, TypeVar

from vllm_vitals.catalog.names import prometheus_label, prometheus_name, prometheus_unit

R = TypeVar("R")
Key = tuple[str, ...]
Reading = float | Mapping[Any, float] | None
"""The value in one record: a number, or a number for each label value (a tuple of values for several labels)."""
Readings = float | Iterable[float] | Mapping[Any, Any] | None
"""The values of a distribution in one record: a number, an array of numbers, or an array for each label value."""

MAX_COUNT = float(2**63)
"""The largest count that one step can plausibly bring."""
MAX_JOULES = 1e12
"""The largest plausible energy between two readings: a hundred GPUs for a week."""
MAX_LATENCY_SECONDS = 7 * 86400.0
"""The longest plausible latency."""


class Scope(Enum):
    """The labels that every series of a metric has."""

    ENGINE = ("model_name", "engine")
    MODEL = ("model_name",)
    CONVENTION = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
    PROCESS = ()

    def __new__(cls, *labels: str) -> "Scope":  # noqa: PYI034 - there is no Self before Python 3.11
        """Set the value to the labels, also to no labels: Python 3.11.2 would make another object of `()`."""
        made = object.__new__(cls)
        made._value_ = labels
        return made


def reader(read: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    """Return a function that reads a value from a record; the name of a field stands for that field."""
    return attrgetter(read) if isinstance(read, str) else read


@dataclass(frozen=True)
class Label:
    """A label beside those of the scope.

    `values` exist from the start. `values_from` returns more initial values: from the `Facts` of an engine, from the
    `Health` of a process, or, for a metric of this process, from the `Settings`. `open` says that a series may have
    other values than `values`; up to `cap` of them get a series of their own, and the rest share `_other`.
    """

    name: str
    values: tuple[str, ...] = ()
    cap: int = 16
    help: str = ""
    open: bool = False
    values_from: Callable[[Any], Iterable[str]] | None = None

    def initial_values(self, source: Any) -> tuple[str, ...]:
        """Return the values that exist from the start, given what `values_from` reads; `None`: only `values`."""
        more = tuple(self.values_from(source)) if self.values_from and source is not None else ()
        return tuple(dict.fromkeys((*self.values, *more[: self.cap])))


@dataclass(frozen=True, eq=False)
class Metric(Generic[R]):
    """One metric.

    `record`: the type of record that the metric is read from; `None`: the code that computes it writes it.
    `read`: a function of the record, or the name of a field. Finished requests are read in bulk: for `Finished` the
    argument is a `Requests`, and the result an array with one value per request.
    `vllm_name`: vLLM's own metric with the same meaning. `needs`: the engine feature without which there is no series.
    `since`: the first vLLM release that reports it. `limit`: the largest value that is accepted.
    """

    name: str
    unit: str
    help: str
    record: type[R] | None = None
    read: Callable[[R], Any] | str | None = None
    labels: tuple[Label, ...] = ()
    scope: Scope = Scope.ENGINE
    vllm_name: str = ""
    needs: str = ""
    since: str = ""
    limit: float = MAX_COUNT

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
    """A value at a moment.

    `expires`: the series is removed when an engine stops reporting in the middle of its work.
    `initial`: the value before the first record; `None`: no series until then.
    """

    read: Callable[[R], Reading] | str | None = None
    initial: float | None = None
    expires: bool = False

    kind = "gauge"


@dataclass(frozen=True, eq=False)
class Histogram(Metric[R]):
    """A distribution over the bounds of a bucket family.

    `read` returns a value or an array of values. `max_from_record` returns the largest plausible value of a record.
    `repeats` returns how many times each value of a record is observed.
    """

    read: Callable[[Any], Readings] | str | None = None
    buckets: str = ""
    max_from_record: Callable[[Any], Any] | str | None = None
    repeats: Callable[[Any], int] | str | None = None

    kind = "histogram"


M = TypeVar("M", bound=Metric[Any])


@dataclass(frozen=True, eq=False)
class Group:
    """The metrics of one subject, in the order in which they are declared: a section of the reference page."""

    name: str
    title: str
    about: str = ""
    """Text above the table on the reference page."""
    _metrics: list[Metric[Any]] = field(default_factory=list)

    def add(self, metric: M) -> M:
        """Add a metric, and return it."""
        self._metrics.append(metric)
        return metric

    def __contains__(self, metric: object) -> bool:
        return metric in self._metrics

    def __iter__(self) -> Iterator[Metric[Any]]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)
