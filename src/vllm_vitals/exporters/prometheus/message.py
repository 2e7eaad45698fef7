"""HTTP messages: the used parts of a request's head, and a response as bytes."""

import re
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple

from vllm_vitals.exporters.prometheus.limits import HEAD_BYTES, HEAD_FIELDS

PLAIN = "text/plain; charset=utf-8"
TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The characters of field names."""
_END = re.compile(rb"\n\r?\n")
_FORBIDDEN = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ \t]+) (HTTP/[0-9]\.[0-9])")
_USED = {b"accept": "accept", b"accept-encoding": "accept_encoding"}


class Request(NamedTuple):
    """The request of a client."""

    method: str
    path: str
    """Without the query, not decoded."""
    query: str
    accept: str
    accept_encoding: str
    more: bool
    """Whether more bytes follow this head: a body, or another request."""


class Response(NamedTuple):
    """The response to a client."""

    status: HTTPStatus
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def head(self) -> bytes:
        """Return the head. Each connection has one exchange."""
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", f"Date: {formatdate(usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"Content-Length: {len(self.body)}", "Connection: close"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class RefusedError(Exception):
    """A request that is refused with a status and one sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.response = plain(status, sentence)


def plain(status: HTTPStatus, sentence: str, *headers: tuple[str, str]) -> Response:
    """Return a response of one sentence."""
    return Response(status, (("Content-Type", PLAIN), *headers), f"{sentence}\n".encode(errors="replace"))


def head_end(received: bytearray, known: int) -> int:
    """Return the end of the head, or 0 while it is incomplete. The first `known` bytes were checked before.

    Raises:
        RefusedError: when this is not a valid head, or it is too long.
    """
    start = len(received) - len(received.lstrip(b"\r\n")) if received.startswith((b"\r", b"\n")) else 0
    found = _END.search(received, max(start, known - 2))
    # If the last byte is a CR, an LF may still follow.
    end = found.end() if found else len(received) - received.endswith(b"\r")
    if _FORBIDDEN.search(received, max(0, known - 1), min(end, HEAD_BYTES)):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "The request has a control character in its head")
    if found and end <= HEAD_BYTES:
        return end
    if len(received) <= HEAD_BYTES:
        return 0
    if received.find(b"\n", start, HEAD_BYTES) < 0:
        raise RefusedError(HTTPStatus.REQUEST_URI_TOO_LONG, f"The request line is longer than {HEAD_BYTES} bytes")
    raise RefusedError(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The head of the request is longer than {HEAD_BYTES} bytes"
    )


def parse(head: bytes, *, more: bool) -> Request:
    """Return a request from its head; `more`: whether bytes follow it.

    Raises:
        RefusedError: when it is not valid.
    """
    first, *lines = [line.removesuffix(b"\r") for line in head.strip(b"\r\n").split(b"\n", HEAD_FIELDS + 1)]
    if len(lines) > HEAD_FIELDS:
        raise RefusedError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The request has more than {HEAD_FIELDS} header fields"
        )
    method, target = _request_line(first)
    values: dict[str, list[str]] = {name: [] for name in _USED.values()}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name.translate(None, TOKEN):
            raise RefusedError(HTTPStatus.BAD_REQUEST, "A header field must be a name, a colon and a value")
        name = name.lower()
        if name in _USED:
            values[_USED[name]].append(value.strip(b" \t").decode("latin-1"))
        elif name in (b"content-length", b"transfer-encoding"):
            more = more or value.strip(b" \t") != b"0"
    path, _, query = target.partition("?")
    accept, accept_encoding = (", ".join(values[name]) for name in _USED.values())
    return Request(method, path, query, accept, accept_encoding, more)


def _request_line(line: bytes) -> tuple[str, str]:
    """Return method and target of a request's first line."""
    words = _REQUEST_LINE.fullmatch(line)
    if words is None:
        raise RefusedError(HTTPStatus.BAD_REQUEST, "The request line must be a method, a target and HTTP/1.1")
    method, target, version = (word.decode("latin-1") for word in words.groups())
    if not version.startswith("HTTP/1."):
        raise RefusedError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "The version must be HTTP/1.0 or HTTP/1.1")
    return method, _origin_form(target)


def _origin_form(target: str) -> str:
    """Return path and query of a target. A client of a proxy sends scheme and host before it."""
    if target.startswith("/") or target == "*":
        return target
    scheme, mark, rest = target.partition("://")
    if not mark or scheme.lower() not in ("http", "https"):
        raise RefusedError(HTTPStatus.BAD_REQUEST, "The target must be a path or an http URL")
    path, query_mark, query = rest.partition("?")
    return "/" + path.partition("/")[2] + query_mark + query
