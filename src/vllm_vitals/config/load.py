"""The sources of the settings, and clear errors for wrong settings.

In this order: `VITALS_*` variables (nested names joined by two underscores), the standard `OTEL_*` variables,
the YAML or TOML file that `VITALS_CONFIG` names, the default.

For any input, the result is settings or a `SettingsError`, in bounded time, with a bounded number of bounded lines.
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
from vllm_vitals.config import otel_env
from vllm_vitals.config.otel_env import MAX_VALUE_LENGTH, MAX_VARIABLE_LENGTH, Path_
from vllm_vitals.config.settings import OtlpSettings, Settings
from vllm_vitals.config.types import Section

PREFIX = "VITALS_"
FILE_VARIABLE = "VITALS_CONFIG"
ENDPOINT = ("otlp", "endpoint")
SIGNAL_PATH = ("otlp", "signal_path")
HEADERS = ("otlp", "headers")
STRICT = ("strict",)
Assignment = tuple[Path_, Any, str]
"""A setting, its value, and the origin of that value."""
URLS = ("endpoint", "url")
SUFFIXES = (".yaml", ".yml", ".toml")
MAX_ORIGIN_LENGTH = 400
"""Characters of the name of a file or variable in a message."""
MAX_KEY_LENGTH = 64
"""Characters of one part of a setting's name in a message."""
MAX_MESSAGE_LENGTH = 600
MAX_LINE_LENGTH = 1500
MAX_LINES = 10
"""Lines per section, and warnings. Further ones are only counted."""


class SettingsError(ValueError):
    """Some settings are wrong. There is one line for each, with the setting, its value and the allowed values.

    `problems`: the lines by section; a setting outside of sections counts as its own section. `rest`: the settings with
    these sections turned off, or `None` if not all problems are in sections. `strict`: vLLM must not start.
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
    """The settings, the origin of each value that is not a default, and warnings."""

    settings: Settings
    origins: dict[Path_, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


class _Problems:
    """The problems by section. Those outside of sections are under `""`."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}
        self._more: Counter[str] = Counter()

    def add(self, name: str, line: Callable[[], str]) -> None:
        """Add a problem. Its line is only made if it is shown."""
        section = name if name in Settings.model_fields else ""
        lines = self._lines.setdefault(section, [])
        if len(lines) < MAX_LINES:
            lines.append(clean(line(), MAX_LINE_LENGTH))
        else:
            self._more[section] += 1

    def lines(self) -> dict[str, list[str]]:
        """Return the lines of each section with problems."""
        more = {section: [f"and {count} more problems like these"] for section, count in self._more.items()}
        return {section: lines + more.get(section, []) for section, lines in self._lines.items()}


def load(environ: Mapping[str, str]) -> Loaded:
    """Return the settings of an environment.

    Raises:
        SettingsError: for a value that is not allowed, a file that cannot be read, and any other error.
    """
    try:
        return _load(environ)
    except (SettingsError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - pydantic's core may raise a BaseException
        at = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__} in {Path(at.filename).name}, line {at.lineno}"
        # The error's own message is left out: it may hold a secret.
        message = f"the settings cannot be read: {what}. This is a bug of vllm-vitals; remove unusual values from the settings"
        raise SettingsError(message, strict=_is_true(environ.get(f"{PREFIX}STRICT"))) from None


def _load(environ: Mapping[str, str]) -> Loaded:
    values: dict[str, Any] = {}
    origins: dict[Path_, str] = {}
    problems = _Problems()
    warnings: list[str] = []
    variables_ = list(_from_variables(environ, warnings))
    file = list(_from_file(environ, variables_, warnings))
    for path, value, origin in chain(file, otel_env.read(environ, warnings), variables_):
        try:
            for leaf, each in _leaves({path[-1]: _parsed(path, value)}, path[:-1]):
                _put(values, leaf, each)
                origins[leaf] = origin
        except ValueError as error:
            line = f"{origin}{_shown(path, value)}: {clean(str(error), MAX_MESSAGE_LENGTH)}"
            problems.add(path[0], lambda line=line: line)  # type: ignore[misc]
    if not origins.get(ENDPOINT, "").startswith("OTEL_") and origins.get(SIGNAL_PATH, "").startswith("OTEL_"):
        del values["otlp"]["signal_path"], origins[SIGNAL_PATH]  # it belongs to an endpoint that is not in use
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
    """Return the settings with all sections with problems turned off, or `None` if one cannot be turned off."""
    if not all(_is_section((name,)) and _has_switch(name) for name in problems):
        return None
    return Settings.model_validate({**values, **{name: {"enabled": False} for name in problems}})


