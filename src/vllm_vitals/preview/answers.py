"""What a Prometheus answers to the queries of a board."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from vllm_vitals.preview.prometheus import NotDrawnError, Prometheus, PrometheusError, Series
from vllm_vitals.preview.variables import substituted
from vllm_vitals.preview.window import Window

AT_ONCE = 4
COLUMNS = 24
WIDTH = 1248
"""Pixels of the grid where the window is 1280 wide."""

Panel = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The series that answer a query, or why there are none: an error, or a kind of answer that is `not_drawn`."""

    series: tuple[Series, ...] = ()
    error: str = ""
    not_drawn: str = ""


Answers = Mapping[tuple[int, str], Answer]
"""By the id of a panel and the refId of its query."""


def pixels(panel: Panel) -> int:
    """Return how wide a panel is, which is how many values fit beside each other."""
    return int(panel["gridPos"]["w"] * WIDTH / COLUMNS)


def panels(board: Mapping[str, Any]) -> Iterator[Panel]:
    """Yield the panels of a board, those in closed rows too, and no rows."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or ()
        else:
            yield panel


def asked(prometheus: Prometheus, board: Mapping[str, Any], window: Window, values: Mapping[str, str]) -> Answers:
    """Return the answers to every query of a board's panels; `values` are those of its variables."""
    every = [(panel, target) for panel in panels(board) for target in panel["targets"]]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(lambda each: _ask(prometheus, each[0], each[1], window, values), every)
        return {(panel["id"], target["refId"]): answer for (panel, target), answer in zip(every, answers, strict=True)}


def _ask(
    prometheus: Prometheus, panel: Panel, target: Mapping[str, Any], window: Window, values: Mapping[str, str]
) -> Answer:
    step = window.step(pixels(panel))
    try:
        query = substituted(target["expr"], {**values, **window.variables(step)})
        if target.get("instant"):
            return Answer(tuple(prometheus.instant(query, window.end)))
        return Answer(tuple(prometheus.over(query, *window.bounds(step), step)))
    except NotDrawnError as error:
        return Answer(not_drawn=str(error))
    except (PrometheusError, ValueError) as error:
        return Answer(error=str(error))
