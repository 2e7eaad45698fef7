"""The start of vLLM that is examined: its variables, its command line, its settings."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from vllm_vitals.cli.checks.command import CommandError, ServeCommand, parse
from vllm_vitals.cli.checks.installed import Release, release, vllm_versions
from vllm_vitals.configuration import FILE_VARIABLE, PREFIX, Loaded, SettingsError, load
from vllm_vitals.settings import PrometheusSettings, Settings


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

    @cached_property
    def prometheus(self) -> PrometheusSettings | None:
        """Return the scrape endpoint's settings, `None` when the settings are wrong."""
        return self.outcome.settings.prometheus if isinstance(self.outcome, Loaded) else None

    @cached_property
    def warnings(self) -> list[str]:
        """Return what the settings warn of, even when they are wrong."""
        if isinstance(self.outcome, Loaded):
            return self.outcome.warnings
        unknown = {name: text for name, text in self.environ.items() if _is_unknown(name)}
        return load(unknown).warnings

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
        origins = self.outcome.origins if isinstance(self.outcome, Loaded) else {}
        origin = origins.get((section, name)) or origins.get((section,))
        return f"from {origin}" if origin else "the default"


def _is_unknown(variable: str) -> bool:
    name = variable.removeprefix(PREFIX).lower().split("__")[0]
    return variable.startswith(PREFIX) and variable != FILE_VARIABLE and name not in Settings.model_fields
