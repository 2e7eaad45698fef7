"""Receivers that refuse, hang, trickle, talk nonsense or say no: bounded, told once, counted, and made up for later."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as Packed
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from prometheus_client import CollectorRegistry

from tests.unit.builders import MODEL, feed, step
from tests.unit.otlp import (
    HOST,
    RECEIVERS,
    GrpcReceiver,
    HttpReceiver,
    Pusher,
    Refusal,
    Reply,
    free_port,
    hear_request,
    partial,
    peer,
    points,
    refusing,
    said,
)
from tests.waiting import wait_until
from vllm_vitals.exporters.otlp import exporter as module
from vllm_vitals.exporters.otlp.response import UNREADABLE, WEB_PAGE, retry_after_seconds
from vllm_vitals.exporters.prometheus.registry import VitalsCollector

LABEL = {"exporter": "otlp"}
TOKENS = ("vllm.tokens.generation", frozenset({("model_name", MODEL), ("engine", "0")}))

kinds = pytest.mark.parametrize("kind", RECEIVERS)
protocols = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])


@pytest.fixture(autouse=True)
def _hear_all(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def pushing() -> Iterator[Callable[..., Pusher]]:
    """Make pushers that are told to end."""
    made: list[Pusher] = []

    def make(endpoint: str, **values: Any) -> Pusher:
        made.append(Pusher(endpoint, **{"shutdown_timeout": 0.0, **values}))
        return made[-1]

    yield make
    for each in made:
        each.exporter.stop()
        each.close()


def count(pusher: Pusher, name: str) -> float:
    registry = CollectorRegistry()
    registry.register(VitalsCollector(pusher.aggregator))
    return registry.get_sample_value(name, LABEL) or 0.0


def outcomes(pusher: Pusher) -> tuple[float, float, float]:
    """Return exports, failed ones and observed durations."""
    names = ("vitals_exports_total", "vitals_exports_failed_total", "vitals_export_duration_seconds_count")
    exports, failed, durations = (count(pusher, name) for name in names)
    return exports, failed, durations


def tell(pusher: Pusher, tokens: int = 1) -> None:
    feed(pusher.aggregator, step(running=1, generation_tokens=tokens))


def loud(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Return what was logged from warnings on, whoever logged it."""
    return said([record for record in caplog.records if record.levelno >= logging.WARNING])


# --- Nobody there, and then somebody


@kinds
def test_an_outage_is_told_once_and_so_is_its_end(kind: Any, caplog: pytest.LogCaptureFixture, pushing: Any) -> None:
    port = free_port()
    pusher = pushing(f"http://{HOST}:{port}", protocol=kind.protocol, temporality="delta", timeout=10.0)
    for _ in range(4):
        tell(pusher)
        answer = pusher.push()
        assert (answer.ok, answer.permanent) == (False, False)
    assert [level for level, _ in loud(caplog)] == ["WARNING"]
    assert f"{HOST}:{port}" in caplog.text
    with kind().serve(port=port) as receiver:
        tell(pusher)
        assert pusher.push().ok
        assert pusher.push().ok
        assert receiver.received[0].message
        pusher.close()
    assert receiver.received
    infos = [text for level, text in said(caplog.records) if level == "INFO"]
    assert len(infos) == 1
    assert "4 failures" in infos[0]
    assert outcomes(pusher) == (2, 4, 2)


@kinds
def test_what_came_during_an_outage_arrives_after_it(kind: Any, pushing: Any) -> None:
    port = free_port()
    pusher = pushing(f"http://{HOST}:{port}", protocol=kind.protocol, temporality="delta", timeout=10.0)
    for tokens in (1, 2, 4):
        tell(pusher, tokens)
        pusher.push()
    with kind().serve(port=port) as receiver:
        assert pusher.push().ok
        assert receiver.last[TOKENS].as_double == 7
        tell(pusher, 8)
        assert pusher.push().ok
        assert receiver.last[TOKENS].as_double == 8
        pusher.close()


