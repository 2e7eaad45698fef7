"""What runs in one serving process: one feed, and one collector with each exporter once, however many loggers."""

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
from vllm_vitals.exporters.base import Exporter, stop_all
from vllm_vitals.ingest.drain import Feed, Read, Sink, Source
from vllm_vitals.ingest.step_queue import Tap
from vllm_vitals.records.placement import Placement
from vllm_vitals.records.step import LONGEST_NAME, MOST_TAPS, Dialect, Facts, Sleep
from vllm_vitals.vllm.connectors import as_told
from vllm_vitals.vllm.engine_config import api_server, engine_facts, model_name, placement, process_age
from vllm_vitals.vllm.generated import generated
from vllm_vitals.vllm.reader import Reader
from vllm_vitals.vllm.told import Bearer, finish_reasons, tells_details, tells_request_ids, write

if TYPE_CHECKING:
    from vllm_vitals.deployment.remote import Link
    from vllm_vitals.gpu.sampler import Sampler

EXPORTERS = ("prometheus", "otlp")
"""Sections of the settings that are an exporter's own: what is wrong there is said by its logger."""

SILENT = Tap(0)
"""The tap of a logger that is off, or is not the first of its `AsyncLLM`."""


class Client:
    """One `AsyncLLM`: which of our loggers it has, and the tap that the first of them fills."""

    def __init__(self, config: Any, owner: type, over: Callable[[], bool]) -> None:
        """`over` tells whether it is no more, whether its configuration is or not."""
        self._gone: list[object] = []
        weak = hasattr(config, "__weakref__")
        self._config = weakref.ref(config, self._gone.append) if weak else lambda: config
        self._over = over
        self.owners = {owner}
        self.tap = SILENT

    @property
    def config(self) -> Any:
        """Return the configuration, `None` once it is gone, and the `AsyncLLM` with it."""
        return self._config()

    def over(self) -> bool:
        """Tell whether nothing will come any more."""
        return bool(self._gone) or self._over()


