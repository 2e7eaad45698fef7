"""Where settings come from, and clear words when they are wrong.

In this order: `VITALS_*` variables (nested names joined by two underscores), the standard `OTEL_*` variables,
the YAML or TOML file that `VITALS_CONFIG` names, the default.
"""

import difflib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import TypeAdapter, ValidationError

from vllm_vitals import standard
from vllm_vitals.settings import Section, Settings, without_password
from vllm_vitals.standard import Path_

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX = "VITALS_"
FILE_VARIABLE = "VITALS_CONFIG"
ENDPOINT = ("otlp", "endpoint")
SIGNAL_PATH = ("otlp", "signal_path")
HEADERS = ("otlp", "headers")
MERGE = "tag:yaml.org,2002:merge"
"""The tag of `<<`, with which a mapping may take over several others."""
LONGEST_SHOWN = 250
"""Characters of a value that a line about it shows: a list of SLOs would fill pages."""


class SettingsError(ValueError):
    """Some settings are wrong: one line for each, naming the setting, its value and what is allowed.

    `problems` has the lines by the section that they are in (a setting of no section is its own); `rest` holds
    the settings with those sections switched off, `None` when the trouble is not in sections alone.
    """

    def __init__(
        self,
        problems: Mapping[str, Sequence[str]] | str,
        rest: Settings | None = None,
        warnings: Sequence[str] = (),
    ) -> None:
        self.problems = {"": [problems]} if isinstance(problems, str) else problems
        self.rest = rest
        self.warnings = warnings
        super().__init__("\n".join(line for lines in self.problems.values() for line in lines))


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
    problems: dict[str, list[str]] = {}
    warnings: list[str] = []
    given = (*_from_file(environ), *standard.read(environ, warnings), *_from_variables(environ, warnings))
    for path, value, origin in given:
        try:
            for leaf, each in _leaves({path[-1]: _parsed(path, value)}, path[:-1]):
                _put(values, leaf, each)
                origins[leaf] = origin
        except ValueError as error:
            problems.setdefault(path[0], []).append(f"{origin}{_shown(path, value)}: {error}")
    if not origins.get(ENDPOINT, "").startswith("OTEL_") and origins.get(SIGNAL_PATH, "").startswith("OTEL_"):
        del values["otlp"]["signal_path"], origins[SIGNAL_PATH]  # it belongs to an endpoint that is not used
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        for each in error.errors():
            problems.setdefault(str(each["loc"][0]) if each["loc"] else "", []).append(_line(each, origins))
    if problems:
        raise SettingsError(problems, _without(values, problems), warnings)
    return Loaded(settings, origins, warnings)


def _without(values: dict[str, Any], problems: Mapping[str, Any]) -> Settings | None:
    """Return what is left when the sections with problems are switched off, `None` if one cannot be."""
    if not all(_is_section((name,)) and _has_switch(name) for name in problems):
        return None
    return Settings.model_validate({**values, **{name: {"enabled": False} for name in problems}})


def _has_switch(section: str) -> bool:
    """Tell whether a section can be switched off."""
    return "enabled" in getattr(Settings.model_fields[section].annotation, "model_fields", {})


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
        twice = list(_twice(yaml.compose(text, Loader=yaml.SafeLoader), (), set()))
        content = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist is a ValueError in YAML
        raise SettingsError(f"{where}: is not valid {path.suffix[1:]}: {error}") from error
    if twice:
        raise SettingsError({"": [f"{where}: {line}" for line in twice]})
    if content is not None and not isinstance(content, dict):
        raise SettingsError(f"{where}: must hold a mapping of settings, holds a {type(content).__name__}")
    return content or {}


def _twice(node: Any, path: Path_, seen: set[int]) -> Iterator[str]:
    """Yield a line for each key that a mapping of YAML has more than once: only its last value would count."""
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))  # an alias may lead back to it
    first: dict[tuple[str, str], int] = {}
    for place, each in enumerate(node.value):
        key, value = each if isinstance(node, yaml.MappingNode) else (None, each)
        inner = (*path, str(place if key is None else key.value))
        if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in first:
                yield f"{'.'.join(inner)} is given on line {first[name]} and again on line {line}; a key may be given once"
            first.setdefault(name, line)
        yield from _twice(value, inner, seen)


def _leaves(tree: Mapping[Any, Any], path: Path_) -> Iterator[tuple[Path_, Any]]:
    for key, value in tree.items():
        if value is None and _is_section((*path, str(key))):
            continue  # a heading with nothing below it
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


def _from_variables(environ: Mapping[str, str], warnings: list[str]) -> Iterator[tuple[Path_, Any, str]]:
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if path[0] in Settings.model_fields:
            yield path, environ[variable], variable
            continue
        # A warning only: Kubernetes sets such variables for a Service whose name begins with "vitals".
        names = [name.removeprefix(PREFIX) for name in variables()]
        near = difflib.get_close_matches(variable.removeprefix(PREFIX), names, 1)
        hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
        warnings.append(f"{variable} is not a setting and has no effect{hint}")


def _parsed(path: Path_, value: Any) -> Any:
    """Return a value; text for a setting that is no text is read as JSON when it looks like it."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[") or _is_text(path):
        return value
    try:
        return json.loads(value, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, each of whose keys may be given once."""
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(map(repr, twice))} given more than once; a key may be given once")
    return dict(pairs)


def _is_text(path: Path_) -> bool:
    """Tell whether a setting holds text, such as an address in brackets."""
    fields = Settings.model_fields
    for name in path[:-1]:
        inner = fields.get(name)
        fields = getattr(inner.annotation if inner else None, "model_fields", {})
    known = fields.get(path[-1])
    kinds = (known.annotation, *get_args(known.annotation)) if known else ()
    return str in kinds and not any(get_origin(kind) is dict for kind in kinds)


def _shown(path: Path_, value: Any) -> str:
    """Return a value as it may be shown: those of headers may not, nor may a URL's password."""
    if path[:2] == HEADERS[: len(path)]:  # also of the whole section, which holds them
        return ""
    shown = repr(without_password(value) if isinstance(value, str) and "://" in value else value)
    return f"={shown if len(shown) <= LONGEST_SHOWN else shown[:LONGEST_SHOWN] + '...'}"


def _put(tree: dict[str, Any], path: Path_, value: Any) -> None:
    deepest = 2 if _is_section(path[:1]) or path[0] == "buckets" else 1
    deepest += path[:2] in (HEADERS, ("otlp", "resource"))
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
    given = "" if isinstance(error["input"], dict) else _shown(path, error["input"])
    return f"{origin or setting}{given}: {message}" + (f" (setting {setting})" if origin else "")


def _near(path: Path_) -> str:
    kind: Any = Settings
    for name in path[:-1]:
        if get_origin(kind) is list:
            (kind,) = get_args(kind)  # the name is a place in it
        else:
            known = kind.model_fields.get(name)
            kind = known.annotation if known else None
        if get_origin(kind) is not list and not hasattr(kind, "model_fields"):
            return ""
    near = difflib.get_close_matches(path[-1], kind.model_fields, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(kind.model_fields)}"
