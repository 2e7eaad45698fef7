"""What comes from outside, as it may be shown: bounded, on one line, and without looking at more than is shown."""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import date, time
from pathlib import PurePath
from typing import Any

CUT = "..."
"""What stands for the rest."""
DEEPEST = 12
"""Values within values that are shown; `repr` follows any number of them."""
LONGEST_INTEGER = 256
"""Bits; decimal digits take time that grows with the square of their number."""
LONGEST_NAME = 64
"""Characters of a name that are compared with others."""
NAME = re.compile(r"[\w.-]{1,64}")
HIDDEN = "***"
SCALARS = (type(None), bool, float, complex, date, time, PurePath)


def clean(text: str | bytes, limit: int) -> str:
    """Return the beginning of a text as one line of at most `limit` characters, all of them printable.

    It is cut first, so that a long text costs no more than a short one.
    """
    if isinstance(text, bytes | bytearray | memoryview):
        text = bytes(text[: 4 * limit + 4]).decode(errors="replace")
    cut = text[: limit + 1]
    if not cut.isprintable():
        cut = "".join(letter if letter.isprintable() else " " for letter in cut)
    line = " ".join(cut.split())
    if len(text) <= limit:
        return line
    return line[: max(limit - len(CUT), 0)].rstrip() + CUT[:limit]


def shown(value: Any, limit: int, redact: Callable[[str], str] = str) -> str:
    """Return a value as Python writes it, as one line of at most `limit` characters.

    Only as much of it is looked at. `redact` is given each text in it as a whole, before that is cut.
    """
    pieces: list[str] = []
    left = limit + 1
    for piece in _pieces(value, limit, redact, 0):
        pieces.append(piece)
        left -= len(piece)
        if left <= 0:
            break
    return clean("".join(pieces), limit)


def _pieces(value: Any, limit: int, redact: Callable[[str], str], depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield repr(redact(value)[: limit + 1])
    elif isinstance(value, bytes | bytearray):
        yield repr(bytes(value[: limit + 1]))
    elif depth > DEEPEST and isinstance(value, Mapping | list | tuple | AbstractSet):
        yield CUT
    elif isinstance(value, Mapping):
        yield "{"
        for place, (key, inner) in enumerate(value.items()):
            yield ", " if place else ""
            yield from _pieces(key, limit, redact, depth + 1)
            yield ": "
            yield from _pieces(inner, limit, redact, depth + 1)
        yield "}"
    elif isinstance(value, list | tuple | AbstractSet):
        opening, closing = ("[", "]") if isinstance(value, list) else ("(", ")") if isinstance(value, tuple) else "{}"
        yield opening
        for place, inner in enumerate(value):
            yield ", " if place else ""
            yield from _pieces(inner, limit, redact, depth + 1)
        yield closing
    else:
        yield _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, (int, *SCALARS)):
        with suppress(Exception):
            return repr(value)
    return f"<{type(value).__name__}>"


def closest(name: str, known: Collection[str]) -> str:
    """Return which known name may have been meant, `""` for none."""
    return next(iter(difflib.get_close_matches(name[:LONGEST_NAME], known, 1)), "")


def name_or_hidden(text: str) -> str:
    """Return a text if it looks like a name: of `authorization:TOKEN`, where a name belongs, the most is secret."""
    return text if NAME.fullmatch(text) else HIDDEN
