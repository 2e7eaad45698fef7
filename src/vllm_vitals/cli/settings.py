"""`vllm-vitals settings`: every setting, read off the models that check them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_origin

from pydantic import BaseModel
from rich.table import Table
from rich.text import Text

from vllm_vitals.cli.allowed import allowed, default
from vllm_vitals.cli.output import console
from vllm_vitals.config.load import PREFIX
from vllm_vitals.config.otel_env import VARIABLES
from vllm_vitals.config.settings import Settings
from vllm_vitals.config.types import Section

OTEL: dict[tuple[str, ...], tuple[str, ...]] = {variable.path: variable.names for variable in VARIABLES}


@dataclass(frozen=True)
class Setting:
    """One setting as it is told to people."""

    path: tuple[str, ...]
    default: str
    allowed: str
    description: str

    @property
    def key(self) -> str:
        """Return the place in the settings file."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """Return the environment variable."""
        return PREFIX + "__".join(self.path).upper()

    @property
    def standard(self) -> str:
        """Return the OpenTelemetry variables that are obeyed too, the first of them first, `""` for none."""
        return ", ".join(OTEL.get(self.path, ()))


def sections(model: type[BaseModel] = Settings, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str, list[Setting]]]:
    """Yield each section's key, what it is about and its own settings, the top level first."""
    inner: list[tuple[str, type[BaseModel]]] = []
    own: list[Setting] = []
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        if section := _section(field.annotation):
            inner.append((name, section))
        else:
            property_ = schema["properties"][name]
            told = default(field.get_default(call_default_factory=True)), allowed(property_, schema.get("$defs", {}))
            own.append(Setting((*path, name), *told, field.description or ""))
    yield ".".join(path), (model.__doc__ or "").strip(), own
    for name, section in inner:
        yield from sections(section, (*path, name))


def _section(annotation: Any) -> type[BaseModel] | None:
    # Python 3.10 takes `dict[str, float]` for a class until asked for its bases.
    is_class = isinstance(annotation, type) and get_origin(annotation) is None
    return annotation if is_class and issubclass(annotation, Section) else None


def as_markdown() -> str:
    """Return `docs/settings.md`."""
    from vllm_vitals.cli.settings_page import page  # noqa: PLC0415 - it needs `sections`

    return page()


def show() -> None:
    """Print a table for each section."""
    out = console()
    for key, about, settings in sections():
        out.print(_table(key, about, settings))
        out.print()
    out.print(
        "Variables win over OTEL_* variables, those over the file that VITALS_CONFIG names, that over the default."
    )


def _table(key: str, about: str, settings: list[Setting]) -> Table:
    title = f"{key}: {about}" if key else "general"
    table = Table(title=title, title_justify="left", title_style="bold", expand=True, show_lines=True)
    table.add_column("variable, file key", no_wrap=True)
    table.add_column("default, allowed", ratio=2, overflow="fold")
    table.add_column("meaning", ratio=3)
    for setting in settings:
        values = Text.assemble((setting.default, "bold"), "\n", setting.allowed)
        table.add_row(_names(setting), values, setting.description)
    return table


def _names(setting: Setting) -> Text:
    text = Text.assemble((setting.variable, "bold"), "\n", (setting.key, "cyan"))
    return text.append(f"\nor {setting.standard}", "dim") if setting.standard else text
