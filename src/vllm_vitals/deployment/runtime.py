"""What runs in one serving process, once, however many loggers vLLM makes: a drainer, an aggregator, the exporters."""

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from vllm_vitals._util.log import LOGGER, log_once
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.load import SettingsError, load
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.topology import Topology, of_serving_process
from vllm_vitals.exporters.base import Exporter, stop_all
from vllm_vitals.ingest.step_drainer import Source, StepDrainer
from vllm_vitals.ingest.step_queue import StepQueue
from vllm_vitals.records.placement import Placement
from vllm_vitals.records.step import LONGEST_NAME, Facts, Sleep
from vllm_vitals.vllm.connectors import copied
from vllm_vitals.vllm.engine_config import (
    engine_facts,
    has_iteration_details,
    has_request_ids,
    model_name,
    placement,
    process_age,
)
from vllm_vitals.vllm.generated import generated
from vllm_vitals.vllm.reader import Reader

if TYPE_CHECKING:
    from vllm_vitals.deployment.remote import RemoteCollector
    from vllm_vitals.gpu.sampler import Sampler

EXPORTERS = ("prometheus", "otlp")
"""Sections of the settings that are an exporter's own: what is wrong there is said by its logger."""

SILENT = StepQueue(0)
"""The queue of a logger that is off, or is not the first of its `AsyncLLM`."""


class Client:
    """One `AsyncLLM`: which of our loggers it has, and the queue that the first of them fills."""

    def __init__(self, config: Any, owner: type, over: Callable[[], bool]) -> None:
        """`over` tells whether it is no more, whether its configuration is or not."""
        self._gone: list[object] = []
        weak = hasattr(config, "__weakref__")
        self._config = weakref.ref(config, self._gone.append) if weak else lambda: config
        self._over = over
        self.owners = {owner}
        self.queue = SILENT

    @property
    def config(self) -> Any:
        """Return the configuration, `None` once it is gone, and the `AsyncLLM` with it."""
        return self._config()

    def over(self) -> bool:
        """Tell whether nothing will come any more."""
        return bool(self._gone) or self._over()


