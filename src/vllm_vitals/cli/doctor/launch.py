"""The planned start of vLLM: its environment, its command line and its settings."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NoReturn

from vllm_vitals._util import documents
from vllm_vitals._util.bounds import clean
from vllm_vitals._util.redact import shown_url
from vllm_vitals.cli.doctor.finding import Finding, fail, ok, warn
from vllm_vitals.cli.doctor.installed import Release, release, vllm_versions
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
SETTINGS_ADVICE = "`vllm-vitals settings` lists every setting and what it allows."
CONSEQUENCES = {
    "prometheus": "there will be no scrape endpoint",
    "otlp": "nothing will be pushed over OTLP",
    "gen_ai": "the gen_ai.server.* metrics will be left out",
}
"""What happens while a section has wrong settings and the rest is right."""
DEFAULT_PORT = 8000
FIRST_WITH_SERVER_PER_RANK = (0, 15)
"""The first vLLM that starts as many API servers as there are data-parallel ranks."""
INTEGER_OPTIONS = {
    "--api-server-count": "-asc",
    "--data-parallel-size": "-dp",
    "--data-parallel-size-local": "-dpl",
    "--data-parallel-rank": "-dpn",
    "--data-parallel-start-rank": "-dpr",
    "--port": "",
}
SWITCHES = {
    "--headless": "",
    "--disable-log-stats": "",
    "--enable-elastic-ep": "",
    "--data-parallel-hybrid-lb": "-dph",
    "--data-parallel-external-lb": "-dpe",
    "--data-parallel-multi-port-external-lb": "-dpm",
}


class CommandError(ValueError):
    """A command line that vLLM would refuse too."""


@dataclass
class ServeCommand:
    """The options of `vllm serve` that matter to the plugin."""

    api_server_count: int | None
    data_parallel_size: int | None
    data_parallel_size_local: int | None
    data_parallel_rank: int | None
    data_parallel_start_rank: int | None
    port: int | None
    headless: bool
    disable_log_stats: bool
    enable_elastic_ep: bool
    data_parallel_hybrid_lb: bool
    data_parallel_external_lb: bool
    data_parallel_multi_port_external_lb: bool

    def api_servers(self, release: Release | None) -> int:
        """Return how many API servers this vLLM starts on this host, or in each of its ranks; 0 on a headless node."""
        if self.headless:
            return 0
        count = self._default_api_servers(release) if self.api_server_count is None else self.api_server_count
        return min(count, 1) if self.enable_elastic_ep else count

    def _default_api_servers(self, release: Release | None) -> int:
        one_each = self.data_parallel_multi_port_external_lb or self.data_parallel_external_lb
        if one_each or self.data_parallel_rank is not None or (release and release < FIRST_WITH_SERVER_PER_RANK):
            return 1
        if self.data_parallel_hybrid_lb or self.data_parallel_start_rank is not None:
            return self.data_parallel_size_local or 1
        return self.data_parallel_size or 1


class Launch:
    """Everything that the checks look at. Each part is read once."""

    def __init__(self, environ: Mapping[str, str], command: Sequence[str] | None = None) -> None:
        """`command`: the planned `vllm serve` command line; `None` or empty if it is not known."""
        self.environ = environ
        self.command_error = ""
        self.command: ServeCommand | None = None
        try:
            self.command = parse(command) if command else None
        except CommandError as error:
            self.command_error = str(error)

    @cached_property
    def outcome(self) -> Loaded | SettingsError:
        """Return the settings, or the errors in them."""
        try:
            return load(self.environ)
        except SettingsError as error:
            return error

    @property
    def prometheus(self) -> PrometheusSettings | None:
        """Return the settings of the scrape endpoint, or `None` if they are wrong."""
        settings = self._section("prometheus")
        return settings.prometheus if settings else None

    @property
    def otlp(self) -> OtlpSettings | None:
        """Return the settings of the push, or `None` if they are wrong."""
        settings = self._section("otlp")
        return settings.otlp if settings else None

    @property
    def wire(self) -> WireSettings | None:
        """Return the settings of the connection to another process, or `None` if they are wrong."""
        settings = self._section("wire")
        return settings.wire if settings else None

    @property
    def native(self) -> NativeSettings | None:
        """Return the settings for fetching vLLM's own metrics, or `None` if they are wrong."""
        settings = self._section("native")
        return settings.native if settings else None

    @property
    def gpu(self) -> GpuSettings | None:
        """Return the settings of the GPU sampler, or `None` if they are wrong."""
        settings = self._section("gpu")
        return settings.gpu if settings else None

    @property
    def sidecar(self) -> Path | None:
        """Return the socket of the sidecar that exports instead of vLLM's processes, or `None` without one."""
        return self.wire.sidecar if self.wire else None

    def by_sidecar(self, does: str) -> str:
        """Return why the sidecar does something, and not this vLLM."""
        return f"wire.sidecar is set ({self.origin('wire', 'sidecar')}): the sidecar {does}, not vLLM"

    @cached_property
    def release(self) -> Release | None:
        """Return vLLM's release, or `None` if vLLM is not installed or its version has no numbers."""
        return release(next(iter(vllm_versions().values()), ""))

    @property
    def api_servers(self) -> int:
        """Return how many processes of this host will load the plugin; 1 if the command line is not known."""
        return self.command.api_servers(self.release) if self.command else 1

    def origin(self, section: str, name: str) -> str:
        """Return where a setting's value comes from, in words: a variable, a place in the file, or the default."""
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
    """Check the settings, and show where each one that is not a default comes from."""
    outcome = launch.outcome
    if isinstance(outcome, Loaded):
        values = [
            f"{'.'.join(path)} = {_shown(path, reduce(_part, path, outcome.settings))} (from {origin})"
            for path, origin in outcome.origins.items()
        ]
        yield ok("; ".join(values) if values else "every setting has its default")
    else:
        for section, lines in outcome.problems.items():
            consequence = CONSEQUENCES.get(section, "") if outcome.rest else "vLLM will start without our metrics"
            if outcome.strict:
                consequence = "vLLM will not start"
            yield from (fail(line, f"Until then {consequence}. {SETTINGS_ADVICE}") for line in lines)
    for line in outcome.warnings:
        yield warn(line, f"Correct it or unset it. {SETTINGS_ADVICE}")


