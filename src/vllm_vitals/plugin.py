"""The stat loggers that vLLM loads. The only module that imports vLLM."""

import logging
import os
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar, cast

from vllm.v1.metrics.loggers import AggregateStatLoggerBase

from vllm_vitals._util.labels import named
from vllm_vitals._util.log import LOGGER, log_once
from vllm_vitals.config.load import SettingsError, is_strict
from vllm_vitals.config.settings import NativeSettings
from vllm_vitals.deployment.runtime import SILENT, Runtime, runtime
from vllm_vitals.exporters.prometheus.exporter import PrometheusExporter
from vllm_vitals.ingest.step_queue import StepQueue
from vllm_vitals.vllm.engine_config import api_server, process_age
from vllm_vitals.vllm.life import Life

Hook = TypeVar("Hook", bound=Callable[..., None])
SLEEP_LEVELS = {1: "weights_offloaded", 2: "discard_all"}


def vllm_version() -> str:
    """Return the version of the vLLM that this process runs."""
    try:
        from vllm import __version__  # noqa: PLC0415 - absent in some builds
    except ImportError:
        try:
            return version("vllm")
        except PackageNotFoundError:
            return "unknown"
    return str(__version__)


def guarded(hook: Hook) -> Hook:
    """Let no exception reach vLLM: one that did would end its output handler, and every request with it."""

    @wraps(hook)
    def call(self: "VitalsLogger", *args: Any, **kwargs: Any) -> None:
        try:
            hook(self, *args, **kwargs)
        except Exception:  # noqa: BLE001 - counted as an error of the hook
            self._queue.failed += 1

    return cast("Hook", call)


def complete(logger: type) -> type:
    """Let a logger be made although vLLM's base class may have new hooks: its own do nothing."""
    logger.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return logger


class VitalsLogger(AggregateStatLoggerBase):  # type: ignore[misc]
    """What our stat loggers share: the hooks that vLLM calls on its event loop.

    Arguments that later releases may add are accepted and ignored.
    """

    name = ""
    section = ""
    """The section of the settings that is this logger's."""

    def __init__(self, vllm_config: Any, engine_indexes: Sequence[int] | None = None, **_: Any) -> None:
        self._queue: StepQueue = SILENT
        self._config = vllm_config  # that is not gone before this logger is
        try:
            host = runtime(*api_server(vllm_config))
            host.check(self.section)
            if not (host.has_sidecar or self.enabled(host)):
                return
            self._queue = host.attach(vllm_config, engine_indexes or [0], type(self), vllm_version(), Life(self).over)
            self.start(host)
        except SettingsError as error:
            for line in str(error).splitlines():
                if not log_once(logging.ERROR, "%s stays off: %s", self.name, line, key=line):
                    LOGGER.info("%s stays off for a reason that was logged before", self.name)
            if error.strict:
                raise
        except Exception:
            LOGGER.exception("%s stays off: it could not start", self.name)
            if is_strict(os.environ):
                raise

    def enabled(self, host: Runtime) -> bool:
        """Tell whether the settings want this logger."""
        raise NotImplementedError

    def start(self, host: Runtime) -> None:
        """Start what this logger exports through."""
        raise NotImplementedError

    def record(  # noqa: D102
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: Any = 0,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        try:
            self._queue.record(scheduler_stats, iteration_stats, mm_cache_stats, engine_idx)
        except Exception:  # noqa: BLE001 - see `guarded`, which would cost as much again
            self._queue.failed += 1

    @guarded
    def record_sleep_state(self, sleep: Any = 0, level: Any = 0, *_args: Any, **_kwargs: Any) -> None:
        """Take in that all engines sleep (1) at a level, or are awake (0): vLLM calls it `is_awake`, but 1 is asleep."""
        self._queue.sleep = SLEEP_LEVELS.get(level, "paused") if sleep == 1 else "awake"

    @guarded
    def record_admission_rejection(self, reason: Any = "", *_args: Any, **_kwargs: Any) -> None:
        """Take in that a request was turned away."""
        self._queue.reject(named(reason))

    def log(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: it is called only by some servers, so nothing of ours may depend on it."""

    def log_engine_initialized(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: the engines have been up since before this logger was made."""


@complete
class PrometheusVitals(VitalsLogger):
    """A scrape endpoint on a port of its own."""

    name = "vitals_prometheus"
    section = "prometheus"

    def enabled(self, host: Runtime) -> bool:  # noqa: D102
        if not host.settings.prometheus.enabled:
            LOGGER.info("No scrape endpoint: prometheus.enabled is false")
        return host.settings.prometheus.enabled

    def start(self, host: Runtime) -> None:  # noqa: D102
        settings = host.settings.prometheus
        problem, native = host.drainer.problem, native_registry(host.settings.native)
        host.expose(self.name, lambda: PrometheusExporter(host.aggregator, settings, problem, native))


@complete
class OtlpVitals(VitalsLogger):
    """A push over OTLP."""

    name = "vitals_otlp"
    section = "otlp"

    def enabled(self, host: Runtime) -> bool:  # noqa: D102
        settings = host.settings.otlp
        if settings.endpoint is None:
            LOGGER.info("No OTLP push: no endpoint is set (OTEL_EXPORTER_OTLP_ENDPOINT, VITALS_OTLP__ENDPOINT)")
        elif not settings.enabled:
            LOGGER.info("No OTLP push: it is switched off (otlp.enabled, OTEL_SDK_DISABLED, OTEL_METRICS_EXPORTER)")
        return settings.enabled and settings.endpoint is not None

    def start(self, host: Runtime) -> None:  # noqa: D102
        from vllm_vitals.exporters.otlp.exporter import otlp_exporter  # noqa: PLC0415 - heavy, and only when on

        native = native_registry(host.settings.native)
        host.expose(
            self.name,
            lambda: otlp_exporter(host.aggregator, host.settings, vllm_version(), process_age(), native),
        )


def native_registry(settings: NativeSettings) -> Callable[[], Any]:
    """Return what gives vLLM's own metrics: those of a URL if there is one, else of this process's registry."""
    if settings.url is None:
        return _registry
    from vllm_vitals._util.trust import Trust  # noqa: PLC0415
    from vllm_vitals.vllm_page.parse import Page  # noqa: PLC0415 - only when asked for

    return Page(settings.url, settings.timeout, Trust(settings.tls_ca, settings.tls_cert, settings.tls_key)).fresh


def _registry() -> Any:
    """Return the registry behind vLLM's own /metrics."""
    from vllm.v1.metrics.prometheus import get_prometheus_registry  # noqa: PLC0415 - only when asked for

    return get_prometheus_registry()