@kinds
def test_a_receiver_that_restarts_between_two_pushes(kind: Any, pushing: Any) -> None:
    port = free_port()
    pusher = pushing(f"http://{HOST}:{port}", protocol=kind.protocol, timeout=10.0)
    for _ in range(2):
        with kind().serve(port=port):
            # The first push may meet the connection of before.
            assert pusher.push().ok or pusher.push().ok
    pusher.close()


# --- Slow peers


@protocols
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_peer_that_never_answers_costs_no_more_than_the_timeout(protocol: str, scheme: str, pushing: Any) -> None:
    with peer() as endpoint:
        pusher = pushing(f"{scheme}{endpoint.removeprefix('http')}", protocol=protocol, timeout=0.3)
        begun = time.monotonic()
        assert not pusher.push().ok
        assert 0.2 < time.monotonic() - begun < 5.0
        assert outcomes(pusher) == (0, 1, 0)


def senders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "vitals-push"]


def test_a_peer_that_answers_byte_by_byte_is_given_up_and_comes_back(pushing: Any, caplog: Any) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1 << 20)
        connection.sendall(b"HTTP/1.1 ")
        while True:
            connection.sendall(b" ")
            time.sleep(0.02)

    with peer(talk) as endpoint:
        pusher = pushing(endpoint, timeout=0.1)
        for failures in range(1, 7):
            assert not pusher.push().ok
            assert not senders()
            assert outcomes(pusher) == (0, failures, 0)
    assert len(loud(caplog)) == 1
    with HttpReceiver().serve(port=int(endpoint.rpartition(":")[2])) as receiver:
        assert pusher.push(20.0).ok
        assert receiver.received
        pusher.close()


