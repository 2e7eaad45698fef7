"""The store as Prometheus text or OpenMetrics, built in small pieces from parts that are kept.

`prometheus_client` renders every sample anew and never gives the interpreter up while it does; next to an event
loop that streams tokens that is too long. Here a series that has not changed costs a dictionary look-up.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client.utils import floatToGoString

from vllm_vitals.catalog.metric import Key, Metric
from vllm_vitals.collector.cells import Cell, Exemplar, HistogramCell
from vllm_vitals.collector.store import Family, Store

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
END = b"# EOF\n"


class Reading(NamedTuple):
    """What a cell held at one moment."""

    version: int
    value: float
    counts: list[int]
    exemplars: dict[int, Exemplar]


class Kept(NamedTuple):
    """The text of a series and the state of the cell that it shows."""

    cell: Cell
    version: int
    text: bytes


def escape(value: str) -> str:
    """Return a label value or help text with backslash, newline and quote escaped."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def read(cell: Cell) -> Reading:
    """Return what a cell holds; call it with the store's lock."""
    if isinstance(cell, HistogramCell):
        cell.settle()
        return Reading(cell.version, cell.total, cell.counts, dict(cell.exemplars))
    return Reading(cell.version, cell.value, [], {})


class Renderer:
    """Renders one store in one format; not to be shared between threads."""

    def __init__(self, store: Store, *, openmetrics: bool) -> None:
        self._store = store
        self._openmetrics = openmetrics
        self._heads: dict[Metric[Any], bytes] = {}
        self._prefixes: dict[tuple[Metric[Any], Key], tuple[Cell, list[str]]] = {}
        self._kept: dict[tuple[Metric[Any], Key], Kept] = {}

    def render(self, pause: Callable[[], None], wanted: Callable[[str], bool] = lambda _: True) -> Iterator[bytes]:
        """Yield the page in pieces, without OpenMetrics' end; `wanted` picks families by Prometheus name."""
        for family in self._store:
            if not wanted(family.metric.prometheus):
                continue
            texts = list(self._family(family, pause))
            if texts:
                yield self._head(family.metric)
                yield from texts

    def _family(self, family: Family, pause: Callable[[], None]) -> Iterator[bytes]:
        with self._store.lock:
            cells = list(family.cells.items())
        for key, cell in cells:
            place = (family.metric, key)
            kept = self._kept.get(place)
            if kept is None or kept.cell is not cell or kept.version != cell.version:
                with self._store.lock:
                    reading = read(cell)
                lines = self._lines(family.metric, key, cell, reading)
                text = "".join(lines).encode(errors="replace")  # a lone surrogate cannot be encoded
                kept = self._kept[place] = Kept(cell, reading.version, text)
            yield kept.text
            pause()

    def forget(self) -> None:
        """Let go of series that are no more."""
        with self._store.lock:
            held = {(family.metric, key) for family in self._store for key in family.cells}
        for places in (self._kept, self._prefixes):
            for gone in places.keys() - held:
                del places[gone]

    def _head(self, metric: Metric[Any]) -> bytes:
        head = self._heads.get(metric)
        if head is None:
            name = metric.prometheus
            if self._openmetrics and metric.kind == "counter":
                name = name.removesuffix("_total")
            lines = [f"# HELP {name} {escape(metric.help) if self._openmetrics else _escape_help(metric.help)}\n"]
            lines.append(f"# TYPE {name} {metric.kind}\n")
            if self._openmetrics and metric.prometheus_unit:
                lines.append(f"# UNIT {name} {metric.prometheus_unit}\n")
            head = self._heads[metric] = "".join(lines).encode()
        return head

    def _lines(self, metric: Metric[Any], key: Key, cell: Cell, reading: Reading) -> Iterator[str]:
        prefixes = self._prefix(metric, key, cell)
        if not isinstance(cell, HistogramCell):
            yield f"{prefixes[0]}{reading.value!r}\n"
            return
        for bucket, (prefix, count) in enumerate(zip(prefixes, accumulate(reading.counts), strict=False)):
            yield f"{prefix}{count}{self._exemplar(reading.exemplars.get(bucket))}\n"
        yield f"{prefixes[-2]}{sum(reading.counts)}\n"
        yield f"{prefixes[-1]}{reading.value!r}\n"

    def _exemplar(self, exemplar: Exemplar | None) -> str:
        if exemplar is None or not self._openmetrics:
            return ""
        return f' # {{request_id="{escape(exemplar.request_id)}"}} {exemplar.value!r} {exemplar.time:.3f}'

    def _prefix(self, metric: Metric[Any], key: Key, cell: Cell) -> list[str]:
        """Return the text before each value: of a histogram the buckets', then the count's and the sum's."""
        known = self._prefixes.get((metric, key))
        if known is None or known[0] is not cell:
            pairs = [f'{n}="{escape(v)}"' for n, v in zip(metric.prometheus_labels, key, strict=True) if v]
            name = metric.prometheus
            if isinstance(cell, HistogramCell):
                edges = [*map(floatToGoString, cell.bounds), "+Inf"]
                made = [_series(f"{name}_bucket", [*pairs, f'le="{edge}"']) for edge in edges]
                made += [_series(f"{name}_count", pairs), _series(f"{name}_sum", pairs)]
            else:
                made = [_series(name, pairs)]
            known = self._prefixes[metric, key] = (cell, made)
        return known[1]


def _series(name: str, pairs: list[str]) -> str:
    return f"{name}{{{','.join(pairs)}}} " if pairs else f"{name} "


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
