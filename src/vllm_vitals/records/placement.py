"""Which engine works on which device: vLLM gives each engine of a host the next ones of those that it may use."""

from collections.abc import Sequence
from typing import NamedTuple


class Placement(NamedTuple):
    """The engines of one vLLM on this host.

    `engines` are in the order of their local ranks, the first of which is `rank`; each takes `devices`.
    """

    model: str
    engines: tuple[str, ...]
    devices: int
    rank: int = 0


Owner = tuple[str, str]
"""Model and engine, `""` for what is not known."""
NOBODY: Owner = ("", "")


def place(placements: Sequence[Placement], ids: Sequence[str]) -> dict[str, Owner]:
    """Return the devices that the engines use, of those that they may use, and whose each is.

    Where that cannot be told these are all of them: nothing is known of the engines, or more than one vLLM is here.
    """
    if len(placements) != 1:
        return dict.fromkeys(ids, NOBODY)
    model, engines, devices, rank = placements[0]
    first, used = rank * devices, len(engines) * devices
    if first + used <= len(ids):
        taken = ids[first : first + used]
        return {each: (model, engines[position // devices]) for position, each in enumerate(taken)}
    if len(engines) == 1:  # it reaches over several hosts, or somebody gave each rank devices of its own
        return dict.fromkeys(ids, (model, engines[0]))
    return dict.fromkeys(ids, (model, ""))
