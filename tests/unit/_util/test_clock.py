"""Two clocks are read as if at one moment, however long that takes."""

import pytest

from vllm_vitals._util import clock

BOOT = 1_700_000_000.0


class Host:
    """Clocks of a host that goes on between two readings, by so many seconds each."""

    def __init__(self, *passing: float) -> None:
        self._now = 1000.0
        self._passing = list(passing)
        self.readings = 0

    def monotonic(self) -> float:
        self.readings += 1
        now = self._now
        self._now += self._passing.pop(0) if self._passing else 0.0
        return now

    def time(self) -> float:
        return BOOT + self.monotonic()


@pytest.mark.parametrize(
    ("passing", "readings"),
    [([], 3), ([1e-6] * 99, 3), ([5.0, 0.0], 6), ([0.0, 5.0], 6), ([0.02, 0.0, 0.0, 0.0, 0.02], 9)],
)
def test_who_is_kept_waiting_between_the_clocks_reads_them_again(
    monkeypatch: pytest.MonkeyPatch, passing: list[float], readings: int
) -> None:
    host = Host(*passing)
    monkeypatch.setattr(clock, "time", host)
    assert clock.epoch() == pytest.approx(BOOT, abs=1e-5)
    assert host.readings == readings


def test_on_a_host_that_is_never_quick_the_shortest_try_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "time", Host(0.3, 0.3, 0.3, 0.01, 0.0, 0.3, *[0.3] * 99))
    assert clock.epoch() == pytest.approx(BOOT, abs=0.01)
