"""Building blocks of settings: sections, and types of values with their limits."""

import os
import re
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from vllm_vitals._util.directory import LONGEST_PATH

QUANTITY = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([a-z%]*)")
SECONDS_BY_UNIT = {"": Fraction(1), "ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600)}
SHARES_BY_UNIT = {"": Fraction(1), "%": Fraction(1, 100)}


class Section(BaseModel):
    """Settings that belong together. An unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


def readable(path: Path) -> Path:
    """Return the path of a readable file; raise `ValueError` for others."""
    try:
        fit = path.is_file() and os.access(path, os.R_OK)
    except (OSError, ValueError):  # the name is impossible, or a directory above it cannot be entered
        fit = False
    if not fit:
        raise ValueError("must be a file that this process can read")
    return path


def bindable(path: Path) -> Path:
    """Return a path that a Unix socket can have; raise `ValueError` for others."""
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ValueError(f"must be a path of at most {LONGEST_PATH} bytes, the system's limit for sockets")
    return path


def number(value: Any) -> Any:
    """Return a value; raise `ValueError` for a boolean, which pydantic would take as 1 or 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004 - pydantic reports ValueError only
    return value


def _measure(value: Any, units: dict[str, Fraction], wanted: str) -> Any:
    """Return the number of a text such as `500ms`; other values are unchanged."""
    if not isinstance(value, str | bool):
        return value
    found = QUANTITY.fullmatch(str(value).strip())
    if not found or found[2] not in units:
        raise ValueError(f"must be {wanted}")
    return float(Fraction(found[1]) * units[found[2]])


def seconds(value: Any) -> Any:
    """Return a duration in seconds; raise `ValueError` for other text."""
    return _measure(value, SECONDS_BY_UNIT, "a duration such as 500ms, 2s, 1.5m or 1h, or a number of seconds")


def share(value: Any) -> Any:
    """Return a share of 1; raise `ValueError` for other text."""
    return _measure(value, SHARES_BY_UNIT, "a share such as 0.99 or 99%")


def ordered(limits: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """Return the ends of a range; raise `ValueError` if the first is above the second."""
    least, most = limits
    if least is not None and most is not None and least > most:
        raise ValueError("must be [least, most], with least not above most")
    return limits


# The limits come first: a JSON schema does not show limits behind a BeforeValidator.
Whole = Annotated[int, BeforeValidator(number)]
Number = Annotated[float, BeforeValidator(number)]
Duration = Annotated[float, BeforeValidator(seconds), Field(gt=0, le=86400)]
Price = Annotated[float, Field(gt=0, le=1e6), BeforeValidator(number)]
Peak = Annotated[float, Field(ge=1e9, le=1e18), BeforeValidator(number)]
Share = Annotated[float, BeforeValidator(share), Field(gt=0, lt=1)]
Tokens = Annotated[int, Field(ge=0), BeforeValidator(number)]
TokenRange = Annotated[tuple[Tokens | None, Tokens | None], AfterValidator(ordered)]
File = Annotated[Path, AfterValidator(readable)]
Socket = Annotated[Path, AfterValidator(bindable), WithJsonSchema({"type": "string", "format": "unix-socket"})]
FinishReason = Literal["stop", "length", "abort", "error", "repetition"]
