"""The time that a preview is of, and the windows of queries that follow from it, by Grafana's rules."""

import re
from dataclasses import dataclass
from datetime import datetime, timezone

LENGTHS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
DURATION = re.compile(r"(?:\d{1,6}[smhdw])+")
LONGEST = 366 * LENGTHS["d"]
SCRAPES = 4
"""How many scrapes a rate is taken over at least."""


def seconds(text: str) -> int:
    """Return the seconds of a duration such as `90m` or `1h30m`; raise `ValueError` for a text that is none."""
    parts = re.findall(r"(\d+)([smhdw])", text) if DURATION.fullmatch(text) else []
    found = sum(int(number) * LENGTHS[unit] for number, unit in parts)
    if not 0 < found <= LONGEST:
        raise ValueError(f"{text!r} must be a duration from 1s to 366d, such as 15m, 1h30m or 7d")
    return found


def moment(text: str) -> float:
    """Return the Unix seconds of a time such as `2026-01-31T12:00:00Z`; raise `ValueError` for a text that is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} must be a time such as 2026-01-31T12:00:00Z") from error
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


@dataclass(frozen=True)
class Window:
    """The `span` seconds before `end` (Unix seconds), of a Prometheus that scrapes every `scrape` seconds."""

    end: float
    span: int
    scrape: int = 15

    def step(self, points: int) -> int:
        """Return the seconds between values so that there are no more than `points`, and none between two scrapes."""
        return max(self.scrape, -(-self.span // points))

    def bounds(self, step: int) -> tuple[int, int]:
        """Return the first and the last moment of a query; Grafana asks for multiples of the step."""
        return int(self.end - self.span) // step * step, int(self.end) // step * step

    def variables(self, step: int) -> dict[str, str]:
        """Return what Grafana's own variables stand for."""
        rate = max(step + self.scrape, SCRAPES * self.scrape)
        return {
            "__interval": f"{step}s", "__interval_ms": f"{step * 1000}", "__rate_interval": f"{rate}s",
            "__range": f"{self.span}s", "__range_s": f"{self.span}", "__range_ms": f"{self.span * 1000}",
        }  # fmt: skip
