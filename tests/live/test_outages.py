"""Real vLLMs that push to receivers which misbehave one after another: they serve on, and nothing is lost or doubled.

What is counted as received is what a receiver took and answered with success; that is what it may keep.
"""

import contextlib
import math
import re
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from tests.live.breakable import CASES, SECRET, Pusher
from tests.live.collector import Rotel, Sink
from tests.live.load import kept_busy, put_load
from tests.live.pages import eventually, settled
from tests.live.pushes import added, contradictions
from tests.live.receivers import (
    Front,
    Serving,
    SilentGrpc,
    SilentHttp,
    answering,
    garbage,
    good,
    hang_up,
    retry_info,
    silent,
    talking,
    trickle,
)
from tests.live.server import VllmServer
from tests.parity import Samples, parse, value
from tests.unit.otlp import (
    HOST,
    GrpcReceiver,
    HttpReceiver,
    Received,
    Receiver,
    Refusal,
    Reply,
)
from vllm_vitals.catalog import CATALOG
from vllm_vitals.config.settings import OtlpSettings

TOLD = f"invalid token: Bearer {SECRET}".encode()
ASKED = 2
"""Seconds that a busy receiver asks for."""
SLACK = 20.0
"""Seconds that vLLM may take to end by itself, on a crowded machine; it was killed after 60."""
STALL = 1.0
"""Seconds without an answer after which something holds the server up."""
CALM = "good"
RETRY_AFTER = {"Retry-After": str(ASKED)}

# In a process of its own: the load in ours would hold its clock up.
PROBE = """
import http.client, sys, time
client = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
while True:
    begun = time.perf_counter()
    client.request("GET", "/health")
    client.getresponse().read()
    print(time.perf_counter() - begun, flush=True)
    time.sleep(0.01)
"""


class Outage(NamedTuple):
    """A way to be no good receiver, and what the log has to say of it."""

    name: str
    said: str
    serve: Callable[[], Serving] | None = None
    """Gives what is there instead; nothing at all by default."""
    permanent: bool = False
    """Whether it is for somebody to mend."""
    asks: bool = False
    expired: bool = False


def busy(code: grpc.StatusCode) -> Callable[[], Serving]:
    return answering(GrpcReceiver, Refusal(code, "busy", retry_info(code, ASKED)))


def refused(code: grpc.StatusCode) -> Callable[[], Serving]:
    return answering(GrpcReceiver, Refusal(code, TOLD.decode()))


ABSENT = Outage("absent at start", "Connection refused")
OUTAGES = {
    "http/protobuf": (
        ABSENT,
        Outage("refuses", "Connection refused"),
        Outage("hangs", "no answer within 2 s", lambda: silent(SilentHttp)),
        Outage("429", "HTTP 429", answering(HttpReceiver, Reply(429, headers=RETRY_AFTER)), asks=True),
        Outage("503", "HTTP 503", answering(HttpReceiver, Reply(503, headers=RETRY_AFTER)), asks=True),
        Outage("400", "HTTP 400", answering(HttpReceiver, Reply(400, TOLD, type="text/plain")), permanent=True),
        Outage("closes connections", "no answer came", talking(hang_up)),
        Outage("talks garbage", "expected the status of an HTTP response", talking(garbage)),
        Outage("trickles", "no answer within", talking(trickle)),
        Outage("expired certificate", "certificate has expired", lambda: good("http/protobuf").serve(), expired=True),
    ),
    "grpc": (
        ABSENT,
        Outage("refuses", "Connection refused"),
        Outage("hangs", "DEADLINE_EXCEEDED", lambda: silent(SilentGrpc)),
        Outage("unavailable", "UNAVAILABLE: busy", busy(grpc.StatusCode.UNAVAILABLE), asks=True),
        Outage("exhausted", "RESOURCE_EXHAUSTED: busy", busy(grpc.StatusCode.RESOURCE_EXHAUSTED), asks=True),
        Outage("unimplemented", "UNIMPLEMENTED", refused(grpc.StatusCode.UNIMPLEMENTED), permanent=True),
        Outage("closes connections", "UNAVAILABLE", talking(hang_up)),
        Outage("talks garbage", "UNAVAILABLE", talking(garbage)),
        Outage("expired certificate", "certificate has expired", lambda: good("grpc").serve(), expired=True),
    ),
}


