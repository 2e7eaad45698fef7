"""Loads the real stats and logger classes of a vLLM release, without torch and without leaks."""

import functools
import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from tests.compat.stubs import ReleaseFinder
from tests.compat.wheels import sources

STATS = "vllm.v1.metrics.stats"
LOGGERS = "vllm.v1.metrics.loggers"

#: Where a class is looked for, in this order.
_HOMES = (
    STATS,
    LOGGERS,
    "vllm.v1.engine",
    "vllm.v1.engine.output_processor",
    "vllm.v1.spec_decode.metrics",
    "vllm.v1.metrics.prometheus",
)

#: Modules bound to one release. Ours are among them, since they subclass vLLM's classes on import.
_SCOPE = ("vllm", "torch", "vllm_vitals.plugin", "vllm_vitals.vllm")
_WITHIN = tuple(f"{scope}." for scope in _SCOPE)


@dataclass(eq=False)
class Release:
    """One vLLM release: its classes, and a scope in which `import vllm` means it."""

    version: str
    root: Path
    _finder: ReleaseFinder = field(repr=False)
    _modules: dict[str, types.ModuleType] = field(default_factory=dict, repr=False)

    @contextmanager
    def installed(self) -> Iterator["Release"]:
        """Let imports inside the block find this release; afterwards everything is as it was."""
        if _active and _active[-1] is self:
            yield self
            return
        before = _take()
        if _active:
            _active[-1]._modules = before
        _put(self._modules)
        sys.meta_path.insert(0, self._finder)
        _active.append(self)
        try:
            yield self
        finally:
            _active.pop()
            sys.meta_path.remove(self._finder)
            self._modules = _take()
            _put(_active[-1]._modules if _active else before)

    def load(self, module: str) -> types.ModuleType:
        """Import `module`, of vLLM or of ours, as it is under this release."""
        with self.installed():
            return importlib.import_module(module)

    @functools.cache  # noqa: B019 - releases live as long as the process
    def find(self, name: str) -> Any:
        """Return the release's own class or function called `name`, or None if it has none."""
        homes = map(self.load, _HOMES)
        return next((vars(home)[name] for home in homes if name in vars(home)), None)

    def __getattr__(self, name: str) -> Any:
        """Find `release.IterationStats` and the like; AttributeError if this release lacks it."""
        found = None if name.startswith("_") else self.find(name)
        if found is None:
            raise AttributeError(f"vLLM {self.version} has no {name}")
        return found

    @functools.cache  # noqa: B019
    def fields(self, name: str) -> frozenset[str]:
        """Return the data attributes of the class called `name`; empty if the release lacks it."""
        cls = self.find(name)
        if cls is None:
            return frozenset()
        if hasattr(cls, "__struct_fields__"):
            return frozenset(cls.__struct_fields__)
        if is_dataclass(cls):
            return frozenset(item.name for item in fields(cls))
        properties = (key for key, value in vars(cls).items() if isinstance(value, property))
        return frozenset({*vars(cls()), *properties})

    def has(self, path: str) -> bool:
        """Tell whether the release has the class or the `Class.field`."""
        name, _, attribute = path.partition(".")
        return attribute in self.fields(name) if attribute else self.find(name) is not None

    def at_least(self, version: str) -> bool:
        """Tell whether this is release `version` or a later one."""
        return _key(self.version) >= _key(version)

    def build(self, name: str, **values: Any) -> Any:
        """Make an instance of the class called `name` from those `values` that it has fields for."""
        known = self.fields(name)
        return self.find(name)(**{key: value for key, value in values.items() if key in known})


#: The releases installed now, the innermost last.
_active: list[Release] = []


@functools.cache
def load(version: str) -> Release:
    """Return the release `version`, fetched if need be, loaded once per process."""
    root = sources(version)
    return Release(version, root, ReleaseFinder(version, root))


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _scoped(name: str) -> bool:
    return name.startswith(_SCOPE) and (name in _SCOPE or name.startswith(_WITHIN))


def _take() -> dict[str, types.ModuleType]:
    """Remove the scoped modules from the interpreter and return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if _scoped(name)}


def _put(modules: dict[str, types.ModuleType]) -> None:
    """Make `modules` the scoped modules, also where a parent package refers to them."""
    sys.modules.update(modules)
    for scope in _SCOPE:
        parent, _, name = scope.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(name, None)
            if scope in modules:
                setattr(sys.modules[parent], name, modules[scope])
