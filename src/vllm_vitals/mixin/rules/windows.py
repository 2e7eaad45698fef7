"""Lengths of time as rules have them: whole seconds, written as Prometheus writes a duration."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
WRITTEN = re.compile(r"([0-9]{1,9}) ?([smhd])")
LONGEST = 30 * 86400
SELDOMEST = 240
"""Seconds between two evaluations. What is 5 minutes old Prometheus takes for gone: other rules would find nothing."""


def seconds(value: Any) -> Any:
    """Return a duration in whole seconds; raise `ValueError` for a text that is none."""
    if not isinstance(value, str | bool):
        return value
    found = WRITTEN.fullmatch(str(value).strip())
    if not found:
        raise ValueError("must be a duration such as 30s, 5m, 6h or 3d, or a number of seconds")
    return int(found[1]) * UNITS[found[2]]


def duration(length: float) -> str:
    """Return whole seconds as a PromQL duration in the largest unit that they fill: 5400 is `90m`."""
    if not length:
        return "0s"
    unit, size = next((unit, size) for unit, size in UNITS.items() if length % size == 0)
    return f"{int(length // size)}{unit}"


def _schema(least: int, most: int = LONGEST) -> WithJsonSchema:
    written = {"type": "string", "pattern": f"^{WRITTEN.pattern}$"}
    return WithJsonSchema({"anyOf": [{"type": "integer", "minimum": least, "maximum": most}, written]})


Window = Annotated[int, BeforeValidator(seconds), PlainSerializer(duration), Field(ge=1, le=LONGEST), _schema(1)]
"""A length of time that something is looked at for."""
Wait = Annotated[int, BeforeValidator(seconds), PlainSerializer(duration), Field(ge=0, le=LONGEST), _schema(0)]
"""How long something must hold."""
Interval = Annotated[
    int, BeforeValidator(seconds), PlainSerializer(duration), Field(ge=1, le=SELDOMEST), _schema(1, SELDOMEST)
]
"""How often something is evaluated."""
