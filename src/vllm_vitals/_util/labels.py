"""Label values: whatever comes from outside as text that every format can carry, of bounded length."""

import re
from enum import Enum
from typing import Any

LONGEST_LABEL = 256
"""Characters of a label value; the rest is cut off."""
UNKNOWN = "unknown"
"""The label value that stands for what is no text, such as `None`."""

# A newline can be escaped. A lone surrogate has no UTF-8, and Prometheus takes NUL for the end of a page.
_UNFIT = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_REPLACED = "\N{REPLACEMENT CHARACTER}"


def label(value: Any, longest: int = LONGEST_LABEL) -> str:
    """Return a label value: what is no text is `unknown`, what no page can carry is replaced, what is too long is cut."""
    if type(value) is not str:
        if not isinstance(value, str):
            return UNKNOWN
        value = str.__str__(value)  # of a subclass nothing is used but its characters
    if len(value) > longest:
        value = value[:longest]
    return fit(value)


def fit(text: str) -> str:
    """Return a text with what no page can carry replaced."""
    return text if fits(text) else _UNFIT.sub(_REPLACED, text)


def fits(text: str) -> bool:
    """Tell whether every page can surely carry a text; `False` tells nothing."""
    return text.isascii() and text.isprintable()


def named(value: Any) -> str:
    """Return the label value of a name: an enum's by its value when that is text, else by its name."""
    if isinstance(value, Enum):
        value = value.value if isinstance(value.value, str) else value.name.lower()
    return label(value)


def shown(value: Any) -> str:
    """Return the label value of a fact, which may be a number or any object that shows itself in a word."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str | Enum):
        return named(value)
    try:
        return label(str(value))
    except BaseException:  # noqa: BLE001 - whatever the object does when asked for its name
        return UNKNOWN
