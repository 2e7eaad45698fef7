"""vLLM's own Prometheus logger, run for real over a private registry: the oracle for our numbers."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tests.compat.calls import Call
from tests.compat.releases import Release


class Oracle:
    """The release's PrometheusStatLogger and what it has counted."""

    def __init__(self, release: Release, config: Any, engines: Sequence[int] = (0,)) -> None:
        self.registry = CollectorRegistry()
        self._release = release
        self._model = config.model_config.served_model_name
        with release.installed():
            self.logger = oracle_class(release, self.registry)(config, list(engines))
            self.logger.log_engine_initialized()

    def replay(self, calls: Iterable[Call]) -> "Oracle":
        """Make `calls` in order and return self."""
        with self._release.installed():
            for call in calls:
                call.apply(self.logger)
        return self

    def value(self, sample: str, engine: int | None = 0, **labels: str) -> float | None:
        """Return the value of a sample such as `vllm:prompt_tokens_total`, None if it does not exist.

        `engine=None` is for the few series without an engine label.
        """
        own = {"model_name": self._model} if engine is None else {"model_name": self._model, "engine": str(engine)}
        return self.registry.get_sample_value(sample, {**own, **labels})


def oracle_class(release: Release, registry: CollectorRegistry) -> type:
    """Return PrometheusStatLogger with its class hooks, the ones Ray uses, bound to `registry`."""
    with release.installed():
        bound: type = _bind(release.PrometheusStatLogger, registry)
    return bound


def _bind(cls: type, registry: CollectorRegistry) -> type:
    """Make a subclass of `cls` whose metric classes, and those of its parts, register in `registry`."""
    hooks: dict[str, Any] = {}
    for name in (name for name in dir(cls) if name.endswith("_cls")):
        value = getattr(cls, name)
        if value in (Counter, Gauge, Histogram):
            hooks[name] = staticmethod(functools.partial(value, registry=registry))
        else:
            hooks[name] = _bind(value, registry)
    return type(cls.__name__, (cls,), hooks)
