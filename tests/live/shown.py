"""What the panels of a dashboard have to show, asked of a Prometheus query by query."""

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from tests.boards.expressions import Board, substituted
from tests.live.server import fetch

SPAN, STEP = 300, 5
"""Seconds that are shown, and between two values."""
RATE = 4 * STEP


class Shown:
    """The values of panels in the `SPAN` seconds before a moment."""

    def __init__(self, port: int, until: int) -> None:
        self._api, self._until = f"http://127.0.0.1:{port}/api/v1", until

    def numbers(self, panel: Board) -> list[float]:
        """Return the numbers of a panel, ascending: the latest of each series, and of a heatmap its fullest cell."""
        if panel["type"] == "state-timeline":
            return []
        if panel["type"] == "heatmap":
            return [max(cells)] if (cells := list(self._cells(panel))) else []
        hidden = {
            name
            for each in panel.get("transformations", ())
            for name, out in each["options"].get("excludeByName", {}).items()
            if out
        }
        found = []
        for target in panel["targets"]:
            if not hidden & {"Value", f"Value #{target['refId']}"}:
                for series in self._series(target):
                    found += [value for _, value in series["values"] if not math.isnan(value)][-1:]
        return sorted(found)

    def _cells(self, panel: Board) -> Iterator[float]:
        """Yield how many values were in each bucket at each moment: what it has more than the one below."""
        moments: dict[float, dict[float, float]] = {}
        for series in self._series(panel["targets"][0]):
            for time, value in series["values"]:
                moments.setdefault(time, {})[float(series["metric"]["le"])] = value
        for buckets in moments.values():
            totals = [0.0, *(buckets[bound] for bound in sorted(buckets))]
            yield from (above - below for below, above in pairwise(totals))

    def _series(self, target: Board) -> list[dict[str, Any]]:
        query = quote(substituted(target["expr"], interval=f"{RATE}s", span=f"{SPAN}s"))
        if target["instant"]:
            what = f"query?time={self._until}"
        else:
            begin, end = (moment // STEP * STEP for moment in (self._until - SPAN, self._until))
            what = f"query_range?start={begin}&end={end}&step={STEP}"
        found = json.loads(fetch(f"{self._api}/{what}&query={query}"))["data"]["result"]
        for series in found:
            points = series.get("values") or [series["value"]]
            series["values"] = [(time, float(value)) for time, value in points]
        return list(found)