class Runtime:
    """The single instance of everything in this process."""

    def __init__(self, settings: Settings, broken: Mapping[str, Sequence[str]] | None = None) -> None:
        """`broken`: what is wrong with the settings of a section, which is off therefore."""
        self.settings = settings
        self.broken = broken or {}
        self.aggregator = Aggregator(settings)
        self.feed = Feed(self.aggregator, settings.drain_interval, generated=generated)
        self.aggregator.upstream = self.feed.drain
        self.exporters: dict[str, Exporter] = {}
        self._joined = False
        """Whether it is decided where the steps of this process go."""
        self._link: Link | None = None
        self._clients: list[Client] = []
        self._placements: list[Placement] = []
        self._roots = (os.getpid(),)
        """What the processes of this vLLM descend from."""
        self._attaching = threading.Lock()
        self._told: weakref.WeakValueDictionary[int, Tap] = weakref.WeakValueDictionary()
        """By their numbers, the taps of which something may still be told unread."""

    def check(self, section: str) -> None:
        """Raise `SettingsError` if something is wrong with the settings of a section."""
        if section in self.broken:
            raise SettingsError({section: self.broken[section]}, strict=self.settings.strict)

    @property
    def remote(self) -> bool:
        """Tell whether a sidecar exports what this process sees, whichever exporters are on here."""
        return self.settings.wire.sidecar is not None

    def attach(
        self,
        config: Any,
        engines: Sequence[int],
        owner: type,
        version: str,
        over: Callable[[], bool] = lambda: False,
    ) -> Tap:
        """Return the tap that a logger of class `owner` writes to: a silent one unless it is its `AsyncLLM`'s first.

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
                known.tap.limit = 0
                known.tap.orphaned = True
                self._clients.remove(known)
            self._clients.append(client)
            return client.tap

    def _let_go(self) -> None:
        """Forget every `AsyncLLM` that is no more, after what it left has been taken in."""
        if any(client.over() for client in self._clients):
            self.feed.drain()
        self._clients = [client for client in self._clients if not (client.tap.orphaned or client.over())]

    def _open(self, config: Any, engines: Sequence[str], version: str, client: Client) -> None:
        if not self._joined:
            self._join(*api_server(config))
            self._joined = True
        if self.settings.exemplars and not self.remote and not tells_request_ids():
            log_once(logging.WARNING, "There will be no exemplars: vLLM %s does not tell the ids of requests, 0.20.0 and newer do; "
                     "the setting exemplars has no effect", version, key="exemplars")  # fmt: skip
        if (mine := placement(config, engines)) not in self._placements:  # a logger may be made anew
            self._placements.append(mine)
        facts = [engine_facts(config, engine, len(engines), version) for engine in engines]
        sink = self._link.sender if self._link else self.aggregator
        client.tap, read = self._way(model_name(config), facts[0], sink)
        # Before its engines are told of: another that had them may end right now.
        self.feed.attach(Source(client.tap, read, model_name(config), engines, client.over))
        for each in facts:
            sink.add([each, Sleep(each.model, each.engine, "awake")])

    def _join(self, rank: int, count: int) -> None:
        """Decide, at the first `AsyncLLM`, where the steps of this process go."""
        wire = self.settings.wire
        if wire.sidecar is None and count == 1:
            return
        from vllm_vitals.deployment.leader_lock import meeting_point  # noqa: PLC0415 - only where steps leave the process
        from vllm_vitals.deployment.remote import Link  # noqa: PLC0415

        socket = wire.sidecar or wire.socket or meeting_point(make=True)
        self.aggregator.process = str(rank)
        if count > 1:  # all of them, and the engines, are children of one
            self._roots = (os.getppid(),)
        self._link = Link(socket, rank, wire.buffer, None if wire.sidecar else self.aggregator)
        self.aggregator.upstream = None
        self.feed = Feed(self._link.sender, wire.interval, str(rank), generated)
        self._link.start()

    def _way(self, model: str, facts: Facts, sink: Sink) -> tuple[Tap, Read]:
        """Return what takes an `AsyncLLM`'s calls, and what makes records of them.

        They are read here, unless there is a sidecar to do that.
        """
        number = next(number for number in range(MOST_TAPS + 1) if number not in self._told)
        dialect = Dialect(
            model,
            time.monotonic() - process_age(),
            self.aggregator.process,
            number,
            details="iteration_details" in facts.features and tells_details(),
            pooling="pooling" in facts.features,
            connector=facts.info.get("kv_connector", "")[:LONGEST_NAME],
            reasons=finish_reasons(),
        )
        reader = Reader.of(dialect, self.feed.complain)
        if not self.remote or not dialect.reasons or number >= MOST_TAPS:
            return Tap(self.settings.queue_size, as_told if dialect.connector else None), reader.read
        sink.add([dialect])
        tap = self._told[number] = Tap(self.settings.queue_size, write)
        return tap, Bearer(number, reader).bear

    def expose(self, name: str, make: Callable[[], Exporter]) -> None:
        """Start an exporter unless this process has it already, or another process exports for it."""
        with self._attaching:
            self._expose(name, make)
            if self.settings.gpu.enabled and "gpu" not in self.broken:
                self._expose("gpu", self._sampler)

    def _expose(self, name: str, make: Callable[[], Exporter]) -> None:
        if self._link is not None:
            self._link.expose(name, make)
        elif name not in self.exporters:
            self.exporters[name] = make()
            self.exporters[name].start()

    def _sampler(self) -> "Sampler":
        """Return what samples the GPUs; it runs where the exporters do, and is started and stopped as they are."""
        from vllm_vitals.gpu.sampler import sampler  # noqa: PLC0415 - only where GPUs are sampled

        gpu = self.settings.gpu
        return sampler(self.aggregator, gpu.interval, gpu.devices, lambda: tuple(self._placements), self._roots)

    def stop(self) -> None:
        """Drain, then end the exporters."""
        self.feed.stop()
        if self._link is not None:
            self._link.stop()
        stop_all(self.exporters)

    def abandon(self) -> None:
        """Fall silent in the child of a fork: its numbers would be copies of its parent's."""
        self.feed.close()
        if self._link is not None:
            self._link.abandon()
        for exporter in self.exporters.values():
            exporter.abandon()


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
        _warn(error.warnings)
        others = [line for section, lines in error.problems.items() if section not in EXPORTERS for line in lines]
        if error.rest is None or (others and error.strict):
            raise
        for line in others:
            LOGGER.error("Left out, and what it belongs to is off: %s", line)
        return Runtime(error.rest, error.problems)
    _warn(loaded.warnings)
    return Runtime(loaded.settings)


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
        _runtime.abandon()
        _runtime = None
