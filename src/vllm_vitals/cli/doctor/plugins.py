"""Checks that vLLM will find and load the plugins."""

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points

from vllm_vitals.cli.doctor.finding import Finding, fail, ok, skip, warn
from vllm_vitals.cli.doctor.installed import module_file
from vllm_vitals.cli.doctor.launch import Launch

GROUP = "vllm.stat_logger_plugins"
OURS = "vllm-vitals"
PUSH = "vitals_otlp"
SCRAPE = "vitals_prometheus"
RUST = "VLLM_USE_RUST_FRONTEND"
FIRST_RUST = (0, 22)
NO_PYTHON = "vLLM's Rust front end has no Python API server, so no stat-logger plugin is ever loaded, silently."
NATIVE = "`vllm-vitals sidecar --native-url http://HOST:8000/metrics`, which shows vLLM's own metrics under the names of ours"


def registered(_: Launch) -> Iterator[Finding]:
    """Check the entry points: ours are there, can be found, and are nobody else's too."""
    points = list(entry_points(group=GROUP))
    ours, others = _ours(points), [point for point in points if _owner(point) != OURS]
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
    """Check that VLLM_PLUGINS, if set, lets those of our plugins through that have something to do."""
    value = launch.environ.get("VLLM_PLUGINS")
    idle = _idle(launch)
    ours = [point.name for point in _ours(entry_points(group=GROUP)) if point.name not in idle]
    if launch.sidecar and (named := [name for name in ours if name in (value or "").split(",")]):
        ours = named[:1]  # any one of them sends all
    if value is None:
        yield ok("VLLM_PLUGINS is not set: vLLM loads every plugin")
    elif not ours:
        yield skip("VLLM_PLUGINS is set, but no plugin of ours is registered (see plugin)")
    else:
        yield _filtered(value, ours)


def frontend(launch: Launch) -> Iterator[Finding]:
    """Check that Python serves the requests."""
    value = launch.environ.get(RUST, "0").strip()
    if value in ("", "0"):
        yield ok(f"{RUST} is not on: the API server is Python's")
    elif not value.isdigit():
        yield fail(f"{RUST}={value!r} stops vLLM: it must be 0 or 1", f"Unset {RUST}.")
    elif launch.release and launch.release < FIRST_RUST:
        yield ok(f"{RUST}={value} has no effect before vLLM 0.22")
    else:
        yield fail(f"{RUST}={value}: no plugin will load", f"{NO_PYTHON} Unset {RUST}, or run {NATIVE}.")


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown distribution"


def _ours(points: object) -> list[EntryPoint]:
    return [point for point in points if _owner(point) == OURS]  # type: ignore[attr-defined]


def _idle(launch: Launch) -> set[str]:
    """Return the plugins of ours that the settings leave nothing to do; one of them at least has always something."""
    if launch.otlp is not None and not (launch.otlp.enabled and launch.otlp.endpoint):
        return {PUSH}
    return {SCRAPE} if launch.prometheus is not None and not launch.prometheus.enabled else set()


def _filtered(value: str, ours: list[str]) -> Finding:
    """Judge a VLLM_PLUGINS; vLLM splits it at commas and compares as is, blanks and quotes included."""
    listed = value.split(",")
    meant = [word.strip(" \t\n\"'") for word in listed]
    missing = [name for name in ours if name not in listed]
    good = ",".join(dict.fromkeys([*filter(None, meant), *ours]))
    set_it = f'Set it so, without blanks: VLLM_PLUGINS="{good}"'
    if not value:
        return fail("VLLM_PLUGINS is empty: vLLM loads no plugin at all", f"Unset VLLM_PLUGINS, or: {set_it}")
    trapped = [word for word, name in zip(listed, meant, strict=True) if word != name]
    if not missing:
        if trapped:
            return warn(f"VLLM_PLUGINS={value!r}: vLLM keeps blanks and quotes, so {trapped} match nothing", set_it)
        return ok(f"VLLM_PLUGINS={value!r} names {', '.join(ours)}")
    found = f"VLLM_PLUGINS={value!r} does not name {', '.join(missing)}"
    if set(missing) & set(meant):
        found += f": vLLM splits at commas and keeps blanks and quotes, so {trapped} match nothing"
        return fail(found, set_it)
    advice = f'Append ",{",".join(missing)}", without blanks: VLLM_PLUGINS="{good}"'
    return warn(found, advice) if missing == [SCRAPE] != ours else fail(found, advice)
