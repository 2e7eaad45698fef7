"""Where settings come from, and clear words when they are wrong.

In this order: `VITALS_*` variables (nested names joined by two underscores), the standard `OTEL_*` variables,
the YAML or TOML file that `VITALS_CONFIG` names, the default.

Whatever these hold, there are settings in the end or a `SettingsError`, soon, and with a bounded number of bounded lines.
"""

import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from vllm_vitals._util import documents
from vllm_vitals._util.bounds import clean, closest, name_or_hidden, shown
from vllm_vitals._util.redact import shown_text, shown_url
from vllm_vitals.config import otel_env as standard
from vllm_vitals.config.otel_env import LONGEST_SHOWN, LONGEST_VARIABLE, Path_
from vllm_vitals.config.settings import OtlpSettings, Settings
from vllm_vitals.config.types import Section

PREFIX = "VITALS_"
FILE_VARIABLE = "VITALS_CONFIG"
ENDPOINT = ("otlp", "endpoint")
SIGNAL_PATH = ("otlp", "signal_path")
HEADERS = ("otlp", "headers")
STRICT = ("strict",)
Given = tuple[Path_, Any, str]
"""A setting, the value that it is given, and where."""
URLS = ("endpoint", "url")
SUFFIXES = (".yaml", ".yml", ".toml")
LONGEST_ORIGIN = 400
"""Characters of the name of a file or a variable that a line shows."""
LONGEST_KEY = 64
"""Characters of a part of a setting's name that a line shows."""
LONGEST_MESSAGE = 600
LONGEST_LINE = 1500
MOST_LINES = 10
"""Lines of a section; further problems are only counted. Likewise warnings."""


class SettingsError(ValueError):
    """Some settings are wrong: one line for each, naming the setting, its value and what is allowed.

    `problems` has the lines by the section that they are in (a setting of no section is its own); `rest` holds
    the settings with those sections switched off, `None` when the trouble is not in sections alone. `strict`: vLLM
    shall not start.
    """

    def __init__(
        self,
        problems: Mapping[str, Sequence[str]] | str,
        rest: Settings | None = None,
        warnings: Sequence[str] = (),
        *,
        strict: bool = False,
    ) -> None:
        self.problems = {"": [problems]} if isinstance(problems, str) else problems
        self.rest = rest
        self.warnings = warnings
        self.strict = strict
        super().__init__("\n".join(line for lines in self.problems.values() for line in lines))


