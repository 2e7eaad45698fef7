"""A real vLLM that pushes to receivers which misbehave one after another: it serves on, and nothing is lost or doubled.

What is counted as received is what a receiver took and answered with success; that is what it may keep.
"""

import asyncio
import contextlib
import datetime as dt
import math
import os
import re
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from tests.live.collector import Rotel, Sink, Totals
from tests.live.conftest import put_load
from tests.live.load import LoadReport, run_until_cancelled
from tests.live.pages import TIMED, eventually, settled
from tests.live.receivers import (
    Authority,
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
    identity,
    metrics,
)
from vllm_vitals.catalog import CATALOG, itself
from vllm_vitals.settings import OtlpSettings

pytestmark = pytest.mark.timeout(900)

SECRET = "t0p-s3cret"  # noqa: S105
TOLD = f"invalid token: Bearer {SECRET}".encode()
INTERVAL, TIMEOUT, ASKED = 0.5, 2.0, 2
"""Seconds between pushes, seconds that one may take, seconds that a busy receiver asks for."""
PACE = {"OTEL_METRIC_EXPORT_INTERVAL": f"{INTERVAL * 1000:g}", "OTEL_EXPORTER_OTLP_TIMEOUT": f"{TIMEOUT * 1000:g}"}
SLACK = 3.0
"""Seconds by which two ends of vLLM may differ by themselves."""
CALM = "good"
MOVING = {itself.EXPORTS, itself.EXPORT_DURATION, *TIMED}
"""What moves while nothing happens: pushes and scrapes are counted, and so is time."""
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
        Outage("hangs", "timed out", lambda: silent(SilentHttp)),
        Outage("429", "HTTP 429", answering(HttpReceiver, Reply(429, headers=RETRY_AFTER)), asks=True),
        Outage("503", "HTTP 503", answering(HttpReceiver, Reply(503, headers=RETRY_AFTER)), asks=True),
        Outage("400", "HTTP 400", answering(HttpReceiver, Reply(400, TOLD, type="text/plain")), permanent=True),
        Outage("talks garbage", "BadStatusLine", talking(garbage)),
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
CASES = [
    ("http/protobuf", "delta", "explicit"),
    ("http/protobuf", "cumulative", "base2_exponential"),
    ("grpc", "cumulative", "base2_exponential"),
    ("grpc", "delta", "explicit"),
]


@dataclass
class Trial:
    """What came of one server whose receiver went through every outage."""

    protocol: str
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


@pytest.fixture(scope="module", params=CASES, ids=["-".join(case) for case in CASES])
def trial(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """Let one server go through every outage of a protocol, then push to a real collector, then end."""
    protocol, temporality, histograms = request.param
    home = tmp_path_factory.mktemp("outages")
    authority, made = Authority(home), Trial(protocol)
    expired = authority.tls(not_after=dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1))
    front = Front(authority.tls())
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"https://{HOST}:{front.port}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRET}",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(authority.file),
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(authority.chain),
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(authority.key),
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": temporality,
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": f"{histograms}_bucket_histogram",
        **PACE,
    }
    with contextlib.closing(front), VllmServer(model, env=environment) as server:
        with good(protocol).serve() as receiver:
            go_through_outages(made, server, front, receiver, expired)
            _, made.page = settled(server)
            eventually(lambda: not contradictions(added(receiver.received), made.page))
            made.accepted = list(receiver.received)
            made.lost = contradictions(added(made.accepted), made.page)
            push_to_a_collector(made, server, front, home)
        made.log = server.log.read_text()
    return made


def go_through_outages(
    made: Trial, server: VllmServer, front: Front, receiver: Receiver, expired: ssl.SSLContext
) -> None:
    """Put load on during each outage until pushes have failed twice, and let the good receiver end it."""
    for outage in OUTAGES[made.protocol]:
        with outage.serve() if outage.serve else contextlib.nullcontext() as bad:
            if bad is None:
                front.refuse()
            else:
                front.lead(bad.port, expired if outage.expired else None)
            made.health[outage.name] = under_load(server, failed(server, 2))
            if bad is not None and outage.asks:
                first, second, *_ = bad.received
                made.gaps[outage.name] = second.time - first.time
            over = taken(receiver, 1)
            front.lead(receiver.port)
            assert eventually(over), outage.name
        if outage is ABSENT:
            known, carried = len(receiver.received), front.carried
            made.health[CALM] = under_load(server, taken(receiver, 8))
            sizes = sum(push.message.ByteSize() for push in receiver.received[known:])
            made.compressed = (front.carried - carried) / sizes


def push_to_a_collector(made: Trial, server: VllmServer, front: Front, home: Path) -> None:
    """Let rotel take the good receiver's place, then a bad one rotel's, and end the server."""
    sink = Sink()
    rotel = Rotel(sink, home)
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
        made.end = seconds_to_end(server)


def under_load(server: VllmServer, enough: Callable[[], bool]) -> list[float]:
    """Put load on until there is enough; none of it may fail. Return the seconds that /health took meanwhile."""
    command = [sys.executable, "-c", PROBE, str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as probe:
        try:
            for seed in range(60):
                put_load(server, count=26, seed=seed)
                if enough():
                    break
            else:
                pytest.fail("what the load is for did not come")
        finally:
            probe.terminate()
        told, _ = probe.communicate()
    return [float(line) for line in told.splitlines()]


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


def seconds_to_end(server: VllmServer) -> float:
    begun = time.monotonic()
    server.stop(grace=60)
    return time.monotonic() - begun


def added(pushes: Iterable[Received]) -> Totals:
    totals = Totals()
    for push in pushes:
        totals.take(push.message)
    return totals


def contradictions(totals: Totals, page: Samples) -> list[str]:
    """Return a line for each counter, sum and count of a page that is not what pushes add up to."""
    found = []
    for metric in CATALOG:
        if metric.kind == "gauge" or metric in MOVING:
            continue
        parts: dict[str, Any] = (
            {"": totals.totals} if metric.kind == "counter" else {"_sum": totals.totals, "_count": totals.counts}
        )
        for suffix, pushed in parts.items():
            name = metric.prometheus + suffix
            got = {
                frozenset((label.replace(".", "_"), text) for label, text in labels): number
                for labels, number in dict(pushed.get(metric.name, {})).items()
            }
            shown = page.get(name, {})
            for labels in got.keys() | shown.keys():
                ours, theirs = got.get(labels, math.nan), shown.get(labels, math.nan)
                if not math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9):
                    found.append(f"{name}{dict(labels)}: {ours} arrived, the page shows {theirs}")
    return found


