"""Finds vLLM's modules for one release: real where kept, opaque stand-ins where heavy."""

import importlib
import logging
import types
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from tests.compat.shake import compiled
from tests.compat.wheels import INDEX

_CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.v1"
_OFFLOADING = ("OffloadingConnectorStats", "OffloadPromMetrics")

#: Of these heavy modules only the named definitions (and what they need) are executed.
PICKED: Mapping[str, tuple[str, ...]] = {
    "vllm.compilation.cuda_graph": ("CUDAGraphStat", "CUDAGraphLogging"),
    f"{_CONNECTORS}.hf3fs.hf3fs_connector": ("HF3FSKVConnectorStats", "HF3FSPromMetrics"),
    f"{_CONNECTORS}.multi_connector": ("MultiKVConnectorStats", "MultiKVConnectorPromMetrics"),
    f"{_CONNECTORS}.nixl_connector": ("NixlKVConnectorStats", "NixlPromMetrics"),
    f"{_CONNECTORS}.offloading.metrics": _OFFLOADING,
    f"{_CONNECTORS}.offloading_connector": _OFFLOADING,
    "vllm.utils": ("length_from_prompt_token_ids_or_embeds",),
    "vllm.v1.engine": ("FinishReason", "EngineCoreEvent", "EngineCoreEventType", "EngineCoreOutput"),
    "vllm.v1.engine.output_processor": (
        "OutputProcessor.update_scheduler_stats",
        "OutputProcessor._update_stats_from_output",
        "OutputProcessor._update_stats_from_finished",
    ),
    "vllm.v1.engine.parallel_sampling": (
        "ParentRequest.n",
        "ParentRequest.observe_finished_request",
        "ParentRequest.observe_num_generation_tokens",
    ),
    "vllm.v1.kv_offload.base": (
        "OffloadingCounterMetadata",
        "OffloadingGaugeMetadata",
        "OffloadingHistogramMetadata",
        "OffloadingMetricMetadata",
        "OffloadingSpec.build_metric_definitions",
    ),
    "vllm.v1.kv_offload.cpu.common": ("CPUOffloadingMetrics",),
    "vllm.v1.kv_offload.cpu.spec": ("CPUOffloadingSpec.build_metric_definitions",),
    "vllm.v1.metrics.perf": ("PerfStats", "DebugPerfStats", "PerfMetricsLogging", "PerfMetricsProm"),
}

#: Kept for their text (see configs.py), too heavy to execute.
_STUBBED = ("vllm.config", "vllm.v1.metrics.ray_wrappers")


class _Opaque(type):
    """A class that stands for any vLLM or torch class in annotations."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _opaque(name)

    def __getitem__(cls, _: object) -> type:
        return cls


def _opaque(name: str) -> type:
    return _Opaque(name, (), {"__doc__": "Stand-in."})


class _Logger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """vLLM's logger, whose `*_once` methods the standard one lacks."""

    debug_once = logging.LoggerAdapter.debug
    info_once = logging.LoggerAdapter.info
    warning_once = logging.LoggerAdapter.warning


def _init_logger(name: str) -> _Logger:
    return _Logger(logging.getLogger(name), {})


class ReleaseFinder(MetaPathFinder, Loader):
    """Imports `vllm` as the release in `root` has it, and a stand-in for `torch`."""

    def __init__(self, version: str, root: Path) -> None:
        self._root = root
        self._modules = frozenset((root / INDEX).read_text().split())
        self._given: dict[str, dict[str, Any]] = {
            "vllm": {"__version__": version},
            "vllm.version": {"__version__": version},
            "vllm.logger": {"init_logger": _init_logger},
        }

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - modules are found by their full name
        target: types.ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return a spec for a module of this release, None for other packages and modules it lacks."""
        if fullname in self._modules or fullname.partition(".")[0] == "torch":
            spec = ModuleSpec(fullname, self, origin=str(self._path(fullname) or "<stub>"), is_package=True)
            spec.has_location = True
            return spec
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        """Execute the real file, the picked part of it, or a stand-in."""
        name = module.__name__
        path = self._path(name)
        if path is None or name.startswith(_STUBBED):
            self._fill(module)
            return
        source = path.read_text(encoding="utf-8")
        if name in PICKED:
            code = compiled(source, PICKED[name], str(path))
        else:
            code = compile(source, str(path), "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102

    def _fill(self, module: types.ModuleType) -> None:
        """Make any public attribute of `module` a submodule or an opaque class, the same one each time."""

        def missing(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if (submodule := f"{module.__name__}.{name}") in self._modules:
                return importlib.import_module(submodule)
            return module.__dict__.setdefault(name, _opaque(name))

        module.__dict__.update(self._given.get(module.__name__, {}), __getattr__=missing)

    def _path(self, name: str) -> Path | None:
        base = self._root.joinpath(*name.split("."))
        return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
