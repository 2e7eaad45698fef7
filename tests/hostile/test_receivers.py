"""Receivers that answer anything at all: what a push does then is bounded, told without secrets, and counted once."""

import contextlib
import gzip
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.receiver import FORMS, TOKENS, Scripted, cut, descriptors, listening, senders, told
from tests.unit.builders import examples, feed, step
from tests.unit.otlp import HOST, GrpcReceiver, Pusher, Refusal, hear_request, partial, peer, points
from tests.waiting import wait_until
from vllm_vitals._util.http_connection import MOST_RECEIVED
from vllm_vitals._util.http_response import MOST_INFORMATIONAL
from vllm_vitals.exporters.otlp.grpc_transport import METHOD, from_error
from vllm_vitals.exporters.otlp.response import UNREADABLE, PushResult, redacted

AMPLE = 60.0
"""Seconds for what takes milliseconds on an idle machine."""
LONGEST_LINE = 700
TOKEN, PASSWORD, KEY = "tok/9sK2+vQ7mZ4xW1bN8", "pW:5r@T2%yU8/iO3", "kEy4aS6dF8gH0jK2lQ"
SECRETS = (TOKEN, PASSWORD, KEY)


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def pusher_to(port: int, protocol: str = "http/protobuf", **values: Any) -> Pusher:
    from urllib.parse import quote

    endpoint = f"http://user:{quote(PASSWORD, safe='')}@{HOST}:{port}/v1/metrics?api_key={KEY}"
    if protocol == "grpc":
        endpoint = f"http://{HOST}:{port}"
    headers = {"authorization": f"Bearer {TOKEN}", "x-password": PASSWORD, "x-api-key": KEY}
    given_values = {"timeout": AMPLE, "temporality": "delta", "headers": headers, "shutdown_timeout": 0.0, **values}
    return Pusher(endpoint, protocol=protocol, **given_values)


def check_lines(lines: list[str]) -> None:
    for line in lines:
        assert len(line) <= LONGEST_LINE, line
        assert line.isprintable(), line
        for secret in SECRETS:
            assert not told(secret, line), line


# --- What may come over HTTP

repeats = st.builds(
    lambda secret, form, ends: cut(form(secret), *ends) if ends else form(secret),
    st.sampled_from(SECRETS), st.sampled_from(FORMS), st.none() | st.tuples(st.integers(0, 500), st.integers(0, 500)),
)  # fmt: skip
texts = st.one_of(
    st.just(""), st.text(max_size=80), repeats, st.builds("{} {}".format, repeats, repeats),
    st.sampled_from(["a" * 7500, "1a" * 4000, "<html>" + "a" * 100_000, "\x1b[31m\0INFO forged", "{" * 9000]),
)  # fmt: skip
messages = st.builds(
    lambda rejected, text: partial(rejected, text).SerializeToString(),
    st.sampled_from([0, 1, 7, -3, 2**62]), texts.map(lambda text: text.encode(errors="replace").decode()),
)  # fmt: skip
bodies = st.one_of(messages, texts.map(lambda text: text.encode(errors="replace")), st.binary(max_size=200))
statuses = st.sampled_from(
    [200, 200, 202, 204, 206, 299, 301, 304, 307, 400, 401, 403, 404, 408, 413, 429, 500, 503, 599]
)
oddities = st.lists(
    st.sampled_from([
        b"Retry-After: 1e999", b"Retry-After: soon", b"Retry-After: Fri, 99 Foo 99999999999", b"Retry-After: -5",
        b"Content-Encoding: gzip", b"Content-Encoding: gzip, gzip, gzip", b"Content-Encoding: br", b"Content-Encoding: ",
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Connection: close", b"Connection: keep-alive",
        b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: a", b"Content-Length: 3",
        b"Content-Type: text/html", b"Content-Type: application/json", b"Content-Type: \xff", b"no colon at all",
        b": empty", b" folded: a", b"X-Long: " + b"a" * 9000, b"Location: http://127.0.0.1:9/", b"Set-Cookie: a=b",
    ]),
    max_size=4,
)  # fmt: skip
informational = st.lists(
    st.sampled_from([b"100 Continue", b"102 Processing", b"103 Early Hints\r\nLink: a"]), max_size=4
)


