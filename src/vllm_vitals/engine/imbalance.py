"""The imbalance of work between the engines of a model, where one aggregator sees several engines."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vllm_vitals._util.amounts import quotient
from vllm_vitals.catalog.engine import RUNNING, SCHEDULED_TOKENS
from vllm_vitals.store.series import Cell, NumberCell
from vllm_vitals.store.store import Store

WINDOW_SECONDS = 10.0
"""The work of this time is compared: single steps are uneven by nature."""
SAMPLE_INTERVAL = 1.0
"""Seconds between two samples at least."""


class Load(NamedTuple):
    """The load of an engine at one moment."""

    running: float
    """Requests in its batch."""
    tokens: float
    """Tokens that it has worked on since it started."""


Sample = tuple[float, Mapping[str, Load]]
"""Monotonic seconds, and the load of each engine of a model."""


def loads(store: Store, engines: Iterable[tuple[str, str]]) -> dict[str, dict[str, Load]]:
    """Return the load of some engines by model and engine, as the store has it."""
    found: dict[str, dict[str, Load]] = {}
    for model, name in engines:
        running = store[RUNNING].cells.get((model, name))
        tokens = [cell for key, cell in store[SCHEDULED_TOKENS].cells.items() if key[:2] == (model, name)]
        found.setdefault(model, {})[name] = Load(_value(running), sum(map(_value, tokens)))
    return found


def _value(cell: Cell | None) -> float:
    return cell.value if isinstance(cell, NumberCell) else 0.0


class Imbalance:
    """Compares the engines of each model over the last `WINDOW_SECONDS`."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[Sample]] = {}
        self._latest = float("-inf")

    def is_due(self, clock: float) -> bool:
        """Return whether it is time for another sample; `clock`: monotonic seconds."""
        return clock - self._latest >= SAMPLE_INTERVAL

    def update(self, clock: float, loads: Mapping[str, Mapping[str, Load]]) -> Iterator[tuple[str, str, float | None]]:
        """Add a sample of the load by model and engine; yield each model, the compared quantity, and its ratio.

        The ratio is that of the busiest engine to the mean: from 1 (even) to the number of engines (all on one).
        It is `None` where there is nothing to compare.
        """
        self._latest = clock
        for model in self._samples.keys() | loads.keys():
            engines = loads.get(model, {})
            samples = self._samples.setdefault(model, deque())
            samples.append((clock, engines))
            while clock - samples[0][0] > WINDOW_SECONDS:
                samples.popleft()
            yield model, "running", _busiest_over_mean(_mean_running(engines, samples))
            yield model, "tokens", _busiest_over_mean(_tokens(engines, samples))
            if not engines:
                del self._samples[model]


def _mean_running(engines: Iterable[str], samples: Sequence[Sample]) -> list[float]:
    return [sum(seen[engine].running for _, seen in samples if engine in seen) / len(samples) for engine in engines]


def _tokens(engines: Mapping[str, Load], samples: Sequence[Sample]) -> list[float]:
    """Return the tokens of each engine within the window; a new engine starts from its first sample."""
    first = {engine: load.tokens for _, seen in reversed(samples) for engine, load in seen.items()}
    return [max(load.tokens - first[engine], 0.0) for engine, load in engines.items()]


def _busiest_over_mean(values: Sequence[float]) -> float | None:
    if len(values) < 2:  # noqa: PLR2004 - one engine cannot be uneven
        return None
    return quotient(max(values) * len(values), sum(values))
