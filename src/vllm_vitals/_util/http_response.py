"""An HTTP response, read within bounds: whatever comes, its head and body take so many bytes and no more."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MOST_HEAD = 32768
"""Bytes of all heads together, those of 1xx responses too."""
MOST_BODY = 65536
"""Bytes of a body, also once it is unpacked."""
LONGEST_LINE = 8192
LONGEST_REASON = 256
LENGTH_DIGITS = 18
MOST_INFORMATIONAL = 16
EMPTY = (204, 205, 304)
HTTP_1_0 = b"HTTP/1.0"

Receive = Callable[[], bytes]
"""Gives what comes next of the connection, nothing at its end; raises `OSError` once it is too late."""


class ReplyError(Exception):
    """What came is no HTTP response."""


@dataclass
class Reply:
    """What a receiver answered."""

    status: int
    reason: str
    headers: dict[str, str] = field(default_factory=dict)
    """By lower-case name; of two of one name the last."""
    body: bytes = b""
    whole: bool = False
    """Whether head and body could be read to their ends."""
    lasting: bool = False
    """Whether the connection can be used again."""


def read_reply(receive: Receive, *, tunnel: bool = False) -> Reply:
    """Return the response that comes; one that opens a `tunnel` has no body.

    From its status on nothing is raised: a receiver that says 2xx has taken what it was sent, whatever comes after.

    Raises:
        ReplyError: when no status comes.
        OSError: when none comes in time.
    """
    source = _Source(receive)
    source.allow(MOST_HEAD)
    reply = Reply(0, "")
    for _ in range(MOST_INFORMATIONAL):
        version, reply = _status(source.line())
        if reply.status >= 200:  # noqa: PLR2004
            break
        _headers(source)
    else:
        raise ReplyError(f"more than {MOST_INFORMATIONAL} responses of 1xx and no other")
    try:
        reply.headers = _headers(source)
        source.allow(MOST_BODY)
        if tunnel and reply.status < 300:  # noqa: PLR2004
            return reply
        framed = _body(source, reply)
        unpacked = _unpacked(reply)
    except (OSError, ReplyError, ValueError, zlib.error):
        return reply
    reply.body, reply.whole = unpacked, True
    closes = "close" in reply.headers.get("connection", "").lower() or version == HTTP_1_0
    reply.lasting = framed and not closes and source.empty
    return reply


class _Source:
    """What is received, in lines and pieces, as long as there are bytes left to be taken."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._held = bytearray()
        self._left = 0

    @property
    def empty(self) -> bool:
        return not self._held

    def allow(self, most: int) -> None:
        """Let so many bytes be taken from here on."""
        self._left = most

    def line(self) -> bytes:
        """Return the next line, without its end."""
        begin = 0
        while (end := self._held.find(b"\n", begin)) < 0:
            begin = len(self._held)
            if begin > min(LONGEST_LINE, self._left):
                raise ReplyError("a line of the answer does not end")
            self._more()
        return self._take(end + 1).rstrip(b"\r\n")

    def upto(self, most: int) -> bytes:
        """Return so many bytes, fewer where the connection ends before."""
        while len(self._held) < most and self._fill():
            pass
        return self._take(min(most, len(self._held)))

    def _take(self, count: int) -> bytes:
        self._left -= count
        if self._left < 0:
            raise ReplyError("the answer does not end")
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken

    def _more(self) -> None:
        if not self._fill():
            raise ReplyError("the connection ended in the middle of the answer" if self._held else "no answer came")

    def _fill(self) -> bool:
        came = self._receive()
        self._held += came
        return bool(came)


def _status(line: bytes) -> tuple[bytes, Reply]:
    version, _, rest = line.partition(b" ")
    code, _, reason = rest.strip().partition(b" ")
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit() or code < b"100":  # noqa: PLR2004
        shown = line[:LONGEST_REASON].decode(errors="replace")
        raise ReplyError(f"expected the status of an HTTP response, not {shown!r}")
    return version, Reply(int(code), reason[:LONGEST_REASON].decode(errors="replace").strip())


def _headers(source: _Source) -> dict[str, str]:
    found: dict[str, str] = {}
    while line := source.line():
        name, colon, value = line.partition(b":")
        if colon and not line[:1].isspace():
            found[name.strip().lower().decode("latin-1")] = value.strip().decode("latin-1")
    return found


def _body(source: _Source, reply: Reply) -> bool:
    """Read the body, as far as it comes; return whether its end is known by other means than the connection's."""
    coding, length = (reply.headers.get(name, "") for name in ("transfer-encoding", "content-length"))
    if reply.status in EMPTY:
        return True
    if coding:
        if coding.lower() != "chunked":
            raise ReplyError("a transfer coding that nobody asked for")
        reply.body = b"".join(_chunks(source))
        return True
    known = length.isascii() and length.isdigit()
    wanted = int(length[:LENGTH_DIGITS]) if known else MOST_BODY
    reply.body = source.upto(min(wanted, MOST_BODY))
    if known and len(reply.body) < wanted:
        raise ReplyError("the answer is too long, or was cut off")
    if not known and (not source.empty or source.upto(1)):
        raise ReplyError("the answer does not end")
    return known


def _chunks(source: _Source) -> Iterator[bytes]:
    while size := int(source.line().partition(b";")[0].strip()[:LENGTH_DIGITS], 16):
        if not 0 < size <= MOST_BODY or len(chunk := source.upto(size)) < size:
            raise ReplyError("the answer is too long, or was cut off")
        yield chunk
        if source.line():
            raise ReplyError("a chunk that does not end where it says")
    _headers(source)


def _unpacked(reply: Reply) -> bytes:
    """Return the body as it was before it was packed, which nobody asked for."""
    coding = reply.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity") or not reply.body:
        return reply.body
    if coding not in ("gzip", "x-gzip"):
        reply.body = b""
        raise ReplyError("a content coding that nobody asked for")
    packed, reply.body = reply.body, b""
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    plain = unpacker.decompress(packed, MOST_BODY)
    if not unpacker.eof:
        raise ReplyError("the answer does not end")
    return plain