class Spoken:
    """An answer as bytes, and whether a client that has read so much of it knows that the push was taken."""

    def __init__(self, before: list[bytes], status: int, reason: str, heads: list[bytes], body: bytes, packed: int) -> None:  # fmt: skip
        said = reason.encode(errors="replace").replace(b"\n", b" ").replace(b"\r", b" ")[:4000]
        for _ in range(packed):
            body = gzip.compress(body, mtime=0)
        first = b"".join(b"HTTP/1.1 " + each + b"\r\n\r\n" for each in before) + b"HTTP/1.1 %d %s\r\n" % (status, said)
        length = b"Content-Length: %d" % len(body)
        self.bytes = first + b"\r\n".join([length, *heads]) + b"\r\n\r\n" + body
        self.status = status
        self.known = len(first)

    def taken(self, sent: int) -> bool:
        return 200 <= self.status < 300 and sent >= self.known


spoken = st.builds(Spoken, informational, statuses, texts, oddities, bodies, st.sampled_from([0, 0, 0, 1, 3]))
ends = st.none() | st.integers(0, 400)
pieces = st.lists(st.integers(1, 300), max_size=3)


def in_pieces(answer: bytes, at: list[int]) -> list[bytes]:
    marks = sorted({0, len(answer), *(mark % (len(answer) + 1) for mark in at)})
    return [answer[first:last] for first, last in pairwise(marks)]


@pytest.fixture(scope="module")
def receiver() -> Iterator[Scripted]:
    with Scripted().serve() as made:
        yield made


@examples(300)
@given(answers=st.lists(st.tuples(spoken, ends, pieces), min_size=1, max_size=3), tokens=st.integers(1, 9))
def test_whatever_is_answered_over_http(answers: Any, tokens: int, receiver: Scripted) -> None:
    pusher, fed, acknowledged = pusher_to(receiver.port), 0, 0.0
    threads, held = threading.active_count(), descriptors()
    receiver.taken.clear()
    with listening() as lines:
        for answer, end, at in answers:
            feed(pusher.aggregator, step(running=1, generation_tokens=tokens))
            fed += tokens
            sent = answer.bytes[:end]
            receiver.answer_with(*in_pieces(sent, at))
            got = pusher.push()
            pusher.exporter._close()
            receiver.wait()
            assert got.ok is answer.taken(len(sent)), (got, sent[:300])
            assert not (got.ok and got.permanent)
            assert got.retry_after >= 0.0
            assert got.rejected <= 10_000
            acknowledged += receiver.taken[-1] if got.ok else 0.0
            check_lines([got.error, got.warning, got.kind])
        receiver.answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        assert pusher.push().ok
        pusher.close()
        receiver.wait()
    acknowledged += receiver.taken[-1]
    assert acknowledged == fed
    check_lines(lines)
    assert threading.active_count() <= threads
    assert descriptors() <= held
    assert len(receiver.taken) == len(answers) + 1


@examples(100)
@given(garbage=st.binary(max_size=300) | st.text(max_size=200).map(str.encode) | repeats.map(str.encode))
def test_what_is_no_http_is_a_failure(garbage: bytes, receiver: Scripted) -> None:
    pusher = pusher_to(receiver.port)
    receiver.answer_with(garbage)
    with listening() as lines:
        answer = pusher.push()
    receiver.wait()
    assert not answer.ok or garbage.startswith(b"HTTP/1.")
    check_lines(lines)
    pusher.close()


def test_a_body_that_unpacks_to_gigabytes_takes_no_memory(receiver: Scripted) -> None:
    bomb = b"\0" * 2**20
    bomb = gzip.compress(gzip.compress(gzip.compress(bomb * 64)))
    answers = [(b"gzip, gzip, gzip", bomb), (b"gzip", gzip.compress(b"\0" * 2**26))]
    for status in (b"200 OK", b"500 No"):
        for coding, body in answers:
            receiver.answer_with(
                b"HTTP/1.1 %s\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s"
                % (status, coding, len(body), body)
            )
            pusher = pusher_to(receiver.port)
            tracemalloc.start()
            answer = pusher.push()
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            receiver.wait()
            assert answer.ok is (status == b"200 OK")
            assert answer.warning == (UNREADABLE if answer.ok else "")
            assert most < 16 * 2**20
            pusher.close()
    assert b"\r\nAccept-Encoding: identity\r\n" in receiver.heads[-1]


