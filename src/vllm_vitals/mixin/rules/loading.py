"""The configuration of the rules from a file, and clear words when it is wrong."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from vllm_vitals._util import documents
from vllm_vitals._util.bounds import clean, closest, shown
from vllm_vitals._util.redact import shown_text
from vllm_vitals.mixin.rules.config import RulesConfig

MOST_LINES = 20
"""Faults that are shown; further ones are only counted."""
LONGEST_SHOWN = 250
"""Characters of a value that a line about it shows."""
LONGEST_KEY = 64
LONGEST_MESSAGE = 600
LONGEST_PATH = 300


class RulesConfigError(ValueError):
    """A configuration of rules is wrong: one line for each fault, naming the place, the value and what is allowed."""


def read(path: Path) -> RulesConfig:
    """Return the configuration that a YAML or JSON file holds; raise `RulesConfigError` for what is wrong with it."""
    where = clean(str(path), LONGEST_PATH)
    try:
        content = documents.load(path)
    except documents.DocumentError as error:
        raise RulesConfigError("\n".join(f"{where}: {line}" for line in error.lines)) from None
    if content is not None and not isinstance(content, Mapping):
        raise RulesConfigError(f"{where}: must hold a mapping, holds a {type(content).__name__}")
    try:
        return RulesConfig.model_validate(content or {})
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        lines = [f"{where}: {_line(each)}" for each in faults[:MOST_LINES]]
        more = [f"{where}: and {len(faults) - MOST_LINES} more faults"] if len(faults) > MOST_LINES else []
        raise RulesConfigError("\n".join(lines + more)) from None
    except Exception as error:  # noqa: BLE001 - pydantic raises others too
        raise RulesConfigError(f"{where}: cannot be taken: {type(error).__name__}") from None


def _line(error: Any) -> str:
    path = tuple(str(part) for part in error["loc"])
    setting = ".".join(clean(shown_text(part), LONGEST_KEY) for part in path)
    if error["type"] == "extra_forbidden":
        return f"there is no {setting!r}{_near(path)}"
    given = "" if isinstance(error["input"], Mapping) else f"={shown(error['input'], LONGEST_SHOWN, shown_text)}"
    return f"{setting}{given}: {clean(error['msg'].removeprefix('Value error, '), LONGEST_MESSAGE)}"


def _near(path: tuple[str, ...]) -> str:
    """Return what may have been meant instead of a name that does not exist."""
    value: Any = RulesConfig()
    for name in path[:-1]:
        value = value[0] if isinstance(value, list) and value else getattr(value, name, None)
    if not isinstance(value, BaseModel):
        return ""
    known = [field.alias or name for name, field in type(value).model_fields.items()]
    near = closest(path[-1], known)
    return f"; did you mean {near!r}?" if near else f"; there are: {', '.join(known)}"
