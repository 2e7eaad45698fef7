"""A measured figure: a title, named columns, rows, and how it prints as plain text."""

from dataclasses import dataclass, field
from typing import TypeAlias

Cell: TypeAlias = str | int | float | None


@dataclass
class Figure:
    """One table of the bench; `note` says what the numbers mean."""

    name: str
    title: str
    columns: list[str]
    note: str = ""
    rows: list[list[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell) -> None:
        """Append a row."""
        self.rows.append(list(cells))

    def text(self) -> str:
        """Return the table, its columns aligned to the right."""
        grid = [self.columns, *([_show(cell) for cell in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.columns))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in grid]
        return "\n".join([f"{self.name}: {self.title}", *lines, *([self.note] if self.note else [])]) + "\n"


def _show(cell: Cell) -> str:
    """Format to three significant digits, whole numbers from 100 on; a dash for what was not measured."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return str(cell)


def ratio(value: float | None, base: float | None) -> float | None:
    """Return `value / base`, or nothing where there is no base to compare with."""
    return value / base if value is not None and base else None


def percentile(values: list[float], percent: float) -> float:
    """Return the smallest value that `percent` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
