"""Every query of dashboards, as a Prometheus takes it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "dashboards"
FILES = {
    "vitals": sorted(DASHBOARDS.glob("*.json")),
    "native": sorted((DASHBOARDS / "native").glob("*.json")),
}
Board = dict[str, Any]
EVERYTHING = dict.fromkeys(("cluster", "namespace", "model", "instance", "engine"), ".*")
"""The variables at All."""


class Expression(NamedTuple):
    """A query, and where it is from."""

    board: str
    place: str
    text: str


def load(path: Path) -> Board:
    """Return a dashboard's JSON."""
    found: Board = json.loads(path.read_text(encoding="utf-8"))
    return found


def panels(board: Board) -> list[Board]:
    """Return the panels of a board, those of closed rows too, and no rows."""
    every = [*board["panels"], *(inner for panel in board["panels"] for inner in panel.get("panels") or ())]
    return [panel for panel in every if panel["type"] != "row"]


def expressions(board: Board) -> Iterator[Expression]:
    """Yield every query of a board's panels, variables and annotations, with Grafana's variables in it."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield Expression(board["uid"], f"{panel['title']} [{target['refId']}]", target["expr"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield Expression(board["uid"], f"${variable['name']}", asked_by(variable))
    for annotation in board["annotations"]["list"]:
        yield Expression(board["uid"], f"annotation {annotation['name']}", annotation["expr"])


def asked_by(variable: Board) -> str:
    """Return the series whose label a variable lists."""
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert found, variable
    return found[1]


def substituted(text: str, *, interval: str = "1m", span: str = "1h", **values: str) -> str:
    """Return a query as Grafana sends it: with its windows, and with variables of these values, else All."""
    text = text.replace("$__rate_interval", interval).replace("$__range", span)
    for name, value in {**EVERYTHING, **values}.items():
        text = text.replace(f"${name}", value)
    assert "$" not in text.replace('"$1"', ""), text
    return text
