"""What vLLM and its connectors export to Prometheus, turned into series that can be pushed beside ours.

Names stay what a collector's Prometheus receiver would give them: those of the samples.
"""

from collections.abc import Callable, Iterator
from typing import Any

from vllm_vitals._util.labels import fit
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.exporters.otlp.points import Described, Series, State
from vllm_vitals.vllm_page.series import read


def native_series(registry: Any, apart: Callable[[str], bool]) -> Iterator[Series]:
    """Yield the series of a registry, or a page, except families whose name is set `apart`."""
    for family in registry.collect():
        if not apart(family.name):
            for each in read(family):
                described = Described(each.name, fit(family.documentation), family.unit, each.kind)
                yield Series(described, each.labels, State(each.value, each.counts), bounds=each.bounds)
        checkpoint()
