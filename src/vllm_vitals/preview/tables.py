"""Tables, and panels with large numbers, as HTML."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_vitals.preview.answers import Answers, Panel
from vllm_vitals.preview.fields import Look, Shown, options
from vllm_vitals.preview.markup import Markup, joined, tag

Cell = str | float
Row = dict[str, Cell]


def numbers(shown: Sequence[Shown]) -> Markup:
    """Return one large number for each series, with its name where there are several."""
    letters = max(len(each.look.text(each.last)) for each in shown)
    inside = (_number(each, named=len(shown) > 1) for each in shown)
    return tag("div", *inside, class_="numbers", style=f"--letters:{letters}")


def value(number: float, look: Look) -> Markup:
    """Return a value as it is shown, with what it is for machines."""
    return tag("data", look.text(number), value=repr(number))


def _number(each: Shown, *, named: bool) -> Markup:
    inside = [tag("span", each.name)] if named else []
    inside.append(tag("b", value(each.last, each.look)))
    return tag("div", *inside, style=f"color:{each.look.colour(each.last)}")


def table(panel: Panel, answers: Answers) -> Markup:
    """Return a table with a row for each set of labels."""
    rows = merged(panel, answers)
    order = _organized(panel)
    columns = order.columns(rows)
    for sort in reversed(panel["options"].get("sortBy", ())):
        rows = _sorted(rows, order.source(sort["displayName"]), descending=bool(sort.get("desc")))
    looks = {name: Look(options(panel, title)) for name, title in columns.items()}
    head = tag("tr", *(tag("th", title, scope="col") for title in columns.values()))
    body = [tag("tr", *(_cell(row.get(name), looks[name]) for name in columns)) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


def merged(panel: Panel, answers: Answers) -> list[Row]:
    """Return the series of all queries of a table, those with equal labels in one row."""
    several = len(panel["targets"]) > 1
    rows: dict[frozenset[tuple[str, str]], Row] = {}
    for target in panel["targets"]:
        column = f"Value #{target['refId']}" if several else "Value"
        for series in answers[panel["id"], target["refId"]].series:
            row = rows.setdefault(frozenset(series.labels.items()), dict(series.labels))
            row[column] = series.points[-1][1]
    return list(rows.values())


class _Order:
    """What the transformation `organize` says: what columns are called, which are left out, and their order."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said

    def columns(self, rows: Sequence[Row]) -> dict[str, str]:
        """Return the title of each column that is shown, in their order."""
        there = dict.fromkeys(name for row in rows for name in row)
        kept = [name for name in there if not self._said["excludeByName"].get(name)]
        place = self._said["indexByName"]
        return {
            name: self._said["renameByName"].get(name, name)
            for name in sorted(kept, key=lambda name: place.get(name, len(place)))
        }

    def source(self, title: str) -> str:
        """Return the column that is shown under a title."""
        return next((name for name, shown in self._said["renameByName"].items() if shown == title), title)


def _organized(panel: Panel) -> _Order:
    empty: dict[str, Any] = {"excludeByName": {}, "indexByName": {}, "renameByName": {}}
    said = [each["options"] for each in panel.get("transformations", ()) if each["id"] == "organize"]
    return _Order({**empty, **(said[0] if said else {})})


def _sorted(rows: Sequence[Row], column: str, *, descending: bool) -> list[Row]:
    """Return the rows by a column, those without it last."""
    there = [row for row in rows if not _missing(row.get(column))]
    rest = [row for row in rows if _missing(row.get(column))]
    numeric = all(isinstance(row[column], float) for row in there)
    return sorted(there, key=lambda row: row[column] if numeric else str(row[column]), reverse=descending) + rest


def _missing(cell: Cell | None) -> bool:
    return cell is None or (isinstance(cell, float) and math.isnan(cell))


def _cell(cell: Cell | None, look: Look) -> Markup:
    if cell is None or _missing(cell):
        return tag("td", "")
    if isinstance(cell, str):
        return tag("td", cell)
    style = None
    if look.options.get("custom.cellOptions", {}).get("type") == "gauge":
        low, high = float(look.options.get("min", 0)), float(look.options.get("max", 1))
        part = min(max((cell - low) / ((high - low) or 1), 0), 1)
        style = f"--part:{part:.1%};--bar:{look.colour(cell)}"
    return tag("td", joined(value(cell, look)), class_="number" if style is None else "number gauge", style=style)
