"""A thousand LoRA adapters come and go: each is counted right while it has a place, and nothing stays behind."""

import random
from types import SimpleNamespace

from tests.unit.builders import EPOCH, MODEL
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.catalog.cache import LORA_REQUESTS, MAX_ADAPTERS
from vllm_vitals.config.settings import Settings
from vllm_vitals.exporters.otlp.encode import PushBuilder
from vllm_vitals.exporters.prometheus.text import Renderer
from vllm_vitals.records.step import OTHER
from vllm_vitals.store.series import NumberCell
from vllm_vitals.vllm.reader import Reader

Requests = dict[str, int]
STEPS = 600


class Places:
    """Who has a place: who had one and is still there keeps it, and newcomers take what is free, in their order."""

    def __init__(self) -> None:
        self._taken: list[str] = []

    def shown(self, running: Requests, waiting: Requests) -> dict[tuple[str, str], float]:
        there = list(dict.fromkeys([*running, *waiting]))
        self._taken = [name for name in self._taken if name in there]
        free = MAX_ADAPTERS - len(self._taken)
        self._taken += [name for name in there if name not in self._taken][:free]
        found: dict[tuple[str, str], float] = {}
        for state, requests in (("running", running), ("waiting", waiting)):
            for name, count in requests.items():
                key = (name if name in self._taken else OTHER, state)
                found[key] = found.get(key, 0) + count
        return found


def traffic(seed: int) -> list[tuple[Requests, Requests]]:
    """Return what runs and waits at each step: quiet times, and crowds of more adapters than there are places."""
    chance = random.Random(seed)
    names = [f"adapter-{chance.randrange(2**40):x}" for _ in range(1000)]
    steps = []
    here: list[str] = []
    for number in range(STEPS):
        crowd = (0, 3, 60, 150)[number // 25 % 4]
        here = [name for name in here if chance.random() < 0.8][:crowd]
        here += chance.sample(names, max(crowd - len(here), 0))
        running = {name: chance.randint(1, 9) for name in here if chance.random() < 0.7}
        waiting = {name: chance.randint(1, 9) for name in here if name not in running or chance.random() < 0.3}
        steps.append((running, waiting))
    return steps


def test_every_adapter_is_counted_and_nothing_stays(effort: str) -> None:
    for chance in range(1 if effort == "test" else 3):
        live(chance)


def live(seed: int) -> None:
    """Go through the steps of one traffic, which is told by its number."""
    aggregator = Aggregator(Settings())
    reader = Reader(MODEL, lambda *_: None)
    renderers = [Renderer(aggregator.store, openmetrics=openmetrics) for openmetrics in (False, True)]
    builder = PushBuilder(aggregator.store, temporality="delta", exponential=False, started=EPOCH, fresh=60.0)
    family, places = aggregator.store[LORA_REQUESTS], Places()
    seen: set[str] = set()
    crowded = 0
    for number, (running, waiting) in enumerate(traffic(seed)):
        stats = SimpleNamespace(num_running_reqs=1, running_lora_adapters=running, waiting_lora_adapters=waiting)
        aggregator.add(reader.read([(float(number), stats, None, None, 0)], EPOCH))
        expected = places.shown(running, waiting)
        cells = {key[2:]: cell.value for key, cell in family.cells.items() if isinstance(cell, NumberCell)}
        assert cells == expected
        assert sum(cells.values()) == sum(running.values()) + sum(waiting.values())
        assert len({name for name, _ in cells} - {OTHER}) <= MAX_ADAPTERS
        seen |= {*running, *waiting}
        crowded += (OTHER, "running") in cells
        if number % 10 == 0:
            for renderer in renderers:
                renderer.forget()
                shown = b"".join(renderer.render()).decode()
                assert shown.count("\nvllm_lora_requests{") == len(cells)
            builder.acknowledge(builder.build())
    assert len(seen) > 950
    assert crowded > 100
    assert not family.cells or number % 100 >= 25
    # A last quiet step: all places are free again, and nobody remembers those who had one.
    aggregator.add(reader.read([(1e6, SimpleNamespace(num_running_reqs=0), None, None, 0)], EPOCH))
    assert family.cells == {}
    assert [len(known) for known in family._seen] == [0, 0]
    for renderer in renderers:
        renderer.forget()
        assert not any("adapter-" in str(place) for kept in (renderer._kept, renderer._prefixes) for place in kept)
    builder.acknowledge(builder.build())
    assert not any("adapter-" in str(place) for place in builder._acknowledged)
