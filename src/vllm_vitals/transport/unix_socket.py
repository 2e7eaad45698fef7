"""A Unix socket that only our own user can reach, bound so that it takes nobody's place."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vllm_vitals._util.directory import Directory, check_length

BACKLOG = 128
"""Connections that may wait to be accepted."""
BINDING = ".bind"
"""Ends the name of the lock that is held, and there, only while somebody binds."""


class Listener:
    """Listens at a path from its making until it is closed."""

    def __init__(self, path: Path) -> None:
        """Bind and listen.

        Raises:
            OSError: when that cannot be done; the message names the path and says why.
        """
        self.path = path
        check_length(path)
        with Directory(path.parent) as directory, _locked(directory, path.name):
            _clear(directory, path.name)
            self.socket = _bind(path)
            self._inode = _inode(directory.look(path.name))
            if self._inode != _inode(path.lstat()):
                self.socket.close()
                raise OSError(errno.ESTALE, "The socket's directory was replaced while it was made", str(path))

    def ours(self) -> bool:
        """Tell whether the path still leads to this socket."""
        try:
            return _inode(self.path.lstat()) == self._inode
        except OSError:
            return False

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
        with suppress(OSError), Directory(self.path.parent, make=False) as directory:
            if _inode(directory.look(self.path.name)) == self._inode:
                directory.remove(self.path.name)
        self.socket.close()


@contextmanager
def _locked(directory: Directory, name: str) -> Iterator[None]:
    """Let one process at a time look what is there and bind: of two, the later would unlink the earlier's socket."""
    lock = directory.open_lock(name + BINDING)
    try:
        if not directory.holds(lock, name + BINDING):
            raise OSError(errno.EADDRINUSE, "Another process is about to listen here", str(directory.path / name))
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                directory.remove(name + BINDING)
    finally:
        os.close(lock)


def _clear(directory: Directory, name: str) -> None:
    """Take a socket away on which nobody listens."""
    found, path = directory.look(name), directory.path / name
    if found is None:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "There is a file that is no socket", str(path))
    if _answers(path):
        raise OSError(errno.EADDRINUSE, "The socket is in use: another process listens", str(path))
    directory.remove(name)


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


def _inode(found: os.stat_result | None) -> tuple[int, int] | None:
    return None if found is None else (found.st_dev, found.st_ino)
