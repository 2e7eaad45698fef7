"""Many finished requests at once, by column: what is the same for all of them is done once."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from vllm_vitals.step import Finished

Floats = NDArray[np.float64]


class Columns(list[Finished]):
    """Finished requests, and any of their numeric fields as an array."""

    def __init__(self, requests: Iterable[Finished]) -> None:
        super().__init__(requests)
        self._read: dict[str, tuple[Floats, NDArray[np.bool_] | None]] = {}

    def column(self, name: str) -> tuple[Floats, NDArray[np.bool_] | None]:
        """Return the values of a field, and which requests have one (`None`: all of them)."""
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = self._make(self._raw[name])
        return found

    @cached_property
    def _raw(self) -> dict[str, Sequence[Any]]:
        rows = map(msgspec.structs.astuple, self)
        return dict(zip(Finished.__struct_fields__, zip(*rows, strict=True), strict=True))

    @staticmethod
    def _make(values: Sequence[Any]) -> tuple[Floats, NDArray[np.bool_] | None]:
        if None not in values:
            return np.array(values, dtype=np.float64), None
        present = np.array([value is not None for value in values], dtype=np.bool_)
        return np.array([value for value in values if value is not None], dtype=np.float64), present
