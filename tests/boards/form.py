"""What every board must be like, beyond Grafana's schema."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from tests.boards.expressions import Board, panels

COLUMNS, NARROWEST = 24, 4
"""Of Grafana's grid; at 1280 px four columns are about 200 px."""


def complaints(board: Board) -> list[str]:
    """Return what is wrong with a board."""
    found = [*_of_the_board(board)]
    for panel in panels(board):
        found += [f"{panel.get('title')}: {what}" for what in _of_a_panel(panel)]
    return (
        found
        + _overlaps(board["panels"])
        + [text for row in board["panels"] for text in _overlaps(row.get("panels") or [])]
    )


def _of_the_board(board: Board) -> Iterator[str]:
    every = [*board["panels"], *(inner for panel in board["panels"] for inner in panel.get("panels") or ())]
    for identity, times in Counter(panel.get("id") for panel in every).items():
        if times > 1 or not identity:
            yield f"the id {identity} is on {times} panels"
    if "__inputs" in board or "id" in board:
        yield "it has what only an export has: __inputs or an id"
    if board["schemaVersion"] != 42:
        yield f"schemaVersion is {board['schemaVersion']}"
    opening = board["panels"][0]
    if opening["type"] != "row" or not opening["title"].endswith("?"):
        yield "it does not open with its question"
    for link in board["links"]:
        if not (link["includeVars"] and link["keepTime"]) or "placement" in link:
            yield f"the link {link['title']} does not carry variables and time, or hides"


def _of_a_panel(panel: Board) -> Iterator[str]:
    defaults = panel["fieldConfig"]["defaults"]
    if not defaults.get("unit"):
        yield "it has no unit"
    if len(panel.get("description", "")) < 40:
        yield "its description says too little"
    if not defaults.get("noValue"):
        yield "it does not say what nothing means"
    if panel.get("datasource") != {"type": "prometheus", "uid": "${datasource}"}:
        yield "it does not ask the data source that is chosen"
    references = [target.get("refId") for target in panel["targets"]]
    if not all(references) or len(set(references)) < len(references):
        yield f"its queries are called {references}"
    if panel["type"] == "timeseries" and not panel["options"]["legend"]["showLegend"]:
        yield "it has no legend"
    for target in panel["targets"]:
        yield from _of_a_query(panel, target)
    if any(step["color"] in {"green", "red"} or step["value"] == 80 for step in _steps(defaults)):
        yield "it has Grafana's default thresholds"
    yield from _of_overrides(panel)
    if panel["gridPos"]["w"] < NARROWEST:
        yield f"it is only {panel['gridPos']['w']} columns wide"


def _of_overrides(panel: Board) -> Iterator[str]:
    """Yield names that are templates: a series is called by what comes of one, so that its look would not be overridden."""
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["id"] == "byName" and "{{" in override["matcher"]["options"]:
            yield f"no series is called {override['matcher']['options']}"


def _of_a_query(panel: Board, target: Board) -> Iterator[str]:
    if not target.get("legendFormat"):
        yield f"series of {target['refId']} have no name"
    if bool(target.get("instant")) == bool(target.get("range")):
        yield f"{target['refId']} is neither instant nor a range"
    if panel["type"] in {"timeseries", "heatmap"} and not target.get("range"):
        yield f"{target['refId']} has no range"


def _steps(defaults: dict[str, Any]) -> list[dict[str, Any]]:
    return list(defaults.get("thresholds", {}).get("steps", ()))


def _overlaps(shown: list[Board]) -> list[str]:
    found = []
    for panel in shown:
        place = panel["gridPos"]
        if place["x"] < 0 or place["x"] + place["w"] > COLUMNS:
            found.append(f"{panel['title']} is outside the grid")
    for one, other in combinations(shown, 2):
        a, b = one["gridPos"], other["gridPos"]
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        if not beside and not above:
            found.append(f"{one['title']} and {other['title']} overlap")
    return found
