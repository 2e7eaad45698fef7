"""A dashboard's variables: what they stand for in a query."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

NAME = re.compile(r"\$(?:([A-Za-z_]\w*)|\{(\w+)(?::\w+)?\})")
SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|]")
"""What means something in a regular expression."""


def chosen(board: Mapping[str, Any], given: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return what each variable of a board stands for: the values given, else All.

    Raise `ValueError` for a variable that the board does not have.
    """
    there = {each["name"]: each["allValue"] for each in board["templating"]["list"] if each["type"] == "query"}
    for name in given:
        if name not in there:
            raise ValueError(f"there is no variable {name!r}: it must be one of {', '.join(there)}")
    return {name: any_of(given[name]) if given.get(name) else every for name, every in there.items()}


def any_of(values: Sequence[str]) -> str:
    """Return a pattern of PromQL, within quotes, that matches these texts and no other."""
    found = [SPECIAL.sub(lambda special: f"\\{special[0]}", value) for value in values]
    pattern = found[0] if len(found) == 1 else f"({'|'.join(found)})"
    return pattern.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def substituted(query: str, values: Mapping[str, str]) -> str:
    """Return a query with values in place of variables; raise `ValueError` for one that has none."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in values:
            raise ValueError(f"the variable {found[0]} is not known here")
        return values[name]

    return NAME.sub(value, query)
