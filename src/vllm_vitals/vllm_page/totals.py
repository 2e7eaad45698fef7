"""What counters have counted in all, however often the vLLM that shows them began anew."""

import logging
from typing import NamedTuple

from vllm_vitals._util.log import log_once
from vllm_vitals.vllm_page.series import Labels, NativeSeries

MOST_HELD = 64 * 2**20
"""Bytes of all series together, by rough count; a vLLM has some thousand series."""


class _Life(NamedTuple):
    """A series as it was last seen, and what its lives before had counted."""

    latest: NativeSeries
    value: float = 0.0
    counts: tuple[int, ...] = ()


class Totals:
    """The lives of every counter and histogram that was ever seen."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, Labels], _Life] = {}
        self._held = 0

    def total(self, now: NativeSeries) -> NativeSeries | None:
        """Return a series with what it counted in all its lives; a gauge as it is.

        `None` for one for which there is no room any more: something makes labels up.
        """
        if now.kind == "gauge":
            return now
        place = (now.name, now.labels)
        known = self._lives.get(place)
        held = self._held + _size(now) - (_size(known.latest) if known else 0)
        if held > max(MOST_HELD, self._held):
            log_once(
                logging.WARNING, "vLLM's page has brought too many series; new ones are left out", key="native-series"
            )
            return None
        self._held = held
        life = self._lives[place] = _life(known, now)
        return now._replace(value=life.value + now.value, counts=_sum(life.counts, now.counts))


def _size(series: NativeSeries) -> int:
    """Return about how many bytes a series takes, with what is made of it."""
    return 1000 + 100 * len(series.bounds) + sum(4 * (len(name) + len(value)) for name, value in series.labels)


def _life(known: _Life | None, now: NativeSeries) -> _Life:
    # Counts of different buckets cannot be added: with others the histogram starts over.
    if known is None or known.latest.bounds != now.bounds:
        return _Life(now, counts=(0,) * len(now.counts))
    if not _began_anew(now, known.latest):
        return known._replace(latest=now)
    before = known.latest
    return _Life(now, known.value + before.value, _sum(known.counts, before.counts))


def _began_anew(now: NativeSeries, before: NativeSeries) -> bool:
    if now.created is not None and before.created is not None and now.created != before.created:
        return True
    if now.kind == "histogram":  # not its sum, which what is less than nothing makes fall
        return any(new < old for new, old in zip(now.counts, before.counts, strict=True))
    return now.value < before.value


def _sum(some: tuple[int, ...], more: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(some, more, strict=True))