def test_every_number_arrives_and_none_twice(trial: Trial) -> None:
    assert len([metric for metric in CATALOG if metric.name in added(trial.accepted).totals]) > 40
    assert value(trial.page, "vllm_tokens_generation_total") > 1000
    assert trial.lost == []


def test_a_push_counts_as_taken_where_its_receiver_said_so_and_nowhere_else(trial: Trial) -> None:
    acknowledged = added(trial.accepted).totals["vitals.exports"][frozenset({("exporter", "otlp")})]
    # The last one cannot tell of itself.
    assert acknowledged == len(trial.accepted) - 1


def test_serving_does_not_feel_an_outage(trial: Trial) -> None:
    calm = p99(trial.health[CALM])
    for name, seconds in trial.health.items():
        shown = f"{1000 * statistics.median(seconds):.1f} ms, p99 {1000 * p99(seconds):.1f} ms, {len(seconds)} times"
        print(f"{trial.protocol}, {name}: /health median {shown}")
        assert p99(seconds) < 10 * calm + 0.25, name


def p99(numbers: list[float]) -> float:
    return statistics.quantiles(numbers, n=100)[98]


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
    assert "invalid token: ***" in trial.log
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


@pytest.fixture(scope="module")
def plain_end(model: Path) -> float:
    """Return the seconds that the end of a vLLM takes which pushes nothing."""
    with VllmServer(model) as server:
        put_load(server, count=13)
        return seconds_to_end(server)


def test_a_dead_or_hanging_receiver_does_not_hold_the_end_up(trial: Trial, plain_end: float) -> None:
    print(f"{trial.protocol}: the end took {trial.end:.1f} s, without a push {plain_end:.1f} s")
    assert trial.end < plain_end + OtlpSettings().shutdown_timeout + SLACK


def test_a_kill_in_the_middle_of_a_push_doubles_nothing(model: Path) -> None:
    front, receiver = Front(), good("http/protobuf")
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{HOST}:{front.port}", **PACE}
    pages: list[Samples] = []
    with contextlib.closing(front), receiver.serve(), silent(SilentHttp) as hanging:
        for kill in (True, False):
            front.lead(receiver.port)
            with VllmServer(model, env=environment) as server:
                put_load(server, count=26, seed=len(pages))
                pages.append(settled(server)[1])
                assert eventually(lambda: missing(receiver, pages) == [[]] * len(pages)), missing(receiver, pages)
                if kill:
                    front.lead(hanging.port)
                    asyncio.run(killed_under_load(server, hanging))
    first, second = by_instance(receiver.received)
    name, shown = "vllm.tokens.generation", "vllm_tokens_generation_total"
    assert first.total(name) + second.total(name) == sum(value(page, shown) for page in pages)
    check_sequences(receiver.received)


def missing(receiver: Receiver, pages: list[Samples]) -> list[list[str]]:
    """Return what contradicts the page of each process that pushed."""
    each = zip(by_instance(receiver.received), pages, strict=False)
    return [contradictions(totals, page) for totals, page in each]


async def killed_under_load(server: VllmServer, hanging: SilentHttp) -> None:
    """Kill a server while it works and a push of it waits for its answer."""
    load = asyncio.create_task(run_until_cancelled(server.url, LoadReport(), seed=5))
    assert await asyncio.to_thread(hanging.reached.wait, 20)
    os.killpg(server.pid, signal.SIGKILL)
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)


def by_instance(pushes: Iterable[Received]) -> list[Totals]:
    """Return what each process's pushes add up to, in the order in which the processes came."""
    found: dict[str, list[Received]] = defaultdict(list)
    for push in pushes:
        found[identity(push.message)["service.instance.id"]].append(push)
    return [added(each) for each in found.values()]


def check_sequences(pushes: Iterable[Received]) -> None:
    """See to it that no series of a process falls or is negative, and that it starts when its process did."""
    latest: dict[Any, float] = defaultdict(float)
    starts: dict[str, set[int]] = defaultdict(set)
    ends: dict[str, int] = {}
    for push in pushes:
        instance = identity(push.message)["service.instance.id"]
        for name, labels, point in grown(push.message):
            starts[instance].add(point.start_time_unix_nano)
            ends[instance] = point.time_unix_nano
            numbers = (point.count, point.sum) if hasattr(point, "count") else (point.as_double,)
            for place, number in enumerate(numbers):
                assert number >= latest[instance, name, labels, place], (name, labels)
                latest[instance, name, labels, place] = number
    first, second = starts
    assert (len(starts[first]), len(starts[second])) == (1, 1)
    assert max(starts[second]) > ends[first] > max(starts[first])


def grown(message: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the points of a push that are totals: name, attributes, point."""
    for name, metric in metrics(message).items():
        if metric.WhichOneof("data") != "gauge":
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                yield name, str(sorted((each.key, str(each.value)) for each in point.attributes)), point
