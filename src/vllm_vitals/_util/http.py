"""One GET that is bounded: in time however slowly a peer trickles, in size however small it packs what it sends.

No proxy is used, as no scraper would: the page is this host's, or a neighbour's.
"""

import zlib
from base64 import b64encode
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import NamedTuple
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.deadline_socket import Deadline, TooMuchError, Wire, connect
from vllm_vitals._util.redact import shown_url
from vllm_vitals._util.trust import Trust

MOST_REDIRECTS = 3
MOST_BYTES = 16 * 2**20
"""The largest page, unpacked; 64 engines make one of about 2 MiB."""
MOST_HEAD = 2**16
"""Bytes of the head of an answer, and of those before it that only say to go on."""
LONGEST_URL = 300
"""Characters of a URL that are shown."""
LONGEST_REASON = 200
"""Characters of a peer's words that are shown."""
CHUNK = 65536
OK = 200
REDIRECTS = (301, 302, 303, 307, 308)
PORTS = {"http": 80, "https": 443}
UNQUOTED = "/%:=&?~#+!$,;'@()*[]"
ACCEPT = "text/plain;version=0.0.4,*/*;q=0.1"
"""OpenMetrics goes unmentioned: Python's client would send it whatever its rank, from 0.23 on with broken names.

Nor is gzip asked for, which would pack the page on the event loop that streams tokens; it is taken where it comes.
"""


class DownloadError(Exception):
    """Nothing usable came from a URL; the text names it, what came and what was expected."""


class Download(NamedTuple):
    """What a URL holds."""

    type: str
    content: bytes


def shown(url: str) -> str:
    """Return a URL as it may be shown: without user, password and query, any of which may be secret."""
    return clean(shown_url(url), LONGEST_URL)


def download(url: str, timeout: float, most: int = MOST_BYTES, trust: Trust | None = None) -> Download:
    """Return what is at a URL, within so many seconds and bytes.

    A user and password in it, and the client certificate of `trust`, are for its server alone.

    Raises:
        DownloadError: when nothing usable came.
    """
    deadline, asked, trust = Deadline(timeout), url, trust or Trust()
    try:
        for _ in range(MOST_REDIRECTS + 1):
            answer = _ask(urlsplit(asked), urlsplit(url), deadline, most, trust)
            if isinstance(answer, Download):
                return answer
            asked = urljoin(asked, answer)
    except TimeoutError:
        raise DownloadError(f"{shown(url)}: no complete answer within {timeout:g} s") from None
    except (DownloadError, TooMuchError, HTTPException, OSError, ValueError, zlib.error) as error:
        via = f", redirected to {shown(asked)}" if asked != url else ""
        raise DownloadError(f"{shown(url)}{via}: {_reason(error)}") from error
    raise DownloadError(f"{shown(url)} redirects more than {MOST_REDIRECTS} times, lastly to {shown(asked)}")


def _reason(error: Exception) -> str:
    if isinstance(error, DownloadError):
        return str(error)
    if isinstance(error, TooMuchError):
        return f"the head of the answer has more than {MOST_HEAD} bytes"
    return clean(f"{type(error).__name__}: {error}", LONGEST_REASON)  # words of a peer, it may be


def _ask(parts: SplitResult, first: SplitResult, deadline: Deadline, most: int, trust: Trust) -> Download | str:
    """Return what a server sends, or where it redirects to."""
    if parts.scheme not in PORTS or not parts.hostname:
        raise DownloadError("expected a URL that begins with http:// or https:// and names a host")
    same = _server(parts) == _server(first)
    target = quote(parts._replace(scheme="", netloc="", fragment="").geturl() or "/", safe=UNQUOTED)
    headers = {"Accept": ACCEPT, "Connection": "close", **(_authorization(first) if same else {})}
    context = trust.context(proves=same) if parts.scheme == "https" else None
    with connect(parts.hostname, _port(parts), deadline, context) as sock:
        connection = HTTPConnection(parts.hostname, _port(parts))
        wire = Wire(sock, deadline, MOST_HEAD)
        connection.sock = wire
        connection.request("GET", target, headers=headers)
        with connection.getresponse() as response:
            wire.allow(2 * most)
            return _answer(response, most)


def _answer(response: HTTPResponse, most: int) -> Download | str:
    location = response.getheader("Location")
    if response.status in REDIRECTS and location:
        return location
    if response.status != OK:
        raise DownloadError(f"HTTP {response.status} {clean(response.reason, LONGEST_REASON)}; expected 200")
    return Download(response.getheader("Content-Type", ""), _content(response, most))


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or PORTS[parts.scheme]
    except ValueError:  # whose words hold the half of a password that has a slash
        raise DownloadError("expected a URL with a port from 1 to 65535, and a password percent-encoded") from None


def _server(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, _port(parts)


def _authorization(first: SplitResult) -> dict[str, str]:
    """Return the header that proves who asks, for the server that the first URL names."""
    if first.username is None:
        return {}
    pair = f"{unquote(first.username)}:{unquote(first.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}


def _content(response: HTTPResponse, most: int) -> bytes:
    encoding = response.getheader("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip"):
        raise DownloadError(f"Content-Encoding is {clean(encoding, LONGEST_REASON)}; expected gzip or none")
    unpacker = None if encoding == "identity" else zlib.decompressobj(16 + zlib.MAX_WBITS)
    unpack: Callable[[bytes, int], bytes] = (lambda piece, _: piece) if unpacker is None else unpacker.decompress
    content = bytearray()
    try:
        while piece := response.read(CHUNK):
            content += unpack(piece, most + 1 - len(content))
            if len(content) > most:
                raise DownloadError(f"more than {most} bytes")
            if unpacker and unpacker.unused_data:
                raise DownloadError(f"something follows the page, of {len(content)} bytes, that gzip packed")
    except TooMuchError:  # of a little that is packed so that it is much
        raise DownloadError(f"more than {most} bytes") from None
    if response.length or (unpacker and not unpacker.eof):
        raise DownloadError(f"the connection ended after {len(content)} bytes, in the middle of the page")
    return bytes(content)
