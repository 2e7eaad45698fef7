"""The configuration of the rules from a file, and clear words when it is wrong."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from vllm_vitals.rules.config import RulesConfig


class RulesConfigError(ValueError):
    """A configuration of rules is wrong: one line for each fault, naming the place, the value and what is allowed."""


def read(path: Path) -> RulesConfig:
    """Return the configuration that a YAML or JSON file holds; raise `RulesConfigError` for what is wrong with it."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RulesConfigError(f"{path}: cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError) as error:  # a date that does not exist is a ValueError in YAML
        raise RulesConfigError(f"{path}: is not valid YAML: {error}") from error
    if content is not None and not isinstance(content, Mapping):
        raise RulesConfigError(f"{path}: must hold a mapping, holds a {type(content).__name__}")
    try:
        return RulesConfig.model_validate(content or {})
    except ValidationError as error:
        raise RulesConfigError("\n".join(f"{path}: {_line(each)}" for each in error.errors())) from error


def _line(error: Any) -> str:
    path = tuple(str(part) for part in error["loc"])
    setting = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"there is no {setting!r}{_near(path)}"
    shown = "" if isinstance(error["input"], Mapping) else f"={error['input']!r}"
    return f"{setting}{shown}: {error['msg'].removeprefix('Value error, ')}"


def _near(path: tuple[str, ...]) -> str:
    """Return what may have been meant instead of a name that does not exist."""
    value: Any = RulesConfig()
    for name in path[:-1]:
        value = value[min(int(name), len(value) - 1)] if isinstance(value, list) else getattr(value, name, None)
    if not isinstance(value, BaseModel):
        return ""
    known = [field.alias or name for name, field in type(value).model_fields.items()]
    near = difflib.get_close_matches(path[-1], known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known)}"
