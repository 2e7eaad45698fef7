"""A Unix socket that only our own user can reach, bound so that it takes nobody's place."""

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LONGEST_PATH = 107
"""Bytes; the kernel's field has 108 and ends in a zero."""
BACKLOG = 128
"""Connections that may wait to be accepted."""
OPEN_TO_OTHERS = 0o022


class Listener:
    """Listens at a path from its making until it is closed."""

    def __init__(self, path: Path) -> None:
        """Bind and listen.

        Raises:
            OSError: when that cannot be done; the message names the path and says why.
        """
        self.path = path
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, f"The path of a socket has at most {LONGEST_PATH} bytes", str(path))
        with _locked(_directory(path.parent)):
            _clear(path)
            self.socket = _bind(path)
            self._inode = _inode(path)

    def ours(self) -> bool:
        """Tell whether the path still leads to this socket."""
        return _inode(self.path) == self._inode

    def accept(self) -> socket.socket | None:
        """Return the next connection, `None` when there is none after all.

        Raises:
            OSError: when there is no room for one.
        """
        with suppress(BlockingIOError, ConnectionAbortedError):
            return self.socket.accept()[0]
        return None

    def close(self) -> None:
        """Stop listening; the file goes first, so that nobody takes it for one that is left behind."""
        with suppress(OSError):
            if self.ours():
                self.path.unlink()
        self.socket.close()


def _directory(path: Path) -> Path:
    """Make a directory for us alone, or check that it is one."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "The socket needs a directory", str(path))
    if found.st_uid != os.geteuid():
        problem = f"The socket's directory belongs to user {found.st_uid}, not to {os.geteuid()} that runs this"
        raise PermissionError(errno.EPERM, problem, str(path))
    if found.st_mode & OPEN_TO_OTHERS:
        problem = f"Others may write to the socket's directory (mode {stat.S_IMODE(found.st_mode):04o}, wanted 0700)"
        raise PermissionError(errno.EPERM, problem, str(path))
    return path


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let one process at a time look what is there and bind: of two, the later would unlink the earlier's socket."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise OSError(errno.EADDRINUSE, "Another process is about to listen here", str(directory)) from error
    finally:
        os.close(handle)


def _clear(path: Path) -> None:
    """Take a socket away on which nobody listens."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(errno.EEXIST, "There is a file that is no socket", str(path))
        if _answers(path):
            raise OSError(errno.EADDRINUSE, "The socket is in use: another process listens", str(path))
        path.unlink()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # so many wait that there is no room for one more
        except ConnectionRefusedError:
            return False
        except OSError as error:
            raise OSError(error.errno, f"Cannot tell whether anybody listens: {error.strerror}", str(path)) from error
        return True


def _bind(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    try:
        made.setblocking(False)
        os.fchmod(made.fileno(), 0o600)  # what the file will get; a umask would be that of every thread's files
        made.bind(str(path))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"Cannot listen: {error.strerror}", str(path)) from error
    return made


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
