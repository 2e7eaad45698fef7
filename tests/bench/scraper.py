"""A scraper in a process of its own, whose work never holds the GIL of the process it scrapes."""

import contextlib
import gzip
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

START_SECONDS = 10.0
HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}
"""As Prometheus asks."""


class Scraper:
    """GETs a page from another process whenever told to."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", __name__, str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.get()

    def get(self) -> float:
        """Return the milliseconds that one GET took.

        Raises:
            RuntimeError: when there was no answer.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the scraper got no answer")
        return float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def scraping(port: int, every: float) -> Iterator[None]:
    """Scrape every so many seconds until the block is left.

    Raises:
        RuntimeError: when a scrape failed.
    """
    process = subprocess.Popen([sys.executable, "-m", __name__, str(port), str(every)], stdout=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError("the scraper gave up")
    finally:
        process.kill()
        process.wait()


def page(port: int) -> str:
    """Return what the endpoint answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=HEADERS)
    with urllib.request.urlopen(request, timeout=START_SECONDS) as response:
        body: bytes = response.read()
        return (gzip.decompress(body) if response.headers["Content-Encoding"] == "gzip" else body).decode()


def _wait(port: int) -> None:
    """Return when the endpoint answers."""
    end = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(OSError):
            page(port)
            return
        if time.monotonic() > end:
            raise TimeoutError(f"nobody answers on port {port}")
        time.sleep(0.05)


def _every(seconds: float) -> Iterator[None]:
    """Tick without end."""
    while True:
        yield
        time.sleep(seconds)


def main(port: int, every: str | None = None) -> None:
    """Print the milliseconds of a GET at every line of stdin, or every so many seconds."""
    _wait(port)
    for _ in _every(float(every)) if every else sys.stdin:
        start = time.perf_counter()
        page(port)
        print((time.perf_counter() - start) * 1e3, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
