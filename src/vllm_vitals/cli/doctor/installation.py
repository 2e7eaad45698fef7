"""Checks of Python, its packages and vLLM, and of whether vLLM will load the plugins."""

import platform
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.doctor.installed import floors, loads_plugins, module_file, release, version_of, vllm_versions
from vllm_vitals.cli.doctor.launch import Launch

OLDEST_VLLM = (0, 11, 1)
"""The first vLLM that loads stat-logger plugins."""
NEWEST_VLLM = (0, 33)
"""The newest vLLM that this version was tried with."""
SHOWN_PACKAGES = ("numpy", "prometheus-client", "msgspec")
PROCESS_STAT = Path("/proc/self/stat")
SAME_ENVIRONMENT = "The plugin must be installed in the environment that vLLM runs in"
GROUP = "vllm.stat_logger_plugins"
DISTRIBUTION = "vllm-vitals"
OTLP_PLUGIN = "vitals_otlp"
PROMETHEUS_PLUGIN = "vitals_prometheus"
RUST_FRONTEND = "VLLM_USE_RUST_FRONTEND"
FIRST_WITH_RUST = (0, 22)
NO_PYTHON = (
    "vLLM's Rust front end has no Python API server. It loads no stat-logger plugins, and does not say so in its log."
)
NATIVE_SIDECAR = (
    "`vllm-vitals sidecar --native-url http://HOST:8000/metrics`, which shows vLLM's own metrics under our names"
)


def python(_: Launch) -> Iterator[Finding]:
    """Check Python and the packages that the plugin needs."""
    versions = ", ".join(f"{name} {version_of(name) or 'missing'}" for name in SHOWN_PACKAGES)
    yield ok(f"Python {platform.python_version()} in {sys.prefix}, with {versions}")
    for name, floor in floors().items():
        found = version_of(name)
        if not found:
            yield fail(f"{name} is not installed", "Install vllm-vitals again, with its dependencies.")
        elif (release(found) or floor) < floor:
            wanted = ".".join(map(str, floor))
            yield fail(f"{name} {found} is too old", f"Upgrade it: {name} {wanted} or newer is needed.")
    if not PROCESS_STAT.is_file():
        yield warn(
            f"{PROCESS_STAT} cannot be read: vllm.engine.startup.duration will count from the import of the plugin, "
            "not from the start of the process",
            "Nothing to do unless you need that metric. On Linux, mount /proc.",
        )


def vllm(_: Launch) -> Iterator[Finding]:
    """Check that vLLM is installed and loads stat-logger plugins."""
    init, versions = module_file("vllm"), vllm_versions()
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    if init is None:
        yield fail(
            f"vLLM is not installed in {sys.prefix}" + (f", though metadata says {named}" if named else ""),
            f"{SAME_ENVIRONMENT}: run this command with the vllm-vitals of that environment, or install vLLM here.",
        )
        return
    numbers = release(next(iter(versions.values()), ""))
    if numbers is None:
        yield _unnumbered(init, named)
    elif numbers < OLDEST_VLLM:
        yield fail(f"{named} has no stat-logger plugins", "Upgrade vLLM to 0.11.1 or newer.")
    elif numbers[:2] > NEWEST_VLLM:
        yield warn(
            f"{named} was not tried with this version of vllm-vitals; the newest tried is 0.33",
            "It will probably work. Stats that a newer vLLM reports differently are left out and counted in "
            "vitals_errors_total. Look for a newer vllm-vitals.",
        )
    else:
        yield ok(named)
    if len({release(version) for version in versions.values()}) > 1:
        yield warn(f"several distributions provide the module vllm: {named}", "Uninstall all but one.")


def _unnumbered(init: Path, named: str) -> Finding:
    """Judge a vLLM without a release number by its source."""
    found = f"{named or f'vLLM in {init.parent}'} has no release number"
    if loads_plugins(init):
        return ok(f"{found}; its source loads stat-logger plugins")
    if loads_plugins(init) is None:
        return warn(f"{found}, and its source cannot be read", "It must be 0.11.1 or newer.")
    return fail(f"{found}, and its source has no stat-logger plugins", "Use vLLM 0.11.1 or newer.")