@dataclass
class Loaded:
    """Settings, where each that is not a default came from, and what to warn of."""

    settings: Settings
    origins: dict[Path_, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class _Problems:
    """What is wrong, by section; what is in none of them, by `""`."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._more: Counter[str] = Counter()

    def add(self, name: str, line: Callable[[], str]) -> None:
        """Take a problem with a setting or section in; its line is made if it is shown."""
        section = name if name in Settings.model_fields else ""
        lines = self._lines.setdefault(section, [])
        if len(lines) < MOST_LINES:
            lines.append(clean(line(), LONGEST_LINE))
        else:
            self._more[section] += 1

    def lines(self) -> dict[str, list[str]]:
        """Return the lines of each section that has problems."""
        more = {section: [f"and {count} more problems like these"] for section, count in self._more.items()}
        return {section: lines + more.get(section, []) for section, lines in self._lines.items()}


def load(environ: Mapping[str, str]) -> Loaded:
    """Return the settings of an environment.

    Raises:
        SettingsError: for a value that is not allowed, a file that cannot be read, and whatever else goes wrong.
    """
    try:
        return _load(environ)
    except (SettingsError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - pydantic's core may raise what is no Exception
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__} in {Path(at.filename).name}, line {at.lineno}"
        # Its own words are left out: they may hold a secret.
        message = f"the settings cannot be read: {what}. It is a fault of this plugin; correct what is unusual in them"
        raise SettingsError(message, strict=_is_true(environ.get(f"{PREFIX}STRICT"))) from None


def _load(environ: Mapping[str, str]) -> Loaded:
    values: dict[str, Any] = {}
    origins: dict[Path_, str] = {}
    problems = _Problems()
    warnings: list[str] = []
    variables_ = list(_from_variables(environ, warnings))
    file = list(_from_file(environ, variables_, warnings))
    for path, value, origin in chain(file, standard.read(environ, warnings), variables_):
        try:
            for leaf, each in _leaves({path[-1]: _parsed(path, value)}, path[:-1]):
                _put(values, leaf, each)
                origins[leaf] = origin
        except ValueError as error:
            line = f"{origin}{_shown(path, value)}: {clean(str(error), LONGEST_MESSAGE)}"
            problems.add(path[0], lambda line=line: line)  # type: ignore[misc]
    if not origins.get(ENDPOINT, "").startswith("OTEL_") and origins.get(SIGNAL_PATH, "").startswith("OTEL_"):
        del values["otlp"]["signal_path"], origins[SIGNAL_PATH]  # it belongs to an endpoint that is not used
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        for each in error.errors(include_url=False, include_context=False):
            problems.add(str(each["loc"][0]) if each["loc"] else "", lambda each=each: _line(each, origins))  # type: ignore[misc]
    if lines := problems.lines():
        strict = _is_true(values.get("strict", False))
        raise SettingsError(lines, _without(values, lines), warnings, strict=strict)
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
    try:
        return load(environ).settings.strict
    except SettingsError as error:
        return error.strict


def _is_true(value: Any) -> bool:
    with suppress(Exception):
        return TypeAdapter(bool).validate_python(value)
    return False


def _from_file(environ: Mapping[str, str], variables: Sequence[Given], warnings: Sequence[str]) -> Iterator[Given]:
    """Yield what the file says. What the variables say of `strict` holds also when it cannot be read."""
    name = environ.get(FILE_VARIABLE)
    if not name:
        return
    try:
        content = read_file(Path(name))
    except SettingsError as error:
        strict, wrong = _strict(variables)
        raise SettingsError({"": [*error.problems[""], *wrong]}, None, warnings, strict=strict) from None
    for path, value in _leaves(content, ()):
        yield path, value, clean(f"{name[: LONGEST_ORIGIN // 2]}: {_dotted(path)}", LONGEST_ORIGIN)


def _strict(variables: Sequence[Given]) -> tuple[bool, list[str]]:
    """Return whether the variables want wrong settings to stop vLLM, and what is wrong with what they say of that."""
    told = next(((value, origin) for path, value, origin in reversed(variables) if path == STRICT), None)
    if told is None:
        return False, []
    try:
        return TypeAdapter(bool).validate_python(told[0]), []
    except Exception:  # noqa: BLE001 - whatever it was, it is neither
        return False, [f"{told[1]}{_shown(STRICT, told[0])}: must be true or false (setting strict)"]


def read_file(path: Path) -> dict[str, Any]:
    """Return what a YAML or TOML settings file says, or raise `SettingsError`."""
    where = f"{FILE_VARIABLE}={shown(str(path), LONGEST_ORIGIN, _path)}"
    if path.suffix not in SUFFIXES:
        raise SettingsError(f"{where}: the name must end in .yaml, .yml or .toml")
    try:
        content = documents.load(path)
    except documents.DocumentError as error:
        raise SettingsError({"": [f"{where}: {line}" for line in error.lines]}) from None
    if content is not None and not isinstance(content, dict):
        raise SettingsError(f"{where}: must hold a mapping of settings, holds a {type(content).__name__}")
    return content or {}


def _path(name: str) -> str:
    """Return the name of a file as it may be shown: one that begins as a URL does may hold a password."""
    scheme, slash, rest = name.partition(":/")
    return shown_url(f"{scheme}://{rest.lstrip('/')}") if slash and scheme.isalnum() else name


def _dotted(path: Iterable[Any]) -> str:
    """Return the name of a setting as it may be shown: a line that is written wrong may be the name of one."""
    parts = [str(part) for part in islice(path, 6)]
    secretive = parts[:1] == [HEADERS[0]]
    return ".".join(clean(name_or_hidden(part) if secretive else shown_text(part), LONGEST_KEY) for part in parts)


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


def _from_variables(environ: Mapping[str, str], warnings: list[str]) -> Iterator[Given]:
    unknown = 0
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if path[0] in Settings.model_fields:
            yield path, environ[variable], clean(variable, LONGEST_ORIGIN)
            continue
        # A warning only: Kubernetes sets such variables for a Service whose name begins with "vitals".
        unknown += 1
        if unknown <= MOST_LINES:
            near = closest(variable.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in variables()])
            hint = f"; did you mean {PREFIX}{near}?" if near else ""
            warnings.append(f"{clean(variable, LONGEST_ORIGIN)} is not a setting and has no effect{hint}")
    if unknown > MOST_LINES:
        warnings.append(f"{unknown - MOST_LINES} more {PREFIX}* variables are not settings and have no effect")


def _parsed(path: Path_, value: Any) -> Any:
    """Return a value; text for a setting that is no text is read as JSON when it looks like it."""
    if isinstance(value, str) and len(value) > LONGEST_VARIABLE:
        raise ValueError(f"is longer than {LONGEST_VARIABLE} characters")
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[") or _is_text(path):
        return value
    try:
        return json.loads(value, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("is not valid JSON: it is nested too deep") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, each of whose keys may be given once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = sorted({repr(name_or_hidden(name)) for name, count in counts.items() if count > 1})
        raise ValueError(f"{', '.join(twice[:MOST_LINES])} given more than once; a key may be given once")
    return found


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
    if path[0] == HEADERS[0] and (len(path) == 1 or path[1] not in OtlpSettings.model_fields or path[1] == HEADERS[1]):
        return ""  # it holds headers, or is misspelt and may be them
    hide = shown_url if path[-1] in URLS else shown_text
    return f"={shown(value, LONGEST_SHOWN, hide)}"


def _put(tree: dict[str, Any], path: Path_, value: Any) -> None:
    deepest = 2 if _is_section(path[:1]) or path[0] == "buckets" else 1
    deepest += path[:2] in (HEADERS, ("otlp", "resource"))
    if len(path) > deepest:
        raise ValueError(f"the setting {_dotted(path[:deepest])} has no parts")
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
    origin = next(above, ", ".join(below[:MOST_LINES]))
    if path[:2] == HEADERS:
        path = HEADERS  # of `authorization:TOKEN=` the name is the secret
    setting = _dotted(path)
    message = clean(error["msg"].removeprefix("Value error, "), LONGEST_MESSAGE)
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
    near = closest(path[-1], kind.model_fields)
    return f"; did you mean {near!r}?" if near else f"; there are: {', '.join(kind.model_fields)}"