def test_a_name_server_that_does_not_answer_holds_one_thread(pushing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing bounds how long a name is looked up."""
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.1)
    answers, plain = threading.Event(), socket.getaddrinfo

    def look_up(*args: Any, **kwargs: Any) -> Any:
        answers.wait(60)
        return plain(*args, **kwargs)

    with HttpReceiver().serve() as receiver:
        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        pusher = pushing(receiver.endpoint, timeout=0.1)
        kinds = [pusher.push().kind for _ in range(3)]
        assert kinds == ["timeout", "stuck", "stuck"]
        assert len(senders()) == 1
        answers.set()
        wait_until(lambda: not senders())
        assert pusher.push(20.0).ok
        pusher.close()


@protocols
@pytest.mark.parametrize("garbage", [b"\x00\xff\x01nonsense\r\n\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n\r\n", b""])
def test_garbage_is_a_failed_push(protocol: str, garbage: bytes, pushing: Any, caplog: Any) -> None:
    def speak(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_RDWR)

    with peer(speak) as endpoint:
        pusher = pushing(endpoint, protocol=protocol, timeout=1.0)
        answer = pusher.push()
        assert (answer.ok, outcomes(pusher)) == (False, (0, 1, 0))
    assert [level for level, _ in loud(caplog)] == ["WARNING"]
    assert all(len(text) < 600 and text.isprintable() for _, text in loud(caplog))


@pytest.mark.parametrize(
    ("answer", "ok", "warning"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True, ""),
        (b"HTTP/1.1 204 No Content\r\nServer: a\r\n\r\n", True, ""),
        (b"HTTP/1.1 200 OK\r\nServer: a\r\nConnection: close\r\n\r\n", True, ""),
        (b"HTTP/1.0 200 OK\r\nServer: a\r\n\r\n", True, ""),
        (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True, ""),
        (b"HTTP/1.1 200 OK\r\nX-Long: a", True, UNREADABLE),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", True, UNREADABLE),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"a" * 300000, True, UNREADABLE),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", True, UNREADABLE),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Many: a\r\n" * 9999 + b"\r\n", True, UNREADABLE),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + b"<p>" * 33333, True, WEB_PAGE),
        (b"HTTP/1.1 200 O", False, ""),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False, ""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 9999, False, ""),
    ],
)
def test_a_status_of_2xx_is_final_whatever_comes_after(
    answer: bytes,
    ok: bool,  # noqa: FBT001
    warning: str,
    pushing: Any,
) -> None:
    def speak(connection: socket.socket) -> None:
        hear_request(connection)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_RDWR)

    with peer(speak) as endpoint:
        got = pushing(endpoint, timeout=10.0).push()
    assert (got.ok, got.warning) == (ok, warning)


def test_an_answer_of_2xx_that_is_large_does_not_multiply_differences(pushing: Any) -> None:
    page = Reply(body=b"<html>" + b"a" * 100_000, type="text/html")
    with HttpReceiver(page).serve() as receiver:
        pusher = pushing(receiver.endpoint, temporality="delta")
        for _ in range(4):
            tell(pusher, 200)
            assert pusher.push().ok
        pusher.close()
    assert [points_of(push).as_double for push in receiver.received] == [200] * 4


def points_of(push: Any) -> Any:
    return points(push.message)[TOKENS]


@kinds
def test_what_a_receiver_says_is_logged_on_one_line(kind: Any, pushing: Any, caplog: Any) -> None:
    forged = "x\nINFO all is well\x1b[31m\0"
    refusal = Refusal(grpc.StatusCode.INTERNAL, forged)
    with kind(
        refusal if kind is GrpcReceiver else Reply(body=partial(1, forged).SerializeToString())
    ).serve() as receiver:
        pushing(receiver.endpoint, protocol=kind.protocol).push()
    ((_, text),) = loud(caplog)
    assert text.isprintable()
    assert "INFO all is well" in text


@kinds
def test_another_cause_within_one_outage_is_told_too(kind: Any, pushing: Any, caplog: Any) -> None:
    port = free_port()
    pusher = pushing(f"http://{HOST}:{port}", protocol=kind.protocol, timeout=10.0)
    for _ in range(2):
        pusher.push()
    unwilling = Refusal(grpc.StatusCode.UNAVAILABLE, "overloaded") if kind is GrpcReceiver else Reply(503)
    with kind(unwilling).serve(port=port):
        for _ in range(2):
            pusher.push()
        pusher.close()
    assert len(loud(caplog)) == 2


def test_a_pause_that_the_receiver_asks_for_is_told(pushing: Any, caplog: Any) -> None:
    with HttpReceiver(Reply(503, headers={"Retry-After": "120"})).serve() as receiver:
        pushing(receiver.endpoint).push()
    assert "Trying again in 120 s" in loud(caplog)[0][1]


def test_the_last_push_does_not_promise_another(pushing: Any, caplog: Any) -> None:
    pusher = pushing(f"http://{HOST}:{free_port()}", shutdown_timeout=20.0, interval=60.0)
    pusher.exporter.start()
    pusher.exporter.stop()
    ((_, text),) = loud(caplog)
    assert "The process ends: metrics since the last successful push are lost" in text


@pytest.mark.parametrize(("status", "ok"), [(b"200 OK", True), (b"503 Busy", False)])
def test_an_endless_answer_is_not_kept(status: bytes, ok: bool, pushing: Any) -> None:  # noqa: FBT001
    sent: list[int] = []

    def speak(connection: socket.socket) -> None:
        hear_request(connection)
        connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Type: application/x-protobuf\r\n\r\n")
        while True:
            connection.sendall(b"\x00" * 65536)
            sent.append(65536)

    with peer(speak) as endpoint:
        assert pushing(endpoint, timeout=60.0).push().ok is ok
    assert sum(sent) < 32 * 2**20


def test_a_success_with_a_body_that_is_no_protobuf_is_a_success(pushing: Any) -> None:
    for reply in (Reply(body=b"{}", type="application/json"), Reply(body=b"\xff\xff\xff"), Reply(204)):
        with HttpReceiver(reply).serve() as receiver:
            pusher = pushing(receiver.endpoint)
            answer = pusher.push()
            pusher.close()
        assert (answer.ok, answer.rejected, answer.warning) == (True, 0, "")


def test_a_web_page_is_a_success_that_is_told_once(pushing: Any, caplog: Any) -> None:
    with HttpReceiver(Reply(body=b"<html>Welcome</html>", type="text/html; charset=utf-8")).serve() as receiver:
        pusher = pushing(receiver.endpoint)
        assert pusher.push().ok
        assert pusher.push().ok
        pusher.close()
    ((level, text),) = loud(caplog)
    assert level == "WARNING"
    assert text.endswith(f"accepted a push with a remark: {WEB_PAGE}")


# --- A receiver that says no


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 301])
def test_a_status_that_stays_is_one_error_and_tried_again(status: int, pushing: Any, caplog: Any) -> None:
    with HttpReceiver(Reply(status, b"because", type="text/plain")).serve() as receiver:
        pusher = pushing(receiver.endpoint)
        for _ in range(3):
            assert pusher.push().permanent
        assert len(receiver.received) == 3
        assert [level for level, _ in loud(caplog)] == ["ERROR"]
        assert str(status) in loud(caplog)[0][1]
        assert outcomes(pusher) == (0, 3, 0)
        receiver.answers = []
        assert pusher.push().ok
        pusher.close()
    assert outcomes(pusher) == (1, 3, 1)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_status_that_passes_is_one_warning_and_not_tried_at_once(status: int, pushing: Any, caplog: Any) -> None:
    with HttpReceiver(Reply(status)).serve() as receiver:
        pusher = pushing(receiver.endpoint)
        for _ in range(3):
            assert not pusher.push().permanent
        assert len(receiver.received) == 3
    assert [level for level, _ in loud(caplog)] == ["WARNING"]


def test_reasons_that_differ_only_in_a_number_are_told_once(pushing: Any, caplog: Any) -> None:
    replies = [Reply(503, f"request {number} failed".encode(), type="text/plain") for number in range(5)]
    with HttpReceiver(*replies).serve() as receiver:
        pusher = pushing(receiver.endpoint)
        for _ in replies:
            pusher.push()
    assert len(loud(caplog)) == 1


def test_reasons_that_take_turns_are_told_once_each(pushing: Any, caplog: Any) -> None:
    with HttpReceiver(*([Reply(503), Reply(429)] * 4)).serve() as receiver:
        pusher = pushing(receiver.endpoint)
        for _ in range(8):
            pusher.push()
    assert len(loud(caplog)) == 2


@pytest.mark.parametrize(
    ("code", "permanent"),
    [("UNIMPLEMENTED", True), ("UNAUTHENTICATED", True), ("PERMISSION_DENIED", True), ("INVALID_ARGUMENT", True),
     ("UNAVAILABLE", False), ("RESOURCE_EXHAUSTED", False), ("DEADLINE_EXCEEDED", False), ("ABORTED", False)],
)  # fmt: skip
def test_grpc_codes(code: str, *, permanent: bool, pushing: Any, caplog: Any) -> None:
    with GrpcReceiver(Refusal(grpc.StatusCode[code], "because")).serve() as receiver:
        pusher = pushing(receiver.endpoint, protocol="grpc")
        for _ in range(3):
            assert pusher.push().permanent is permanent
        assert len(receiver.received) == 3
        assert [level for level, _ in loud(caplog)] == ["ERROR" if permanent else "WARNING"]
        assert code in loud(caplog)[0][1]
        assert outcomes(pusher) == (0, 3, 0)
        receiver.answers = []
        assert pusher.push().ok
        pusher.close()


# --- Waiting as long as is asked


def asked(seconds: float) -> RetryInfo:
    info = RetryInfo()
    info.retry_delay.FromMilliseconds(int(seconds * 1000))
    return info


def in_details(code: grpc.StatusCode, info: RetryInfo) -> tuple[tuple[str, bytes], ...]:
    """Return the trailers in which gRPC servers put the details of a status."""
    packed = Packed()
    packed.Pack(info)
    status = Status(code=code.value[0], message="busy", details=[packed])
    return (("grpc-status-details-bin", status.SerializeToString()),)


def first_two(receiver: Any, pushing: Any) -> tuple[float, float]:
    """Return when the first two pushes came, monotonic seconds."""
    pusher = pushing(receiver.endpoint, protocol=receiver.protocol, interval=0.1)
    pusher.exporter.start()
    wait_until(lambda: len(receiver.received) >= 2)
    pusher.exporter.stop()
    first, second = receiver.received[:2]
    return first.time, second.time


def next_push_comes_after(receiver: Any, pushing: Any, seconds: float) -> None:
    first, second = first_two(receiver, pushing)
    assert second - first >= seconds


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds(status: int, pushing: Any) -> None:
    with HttpReceiver(Reply(status, headers={"Retry-After": "1"}), None).serve() as receiver:
        next_push_comes_after(receiver, pushing, 0.9)


def test_retry_after_as_a_date(pushing: Any) -> None:
    later = int(time.time()) + 3
    moment = time.monotonic() + later - time.time()
    header = formatdate(later, usegmt=True)
    with HttpReceiver(Reply(503, headers={"Retry-After": header}), None).serve() as receiver:
        assert first_two(receiver, pushing)[1] > moment - 0.1


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
@pytest.mark.parametrize("place", ["exporter", "details"])
def test_grpc_retry_info(code: grpc.StatusCode, place: str, pushing: Any) -> None:
    own = (("google.rpc.retryinfo-bin", asked(0.7).SerializeToString()),)
    trailers = own if place == "exporter" else in_details(code, asked(0.7))
    with GrpcReceiver(Refusal(code, "busy", trailers), None).serve() as receiver:
        next_push_comes_after(receiver, pushing, 0.65)


@pytest.mark.parametrize("trailer", ["google.rpc.retryinfo-bin", "grpc-status-details-bin"])
def test_retry_info_that_is_garbage_does_not_hide_the_failure(trailer: str, pushing: Any) -> None:
    refusal = Refusal(grpc.StatusCode.UNAVAILABLE, "busy", ((trailer, b"\xff\xff\xff"),))
    with GrpcReceiver(refusal).serve() as receiver:
        answer = pushing(receiver.endpoint, protocol="grpc").push()
    assert (answer.ok, answer.retry_after) == (False, 0.0)
    assert "UNAVAILABLE" in answer.error


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-4", 0.0), ("", 0.0), ("soon", 0.0), ("nan", 0.0),
     ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0), ("Fri, 99 Foo 2020", 0.0)],
)  # fmt: skip
def test_retry_after_headers(header: str, seconds: float) -> None:
    assert retry_after_seconds(header) == seconds


def test_a_peer_cannot_make_us_wait_for_ever(monkeypatch: pytest.MonkeyPatch, pushing: Any) -> None:
    monkeypatch.setattr(module, "MAX_PAUSE_SECONDS", 0.3)
    with HttpReceiver(Reply(503, headers={"Retry-After": "1e999"}), None).serve() as receiver:
        next_push_comes_after(receiver, pushing, 0.25)


# --- A receiver that leaves some out


@kinds
def test_rejected_points_are_one_warning_and_the_rest_counts(kind: Any, pushing: Any, caplog: Any) -> None:
    response = partial(3, "too old")
    reply = Reply(body=response.SerializeToString()) if kind is HttpReceiver else response
    with kind(reply).serve() as receiver:
        pusher = pushing(receiver.endpoint, protocol=kind.protocol, temporality="delta")
        for tokens in (5, 6):
            tell(pusher, tokens)
            assert pusher.push().ok
            assert receiver.last[TOKENS].as_double == tokens
        pusher.push()
        pusher.close()
    assert [level for level, _ in loud(caplog)] == ["WARNING"]
    assert "3 of its points" in loud(caplog)[0][1]
    assert "too old" in loud(caplog)[0][1]
    assert outcomes(pusher) == (3, 0, 3)
    assert count(pusher, "vitals_exports_refused_points_total") == 9


@kinds
def test_points_that_are_rejected_now_and_then_are_one_warning(kind: Any, pushing: Any, caplog: Any) -> None:
    """As they are with differences: what a receiver leaves out comes when it changed."""
    answers = [
        partial(1, "metric 3 too old"),
        None,
        partial(2, "metric 5 too old"),
        None,
        partial(1, "no such unit"),
        None,
    ]
    replies = [each and Reply(body=each.SerializeToString()) for each in answers] if kind is HttpReceiver else answers
    with kind(*replies).serve() as receiver:
        pusher = pushing(receiver.endpoint, protocol=kind.protocol, temporality="delta")
        for _ in answers:
            assert pusher.push().ok
        pusher.close()
    told = [text for _, text in loud(caplog)]
    assert [text.rpartition(": ")[2] for text in told] == ["metric 3 too old", "no such unit"]


# --- The loop


def begins(pusher: Pusher, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that gets the monotonic seconds at which each push begins."""
    found, plain = list[float](), pusher.exporter.push

    def push(timeout: float) -> Any:
        found.append(time.monotonic())
        return plain(timeout)

    monkeypatch.setattr(pusher.exporter, "push", push)
    return found


def gaps(moments: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(list(moments))]


def test_it_pushes_at_every_interval_and_goes_on_after_failures(pushing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpReceiver(Reply(503), Reply(404), Reply(500), None).serve() as receiver:
        pusher = pushing(receiver.endpoint, interval=0.1)
        moments, begun = begins(pusher, monkeypatch), time.monotonic()
        pusher.exporter.start()
        wait_until(lambda: outcomes(pusher)[0] >= 3)
        failed = outcomes(pusher)[1]
        pusher.exporter.stop()
    assert moments[0] - begun > 0.09
    assert sum(gaps(moments)) > 0.05 * len(gaps(moments))  # some may be late, and the next seems too soon
    assert failed == 3


def test_a_slow_push_does_not_make_the_next_ones_late(pushing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(HttpReceiver):
        def answer(self) -> Any:
            time.sleep(0.15)

    with Slow().serve() as receiver:
        pusher = pushing(receiver.endpoint, interval=0.2)
        moments = begins(pusher, monkeypatch)
        pusher.exporter.start()
        # One that is late comes 0.2 s after the end of the one before, and so never sooner.
        wait_until(lambda: min(gaps(moments), default=1.0) < 0.15 + 0.2 - 0.02)
        pusher.exporter.stop()
        time.sleep(0.2)


def test_the_start_says_where_and_how(pushing: Any, caplog: Any) -> None:
    pusher = pushing(refusing(), interval=30.0, temporality="delta", histograms="exponential")
    pusher.exporter.start()
    (line,) = said(caplog.records)
    for part in ("/v1/metrics", "http/protobuf", "TLS off", "30 s", "delta", "exponential", "timeout 5 s"):
        assert part in line[1]
    pusher.exporter.stop()


def test_no_more_points_are_refused_than_were_sent(pushing: Any) -> None:
    with HttpReceiver(Reply(body=partial(2**62, "all").SerializeToString())).serve() as receiver:
        pusher = pushing(receiver.endpoint)
        assert pusher.push().ok
        sent = len(receiver.last)
        pusher.close()
    assert count(pusher, "vitals_exports_refused_points_total") == sent
