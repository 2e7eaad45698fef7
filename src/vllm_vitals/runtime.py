"""What runs in one serving process: one collector, one feed, each exporter once, however many loggers."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from vllm_vitals.collector.collector import Collector
from vllm_vitals.configuration import SettingsError, load
from vllm_vitals.feed.feed import Feed
from vllm_vitals.feed.tap import Tap
from vllm_vitals.logs import LOGGER
from vllm_vitals.settings import Settings
from vllm_vitals.step import Sleep, Step
from vllm_vitals.vllm.facts import api_server, engine_facts, model_name, process_age
from vllm_vitals.vllm.reader import Reader

SILENT = Tap(0)
"""The tap of a logger that is off, or is not the first of its `AsyncLLM`."""


class Exporter(Protocol):
    """Something that shows the collector's store to the world, on threads of its own."""

    def start(self) -> None:
        """Begin; must not block."""

    def stop(self) -> None:
        """End, in bounded time."""

    def abandon(self) -> None:
        """Let go of what a fork copied, without touching threads or locks."""


class Source:
    """One `AsyncLLM`: which of our loggers it has, and the tap that the first of them fills."""

    def __init__(self, config: Any, owner: type) -> None:
        self._config = weakref.ref(config) if hasattr(config, "__weakref__") else lambda: config
        self.owners = {owner}

    def is_of(self, config: Any, owner: type) -> bool:
        """Tell whether a logger of class `owner` for `config` belongs to the same `AsyncLLM`."""
        return self._config() is config and owner not in self.owners


class Runtime:
    """The single instance of everything in this process."""

    def __init__(self, settings: Settings, broken: Mapping[str, Sequence[str]] | None = None) -> None:
        """`broken`: what is wrong with the settings of a section, which is off therefore."""
        self.settings = settings
        self.broken = broken or {}
        self.collector = Collector(settings)
        self.feed = Feed(self.collector, settings.drain_interval)
        self.exporters: dict[str, Exporter] = {}
        self._sources: list[Source] = []

    def check(self, section: str) -> None:
        """Raise `SettingsError` if something is wrong with the settings of a section."""
        if section in self.broken:
            raise SettingsError({section: self.broken[section]})

    def attach(self, config: Any, engines: Sequence[int], owner: type, version: str) -> Tap:
        """Return the tap that a logger of class `owner` writes to: a silent one unless it is its `AsyncLLM`'s first."""
        for source in self._sources:
            if source.is_of(config, owner):
                source.owners.add(owner)
                return SILENT
        self._sources.append(Source(config, owner))
        model = model_name(config)
        features = self._start_engines(config, [str(engine) for engine in engines], version)
        tap = Tap(self.settings.queue_size)
        reader = Reader(
            model,
            self.feed.complain,
            details="iteration_details" in features,
            pooling="pooling" in features,
        )
        self.feed.attach(tap, _read(reader, time.monotonic() - process_age()))
        return tap

    def _start_engines(self, config: Any, engines: Sequence[str], version: str) -> frozenset[str]:
        features: frozenset[str] = frozenset()
        for engine in engines:
            facts = engine_facts(config, engine, len(engines), version)
            features = facts.features
            self.collector.add([facts, Sleep(facts.model, engine, "awake")])
        rank, count = api_server(config)
        if count > 1:
            LOGGER.warning(
                "API server %d of %d shows only the requests that it serves itself, on its own port", rank, count
            )
        return features

    def expose(self, name: str, make: Callable[[], Exporter]) -> None:
        """Start an exporter unless this process has it already."""
        if name not in self.exporters:
            self.exporters[name] = make()
            self.exporters[name].start()

    def stop(self) -> None:
        """Drain, then end the exporters."""
        self.feed.stop()
        for exporter in self.exporters.values():
            exporter.stop()

    def abandon(self) -> None:
        """Fall silent in the child of a fork: its numbers would be copies of its parent's."""
        self.feed.close()
        for exporter in self.exporters.values():
            exporter.abandon()


def _read(reader: Reader, born: float) -> Callable[[Any, Any, Any, Any, float, float], Step]:
    def read(scheduler: Any, iteration: Any, multimodal: Any, engine: Any, now: float, clock: float) -> Step:
        name = str(engine) if type(engine) is int and 0 <= engine < 2**31 else "_other"
        return reader.step(scheduler, iteration, multimodal, name, time=now, clock=clock, age=clock - born)

    return read


_runtime: Runtime | None = None
_lock = threading.Lock()


def runtime() -> Runtime:
    """Return this process's runtime, made from the environment the first time.

    Raises:
        SettingsError: when settings are wrong that are no exporter's own.
    """
    global _runtime  # noqa: PLW0603 - one per process is the point
    with _lock:
        if _runtime is None:
            _runtime = _make()
            atexit.register(_runtime.stop)
            _watch_forks()
        return _runtime


def _make() -> Runtime:
    try:
        loaded = load(os.environ)
    except SettingsError as error:
        if error.rest is None:
            raise
        return Runtime(error.rest, error.problems)
    for warning in loaded.warnings:
        LOGGER.warning("%s", warning)
    return Runtime(loaded.settings)


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _runtime, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    if _runtime is not None:
        atexit.unregister(_runtime.stop)
        _runtime.abandon()
        _runtime = None
