"""The store as it is at one moment, for every exporter: numbers that belong together are read together."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vllm_vitals.catalog.metric import Key, Metric
from vllm_vitals.collector.cells import Cell, Reading
from vllm_vitals.collector.store import Store


class Series(NamedTuple):
    """One series; `reading` is `None` where the cell still has the version that the reader knows."""

    key: Key
    cell: Cell
    reading: Reading | None


Snapshot = list[tuple[Metric[Any], list[Series]]]
"""Each metric with its series, in the store's order."""


def snapshot(
    store: Store,
    pause: Callable[[], None],
    wanted: Callable[[Metric[Any]], bool] = lambda _: True,
    known: Mapping[Cell, int] | None = None,
) -> Snapshot:
    """Return all series of the wanted metrics as they are between two records.

    The lock is held all the time, so that no record is added meanwhile: whoever adds waits for it, which vLLM's event
    loop never does. `pause` is called in between, as where records are added. `known`: versions that need no reading.
    """
    have = known or {}
    found: Snapshot = []
    with store.lock:
        for family in store:
            if not (family.cells and wanted(family.metric)):
                continue
            series = []
            for key, cell in family.cells.items():
                if have.get(cell) == cell.version:
                    series.append(Series(key, cell, None))
                else:
                    series.append(Series(key, cell, cell.read()))
                    pause()
            found.append((family.metric, series))
            pause()
    return found
