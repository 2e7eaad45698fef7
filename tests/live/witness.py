"""A stat logger of the tests' own beside ours: it adds up what vLLM's objects say, and writes that to a file."""

import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.metrics.loggers import AggregateStatLoggerBase

FILE = "WITNESS"
"""The environment variable that names the file."""


class Witness(AggregateStatLoggerBase):  # type: ignore[misc]
    """Knows nothing of us."""

    def __init__(self, vllm_config: Any, engine_indexes: Any) -> None:  # noqa: ARG002 - vLLM's names
        self._path = Path(os.environ[FILE])
        self._sums: dict[str, float] = {}

    def record(self, scheduler_stats: Any, iteration_stats: Any, **_: Any) -> None:
        if scheduler_stats is not None:
            cache = scheduler_stats.prefix_cache_stats
            self._add("resumed", cache.preempted_requests)
            self._add("resumed_queries", cache.preempted_queries)
            self._add("resumed_hits", cache.preempted_hits)
        if iteration_stats is not None:
            self._add("iterations", 1)
            self._add("preempted", iteration_stats.num_preempted_reqs)
            self._add("generated", iteration_stats.num_generation_tokens)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._sums))
        fresh.replace(self._path)

    def _add(self, name: str, number: float) -> None:
        self._sums[name] = self._sums.get(name, 0) + number

    def log_engine_initialized(self) -> None: ...
