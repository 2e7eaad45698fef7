"""Heads of requests that nobody would send by mistake: each gets one answer or none, however it is cut."""

import contextlib
import logging
import socket
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from tests.hostile.endpoint_target import HOST, read_all, status_of
from tests.waiting import wait_until
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.runtime import Runtime
from vllm_vitals.exporters.prometheus.exporter import PrometheusExporter, limits
from vllm_vitals.exporters.prometheus.message import RefusedError, Request, head_end, parse

STATUSES = {0, 200, 400, 404, 405, 414, 431, 505}
"""0: the connection is closed without an answer, as it is for who has said nothing."""

TARGETS = (
    b"/metrics",
    b"/healthz",
    b"/",
    b"*",
    b"http://host/metrics",
    b"http://",
    b"//",
    b"/%6detrics",
    b"/%",
    b"/?name[]=a",
)
METHODS = (b"GET", b"HEAD", b"POST", b"get", b"G\xc3\xa9T", b"")
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/11", b"")
NAMES = (b"Accept", b"accept-encoding", b"Content-Length", b"Transfer-Encoding", b"Host", b"a", b"a b", b"")
VALUES = (
    b"*/*",
    b"gzip;q=0",
    b"text/plain;q=nan",
    b"a;q=1e999",
    b"a," * 3000,
    b"q=1;" * 2000,
    b"0",
    b"-1",
    b"chunked",
    b"\0",
    b"\xff\xfe",
)

ends = st.sampled_from((b"\r\n", b"\n", b"\r\r\n", b"\r", b""))
words = st.one_of(st.sampled_from(METHODS + TARGETS + VERSIONS), st.binary(max_size=20))
lines = st.one_of(
    st.builds(
        lambda *parts: b" ".join(parts), st.sampled_from(METHODS), st.sampled_from(TARGETS), st.sampled_from(VERSIONS)
    ),
    st.lists(words, max_size=4).map(b" ".join),
)
fields = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.sampled_from((b":", b": ", b" : ", b"")), st.sampled_from(VALUES)).map(
        b"".join
    ),
    st.binary(max_size=30),
    st.integers(0, 200).map(lambda count: b"a: b\r\n" * count + b"c: d"),
)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Draw what may pass for a head, whole or not, and perhaps something after it."""
    parts = [draw(lines), draw(ends)]
    for field in draw(st.lists(fields, max_size=4)):
        parts += [field, draw(ends)]
    return b"".join([*parts, draw(ends), draw(st.binary(max_size=10))])


def outcome(said: bytes, cuts: list[int]) -> Request | int | None:
    """Return what comes of bytes that are received in pieces: a request, the status of a refusal, or nothing yet."""
    received = bytearray()
    bounds = sorted({min(cut, len(said)) for cut in cuts} | {0, len(said)})
    try:
        for start, end in pairwise(bounds):
            received += said[start:end]
            if found := head_end(received, start):
                assert found <= limits.HEAD_BYTES
                return parse(bytes(received[:found]), more=False)
    except RefusedError as refused:
        return int(refused.response.status)
    return None


@given(heads(), st.lists(st.integers(0, 300), max_size=5))
def test_how_a_head_is_cut_does_not_matter(said: bytes, cuts: list[int]) -> None:
    """A line that is too long may be told by its first piece, a wrong character in it too: which of them is open."""
    whole, pieces, single = outcome(said, []), outcome(said, cuts), outcome(said, list(range(min(len(said), 300))))
    if isinstance(whole, int) and len(said) > limits.HEAD_BYTES:
        assert isinstance(pieces, int)
        assert isinstance(single, int)
    else:
        assert pieces == whole
        assert single == whole


@given(st.binary(max_size=50), st.integers(0, 50))
def test_nothing_longer_than_the_limit_is_parsed(filler: bytes, more: int) -> None:
    said = (b"GET / HTTP/1.1\r\n" + (filler.translate(None, b"\r\n") or b"a") * limits.HEAD_BYTES)[
        : limits.HEAD_BYTES + 1
    ]
    received = bytearray(said + b"\r\n\r\n" * more)
    with pytest.raises(RefusedError):
        head_end(received, 0)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    runtime = Runtime(Settings.model_validate({"prometheus": {"host": HOST, "port": 0}, "gpu": {"enabled": False}}))
    runtime.attach(SimpleNamespace(model_config=SimpleNamespace(served_model_name="m")), [0], object, "0.32.0")
    exporter = PrometheusExporter(
        runtime.aggregator, runtime.settings.prometheus, runtime.drainer.problem, CollectorRegistry
    )
    runtime.expose("prometheus", lambda: exporter)
    wait_until(lambda: exporter.ports)
    yield exporter.ports[0]
    runtime.stop()


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_each_gets_one_answer_or_none(port: int) -> None:
    heard, logger = Heard(), logging.getLogger("vllm.vitals")
    logger.addHandler(heard)

    @given(st.lists(heads(), min_size=1, max_size=3), st.booleans())
    def tell(pieces: list[bytes], leaves: bool) -> None:  # noqa: FBT001 - drawn
        with socket.create_connection((HOST, port), timeout=60) as client:
            with contextlib.suppress(ConnectionError, BrokenPipeError):
                for piece in pieces:
                    client.sendall(piece)
                if leaves:
                    return
                client.shutdown(socket.SHUT_WR)
            answer = read_all(client)
        said = b"".join(pieces)
        if said.lstrip(b"\r\n").startswith(b"HEAD "):
            assert answer[:9] in (b"HTTP/1.1 ", b"")
        else:
            assert status_of(answer) in STATUSES
        with socket.create_connection((HOST, port), timeout=60) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            assert status_of(read_all(client)) == 200

    try:
        tell()
    finally:
        logger.removeHandler(heard)
    assert heard.lines == []
