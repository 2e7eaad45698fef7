"""What can be chosen on the command line, and what every measurement therefore gets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """Sizes of the measurements."""

    candidates: tuple[str, ...]
    running: tuple[int, ...]
    seconds: float
    rounds: int
    lag_seconds: float
    lag_rounds: int
    scrapes: int
    push_engines: tuple[int, ...]
    push_rounds: int
    tries: int
    soak_seconds: float

    def pick(self, *names: str) -> list[str]:
        """Return those of `names` that take part."""
        return [name for name in names if name in self.candidates]
