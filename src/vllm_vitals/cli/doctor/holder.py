"""Who holds a port."""

import http.client
import re
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from vllm_vitals.catalog.self_metrics import INFO

PATIENCE = 2.0
LISTENING = "0A"
PROC = Path("/proc")


@dataclass(frozen=True)
class Ourselves:
    """A scrape endpoint of vllm-vitals that answers."""

    version: str
    healthy: bool
    said: str


def ask(address: str, port: int, *, tls: bool) -> Ourselves | None:
    """Return what answers on a port if it is ours, else `None`."""
    with suppress(OSError, http.client.HTTPException):
        status, said = _get(address, port, "/readyz", tls=tls)
        _, page = _get(address, port, f"/metrics?name[]={INFO.prometheus}", tls=tls)
        found = re.search(rf'^{INFO.prometheus}{{.*\bversion="([^"]*)"', page, re.MULTILINE)
        if found:
            return Ourselves(found[1], status == http.client.OK, said.strip())
    return None


def process(port: int) -> str:
    """Return the process that listens on a port, as far as this user may see; `""` when that is not told."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for directory in PROC.glob("[0-9]*") if sockets else ():
        with suppress(OSError):  # another user's process, or one that has just ended
            if any(str(link.readlink()) in sockets for link in (directory / "fd").iterdir()):
                return f"process {directory.name} ({(directory / 'comm').read_text().strip()})"
    return ""


def _get(address: str, port: int, path: str, *, tls: bool) -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, port, timeout=PATIENCE)
    if tls:
        # Who it is, is what we ask; there is nothing to keep secret.
        connection = http.client.HTTPSConnection(
            address, port, timeout=PATIENCE, context=ssl._create_unverified_context()  # noqa: S323, SLF001
        )  # fmt: skip
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(100_000).decode("utf-8", "replace")


def _listening(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (PROC / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    yield words[9]