@dataclass
class Trial:
    """What came of one server whose receiver went through every outage."""

    pusher: Pusher
    home: Path
    health: dict[str, list[float]] = field(default_factory=dict)
    """Seconds that /health took, by outage."""
    gaps: dict[str, float] = field(default_factory=dict)
    """Seconds between the pushes that a receiver got which asked for a pause."""
    accepted: list[Received] = field(default_factory=list)
    compressed: float = math.nan
    """Bytes on the wire by bytes of the messages."""
    page: Samples = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    lost_by_collector: list[str] = field(default_factory=list)
    end: float = math.nan
    """Seconds that the process took to end."""
    log: str = ""

    @property
    def protocol(self) -> str:
        return self.pusher.protocol

    @property
    def server(self) -> VllmServer:
        return self.pusher.server

    @property
    def front(self) -> Front:
        return self.pusher.front


@pytest.fixture(scope="module")
def trials(pushers: dict[str, Pusher], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trial]:
    """Let each server go through its trial, all at the same time: most of it is waiting."""
    made = [Trial(each, tmp_path_factory.mktemp("outages")) for each in pushers.values()]
    with ThreadPoolExecutor(len(made)) as pool:
        return {each.protocol: each for each in pool.map(tried, made)}


@pytest.fixture(scope="module", params=CASES)
def trial(request: pytest.FixtureRequest, trials: dict[str, Trial]) -> Trial:
    return trials[request.param]


def tried(made: Trial) -> Trial:
    """Let a server go through every outage of a protocol, then push to a real collector, then end."""
    with contextlib.ExitStack() as stack, good(made.protocol).serve() as receiver:
        stack.callback(made.front.close)  # which waits for the server's connections
        stack.callback(made.server.stop)
        with kept_busy(made.server):
            go_through_outages(made, receiver)
        _, made.page = settled(made.server)
        eventually(lambda: not contradictions(added(receiver.received), made.page))
        made.accepted = list(receiver.received)
        made.lost = contradictions(added(made.accepted), made.page)
        push_to_a_collector(made)
        made.log = made.server.log.read_text()
    return made


def go_through_outages(made: Trial, receiver: Receiver) -> None:
    """Let each outage go on until pushes have failed twice, and the good receiver end it."""
    server, front = made.server, made.front
    for outage in OUTAGES[made.protocol]:
        with outage.serve() if outage.serve else contextlib.nullcontext() as bad:
            if bad is None:
                front.refuse()
            else:
                front.lead(bad.port, made.pusher.expired if outage.expired else None)
            made.health[outage.name] = watch_health(server, failed(server, 2))
            if bad is not None and outage.asks:
                first, second, *_ = bad.received
                made.gaps[outage.name] = second.time - first.time
            over = taken(receiver, 1)
            front.lead(receiver.port)
            assert eventually(over), outage.name
        if outage is ABSENT:
            known, carried = len(receiver.received), front.carried
            made.health[CALM] = watch_health(server, taken(receiver, 8))
            sizes = sum(push.message.ByteSize() for push in receiver.received[known:])
            made.compressed = (front.carried - carried) / sizes


def push_to_a_collector(made: Trial) -> None:
    """Let rotel take the good receiver's place, then a bad one rotel's, and end the server."""
    server, front = made.server, made.front
    sink = Sink()
    rotel = Rotel(sink, made.home)
    for push in made.accepted:
        sink.take(push.message)
    with contextlib.closing(sink), contextlib.ExitStack() as until_the_end:
        until_the_end.callback(rotel.kill)
        rotel.start()
        port = rotel.grpc if made.protocol == "grpc" else rotel.http
        assert eventually(lambda: listening(port))
        front.lead(port)
        put_load(server, count=26, seed=100)
        _, page = settled(server)
        eventually(lambda: not contradictions(sink, page))
        made.lost_by_collector = contradictions(sink, page)
        if made.protocol == "grpc":
            hanging = until_the_end.enter_context(silent(SilentGrpc))
            front.lead(hanging.port)
            rotel.kill()
            assert hanging.reached.wait(20)
        else:
            front.refuse()
            rotel.kill()
            assert eventually(failed(server, 1))
        made.end = server.seconds_to_end()


