"""What counters have counted in all, however often the vLLM that shows them began anew."""

from typing import NamedTuple

from vllm_vitals.native.series import Labels, NativeSeries


class _Life(NamedTuple):
    """A series as it was last seen, and what its lives before had counted."""

    latest: NativeSeries
    value: float = 0.0
    counts: tuple[int, ...] = ()


class Totals:
    """The lives of every counter and histogram that was ever seen."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, Labels], _Life] = {}

    def total(self, now: NativeSeries) -> NativeSeries:
        """Return a series with what it counted in all its lives; a gauge as it is."""
        if now.kind == "gauge":
            return now
        place = (now.name, now.labels)
        life = self._lives[place] = _life(self._lives.get(place), now)
        return now._replace(value=life.value + now.value, counts=_sum(life.counts, now.counts))


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
