"""Checks of Python, of what it has installed, and of vLLM."""

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from vllm_vitals.cli.doctor.finding import Finding, fail, ok, warn
from vllm_vitals.cli.doctor.installed import floors, loads_plugins, module_file, release, version_of, vllm_versions
from vllm_vitals.cli.doctor.launch import Launch

FIRST = (0, 11, 1)
"""The first vLLM that loads stat-logger plugins."""
NEWEST = (0, 33)
"""The newest vLLM that this version has been tried with."""
SHOWN = ("numpy", "prometheus-client", "msgspec")
CLOCK = Path("/proc/self/stat")
HERE = "The plugin must be installed in the environment that vLLM runs in"


def python(_: Launch) -> Iterator[Finding]:
    """Check Python and the libraries that the plugin works with."""
    versions = ", ".join(f"{name} {version_of(name) or 'missing'}" for name in SHOWN)
    yield ok(f"Python {platform.python_version()} in {sys.prefix}, with {versions}")
    for name, floor in floors().items():
        found = version_of(name)
        if not found:
            yield fail(f"{name} is not installed", "Install vllm-vitals again, with its dependencies.")
        elif (release(found) or floor) < floor:
            wanted = ".".join(map(str, floor))
            yield fail(f"{name} {found} is too old", f"Upgrade it: {name} {wanted} or newer is needed.")
    if not CLOCK.is_file():
        yield warn(
            f"{CLOCK} cannot be read: vllm.engine.startup.duration will count from the plugin's import, not from the "
            "start of the process",
            "Nothing to do unless you need that metric; on Linux, mount /proc.",
        )


def vllm(_: Launch) -> Iterator[Finding]:
    """Check that vLLM is there and loads stat-logger plugins."""
    init, versions = module_file("vllm"), vllm_versions()
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    if init is None:
        yield fail(
            f"vLLM is not installed in {sys.prefix}" + (f", though metadata says {named}" if named else ""),
            f"{HERE}: run this command with that environment's vllm-vitals, or install vLLM here.",
        )
        return
    numbers = release(next(iter(versions.values()), ""))
    if numbers is None:
        yield _unnumbered(init, named)
    elif numbers < FIRST:
        yield fail(f"{named} has no stat-logger plugins", "Upgrade vLLM to 0.11.1 or newer.")
    elif numbers[:2] > NEWEST:
        yield warn(
            f"{named} has not been tried with this version of vllm-vitals yet; the newest tried is 0.33",
            "It is likely to work: what a newer vLLM reports differently is left out and counted in "
            "vitals_errors_total. See whether there is a newer vllm-vitals.",
        )
    else:
        yield ok(named)
    if len({release(version) for version in versions.values()}) > 1:
        yield warn(f"several distributions provide the module vllm: {named}", "Uninstall all but one.")


def _unnumbered(init: Path, named: str) -> Finding:
    """Judge a vLLM that does not tell its release by its source."""
    what = named or f"vLLM in {init.parent}"
    if loads_plugins(init):
        return ok(f"{what} does not tell its release; its source loads stat-logger plugins")
    if loads_plugins(init) is None:
        return warn(f"{what} does not tell its release, and its source cannot be read", "It must be 0.11.1 or newer.")
    return fail(f"{what} has no stat-logger plugins", "Use vLLM 0.11.1 or newer.")
