"""What the engines' GPUs take: time, energy, money."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence

from vllm_vitals._util.amounts import amount
from vllm_vitals.catalog.cost import COST, ENERGY, GPU_TIME, PRICE, SAVED_COST, STATES
from vllm_vitals.config.settings import PriceSettings
from vllm_vitals.engine.limiter import activity
from vllm_vitals.engine.state import Engine
from vllm_vitals.records.gpu import Gpu, Reading, Sample
from vllm_vitals.records.placement import NOBODY, Owner
from vllm_vitals.store.store import Store

HOUR = 3600.0


class Costs:
    """Adds up what engines take. Whoever calls it holds the store's lock."""

    def __init__(self, store: Store, price: PriceSettings) -> None:
        self._store = store
        self._per_second = price.per_gpu_hour / HOUR if price.per_gpu_hour else None
        self._currency = price.currency
        if price.per_gpu_hour:
            store[PRICE].number((), (price.currency,)).set(price.per_gpu_hour, time.time())

    def prepare(self, engine: Engine) -> None:
        """Make the series of an engine that is known to have GPUs, so that a rate over them has a start."""
        if self._per_second and engine.gpus:
            for state in STATES:
                self._store[COST].number(engine.scope, (state, self._currency))
            self._store[SAVED_COST].number(engine.scope, (self._currency,))

    def spend(self, engine: Engine, seconds_by_limiter: Mapping[str, float]) -> None:
        """Count an engine's time, in seconds by what limited it, and the energy of its GPUs that is divided by now."""
        for limiter, seconds in seconds_by_limiter.items():
            state, gpu_seconds = activity(limiter), seconds * (engine.gpus or 0)
            self._store[GPU_TIME].number(engine.scope, (state,)).add(gpu_seconds)
            if self._per_second and engine.gpus:
                self._store[COST].number(engine.scope, (state, self._currency)).add(gpu_seconds * self._per_second)
        for state, joules in engine.energy.joules.items():
            self._store[ENERGY].number(engine.scope, (state,)).add(joules)
        engine.energy.joules.clear()

    def save(self, engine: Engine, seconds: float) -> None:
        """Count the price of seconds that an engine was spared."""
        if self._per_second and engine.gpus:
            saved = seconds * engine.gpus * self._per_second
            self._store[SAVED_COST].number(engine.scope, (self._currency,)).add(saved)

    def sample(self, engines: Mapping[Owner, Engine], samples: Iterable[Sample]) -> None:
        """Take note of the energy and the names of the engines' GPUs."""
        for sample in samples:
            for owner, readings in _by_owner(engines, sample.readings).items():
                engine = engines[owner]
                names = {_name(reading.gpu) for reading in readings}
                engine.gpu_utilization.gpu = names.pop() if len(names) == 1 else ""
                used = [each for reading in readings if (each := amount(reading.energy)) is not None]
                if used and self._store[ENERGY].believes(joules := sum(used)):
                    if not engine.has_energy:
                        self._begin(engine)
                    engine.energy.add_reading(sample.clock, joules)

    def _begin(self, engine: Engine) -> None:
        engine.has_energy = True
        for state in STATES:
            self._store[ENERGY].number(engine.scope, (state,))


def _by_owner(engines: Mapping[Owner, Engine], readings: Sequence[Reading]) -> dict[Owner, list[Reading]]:
    """Return what each engine's GPUs said.

    Where nobody says whose a GPU is, they are the engine's if there is one alone and it has as many.
    """
    owned: dict[Owner, list[Reading]] = {}
    for reading in readings:
        owned.setdefault((reading.model, reading.engine), []).append(reading)
    if set(owned) == {NOBODY} and _are_of_one(engines.values(), readings):
        return {next(iter(engines)): list(readings)}
    return {owner: own for owner, own in owned.items() if owner in engines}


def _are_of_one(engines: Collection[Engine], readings: Sequence[Reading]) -> bool:
    whole = not any(reading.gpu.parent for reading in readings)
    return whole and len(engines) == 1 and next(iter(engines)).gpus == len(readings)


def _name(gpu: Gpu) -> str:
    """Return a GPU's name such that a part of one does not pass for a whole one, whose name it may have."""
    return f"{gpu.name}, a part of a GPU" if gpu.parent else gpu.name