class Runtime:
    """The single instance of everything in this process, built for its topology."""

    def __init__(
        self,
        settings: Settings,
        topology: Topology | None = None,
        broken: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`topology`: alone unless it is given. `broken`: errors in the settings of a section, which is off therefore."""
        self.settings = settings
        self.topology = topology = topology or Topology()
        self.broken = broken or {}
        sends = topology.sends
        self.aggregator = Aggregator(settings, process=topology.process, before_read=None if sends else self._drain)
        self._remote = self._connect(topology) if sends else None
        self.drainer = StepDrainer(
            self._remote.sender if self._remote else self.aggregator,
            settings.wire.interval if sends else settings.drain_interval,
            topology.process,
            generated,
        )
        self.exporters: dict[str, Exporter] = {}
        self._clients: list[Client] = []
        self._placements: list[Placement] = []
        self._attaching = threading.Lock()

    def _connect(self, topology: Topology) -> "RemoteCollector":
        from vllm_vitals.deployment.remote import RemoteCollector  # noqa: PLC0415 - only where steps leave the process

        assert topology.socket is not None  # noqa: S101 - `sends` means that
        holds = self.aggregator if topology.aggregates else None
        return RemoteCollector(topology.socket, topology.process, self.settings.wire.buffer, holds)

    def _drain(self) -> None:
        self.drainer.drain()

    def check(self, section: str) -> None:
        """Raise `SettingsError` if something is wrong with the settings of a section."""
        if section in self.broken:
            raise SettingsError({section: self.broken[section]}, strict=self.settings.strict)

    @property
    def has_sidecar(self) -> bool:
        """Return whether a sidecar exports the metrics of this process."""
        return not self.topology.aggregates

    def attach(
        self,
        config: Any,
        engines: Sequence[int],
        owner: type,
        version: str,
        over: Callable[[], bool] = lambda: False,
    ) -> StepQueue:
        """Return the queue that a logger of class `owner` writes to: a silent one unless it is its `AsyncLLM`'s first.

        A second logger of the same class for the same configuration takes the place of the first. `over` tells whether
        the `AsyncLLM` is no more; it is as well once its configuration is not there any more.
        """
        with self._attaching:
            self._let_go()
            known = next((client for client in self._clients if client.config is config), None)
            if known is not None and owner not in known.owners:
                known.owners.add(owner)
                return SILENT
            client = Client(config, owner, over)
            self._open(config, [str(engine) for engine in engines], version, client)
            if known is not None:
                known.queue.limit = 0
                known.queue.orphaned = True
                self._clients.remove(known)
            self._clients.append(client)
            return client.queue

    def _let_go(self) -> None:
        """Forget every `AsyncLLM` that is no more, after what it left has been taken in."""
        if any(client.over() for client in self._clients):
            self.drainer.drain()
        self._clients = [client for client in self._clients if not (client.queue.orphaned or client.over())]

    def _open(self, config: Any, engines: Sequence[str], version: str, client: Client) -> None:
        if self._remote is not None:
            self._remote.start()
        if self.settings.exemplars and not self.has_sidecar and not has_request_ids():
            log_once(logging.WARNING, "There will be no exemplars: vLLM %s does not tell the ids of requests, 0.20.0 and newer do; "
                     "the setting exemplars has no effect", version, key="exemplars")  # fmt: skip
        if (mine := placement(config, engines)) not in self._placements:  # a logger may be made anew
            self._placements.append(mine)
        facts = [engine_facts(config, engine, len(engines), version) for engine in engines]
        sink = self._remote.sender if self._remote else self.aggregator
        reader = self._reader(model_name(config), facts[0])
        # vLLM changes a connector's stats after the call, and nothing else.
        client.queue = StepQueue(self.settings.queue_size, copied if facts[0].info.get("kv_connector") else None)
        # Before its engines are told of: another that had them may end right now.
        self.drainer.attach(Source(client.queue, reader.read, model_name(config), engines, client.over))
        for each in facts:
            sink.add([each, Sleep(each.model, each.engine, "awake")])

    def _reader(self, model: str, facts: Facts) -> Reader:
        """Return what makes steps of the stats of an `AsyncLLM`."""
        return Reader(
            model,
            self.drainer.complain,
            born=time.monotonic() - process_age(),
            details="iteration_details" in facts.features and has_iteration_details(),
            pooling="pooling" in facts.features,
            connector=facts.info.get("kv_connector", "")[:LONGEST_NAME],
        )

    def expose(self, name: str, make: Callable[[], Exporter]) -> None:
        """Start an exporter unless this process has it already, or another process exports for it."""
        with self._attaching:
            self._expose(name, make)
            if self.settings.gpu.enabled and "gpu" not in self.broken:
                self._expose("gpu", self._sampler)

    def _expose(self, name: str, make: Callable[[], Exporter]) -> None:
        if self._remote is not None:
            self._remote.expose(name, make)
        elif name not in self.exporters:
            self.exporters[name] = make()
            self.exporters[name].start()

    def _sampler(self) -> "Sampler":
        """Return what samples the GPUs; it runs where the exporters do, and is started and stopped as they are."""
        from vllm_vitals.gpu.sampler import sampler  # noqa: PLC0415 - only where GPUs are sampled

        gpu = self.settings.gpu
        return sampler(
            self.aggregator, gpu.interval, gpu.devices, lambda: tuple(self._placements), self.topology.ancestors
        )

    def stop(self) -> None:
        """Drain, then end the exporters."""
        self.drainer.stop()
        if self._remote is not None:
            self._remote.stop()
        stop_all(self.exporters)

    def after_fork_in_child(self) -> None:
        """Fall silent in the child of a fork: its numbers would be copies of its parent's."""
        self.drainer.close()
        if self._remote is not None:
            self._remote.after_fork_in_child()
        for exporter in self.exporters.values():
            exporter.after_fork_in_child()


_runtime: Runtime | None = None
_lock = threading.Lock()


def runtime(rank: int = 0, count: int = 1) -> Runtime:
    """Return the runtime of this process. The first call makes it, for the API server `rank` of `count`.

    Raises:
        SettingsError: if settings are wrong that do not belong to an exporter.
        OSError: if several API servers have no place for their socket.
    """
    global _runtime  # noqa: PLW0603 - one per process is the point
    with _lock:
        if _runtime is None:
            _runtime = _make(rank, count)
            atexit.register(_runtime.stop)
            _watch_forks()
        return _runtime


def _make(rank: int = 0, count: int = 1) -> Runtime:
    settings, broken = _settings()
    return Runtime(settings, of_serving_process(settings.wire, rank, count), broken)


def _settings() -> tuple[Settings, Mapping[str, Sequence[str]]]:
    """Return the settings of this process, and the errors of each section that is off therefore."""
    try:
        loaded = load(os.environ)
    except SettingsError as error:
        _warn(error.warnings)
        others = [line for section, lines in error.problems.items() if section not in EXPORTERS for line in lines]
        if error.rest is None or (others and error.strict):
            raise
        for line in others:
            LOGGER.error("Left out, and what it belongs to is off: %s", line)
        return error.rest, error.problems
    _warn(loaded.warnings)
    return loaded.settings, {}


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        LOGGER.warning("%s", warning)


@cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    global _runtime, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    if _runtime is not None:
        atexit.unregister(_runtime.stop)
        _runtime.after_fork_in_child()
        _runtime = None
