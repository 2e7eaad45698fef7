"""The start of vLLM that is examined: its variables, its command line, its settings and the check of them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from vllm_vitals._util.redact import shown_url
from vllm_vitals.cli.doctor.finding import Finding, fail, ok, warn
from vllm_vitals.cli.doctor.installed import Release, release, vllm_versions
from vllm_vitals.cli.doctor.serve_command import CommandError, ServeCommand, parse
from vllm_vitals.config.load import ENDPOINT, HEADERS, PREFIX, Loaded, SettingsError, load
from vllm_vitals.config.settings import (
    GpuSettings,
    NativeSettings,
    OtlpSettings,
    PrometheusSettings,
    Settings,
    WireSettings,
)

NATIVE_URL = ("native", "url")
DOCUMENTED = "`vllm-vitals settings` lists every setting and what it allows."
WITHOUT = {
    "prometheus": "there will be no scrape endpoint",
    "otlp": "nothing will be pushed over OTLP",
    "gen_ai": "the gen_ai.server.* metrics will be left out",
}
"""What wrong settings of a section come to while those of no section are right."""


class Launch:
    """Everything that the checks look at, each part read once."""

    def __init__(self, environ: Mapping[str, str], command: Sequence[str] | None = None) -> None:
        """`command`: the planned `vllm serve` command line, `None` or empty when it is not known."""
        self.environ = environ
        self.command_error = ""
        self.command: ServeCommand | None = None
        try:
            self.command = parse(command) if command else None
        except CommandError as error:
            self.command_error = str(error)

    @cached_property
    def outcome(self) -> Loaded | SettingsError:
        """Return the settings, or what is wrong with them."""
        try:
            return load(self.environ)
        except SettingsError as error:
            return error

    @property
    def prometheus(self) -> PrometheusSettings | None:
        """Return the scrape endpoint's settings, `None` when they are wrong."""
        settings = self._section("prometheus")
        return settings.prometheus if settings else None

    @property
    def otlp(self) -> OtlpSettings | None:
        """Return the push's settings, `None` when they are wrong."""
        settings = self._section("otlp")
        return settings.otlp if settings else None

    @property
    def wire(self) -> WireSettings | None:
        """Return the settings of the way to another process, `None` when they are wrong."""
        settings = self._section("wire")
        return settings.wire if settings else None

    @property
    def native(self) -> NativeSettings | None:
        """Return the settings of the fetches of vLLM's own metrics, `None` when they are wrong."""
        settings = self._section("native")
        return settings.native if settings else None

    @property
    def gpu(self) -> GpuSettings | None:
        """Return the settings of what samples the GPUs, `None` when they are wrong."""
        settings = self._section("gpu")
        return settings.gpu if settings else None

    @property
    def sidecar(self) -> Path | None:
        """Return the socket of the sidecar that exports in place of vLLM's processes, `None` without one."""
        return self.wire.sidecar if self.wire else None

    def by_sidecar(self, does: str) -> str:
        """Return why this vLLM does not do something itself."""
        return f"wire.sidecar is set ({self.origin('wire', 'sidecar')}): the sidecar {does}, not vLLM"

    @cached_property
    def release(self) -> Release | None:
        """Return vLLM's release, `None` when it is not installed or does not tell."""
        return release(next(iter(vllm_versions().values()), ""))

    @property
    def api_servers(self) -> int:
        """Return how many processes of this host will load the plugin, 1 when the command line is not known."""
        return self.command.api_servers(self.release) if self.command else 1

    def origin(self, section: str, name: str) -> str:
        """Return where a setting's value came from, as words: a variable, a place in the file, or the default."""
        if isinstance(self.outcome, SettingsError):
            variable = f"{PREFIX}{section}__{name}".upper()
            return f"from {variable}" if variable in self.environ else f"{variable} is not set"
        origin = self.outcome.origins.get((section, name)) or self.outcome.origins.get((section,))
        return f"from {origin}" if origin else "the default"

    def _section(self, name: str) -> Settings | None:
        if isinstance(self.outcome, Loaded):
            return self.outcome.settings
        return None if name in self.outcome.problems else self.outcome.rest


def settings(launch: Launch) -> Iterator[Finding]:
    """Check the settings, and tell where each that is not a default came from."""
    outcome = launch.outcome
    if isinstance(outcome, Loaded):
        told = [
            f"{'.'.join(path)} = {_shown(path, reduce(_part, path, outcome.settings))} (from {origin})"
            for path, origin in outcome.origins.items()
        ]
        yield ok("; ".join(told) if told else "every setting has its default")
    else:
        for section, lines in outcome.problems.items():
            what_then = WITHOUT.get(section, "") if outcome.rest else "vLLM will start without our metrics"
            if outcome.strict:
                what_then = "vLLM will not start"
            yield from (fail(line, f"Until then {what_then}. {DOCUMENTED}") for line in lines)
    for line in outcome.warnings:
        yield warn(line, f"Correct it or unset it. {DOCUMENTED}")


def _shown(path: tuple[str, ...], value: Any) -> str:
    """Return a value as it may be shown: without the password of an address, and of headers the names only."""
    if path in (ENDPOINT, NATIVE_URL):
        return shown_url(value)
    return ", ".join(value) if path == HEADERS else str(value)


def _part(whole: Any, name: str) -> Any:
    return whole[name] if isinstance(whole, dict) else getattr(whole, name)
