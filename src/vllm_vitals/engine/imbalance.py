"""How unevenly the engines of a model share its work, where one collector sees several of them."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vllm_vitals._util.amounts import quotient
from vllm_vitals.catalog.engine import RUNNING, SCHEDULED_TOKENS
from vllm_vitals.store.series import Cell, NumberCell
from vllm_vitals.store.store import Store

WINDOW = 10.0
"""Seconds over which the work is compared: single steps are uneven by nature."""
PACE = 1.0
"""Seconds between two looks at least."""


class Load(NamedTuple):
    """What an engine does at a moment."""

    running: float
    """Requests in its batch."""
    tokens: float
    """Tokens that it has worked on since it started."""


def loads(store: Store, engines: Iterable[tuple[str, str]]) -> dict[str, dict[str, Load]]:
    """Return the load of some engines, each by its model and its own name, as the store has it."""
    found: dict[str, dict[str, Load]] = {}
    for model, name in engines:
        running = store[RUNNING].cells.get((model, name))
        tokens = [cell for key, cell in store[SCHEDULED_TOKENS].cells.items() if key[:2] == (model, name)]
        found.setdefault(model, {})[name] = Load(_value(running), sum(map(_value, tokens)))
    return found


def _value(cell: Cell | None) -> float:
    return cell.value if isinstance(cell, NumberCell) else 0.0


class Imbalance:
    """Compares the engines of each model over the last `WINDOW` seconds."""

    def __init__(self) -> None:
        self._models: dict[str, deque[tuple[float, Mapping[str, Load]]]] = {}
        self._latest = float("-inf")

    def due(self, clock: float) -> bool:
        """Tell whether it is time for another look; `clock`: monotonic seconds."""
        return clock - self._latest >= PACE

    def look(self, clock: float, loads: Mapping[str, Mapping[str, Load]]) -> Iterator[tuple[str, str, float | None]]:
        """Take note of the load of each engine of each model; yield the models, what is compared, and the ratio.

        The ratio is that of the busiest engine to the mean: 1 is even, the number of engines is all on one of them.
        `None`: there is nothing to compare.
        """
        self._latest = clock
        for model in self._models.keys() | loads.keys():
            engines = loads.get(model, {})
            looks = self._models.setdefault(model, deque())
            looks.append((clock, engines))
            while clock - looks[0][0] > WINDOW:
                looks.popleft()
            yield model, "running", _uneven(_mean_running(engines, looks))
            yield model, "tokens", _uneven(_tokens(engines, looks))
            if not engines:
                del self._models[model]


def _mean_running(engines: Iterable[str], looks: Sequence[tuple[float, Mapping[str, Load]]]) -> list[float]:
    return [sum(seen[engine].running for _, seen in looks if engine in seen) / len(looks) for engine in engines]


def _tokens(engines: Mapping[str, Load], looks: Sequence[tuple[float, Mapping[str, Load]]]) -> list[float]:
    """Return the tokens of each engine within the window; one that is new began with what it had."""
    before = {engine: load.tokens for _, seen in reversed(looks) for engine, load in seen.items()}
    return [max(load.tokens - before[engine], 0.0) for engine, load in engines.items()]


def _uneven(values: Sequence[float]) -> float | None:
    if len(values) < 2:  # noqa: PLR2004 - one engine is not uneven
        return None
    return quotient(max(values) * len(values), sum(values))
