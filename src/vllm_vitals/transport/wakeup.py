"""A wait that another thread can end."""

import os
from contextlib import suppress


class Wake:
    """Something to poll for beside sockets."""

    def __init__(self) -> None:
        self._handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return what to poll."""
        return self._handle

    def set(self) -> None:
        """End the present wait, or else the next."""
        with suppress(BlockingIOError):  # it was set so often that the number does not fit
            os.eventfd_write(self._handle, 1)

    def clear(self) -> None:
        """Make ready for the next wait."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._handle)

    def __del__(self) -> None:
        # Only when nobody can set it any more: the number might be that of another file by then.
        os.close(self._handle)