def _shown(path: tuple[str, ...], value: Any) -> str:
    """Return a value that is safe to show: a URL without its password, and only the names of headers."""
    if path in (ENDPOINT, NATIVE_URL):
        return shown_url(value)
    return ", ".join(value) if path == HEADERS else str(value)


def _part(whole: Any, name: str) -> Any:
    return whole[name] if isinstance(whole, dict) else getattr(whole, name)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(message)


def parse(words: Sequence[str]) -> ServeCommand:
    """Return the options of a command line that matter; all others are ignored.

    Raises:
        CommandError: when an option has no value, or a value of the wrong type.
    """
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    for name, short in INTEGER_OPTIONS.items():
        parser.add_argument(*filter(None, (name, short)), type=int)
    for name, short in SWITCHES.items():
        parser.add_argument(*filter(None, (name, short)), action=argparse.BooleanOptionalAction, default=False)
    dashed = [_dashed(word) for word in words]
    options, _ = parser.parse_known_args(dashed)
    if options.config:
        options, _ = parser.parse_known_args([*_from_file(Path(options.config)), *dashed])
    del options.config
    return ServeCommand(**vars(options))


def _dashed(word: str) -> str:
    """Return an option as vLLM reads it: underscores in its name are dashes."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _from_file(path: Path) -> Iterator[str]:
    """Yield the options of vLLM's configuration file as words. Those of the command line come later and win."""
    try:
        content = documents.load(path, unique=False)
    except documents.DocumentError as error:
        raise CommandError(f"--config {clean(str(path), 300)} {error}") from None
    for name, value in content.items() if isinstance(content, dict) else ():
        yield from _words(_dashed(f"--{name}"), value)


def _words(option: str, value: Any) -> Iterator[str]:
    if value is True:
        yield option
    elif isinstance(value, int | float | str) and value is not False:
        yield f"{option}={value}"
