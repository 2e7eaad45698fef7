"""A directory of our own for sockets and locks: checked before anything is made in it, or taken away."""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType

LONGEST_PATH = 107
"""Bytes of a socket's path; the kernel's field has 108 and ends in a zero."""
OPEN_TO_OTHERS = 0o022
"""Modes of a directory in which others can put things."""
ADVICE = "Give a path in a directory of this user alone, such as a new one, which is made with mode 0700"


class Directory:
    """A directory that only our user can write to, held open: its files are those in it, whatever its path leads to.

    Nothing in it is followed: where there is a symbolic link, a pipe or a file of another user, that is an error.
    """

    def __init__(self, path: Path, *, make: bool = True) -> None:
        """Open it; `make` it, with mode 0700, where it is missing.

        Raises:
            OSError: when it is not there, or is not ours alone; the message says what to do.
        """
        self.path = path
        if make:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if found := fault(path):
                raise OSError(error.errno, found, str(path)) from error
            raise
        if found := _fault(os.fstat(self._handle)):
            os.close(self._handle)
            raise PermissionError(errno.EPERM, found, str(path))

    def __enter__(self) -> "Directory":  # noqa: PYI034 - no Self before Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        os.close(self._handle)

    def names(self) -> list[str]:
        """Return what is in it."""
        return os.listdir(self._handle)  # noqa: PTH208 - pathlib takes no handle

    def look(self, name: str) -> os.stat_result | None:
        """Return what a name is, `None` when there is none."""
        try:
            return os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Take a name away that is there."""
        os.unlink(name, dir_fd=self._handle)

    def open_lock(self, name: str) -> int:
        """Return a handle of a lock file, which is made if it is missing.

        Raises:
            OSError: when something else is there.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            handle = os.open(name, flags, 0o600, dir_fd=self._handle)
        except OSError as error:
            raise OSError(error.errno, f"Cannot be used as a lock: {error.strerror}", str(self.path / name)) from error
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            return handle
        os.close(handle)
        raise FileExistsError(errno.EEXIST, "There is something that is no lock of this user", str(self.path / name))

    def holds(self, lock: int, name: str) -> bool:
        """Tell whether a handle holds the lock of a name, which it may take.

        Who holds it may unlink the file. Whoever opened that before then has a lock that others do not meet, and which
        does not count therefore.
        """
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        found = self.look(name)
        return found is not None and os.path.samestat(os.fstat(lock), found)


def check_length(path: Path) -> None:
    """Raise OSError if a path is too long for a socket."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, f"The path of a socket has at most {LONGEST_PATH} bytes", str(path))


def fault(path: Path) -> str:
    """Return why a directory cannot be trusted with a socket, `""` when it can.

    Raises:
        OSError: when it is not there, or cannot be looked at.
    """
    return _fault(path.lstat())


def _fault(found: os.stat_result) -> str:
    if stat.S_ISLNK(found.st_mode):
        return "The socket's directory is a symbolic link. Give the path of the directory itself"
    if not stat.S_ISDIR(found.st_mode):
        return f"The socket's directory is no directory. {ADVICE}"
    if found.st_uid != os.geteuid():
        return f"The socket's directory belongs to user {found.st_uid}, not to {os.geteuid()} that runs this. {ADVICE}"
    if found.st_mode & OPEN_TO_OTHERS:
        mode = f"mode {stat.S_IMODE(found.st_mode):04o}, wanted 0700"
        return f"Others may write to the socket's directory ({mode}). {ADVICE}"
    return ""
