"""Which of the API servers of a deployment holds the collector: one at a time, and soon another if it ends."""

import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vllm_vitals.logs import log_once

LOOK = 0.25
"""Seconds between two looks."""
PATIENCE = 1.0
"""Seconds without a collector after which the second API server takes over; those behind it wait two or three times."""
MEETING = re.compile(r"[0-9]+-[0-9]+\.lock")
"""How the lock of a meeting point is called."""
LAST = 1.0
"""Seconds that the end of a process waits at most for what the watching thread is at."""


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


def sweep(directory: Path) -> None:
    """Take away what deployments left that were killed: their sockets, and the locks that nobody holds."""
    for path in directory.glob("*.lock"):
        if MEETING.fullmatch(path.name):
            with suppress(OSError):
                _clear(path)


def _clear(path: Path) -> None:
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if _holds(lock, path):
            path.with_suffix(".sock").unlink(missing_ok=True)
            path.unlink()
    finally:
        os.close(lock)


def _holds(lock: int, path: Path) -> bool:
    """Tell whether a handle holds the lock of a path, which it may take.

    Who holds it may unlink the file. Whoever opened that before then has a lock that others do not meet, and which
    does not count therefore.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False


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
        self._thread = threading.Thread(target=self._run, name="vitals-election", daemon=True)

    def start(self) -> None:
        """Begin to watch, on another thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; the lead, if held, is held on."""
        self._stopped.set()

    def leave(self) -> None:
        """After `stop`, give the lead up if it is held, and take the lock away: nothing stays behind."""
        self._thread.join(LAST)
        if self._lock is None or self._thread.is_alive():
            return  # the kernel lets go of it
        with suppress(OSError):
            if _holds(self._lock, self._path):
                self._path.unlink()
        self.abandon()

    def abandon(self) -> None:
        """Close the lock, or what a fork copied of it, so that it goes free with the parent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _run(self) -> None:
        alone = self._patience
        while not self._stopped.wait(LOOK):
            alone = self._patience if self._reached() else alone - LOOK
            if alone > 0:
                continue
            try:
                if self._take():
                    self._lead()
                    if MEETING.fullmatch(self._path.name):  # elsewhere there may be files that are not ours
                        sweep(self._path.parent)
                    return
            except Exception as error:  # noqa: BLE001 - the thread must go on: nobody else will while it has the lock
                log_once(logging.ERROR, "Cannot hold the collector of this deployment, trying on: %s", error)

    def _take(self) -> bool:
        """Try to take the lock; tell whether this process has it now."""
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        if self._lock is None:
            self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if _holds(self._lock, self._path):
            return True
        self.abandon()
        return False
