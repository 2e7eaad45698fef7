"""The store as it is at one moment, for every exporter: numbers that belong together are read together."""

from collections.abc import Callable, Mapping
from typing import Any

from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.catalog.metric import Key, Metric
from vllm_vitals.store.cells import Cell, Reading
from vllm_vitals.store.store import Store

Series = tuple[Key, Cell, Reading | None]
"""One series; there is no reading where the cell still has the version that the reader knows."""
Snapshot = list[tuple[Metric[Any], list[Series]]]
"""Each metric with its series, in the store's order."""


def snapshot(
    store: Store,
    wanted: Callable[[Metric[Any]], bool] = lambda _: True,
    known: Mapping[Cell, int] | None = None,
) -> Snapshot:
    """Return all series of the wanted metrics as they are between two records.

    The lock is held all the time, so that no record is added meanwhile: whoever adds waits for it, which vLLM's event
    loop never does. `known`: versions that need no reading.
    """
    have = known or {}
    found: Snapshot = []
    with store.lock:
        for family in store:
            if not (family.cells and wanted(family.metric)):
                continue
            series: list[Series] = []
            for key, cell in family.cells.items():
                if have.get(cell) == cell.version:
                    series.append((key, cell, None))
                else:
                    series.append((key, cell, cell.read()))
                    checkpoint()
            found.append((family.metric, series))
            checkpoint()
    return found