def watch_health(server: VllmServer, enough: Callable[[], bool]) -> list[float]:
    """Return the seconds that /health took until there was enough of what is waited for."""
    command = [sys.executable, "-c", PROBE, str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as probe:
        assert probe.stdout is not None
        try:
            first = probe.stdout.readline()
            assert eventually(enough, 240), "what is waited for did not come"
        finally:
            probe.terminate()
        told, _ = probe.communicate()
    return [float(line) for line in (first + told).splitlines()]


def failed(server: VllmServer, times: int) -> Callable[[], bool]:
    """Return what tells whether pushes have failed so many times from now on."""

    def failures() -> float:
        shown = value(parse(server.vitals_text()), "vitals_exports_failed_total", exporter="otlp")
        return 0.0 if math.isnan(shown) else shown

    before = failures()
    return lambda: failures() >= before + times


def taken(receiver: Receiver, times: int) -> Callable[[], bool]:
    """Return what tells whether a receiver has taken so many pushes from now on."""
    before = len(receiver.received)
    return lambda: len(receiver.received) >= before + times


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((HOST, port)):
        return True
    return False


def test_every_number_arrives_and_none_twice(trial: Trial) -> None:
    assert len([metric for metric in CATALOG if metric.name in added(trial.accepted).totals]) > 40
    assert value(trial.page, "vllm_tokens_generation_total") > 1000
    assert trial.lost == []


def test_a_push_counts_as_taken_where_its_receiver_said_so_and_nowhere_else(trial: Trial) -> None:
    acknowledged = added(trial.accepted).totals["vitals.exports"][frozenset({("exporter", "otlp")})]
    # The last one cannot tell of itself.
    assert acknowledged == len(trial.accepted) - 1


def test_serving_does_not_feel_an_outage(trial: Trial) -> None:
    """A push that is waited for would hold each answer up until it is over, which takes it most of the time here."""
    for name, seconds in trial.health.items():
        print(
            f"{trial.protocol}, {name}: /health median {1000 * statistics.median(seconds):.1f} ms, {len(seconds)} times"
        )
        assert sum(each for each in seconds if each > STALL) < 0.2 * sum(seconds), (name, sorted(seconds)[-5:])


def test_a_receiver_that_asks_for_a_pause_gets_it(trial: Trial) -> None:
    assert len(trial.gaps) == 2
    for name, seconds in trial.gaps.items():
        print(f"{trial.protocol}, {name}: {seconds:.2f} s between two pushes, {ASKED} asked for")
        assert seconds > ASKED - 0.1, name


def test_an_outage_is_told_once_with_its_reason_and_so_is_its_end(trial: Trial) -> None:
    expected = OUTAGES[trial.protocol]
    for outage, (lines, times) in zip(expected, outages(trial.log)[: len(expected)], strict=True):
        (line,) = lines
        origin, _, reason = line.partition("vllm-vitals: ")
        print(f"{outage.name}, {times} failures: {reason}")
        assert times >= 2, outage.name
        assert outage.said in reason
        assert (" ERROR " in origin) == ("until the setting or the receiver is changed" in reason) == outage.permanent


def outages(log: str) -> list[tuple[list[str], int]]:
    """Return what was logged of each outage that ended, and how many pushes failed in it."""
    found: list[tuple[list[str], int]] = []
    lines: list[str] = []
    for line in log.splitlines():
        if "OTLP push to" in line and " failed: " in line:
            lines.append(line)
        elif "succeeds again after" in line:
            found.append((lines, int(line.split()[-2])))
            lines = []
    return found


def test_the_log_holds_no_noise_and_no_secret(trial: Trial) -> None:
    assert SECRET not in trial.log
    assert "invalid token: Bearer ***" in trial.log
    pushing = trial.log.partition("vllm-vitals: OTLP push:")[2]
    assert "opentelemetry" not in pushing
    assert "vllm_vitals/" not in pushing
    # vLLM itself may have one for its engine while it ends.
    assert "Traceback" not in pushing.partition("[shutdown]")[0]


def test_the_log_holds_lines_of_text_only(trial: Trial) -> None:
    assert "\0" not in trial.log
    told = [line for lines, _ in outages(trial.log) for line in lines]
    assert [line for line in told if not line.endswith("nothing is lost meanwhile")] == []
    # Past every logger, to the standard error: "I1129 21:01:05.651871 14245 ssl_transport_security.cc:2563] Handshake".
    # gRPC writes it when it connects anew by itself; then never again, as we look before we let it.
    assert len(re.findall(r"\w+\.cc:\d+\].*", trial.log)) <= 1


def test_headers_and_compression_reach_the_receiver(trial: Trial) -> None:
    assert {push.headers["authorization"] for push in trial.accepted} == {f"Bearer {SECRET}"}
    print(f"{trial.protocol}: {trial.compressed:.2f} bytes sent for a byte of message")
    assert trial.compressed < 0.7


def test_a_real_collector_behind_mutual_tls_gets_the_rest(trial: Trial) -> None:
    """The collector itself, rotel, neither ends TLS nor checks headers, so the front before it does."""
    assert trial.lost_by_collector == []


def test_a_dead_or_hanging_receiver_does_not_hold_the_end_up(trial: Trial) -> None:
    print(f"{trial.protocol}: the end took {trial.end:.1f} s")
    assert trial.end < OtlpSettings().shutdown_timeout + SLACK
