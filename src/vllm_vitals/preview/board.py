"""A board that is previewed: its JSON, the answers to its queries, and where its panels are."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_vitals.preview.answers import Answer, Answers, Panel, pixels
from vllm_vitals.preview.window import Window

TITLES, TITLE, ROW = 200, 60, 38
"""Pixels that the titles of a board and of a section take at most, and a row of the grid."""


@dataclass(frozen=True)
class Section:
    """The panels below a row's title."""

    title: str
    closed: bool
    panels: list[Panel]

    @property
    def top(self) -> int:
        """Return the row of Grafana's grid in which it begins."""
        return min((panel["gridPos"]["y"] for panel in self.panels), default=0)

    @property
    def rows(self) -> int:
        """Return how many rows of the grid it takes."""
        return max((panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in self.panels), default=0) - self.top


@dataclass(frozen=True)
class Preview:
    """A board, what its queries yielded, and the time they were asked about."""

    board: Mapping[str, Any]
    answers: Answers
    window: Window

    def of(self, panel: Panel) -> list[Answer]:
        """Return the answers to the queries of a panel."""
        return [self.answers[panel["id"], target["refId"]] for target in panel["targets"]]

    def step(self, panel: Panel) -> int:
        """Return the seconds between the values of a panel."""
        return self.window.step(pixels(panel))

    def sections(self) -> list[Section]:
        """Return the rows of the board with their panels."""
        found: list[Section] = []
        for panel in self.board["panels"]:
            if panel["type"] == "row":
                found.append(Section(panel["title"], bool(panel.get("collapsed")), list(panel.get("panels") or ())))
            else:
                found[-1].panels.append(panel)
        return found

    def height(self) -> int:
        """Return how many pixels it takes at most on a page that is 1280 wide."""
        return TITLES + sum(TITLE + (0 if each.closed else each.rows * ROW) for each in self.sections())

    def errors(self) -> list[str]:
        """Return what went wrong, and where."""
        titles = {panel["id"]: panel["title"] for section in self.sections() for panel in section.panels}
        return [
            f"{self.board['title']}: {titles[panel]} [{query}]: {answer.error}"
            for (panel, query), answer in self.answers.items()
            if answer.error
        ]
