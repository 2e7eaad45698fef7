"""Whether a process that holds GPU memory belongs to this vLLM: the engines are descendants of what serves."""

import os
from collections.abc import Callable, Collection

DEEPEST = 32
"""Ancestors that are looked at."""


def parent(pid: int) -> int:
    """Return the process id of a process's parent, 0 when there is no such process here."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123
            return int(stat.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


class Family:
    """Some processes and all that descend from them; what was found out of a process is kept while it is asked for."""

    def __init__(self, roots: Collection[int] = (), parent: Callable[[int], int] = parent) -> None:
        """`roots`: by default this process alone."""
        self._roots = frozenset(roots or (os.getpid(),))
        self._parent = parent
        self._known: dict[int, bool] = {}

    def members(self, pids: Collection[int]) -> set[int]:
        """Return those of the processes that belong to the family."""
        self._known = {pid: self._known[pid] if pid in self._known else self._descends(pid) for pid in pids}
        return {pid for pid, member in self._known.items() if member}

    def _descends(self, pid: int) -> bool:
        for _ in range(DEEPEST):
            if pid in self._roots:
                return True
            if pid <= 1:
                return False
            pid = self._parent(pid)
        return False