def _has_switch(section: str) -> bool:
    """Return whether a section can be turned off."""
    return "enabled" in getattr(Settings.model_fields[section].annotation, "model_fields", {})


def is_strict(environ: Mapping[str, str]) -> bool:
    """Return whether wrong settings must stop vLLM, even if they cannot be read otherwise."""
    try:
        return load(environ).settings.strict
    except SettingsError as error:
        return error.strict


def _is_true(value: Any) -> bool:
    with suppress(Exception):
        return TypeAdapter(bool).validate_python(value)
    return False


def _from_file(
    environ: Mapping[str, str], variables: Sequence[Assignment], warnings: Sequence[str]
) -> Iterator[Assignment]:
    """Yield the settings of the file. The variable of `strict` counts also if the file cannot be read."""
    name = environ.get(FILE_VARIABLE)
    if not name:
        return
    try:
        content = read_file(Path(name))
    except SettingsError as error:
        strict, wrong = _strict(variables)
        raise SettingsError({"": [*error.problems[""], *wrong]}, None, warnings, strict=strict) from None
    for path, value in _leaves(content, ()):
        yield path, value, clean(f"{name[: MAX_ORIGIN_LENGTH // 2]}: {_dotted(path)}", MAX_ORIGIN_LENGTH)


def _strict(variables: Sequence[Assignment]) -> tuple[bool, list[str]]:
    """Return whether the variables set `strict`, and the problems with its value."""
    found = next(((value, origin) for path, value, origin in reversed(variables) if path == STRICT), None)
    if found is None:
        return False, []
    value, origin = found
    try:
        return TypeAdapter(bool).validate_python(value), []
    except Exception:  # noqa: BLE001 - the value is neither true nor false
        return False, [f"{origin}{_shown(STRICT, value)}: must be true or false (setting strict)"]


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a YAML or TOML settings file, or raise `SettingsError`."""
    where = f"{FILE_VARIABLE}={shown(str(path), MAX_ORIGIN_LENGTH, _path)}"
    if path.suffix not in SUFFIXES:
        raise SettingsError(f"{where}: the name must end in .yaml, .yml or .toml")
    try:
        content = documents.load(path)
    except documents.DocumentError as error:
        raise SettingsError({"": [f"{where}: {line}" for line in error.lines]}) from None
    if content is not None and not isinstance(content, dict):
        raise SettingsError(f"{where}: must contain a mapping of settings, not a {type(content).__name__}")
    return content or {}


def _path(name: str) -> str:
    """Return the name of a file that is safe to show: a name like a URL may hold a password."""
    scheme, slash, rest = name.partition(":/")
    return shown_url(f"{scheme}://{rest.lstrip('/')}") if slash and scheme.isalnum() else name


def _dotted(path: Iterable[Any]) -> str:
    """Return the name of a setting that is safe to show: a misplaced value may have become a name."""
    parts = [str(part) for part in islice(path, 6)]
    may_be_secret = parts[:1] == [HEADERS[0]]
    return ".".join(
        clean(name_or_hidden(part) if may_be_secret else shown_text(part), MAX_KEY_LENGTH) for part in parts
    )


def _leaves(tree: Mapping[Any, Any], path: Path_) -> Iterator[tuple[Path_, Any]]:
    for key, value in tree.items():
        if value is None and _is_section((*path, str(key))):
            continue  # a section without content
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
    """Yield the environment variable of every setting."""
    for name, field_ in Settings.model_fields.items():
        inner = field_.annotation.model_fields if _is_section((name,)) else {}  # type: ignore[union-attr]
        yield from (f"{PREFIX}{name}__{key}".upper() for key in inner)
        if not inner:
            yield f"{PREFIX}{name}".upper()


def _from_variables(environ: Mapping[str, str], warnings: list[str]) -> Iterator[Assignment]:
    unknown = 0
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE:
            continue
        path = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if path[0] in Settings.model_fields:
            yield path, environ[variable], clean(variable, MAX_ORIGIN_LENGTH)
            continue
        # Only a warning: Kubernetes sets such variables for a Service whose name begins with "vitals".
        unknown += 1
        if unknown <= MAX_LINES:
            near = closest(variable.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in variables()])
            hint = f"; did you mean {PREFIX}{near}?" if near else ""
            warnings.append(f"{clean(variable, MAX_ORIGIN_LENGTH)} is not a setting and has no effect{hint}")
    if unknown > MAX_LINES:
        warnings.append(f"{unknown - MAX_LINES} more {PREFIX}* variables are not settings and have no effect")


def _parsed(path: Path_, value: Any) -> Any:
    """Return a value. If the setting is not text, a text that begins with a bracket is read as JSON."""
    if isinstance(value, str) and len(value) > MAX_VARIABLE_LENGTH:
        raise ValueError(f"is longer than {MAX_VARIABLE_LENGTH} characters")
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "[") or _is_text(path):
        return value
    try:
        return json.loads(value, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("is not valid JSON: it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Each key may be given once."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = sorted({repr(name_or_hidden(name)) for name, count in counts.items() if count > 1})
        raise ValueError(f"{', '.join(repeated[:MAX_LINES])} given more than once; each key may be given once")
    return found


def _is_text(path: Path_) -> bool:
    """Return whether a setting is text, such as an address in brackets."""
    fields = Settings.model_fields
    for name in path[:-1]:
        inner = fields.get(name)
        fields = getattr(inner.annotation if inner else None, "model_fields", {})
    known = fields.get(path[-1])
    kinds = (known.annotation, *get_args(known.annotation)) if known else ()
    return str in kinds and not any(get_origin(kind) is dict for kind in kinds)


def _shown(path: Path_, value: Any) -> str:
    """Return a value that is safe to show: without headers and without the password of a URL."""
    if path[0] == HEADERS[0] and (len(path) == 1 or path[1] not in OtlpSettings.model_fields or path[1] == HEADERS[1]):
        return ""  # headers, or an unknown name that may be misspelt headers
    hide = shown_url if path[-1] in URLS else shown_text
    return f"={shown(value, MAX_VALUE_LENGTH, hide)}"


def _put(tree: dict[str, Any], path: Path_, value: Any) -> None:
    deepest = 2 if _is_section(path[:1]) or path[0] == "buckets" else 1
    deepest += path[:2] in (HEADERS, ("otlp", "resource"))
    if len(path) > deepest:
        raise ValueError(f"the setting {_dotted(path[:deepest])} cannot have parts")
    for name in path[:-1]:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ValueError(f"sets a part of {name}, which is set as a whole elsewhere")  # noqa: TRY004
        tree = inner
    tree[path[-1]] = value


def _line(error: Any, origins: Mapping[Path_, str]) -> str:
    path = tuple(str(part) for part in error["loc"])
    above = (origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origins)
    below = sorted(origin for given, origin in origins.items() if given[: len(path)] == path)
    origin = next(above, ", ".join(below[:MAX_LINES]))
    if path[:2] == HEADERS:
        path = HEADERS  # in `authorization:TOKEN=` the name holds the secret
    setting = _dotted(path)
    message = clean(error["msg"].removeprefix("Value error, "), MAX_MESSAGE_LENGTH)
    if error["type"] == "extra_forbidden":
        return f"{origin or setting}: unknown setting {setting!r}{_near(path)}"
    given = "" if isinstance(error["input"], dict) else _shown(path, error["input"])
    return f"{origin or setting}{given}: {message}" + (f" (setting {setting})" if origin else "")


def _near(path: Path_) -> str:
    kind: Any = Settings
    for name in path[:-1]:
        if get_origin(kind) is list:
            (kind,) = get_args(kind)  # the name is a position in the list
        else:
            known = kind.model_fields.get(name)
            kind = known.annotation if known else None
        if get_origin(kind) is not list and not hasattr(kind, "model_fields"):
            return ""
    near = closest(path[-1], kind.model_fields)
    return f"; did you mean {near!r}?" if near else f"; the settings are: {', '.join(kind.model_fields)}"
