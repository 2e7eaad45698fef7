"""Tables in a terminal and in Markdown, for all commands."""

import os
from collections.abc import Iterable, Sequence

from rich.console import Console

PIPED_WIDTH = 120
"""Columns if the output is not a terminal."""


def console() -> Console:
    """Return standard output as a console. Markup and highlighting are off because texts contain brackets."""
    made = Console(markup=False, highlight=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPED_WIDTH
    return made


def code(text: str) -> str:
    """Return text as Markdown code."""
    return f"`{text}`" if text else ""


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, ended by a newline."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def number(value: float) -> str:
    """Return a number without a needless fraction."""
    return str(int(value)) if float(value).is_integer() else str(value)
