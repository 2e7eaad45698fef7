"""The calls vLLM makes to a stat logger, as data that can be replayed on any logger."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.compat.totals import Totals


@dataclass(frozen=True)
class Record:
    """One `record()`, with the release's own stats objects."""

    scheduler_stats: Any = None
    iteration_stats: Any = None
    mm_cache_stats: Any = None
    engine_idx: int = 0

    def apply(self, logger: Any) -> None:
        """Call `logger` the way StatLoggerManager does."""
        logger.record(
            self.scheduler_stats,
            self.iteration_stats,
            mm_cache_stats=self.mm_cache_stats,
            engine_idx=self.engine_idx,
        )


@dataclass(frozen=True)
class Sleep:
    """One `record_sleep_state()`: 1 is asleep."""

    sleep: int
    level: int

    def apply(self, logger: Any) -> None:
        """Call `logger` the way StatLoggerManager does."""
        logger.record_sleep_state(self.sleep, self.level)


@dataclass(frozen=True)
class Rejection:
    """One `record_admission_rejection()`."""

    reason: str

    def apply(self, logger: Any) -> None:
        """Call `logger` the way StatLoggerManager does."""
        logger.record_admission_rejection(self.reason)


Call = Record | Sleep | Rejection


@dataclass(frozen=True)
class Scenario:
    """Calls of one release, what they add up to per engine, and what they need to be counted.

    `config` holds changes for `make_config`, `environment` the variables vLLM reads meanwhile.
    """

    calls: list[Call]
    totals: Mapping[int, Totals]
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> list[Record]:
        """The calls of `record()` alone."""
        return [call for call in self.calls if isinstance(call, Record)]


def one_engine(calls: Iterable[Call], totals: Totals, **config: Mapping[str, Any]) -> Scenario:
    """Make the scenario of a single engine, number 0."""
    return Scenario(list(calls), {0: totals}, config)
