"""Time, energy and cost of the engines' GPUs."""

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

HOUR_SECONDS = 3600.0


class Costs:
    """Adds up the GPU time, energy and cost of engines. Callers hold the store's lock."""

    def __init__(self, store: Store, price: PriceSettings) -> None:
        self._store = store
        self._per_second = price.per_gpu_hour / HOUR_SECONDS if price.per_gpu_hour else None
        self._currency = price.currency
        if price.per_gpu_hour:
            store[PRICE].number((), (price.currency,)).set(price.per_gpu_hour, time.time())

    def prepare(self, engine: Engine) -> None:
        """Create the series of an engine with a known number of GPUs, so that a rate over them has a start."""
        if self._per_second and engine.gpus:
            for state in STATES:
                self._store[COST].number(engine.scope, (state, self._currency))
            self._store[SAVED_COST].number(engine.scope, (self._currency,))

    def spend(self, engine: Engine, seconds_by_limiter: Mapping[str, float]) -> None:
        """Count an engine's seconds, by limiter, and the energy of its GPUs that is divided by now."""
        for limiter, seconds in seconds_by_limiter.items():
            state, gpu_seconds = activity(limiter), seconds * (engine.gpus or 0)
            self._store[GPU_TIME].number(engine.scope, (state,)).add(gpu_seconds)
            if self._per_second and engine.gpus:
                self._store[COST].number(engine.scope, (state, self._currency)).add(gpu_seconds * self._per_second)
        for state, joules in engine.energy.joules.items():
            self._store[ENERGY].number(engine.scope, (state,)).add(joules)
        engine.energy.joules.clear()

    def save(self, engine: Engine, seconds: float) -> None:
        """Count the price of the seconds that an engine saved."""
        if self._per_second and engine.gpus:
            saved = seconds * engine.gpus * self._per_second
            self._store[SAVED_COST].number(engine.scope, (self._currency,)).add(saved)

    def sample(self, engines: Mapping[Owner, Engine], samples: Iterable[Sample]) -> None:
        """Take the energy and the names of the engines' GPUs from samples."""
        for sample in samples:
            for owner, readings in _by_owner(engines, sample.readings).items():
                engine = engines[owner]
                names = {_name(reading.gpu) for reading in readings}
                engine.gpu_utilization.gpu = names.pop() if len(names) == 1 else ""
                used = [each for reading in readings if (each := amount(reading.energy)) is not None]
                if used and self._store[ENERGY].accepts(joules := sum(used)):
                    if not engine.has_energy:
                        self._start_energy(engine)
                    engine.energy.add_reading(sample.clock, joules)

    def _start_energy(self, engine: Engine) -> None:
        engine.has_energy = True
        for state in STATES:
            self._store[ENERGY].number(engine.scope, (state,))


def _by_owner(engines: Mapping[Owner, Engine], readings: Sequence[Reading]) -> dict[Owner, list[Reading]]:
    """Return the readings of each engine's GPUs.

    If the owner of the GPUs is unknown, they belong to the only engine, if it has as many GPUs.
    """
    owned: dict[Owner, list[Reading]] = {}
    for reading in readings:
        owned.setdefault((reading.model, reading.engine), []).append(reading)
    if set(owned) == {NOBODY} and _belong_to_only_engine(engines.values(), readings):
        return {next(iter(engines)): list(readings)}
    return {owner: readings for owner, readings in owned.items() if owner in engines}


def _belong_to_only_engine(engines: Collection[Engine], readings: Sequence[Reading]) -> bool:
    whole = not any(reading.gpu.parent for reading in readings)
    return whole and len(engines) == 1 and next(iter(engines)).gpus == len(readings)


def _name(gpu: Gpu) -> str:
    """Return the name of a GPU. A part of a GPU may report the name of the whole, and gets another."""
    return f"{gpu.name}, a part of a GPU" if gpu.parent else gpu.name
