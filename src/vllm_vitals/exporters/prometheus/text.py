"""The store as Prometheus text or OpenMetrics, built in small pieces from cached parts.

`prometheus_client` renders every sample each time, and never releases the interpreter meanwhile. This is too long beside
an event loop that streams tokens. Here an unchanged series costs one dictionary lookup.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client.utils import floatToGoString

from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog.metric import Key, Metric
from vllm_vitals.store.series import Cell, Exemplar, HistogramCell, Reading
from vllm_vitals.store.store import Store, snapshot

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
END = b"# EOF\n"


def escape(value: str) -> str:
    """Return a label value or help text with backslash, newline and quote escaped."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Renderer:
    """Renders one store in one format. Do not share it between threads."""

    def __init__(self, store: Store, *, openmetrics: bool) -> None:
        self._store = store
        self._openmetrics = openmetrics
        self._heads: dict[Metric[Any], bytes] = {}
        self._prefixes: dict[Cell, list[str]] = {}
        self._kept: dict[Cell, bytes] = {}
        """The text of each series."""
        self._versions: dict[Cell, int] = {}
        """The version of each cell that its text shows."""

    def render(self, wanted: Callable[[str], bool] = lambda _: True) -> Iterator[bytes]:
        """Yield the page in pieces, without OpenMetrics' end. `wanted` selects families by Prometheus name.

        All values are from the moment of the first piece.
        """
        found = snapshot(self._store, lambda metric: wanted(metric.prometheus), self._versions)
        for metric, series in found:
            yield self._head(metric)
            for key, cell, reading in series:
                if reading is not None:
                    self._keep(metric, key, cell, reading)
                    checkpoint()
                yield self._kept[cell]
            checkpoint()

    def _keep(self, metric: Metric[Any], key: Key, cell: Cell, reading: Reading) -> None:
        text = "".join(self._lines(metric, key, cell, reading))
        self._kept[cell] = text.encode(errors="replace")  # a bad name must not fail the page
        self._versions[cell] = reading.version

    def forget(self) -> None:
        """Drop series that no longer exist."""
        with self._store.lock:
            held = {cell for family in self._store for cell in family.cells.values()}
        for gone in self._versions.keys() - held:
            del self._kept[gone], self._prefixes[gone], self._versions[gone]

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
        if not reading.counts:
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
        """Return the text before each value; for a histogram of the buckets, the count and the sum."""
        known = self._prefixes.get(cell)
        if known is None:
            pairs = [f'{n}="{escape(v)}"' for n, v in zip(metric.prometheus_labels, key, strict=True) if v]
            name = metric.prometheus
            if isinstance(cell, HistogramCell):
                edges = [*map(floatToGoString, cell.bounds), "+Inf"]
                known = [_series(f"{name}_bucket", [*pairs, f'le="{edge}"']) for edge in edges]
                known += [_series(f"{name}_count", pairs), _series(f"{name}_sum", pairs)]
            else:
                known = [_series(name, pairs)]
            self._prefixes[cell] = known
        return known


def _series(name: str, pairs: list[str]) -> str:
    return f"{name}{{{','.join(pairs)}}} " if pairs else f"{name} "


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