def registered(_: Launch) -> Iterator[Finding]:
    """Check the entry points: ours exist, their modules can be found, and no other distribution has the same names."""
    points = list(entry_points(group=GROUP))
    ours, others = _ours(points), [point for point in points if _owner(point) != DISTRIBUTION]
    if not ours:
        yield fail(
            f"no entry point of vllm-vitals in the group {GROUP}",
            "Install vllm-vitals with pip in vLLM's environment; a source tree on PYTHONPATH does not register plugins.",
        )
    for point in ours:
        if module_file(point.module) is None:
            yield fail(f"{point.name} names {point.value}, which cannot be found", "Install vllm-vitals again.")
        else:
            yield ok(f"{point.name} is registered in {GROUP}")
    for name, count in Counter(point.name for point in points).items():
        if count > 1:
            owners = ", ".join(_owner(point) for point in points if point.name == name)
            yield warn(f"{name} is registered by {owners}: vLLM takes the last", "Uninstall all but one of them.")
    if others:
        yield ok("other stat loggers: " + ", ".join(f"{point.name} ({_owner(point)})" for point in others))


def allowed(launch: Launch) -> Iterator[Finding]:
    """Check that VLLM_PLUGINS, if set, allows those of our plugins that have work to do."""
    value = launch.environ.get("VLLM_PLUGINS")
    idle = _idle(launch)
    ours = [point.name for point in _ours(entry_points(group=GROUP)) if point.name not in idle]
    if launch.sidecar and (named := [name for name in ours if name in (value or "").split(",")]):
        ours = named[:1]  # any one of them sends everything
    if value is None:
        yield ok("VLLM_PLUGINS is not set: vLLM loads every plugin")
    elif not ours:
        yield skip("VLLM_PLUGINS is set, but no plugin of ours is registered (see plugin)")
    else:
        yield _filtered(value, ours)


def frontend(launch: Launch) -> Iterator[Finding]:
    """Check that the API server is Python's."""
    value = launch.environ.get(RUST_FRONTEND, "0").strip()
    if value in ("", "0"):
        yield ok(f"{RUST_FRONTEND} is off: the API server is Python's")
    elif not value.isdigit():
        yield fail(f"{RUST_FRONTEND}={value!r} stops vLLM: it must be 0 or 1", f"Unset {RUST_FRONTEND}.")
    elif launch.release and launch.release < FIRST_WITH_RUST:
        yield ok(f"{RUST_FRONTEND}={value} has no effect before vLLM 0.22")
    else:
        advice = f"{NO_PYTHON} Unset {RUST_FRONTEND}, or run {NATIVE_SIDECAR}."
        yield fail(f"{RUST_FRONTEND}={value}: no plugin will load", advice)


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown distribution"


def _ours(points: Iterable[EntryPoint]) -> list[EntryPoint]:
    return [point for point in points if _owner(point) == DISTRIBUTION]


def _idle(launch: Launch) -> set[str]:
    """Return those of our plugins that have no work to do by the settings. At least one always has work."""
    if launch.otlp is not None and not (launch.otlp.enabled and launch.otlp.endpoint):
        return {OTLP_PLUGIN}
    return {PROMETHEUS_PLUGIN} if launch.prometheus is not None and not launch.prometheus.enabled else set()


def _filtered(value: str, ours: list[str]) -> Finding:
    """Judge a VLLM_PLUGINS. vLLM splits it at commas and keeps blanks and quotes."""
    listed = value.split(",")
    meant = [word.strip(" \t\n\"'") for word in listed]
    missing = [name for name in ours if name not in listed]
    good = ",".join(dict.fromkeys([*filter(None, meant), *ours]))
    set_it = f'Set it without blanks: VLLM_PLUGINS="{good}"'
    if not value:
        return fail("VLLM_PLUGINS is empty: vLLM loads no plugin at all", f"Unset VLLM_PLUGINS, or: {set_it}")
    unmatched = [word for word, name in zip(listed, meant, strict=True) if word != name]
    if not missing:
        if unmatched:
            return warn(f"VLLM_PLUGINS={value!r}: vLLM keeps blanks and quotes, so {unmatched} match nothing", set_it)
        return ok(f"VLLM_PLUGINS={value!r} names {', '.join(ours)}")
    found = f"VLLM_PLUGINS={value!r} does not name {', '.join(missing)}"
    if set(missing) & set(meant):
        found += f": vLLM splits at commas and keeps blanks and quotes, so {unmatched} match nothing"
        return fail(found, set_it)
    advice = f'Append ",{",".join(missing)}", without blanks: VLLM_PLUGINS="{good}"'
    return warn(found, advice) if missing == [PROMETHEUS_PLUGIN] != ours else fail(found, advice)
