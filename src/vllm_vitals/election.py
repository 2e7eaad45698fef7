"""Which of the API servers of a deployment holds the collector: one at a time, and soon another if it ends."""

import fcntl
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from vllm_vitals.logs import log_once

LOOK = 0.25
"""Seconds between two looks."""
PATIENCE = 1.0
"""Seconds without a collector after which the second API server takes over; those behind it wait two or three times."""


def meeting_point() -> Path:
    """Return the socket by which the API servers of one deployment meet: they are children of the same process."""
    parent = os.getppid()
    return Path(f"/tmp/vllm-vitals-{os.getuid()}") / f"{parent}-{_started(parent)}.sock"  # noqa: S108 - 0700, and checked


def _started(process: int) -> str:
    """Return when a process started, in ticks since boot: its number alone may be used again."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


class Election:
    """Takes the lead when nobody has it: who holds the lock leads, and the kernel lets go of it for the dead."""

    def __init__(self, socket: Path, rank: int, reached: Callable[[], bool], lead: Callable[[], None]) -> None:
        """`reached` tells whether there is a collector; `lead` is called once, when this process shall hold it."""
        self._path = socket.with_suffix(".lock")
        self._patience = PATIENCE * min(rank, 3)
        self._reached = reached
        self._lead = lead
        self._lock: int | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to watch, on another thread."""
        threading.Thread(target=self._run, name="vitals-election", daemon=True).start()

    def stop(self) -> None:
        """Stop watching; the lead, if held, is held until the process ends."""
        self._stopped.set()

    def abandon(self) -> None:
        """Close what a fork copied of the lock, so that it goes free with the parent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _run(self) -> None:
        alone = self._patience
        while not self._stopped.wait(LOOK):
            alone = self._patience if self._reached() else alone - LOOK
            if alone > 0:
                continue
            try:
                if self._take():
                    self._lead()
                    return
            except Exception as error:  # noqa: BLE001 - the thread must go on: nobody else will while it has the lock
                log_once(logging.ERROR, "Cannot hold the collector of this deployment, trying on: %s", error)

    def _take(self) -> bool:
        """Try to take the lock; tell whether this process has it now."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        if self._lock is None:
            self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
