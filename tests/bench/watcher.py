"""A watcher in a process of its own, which scrapes one counter over and over and tells when it grew."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from typing_extensions import Self

NAP = 0.005
"""Seconds between two scrapes: enough for what is watched to do something else."""

PATIENCE = 15.0


class Watcher:
    """The process, as the one that makes the counter grow sees it; it ends with the block."""

    def __init__(self, port: int, counter: str) -> None:
        """`counter`: name of the only family that is scraped; it must have one series."""
        command = [sys.executable, "-m", __name__, str(port), counter]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def seen(self, count: int) -> list[float]:
        """Return when the counter was seen to have grown by 1, by 2 and so on, monotonic seconds."""
        return [self._next() for _ in range(count)]

    def _next(self) -> float:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the watcher gave up")
        return float(line)


def _value(port: int, counter: str) -> int:
    """Return what the endpoint shows."""
    url = f"http://127.0.0.1:{port}/metrics?name[]={counter}"
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        lines = response.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith(counter))
    return int(float(line.split()[1]))


def _grown(port: int, counter: str) -> Iterator[None]:
    """Yield for each 1 by which the counter grows, until it has stood still for long."""
    before, changed = _value(port, counter), time.monotonic()
    yield
    while time.monotonic() < changed + PATIENCE:
        time.sleep(NAP)
        value = _value(port, counter)
        for _ in range(before, value):
            changed = time.monotonic()
            yield
        before = value


def main(port: str, counter: str) -> None:
    """Print the monotonic seconds when watching begins, and then whenever the counter is seen to have grown."""
    for _ in _grown(int(port), counter):
        print(time.monotonic(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
