"""Where settings come from, and clear words when they are wrong.

In this order: `VITALS_*` variables (nested names joined by two underscores), the standard `OTEL_*` variables,
the YAML or TOML file that `VITALS_CONFIG` names, the default.
"""

import difflib
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin

import yaml
from pydantic import TypeAdapter, ValidationError

from vllm_vitals.settings import Section, Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "VITALS_"
FILE_VARIABLE = "VITALS_CONFIG"
STANDARD = {
    "OTEL_EXPORTER_PROMETHEUS_HOST": ("prometheus", "host"),
    "OTEL_EXPORTER_PROMETHEUS_PORT": ("prometheus", "port"),
}
"""The standard variables that are obeyed, and the setting that each stands for."""

Path_ = tuple[str, ...]


class SettingsError(ValueError):
    """Some settings are wrong: one line for each, naming the setting, its value and what is allowed."""


@dataclass
class Loaded:
    """Settings, where each that is not a default came from, and what to warn of."""

    settings: Settings
    origins: dict[Path_, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def load(environ: Mapping[str, str]) -> Loaded:
    """Return the settings of an environment.

    Raises:
        SettingsError: for a value that is not allowed, and for a file that cannot be read.
    """
    values: dict[str, Any] = {}
    origins: dict[Path_, str] = {}
    problems: list[str] = []
    warnings: list[str] = []
    for path, value, origin in (*_from_file(environ), *_from_standard(environ), *_from_variables(environ, warnings)):
        try:
            given = _parsed(value) if origin in environ else value
            for leaf, each in _leaves({path[-1]: given}, path[:-1]):
                _put(values, leaf, each)
                origins[leaf] = origin
        except ValueError as error:
            problems.append(f"{origin}={value!r}: {error}")
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        problems += [_line(each, origins) for each in error.errors()]
    if problems:
        raise SettingsError("\n".join(problems))
    return Loaded(settings, origins, warnings)


def is_strict(environ: Mapping[str, str]) -> bool:
    """Tell whether wrong settings shall stop vLLM, even when no settings could be made of them."""
    given: dict[Path_, Any] = {}
    with suppress(SettingsError):
        given.update((path, value) for path, value, _ in _from_file(environ))
    given.update((path, value) for path, value, _ in _from_variables(environ, []))
    with suppress(ValidationError):
        return TypeAdapter(bool).validate_python(given.get(("strict",), False))
    return False


def _from_file(environ: Mapping[str, str]) -> Iterator[tuple[Path_, Any, str]]:
    name = environ.get(FILE_VARIABLE)
    if not name:
        return
    for path, value in _leaves(read_file(Path(name)), ()):
        yield path, value, f"{name}: {'.'.join(path)}"


def read_file(path: Path) -> dict[str, Any]:
    """Return what a YAML or TOML settings file says, or raise `SettingsError`."""
    where = f"{FILE_VARIABLE}={str(path)!r}"
    if path.suffix not in (".yaml", ".yml", ".toml"):
        raise SettingsError(f"{where}: the name must end in .yaml, .yml or .toml")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text)
        content = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist is a ValueError in YAML
        raise SettingsError(f"{where}: is not valid {path.suffix[1:]}: {error}") from error
    if content is not None and not isinstance(content, dict):
        raise SettingsError(f"{where}: must hold a mapping of settings, holds a {type(content).__name__}")
    return content or {}


def _leaves(tree: Mapping[Any, Any], path: Path_) -> Iterator[tuple[Path_, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and _is_section((*path, str(key))):
            yield from _leaves(value, (*path, str(key)))
        else:
            yield (*path, str(key)), value


def _is_section(path: Path_) -> bool:
    kind: Any = Settings
    for name in path:
        known = kind.model_fields.get(name)
        kind = known.annotation if known else None
        if get_origin(kind) is not None or not (isinstance(kind, type) and issubclass(kind, Section)):
            return False
    return True


def variables() -> Iterator[str]:
    """Yield the variable of every setting."""
    for name, field_ in Settings.model_fields.items():
        inner = field_.annotation.model_fields if _is_section((name,)) else {}  # type: ignore[union-attr]
        yield from (f"{PREFIX}{name}__{key}".upper() for key in inner)
        if not inner:
            yield f"{PREFIX}{name}".upper()


def _from_standard(environ: Mapping[str, str]) -> Iterator[tuple[Path_, Any, str]]:
    for variable, path in STANDARD.items():
        if environ.get(variable):  # the specification reads an empty variable as unset
            yield path, environ[variable], variable


def _from_variables(environ: Mapping[str, str], warnings: list[str]) -> Iterator[tuple[Path_, Any, str]]:
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if path[0] in Settings.model_fields:
            yield path, environ[variable], variable
            continue
        # A warning only: Kubernetes sets such variables for a Service whose name begins with "vitals".
        near = difflib.get_close_matches(variable, list(variables()), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        warnings.append(f"{variable} is not a setting and has no effect{hint}")


def _parsed(text: str) -> Any:
    """Return a variable's value; JSON when it looks like it."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error}") from error


def _put(tree: dict[str, Any], path: Path_, value: Any) -> None:
    deepest = 2 if _is_section(path[:1]) or path[0] == "buckets" else 1
    if len(path) > deepest:
        raise ValueError(f"the setting {'.'.join(path[:deepest])} has no parts")
    for name in path[:-1]:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ValueError(f"sets a part of {name}, which is given as a whole elsewhere")  # noqa: TRY004
        tree = inner
    tree[path[-1]] = value


def _line(error: Any, origins: Mapping[Path_, str]) -> str:
    path = tuple(str(part) for part in error["loc"])
    above = (origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origins)
    below = sorted(origin for given, origin in origins.items() if given[: len(path)] == path)
    origin = next(above, ", ".join(below))
    setting = ".".join(path)
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return f"{origin or setting}: there is no setting {setting!r}{_near(path)}"
    given = "" if isinstance(error["input"], dict) else f"={error['input']!r}"
    return f"{origin or setting}{given}: {message}" + (f" (setting {setting})" if origin else "")


def _near(path: Path_) -> str:
    kind: Any = Settings
    for name in path[:-1]:
        known = kind.model_fields.get(name)
        kind = known.annotation if known else None
        if not hasattr(kind, "model_fields"):
            return ""
    near = difflib.get_close_matches(path[-1], kind.model_fields, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(kind.model_fields)}"
