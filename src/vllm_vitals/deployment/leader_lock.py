"""Which of the API servers of a deployment holds the collector: one at a time, and soon another if it ends."""

import logging
import os
import re
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vllm_vitals._util.directory import LONGEST_PATH, Directory, fault
from vllm_vitals._util.log import log_once
from vllm_vitals.transport.unix_socket import BINDING

LOOK = 0.25
"""Seconds between two looks."""
PATIENCE = 1.0
"""Seconds without a collector after which the second API server takes over; those behind it wait two or three times."""
MEETING = re.compile(r"([0-9]+-[0-9]+)\.(?:lock|sock|sock\.bind)")
"""How the files of a meeting point are called."""
LAST = 1.0
"""Seconds that the end of a process waits at most for what the watching thread is at."""
CANNOT = (
    "Cannot hold the collector of this deployment, trying on: %s. Serving goes on; its metrics are missing until then. "
    "VITALS_WIRE__SOCKET sets another path"
)
VARIABLES = ("TMPDIR", "XDG_RUNTIME_DIR")
PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - a directory with mode 0700 is made there, and checked
"""Where the directory of the meeting points is made: the first that will do, in this order."""


def meeting_point(*, make: bool = False) -> Path:
    """Return the socket by which the API servers of one deployment meet: they are children of the same process.

    All of them must find the same, so they `make` its directory at once: from then on nobody else can take the name.
    """
    parent = os.getppid()
    name = f"{parent}-{_started(parent)}.sock"
    given = [Path(place) for variable in VARIABLES if (place := os.environ.get(variable, "")).startswith("/")]
    directories = [place / f"vllm-vitals-{os.geteuid()}" for place in (*given, *map(Path, PLACES))]
    fitting = [each for each in directories if len(os.fsencode(each / name)) <= LONGEST_PATH]
    # If none will do, the first is as good as any: who tries to listen there says what is wrong with it.
    return next((each for each in fitting if _usable(each, make=make)), fitting[0]) / name


def _usable(directory: Path, *, make: bool) -> bool:
    try:
        if make:
            Directory(directory).close()
        elif not os.path.lexists(directory):
            return os.access(directory.parent, os.W_OK | os.X_OK)
        return not fault(directory) and os.access(directory, os.W_OK | os.X_OK)
    except OSError:
        return False


def _started(process: int) -> str:
    """Return when a process started, in ticks since boot: its number alone may be used again."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


def sweep(path: Path) -> None:
    """Take away what deployments left in a directory that were killed: what is called as we call it, and nobody holds."""
    with suppress(OSError), Directory(path, make=False) as directory:
        for stem in sorted({match[1] for name in directory.names() if (match := MEETING.fullmatch(name))}):
            with suppress(OSError):
                _clear(directory, stem)


def _clear(directory: Directory, stem: str) -> None:
    """Take the files of one deployment away, the lock last: as long as it is held, nobody makes any of them."""
    lock = directory.open_lock(f"{stem}.lock")
    try:
        if directory.holds(lock, f"{stem}.lock"):
            for name, kind in ((f"{stem}.sock", stat.S_IFSOCK), (f"{stem}.sock{BINDING}", stat.S_IFREG)):
                found = directory.look(name)
                if found is not None and stat.S_IFMT(found.st_mode) == kind:
                    directory.remove(name)
            directory.remove(f"{stem}.lock")
    finally:
        os.close(lock)


class LeaderLock:
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
        with suppress(OSError), Directory(self._path.parent, make=False) as directory:
            if directory.holds(self._lock, self._path.name):
                directory.remove(self._path.name)
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
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
                log_once(logging.ERROR, CANNOT, error, key="election")

    def _take(self) -> bool:
        """Try to take the lock; tell whether this process has it now."""
        with Directory(self._path.parent) as directory:
            if self._lock is None:
                self._lock = directory.open_lock(self._path.name)
            if directory.holds(self._lock, self._path.name):
                return True
        self.after_fork_in_child()
        return False