def test_a_body_that_is_packed_once_is_read(receiver: Scripted) -> None:
    body = gzip.compress(partial(1, "too old").SerializeToString())
    receiver.answer_with(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    pusher = pusher_to(receiver.port)
    answer = pusher.push()
    assert (answer.ok, answer.rejected, answer.warning) == (True, 1, "too old")
    pusher.close()
    receiver.wait()


def test_a_token_that_is_repeated_beyond_what_is_shown_is_hidden(receiver: Scripted) -> None:
    token = "".join(f"{number:x}" for number in range(700, 1300))
    pusher = Pusher(f"http://{HOST}:{receiver.port}", headers={"authorization": f"Bearer {token}"})
    receiver.answer_with(b"HTTP/1.1 401 Unauthorized\r\n\r\nbad token: " + token.encode() + b" is not known")
    answer = pusher.push()
    receiver.wait()
    assert answer.error == "HTTP 401 Unauthorized: bad token: *** is not known"
    pusher.close()


# --- Peers that never come to an end


def forever(connection: socket.socket, first: bytes, then: bytes, rest: float) -> None:
    hear_request(connection)
    connection.sendall(first)
    while True:
        connection.sendall(then)
        time.sleep(rest)


ENDLESS: dict[str, tuple[bytes, bytes, float]] = {
    "silence": (b"", b"", 0.05),
    "status": (b"HTTP/1.1 2", b"0", 0.02),
    "head": (b"HTTP/1.1 503 No\r\nX-Long: ", b"a", 0.02),
    "heads": (b"HTTP/1.1 503 No\r\n", b"X-Many: a\r\n", 0.0),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
    "slow continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.02),
    "body": (b"HTTP/1.1 503 No\r\nContent-Length: 9999\r\n\r\n", b"a", 0.02),
    "chunks": (b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n", 0.0),
    "lines": (b"", b"\r\n", 0.0),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_answer_without_an_end_holds_nothing(kind: str) -> None:
    """Each push comes back by its deadline, with its thread and its connection gone."""
    first, then, rest = ENDLESS[kind]
    with peer(lambda connection: forever(connection, first, then, rest)) as endpoint:
        pusher = pusher_to(int(endpoint.rpartition(":")[2]), timeout=0.15)
        threads = {thread for thread in threading.enumerate() if thread.name.startswith("vitals")}
        for _ in range(4):
            assert not pusher.push().ok
            wait_until(lambda: not senders(), AMPLE)
        now = {thread for thread in threading.enumerate() if thread.name.startswith("vitals")}
        assert now <= threads
        assert pusher.exporter._transport is None
    pusher.close()


@pytest.mark.parametrize("kind", ["heads", "continue", "chunks", "lines"])
def test_a_flood_is_not_read_to_the_deadline(kind: str) -> None:
    """Which is long here: a peer that sends as fast as it can would keep a core busy for all of it."""
    first, then, rest = ENDLESS[kind]
    with peer(lambda connection: forever(connection, first, then * 500, rest)) as endpoint:
        pusher = pusher_to(int(endpoint.rpartition(":")[2]), timeout=300.0)
        assert not pusher.push().ok
        assert not senders()
    pusher.close()


def test_interim_responses_are_read_and_not_without_end(receiver: Scripted) -> None:
    final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    for count, ok in ((MOST_INFORMATIONAL - 1, True), (MOST_INFORMATIONAL, False)):
        receiver.answer_with(b"HTTP/1.1 100 Continue\r\n\r\n" * count + final)
        pusher = pusher_to(receiver.port)
        assert pusher.push().ok is ok
        pusher.close()
        receiver.wait()


def test_tls_that_never_comes_to_an_end_holds_nothing() -> None:
    """Records without a content, which no handshake needs."""

    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        while True:
            connection.sendall(b"\x14\x03\x03\x00\x01\x01" * 1000)

    with peer(talk) as endpoint:
        port = int(endpoint.rpartition(":")[2])
        for protocol in ("http/protobuf", "grpc"):
            pusher = Pusher(f"https://{HOST}:{port}", protocol=protocol, timeout=1.0, shutdown_timeout=0.0)
            assert not pusher.push().ok
            wait_until(lambda: not senders(), AMPLE)
            pusher.close()
    assert MOST_RECEIVED <= 2**20


# --- What may come over gRPC


class RawGrpc:
    """A gRPC receiver that answers with any bytes, or refuses; it counts what it was sent."""

    def __init__(self) -> None:
        self.answer: Any = b""
        self.taken: list[float] = []
        self.port = 0

    @contextlib.contextmanager
    def serve(self) -> Iterator["RawGrpc"]:
        workers = ThreadPoolExecutor(2)
        server = grpc.server(workers, options=(("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)))
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        service, method = METHOD.strip("/").split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        self.port = server.add_insecure_port(f"{HOST}:0")
        server.start()
        try:
            yield self
        finally:
            server.stop(0).wait(30)
            workers.shutdown()

    def _export(self, message: bytes, context: Any) -> bytes:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        held = points(ExportMetricsServiceRequest.FromString(message)).get(TOKENS)
        self.taken.append(held.as_double if held else 0.0)
        if isinstance(self.answer, Refusal):
            context.set_trailing_metadata(self.answer.trailers)
            context.abort(self.answer.code, self.answer.details)
        answer: bytes = self.answer
        return answer


@pytest.fixture(scope="module")
def grpc_receiver() -> Iterator[RawGrpc]:
    with RawGrpc().serve() as made:
        yield made


def details(seconds: int, nanos: int) -> bytes:
    info, packed = RetryInfo(), Packed()
    info.retry_delay.seconds, info.retry_delay.nanos = seconds, nanos
    packed.Pack(info)
    return bytes(Status(code=14, message="busy", details=[packed]).SerializeToString())


retries = st.builds(details, st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
trailers = st.lists(
    st.tuples(st.sampled_from(["grpc-status-details-bin", "google.rpc.retryinfo-bin"]), retries | st.binary(max_size=60)),
    max_size=2, unique_by=lambda pair: pair[0],
).map(tuple)  # fmt: skip
codes = st.sampled_from([code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
refusals = st.builds(
    lambda code, text, more: Refusal(code, text[:7500].replace("\0", ""), more), codes, texts, trailers
)


@examples(150)
@given(answers=st.lists(bodies | refusals, min_size=1, max_size=3), tokens=st.integers(1, 9))
def test_whatever_is_answered_over_grpc(answers: list[Any], tokens: int, grpc_receiver: RawGrpc) -> None:
    pusher, fed, acknowledged = pusher_to(grpc_receiver.port, "grpc"), 0, 0.0
    grpc_receiver.taken.clear()
    with listening() as lines:
        for answer in answers:
            feed(pusher.aggregator, step(running=1, generation_tokens=tokens))
            fed += tokens
            grpc_receiver.answer = answer
            got = pusher.push()
            assert got.ok is isinstance(answer, bytes), got
            assert got.retry_after >= 0.0
            acknowledged += grpc_receiver.taken[-1] if got.ok else 0.0
            check_lines([got.error, got.warning, got.kind])
            assert not senders()
        grpc_receiver.answer = b""
        assert pusher.push().ok
        pusher.close()
    acknowledged += grpc_receiver.taken[-1]
    assert acknowledged == fed
    check_lines(lines)


def test_an_ok_with_a_message_of_megabytes_is_final(grpc_receiver: RawGrpc) -> None:
    grpc_receiver.answer = b"\0" * (6 * 2**20)
    pusher = pusher_to(grpc_receiver.port, "grpc")
    assert pusher.push().ok
    pusher.close()


class Refused:
    """As much of a gRPC error as is read."""

    def __init__(self, text: str) -> None:
        self.text = text

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return self.text

    def trailing_metadata(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize("text", ["a", "1", "a1", " ", "a ", "\\", "%", "&", "\n", "é"])
def test_the_words_of_an_error_are_read_in_time_that_does_not_grow(text: str) -> None:
    """In processor time of this thread, which once was 0.8 s for 8000 letters and grew with their square."""
    pusher = pusher_to(9)
    redactor = pusher.exporter._target.redactor

    def seconds(length: int) -> float:
        error, begun = Refused(text * length), time.thread_time()
        answer: PushResult = redacted(from_error(error), redactor)
        spent = time.thread_time() - begun
        assert len(answer.error) <= LONGEST_LINE
        assert len(answer.kind) <= LONGEST_LINE
        return spent

    few = min(seconds(8_000) for _ in range(5))
    assert min(seconds(1_000_000) for _ in range(3)) < 20 * max(few, 1e-3)
    pusher.close()


@pytest.mark.parametrize("kind", [Scripted, GrpcReceiver])
def test_connections_come_back(kind: Callable[[], Any]) -> None:
    """Of pushes that are taken and of those that are not."""
    with kind().serve() as made:
        counts = []
        for _ in range(8):
            pusher = pusher_to(made.port, "grpc" if kind is GrpcReceiver else "http/protobuf")
            if kind is Scripted:
                made.answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            assert pusher.push().ok
            pusher.exporter._close()
            if kind is Scripted:
                made.wait()
            counts.append(descriptors())
        if kind is Scripted:
            assert counts[-1] <= counts[0]
        else:
            wait_until(lambda: descriptors() <= counts[0] + 2, AMPLE)
