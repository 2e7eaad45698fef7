"""Files that somebody else wrote: read once, and never more of them than is allowed."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

MOST_BYTES = 256 * 2**10
"""The largest file of settings or rules. Without libyaml a megabyte of YAML takes seconds."""
State = tuple[tuple[int, ...], ...]
"""Of files at some moment; it is another one when one of them has changed."""


def read(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return what a regular file holds.

    Raises:
        OSError: when there is none, when it cannot be read, or has more bytes than `most`; the text is fit to be shown.
    """
    try:
        return _read(path, most)
    except ValueError as error:  # the path holds a NUL, or letters that no file name can have
        raise OSError("no file can have such a name") from error
    except OSError as error:
        raise OSError(error.strerror or str(error)) from None


def state(paths: Iterable[Path | str | None]) -> State:
    """Return what tells files from those that were at their paths before; links are followed."""
    return tuple(_mark(Path(path)) for path in paths if path)


def _mark(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path, most: int) -> bytes:
    _check(path.stat(), most)  # before it is opened: with some devices that does something
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(handle, "rb") as file:
        _check(os.fstat(handle), most)  # it may be another one by now, and grow while it is read
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(_too_large(f"more than {most}", most))
    return content


def _check(found: os.stat_result, most: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError("it is not a regular file")
    if found.st_size > most:
        raise OSError(_too_large(str(found.st_size), most))


def _too_large(size: str, most: int) -> str:
    return f"it has {size} bytes, at most {most} are allowed"
