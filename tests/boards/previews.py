"""Previews made of answers that are written down, and the pages of them taken apart."""

import copy
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from tests.boards.expressions import DASHBOARDS, FILES, Board, load, panels
from vllm_vitals.preview.answers import Answer
from vllm_vitals.preview.board import Preview
from vllm_vitals.preview.prometheus import Series
from vllm_vitals.preview.window import Window

FLEET = DASHBOARDS / "fleet.json"
END = 1_000_000_005
WINDOW = Window(END, 60, 15)
"""A minute with a value at its begin, its end and every quarter: 999_999_945 + 15 * n."""
TIMES = [999_999_945 + 15 * number for number in range(5)]
ALONE = frozenset(("meta", "img", "image", "br", "path", "use", "rect", "polyline", "polygon"))


def of(labels: Mapping[str, str], *values: float, first: int = 0) -> Series:
    """Return a series with these values, one every 15 s from the `first` of `TIMES` on; one value alone is the last."""
    return Series(dict(labels), list(zip(TIMES[first:] if len(values) > 1 else [END], values, strict=False)))


def board_of(*kinds: str) -> Board:
    """Return a real board with one panel of each of these kinds, below one row."""
    every = [panel for path in (FLEET, *FILES["vitals"]) for panel in panels(load(path))]
    found = load(FLEET)
    chosen = [copy.deepcopy(next(panel for panel in every if panel["type"] == kind)) for kind in kinds]
    for number, panel in enumerate(chosen):
        panel |= {"id": number + 2, "gridPos": {"x": 0, "y": 1 + 8 * number, "w": 8, "h": 8}}
    return {**found, "panels": [found["panels"][0], *chosen]}


def preview(board: Board, *answers: Sequence[Series] | str) -> Preview:
    """Return a preview whose panels have these answers, in order: series of the first query of each, or an error."""
    found = {(panel["id"], target["refId"]): Answer() for panel in panels(board) for target in panel["targets"]}
    for panel, answer in zip(panels(board), answers, strict=False):
        made = Answer(error=answer) if isinstance(answer, str) else Answer(tuple(answer))
        found[panel["id"], panel["targets"][0]["refId"]] = made
    return Preview(board, found, WINDOW)


class Element:
    """An element of a page."""

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name, self.attributes = name, attributes
        self.inside: list[Element | str] = []

    @property
    def text(self) -> str:
        """Return all text within."""
        return "".join(each if isinstance(each, str) else each.text for each in self.inside)

    def all(self, name: str = "", **wanted: str) -> "list[Element]":
        """Return the elements within that have a name and attributes, the deeper ones too."""
        found = []
        for each in self.inside:
            if isinstance(each, Element):
                if name in {"", each.name} and all(
                    each.attributes.get(key.rstrip("_")) == value for key, value in wanted.items()
                ):
                    found.append(each)
                found += each.all(name, **wanted)
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(made)
        if tag not in ALONE:
            self.open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].inside.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in ALONE:
            assert self.open.pop().name == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)


def read(page: str) -> Element:
    """Return a page taken apart; every element in it must be closed."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    assert len(reader.open) == 1, f"not closed: {[each.name for each in reader.open[1:]]}"
    return reader.open[0]


def numbers(element: Element) -> list[float]:
    """Return the values that are within for machines."""
    return [float(each.attributes["value"]) for each in element.all("data")]


def panel_of(page: Element, preview: Preview, number: int = 0) -> Element:
    """Return a panel of a page."""
    panel: dict[str, Any] = panels(dict(preview.board))[number]
    (found,) = page.all("section", id=f"{preview.board['uid']}-{panel['id']}")
    return found
