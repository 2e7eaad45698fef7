"""Doctor: where the push goes, and how far one gets with receivers over real sockets."""

import datetime as dt
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.unit import otlp
from tests.unit.otlp import HOST, RECEIVERS, GrpcReceiver, HttpReceiver, Receiver, Refusal, Reply
from vllm_vitals.cli.doctor import CHECKS
from vllm_vitals.cli.doctor import otlp as check
from vllm_vitals.cli.doctor.finding import Finding, Status
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.exporters.otlp.peer import locate
from vllm_vitals.exporters.otlp.response import UNREADABLE
from vllm_vitals.exporters.otlp.target import Target

SECRET = "t0p-s3cret"  # noqa: S105

kinds = pytest.mark.parametrize("kind", RECEIVERS)


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go without the proxies and CAs of the environment."""
    for name in (
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        *(f"{each}_proxy" for each in ("http", "https", "grpc", "all")),
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(ca: trustme.CA, tmp_path: Path) -> Path:
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    return tmp_path / "ca.pem"


def look(words: tuple[str, ...] = (), **settings: Any) -> list[Finding]:
    environ = {f"VITALS_OTLP__{name.upper()}": str(value) for name, value in settings.items()}
    return list(CHECKS["otlp"](Launch(environ, list(words))))


def at(receiver: Receiver, **settings: Any) -> list[Finding]:
    return look(**{"endpoint": receiver.endpoint, "protocol": receiver.protocol, **settings})


def ends(findings: list[Finding]) -> tuple[list[str], str, str]:
    """Return the states, and what the last one found and advises; only the last may be bad."""
    states = [finding.status.value for finding in findings]
    assert set(states[:-1]) <= {"ok", "skip"}
    return states, findings[-1].found, findings[-1].advice


def secured(kind: Any, ca: trustme.CA, name: str = HOST, **options: Any) -> Any:
    issued = ca.issue_cert(name, **options)
    if kind is GrpcReceiver:
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        return GrpcReceiver().serve(grpc.ssl_server_credentials([(issued.private_key_pem.bytes(), chain)]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    return HttpReceiver().serve(context)


@pytest.mark.parametrize(
    ("words", "settings", "why"),
    [
        ((), {}, "no OTLP endpoint"),
        ((), {"endpoint": "http://c", "enabled": "false"}, "switched off (otlp.enabled, from VITALS_OTLP__ENABLED)"),
        ((), {"endpoint": "c:4318"}, "settings are wrong"),
        (("--headless",), {"endpoint": "http://c"}, "no API server"),
    ],
)
def test_no_push(words: tuple[str, ...], settings: dict[str, str], why: str) -> None:
    (finding,) = look(words, **settings)
    assert finding.status is Status.SKIP
    assert why in finding.found


@kinds
def test_a_good_receiver(kind: Any) -> None:
    with kind().serve() as receiver:
        findings = at(receiver, headers=f'{{"authorization": "Bearer {SECRET}", "x-scope": "a"}}', temporality="delta")
    states, found, _ = ends(findings)
    assert states == ["ok"] * 4
    told, name, port, _ = (finding.found for finding in findings)
    for part in (
        f"{receiver.endpoint}{'/v1/metrics' if kind is HttpReceiver else ''} (from VITALS_OTLP__ENDPOINT)",
        receiver.protocol,
        "TLS off, every 15 s, timeout 10 s, delta, explicit histograms, compression gzip, headers authorization, x-scope",
    ):
        assert part in told
    assert name == f"{HOST} is {HOST}"
    assert f"port {receiver.port} of {HOST} accepts connections" in port
    assert found == "an empty push was accepted"
    (push,) = receiver.received
    assert push.headers["authorization"] == f"Bearer {SECRET}"
    assert not push.message.resource_metrics
    assert not [finding for finding in findings if SECRET in finding.found + finding.advice]


@kinds
def test_tls(kind: Any, ca: trustme.CA, ca_file: Path) -> None:
    with secured(kind, ca) as receiver:
        findings = at(receiver, tls_ca=ca_file)
    assert ends(findings)[0] == ["ok"] * 5
    assert "TLSv1." in findings[3].found
    assert len(receiver.received) == 1


@kinds
def test_tls_by_an_unknown_ca(kind: Any, ca: trustme.CA, tmp_path: Path) -> None:
    with secured(kind, ca) as receiver:
        _, found, advice = ends(at(receiver))
        assert "is not accepted" in found
        assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in advice
        other = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(other)
        assert str(other) in ends(at(receiver, tls_ca=other))[2]
    assert receiver.received == []


@kinds
def test_tls_by_another_name_or_too_late(kind: Any, ca: trustme.CA, ca_file: Path) -> None:
    with secured(kind, ca, "collector.example") as receiver:
        assert "a name that the certificate has" in ends(at(receiver, tls_ca=ca_file))[2]
    past = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    with secured(kind, ca, not_after=past) as receiver:
        _, found, advice = ends(at(receiver, tls_ca=ca_file))
    assert "expired" in found
    assert "another certificate" in advice


def test_files_that_are_no_certificates(tmp_path: Path, ca: trustme.CA, ca_file: Path) -> None:
    nonsense, key, chain = tmp_path / "nonsense", tmp_path / "key", tmp_path / "chain"
    nonsense.write_text("nothing")
    ca.issue_cert("a.example").private_key_pem.write_to_path(key)
    chain.write_bytes(ca.issue_cert("b.example").cert_chain_pems[0].bytes())
    with secured(HttpReceiver, ca) as receiver:
        assert "cannot be used" in ends(at(receiver, tls_ca=nonsense))[1]
        assert "is not the key of" in ends(at(receiver, tls_ca=ca_file, tls_cert=chain, tls_key=key))[1]


@kinds
def test_tls_to_one_that_goes_without(kind: Any, ca_file: Path) -> None:
    with kind().serve() as receiver:
        secure = receiver.endpoint.replace("http:", "https:")
        states, found, advice = ends(at(receiver, endpoint=secure, tls_ca=ca_file))
    assert states[-1] == "fail"
    assert "fails the TLS handshake" in found
    assert "http://" in advice


def test_grpc_without_a_scheme_means_tls() -> None:
    with GrpcReceiver().serve() as receiver:
        findings = at(receiver, endpoint=f"{HOST}:{receiver.port}")
        assert "TLS on (no scheme: otlp.insecure decides)" in findings[0].found
        assert "OTEL_EXPORTER_OTLP_INSECURE=true" in ends(findings)[2]
        assert ends(at(receiver, endpoint=f"{HOST}:{receiver.port}", insecure="true"))[0] == ["ok"] * 4


@kinds
def test_no_tls_to_one_that_wants_it(kind: Any, ca: trustme.CA) -> None:
    with secured(kind, ca) as receiver:
        states, found, advice = ends(at(receiver, endpoint=receiver.endpoint.replace("https:", "http:")))
    assert states[-1] == "fail"
    assert "was not accepted" in found
    assert "needs TLS: write the endpoint with https://" in advice


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b"])
def test_a_name_without_an_address(host: str) -> None:
    states, found, advice = ends(look(endpoint=f"http://{host}:4318"))
    assert states == ["ok", "fail"]
    assert f"{host} has no address" in found
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in advice


@pytest.mark.parametrize("endpoint", ["http://", "http://host:port"])
def test_what_is_no_address(endpoint: str) -> None:
    states, found, _ = ends(look(endpoint=endpoint))
    assert states == ["ok", "fail"]
    assert "is not an address" in found


def test_nobody_listens() -> None:
    states, found, advice = ends(look(endpoint=otlp.refusing()))
    assert states == ["ok", "ok", "fail"]
    assert "nothing listens there" in found
    assert "Start the receiver" in advice


@pytest.mark.parametrize(("kind", "protocol"), [(GrpcReceiver, "http/protobuf"), (HttpReceiver, "grpc")])
def test_the_other_protocol(kind: Any, protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with kind().serve() as receiver:
        monkeypatch.setattr(check, "USUAL_PORTS", {receiver.port: receiver.protocol, 1: protocol})
        states, found, advice = ends(at(receiver, protocol=protocol, timeout=1))
    assert states == ["ok", "ok", "ok", "fail"]
    assert "was not accepted" in found
    assert f"OTEL_EXPORTER_OTLP_PROTOCOL={receiver.protocol}, or use port 1" in advice


@pytest.mark.parametrize(
    ("receiver", "status", "found", "advice"),
    [
        (HttpReceiver(Reply(401)), Status.FAIL, "HTTP 401", "OTEL_EXPORTER_OTLP_HEADERS"),
        (HttpReceiver(Reply(404)), Status.FAIL, "HTTP 404", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is used unchanged"),
        (HttpReceiver(Reply(400)), Status.FAIL, "HTTP 400", "receiver's log"),
        (HttpReceiver(Reply(503)), Status.WARN, "HTTP 503", "loses nothing"),
        (HttpReceiver(Reply(body=otlp.partial(3, "odd").SerializeToString())), Status.WARN, "odd", "documentation"),
        (HttpReceiver(Reply(body=b"<p>", type="text/html")), Status.WARN, "the answer is a web page", "documentation"),
        (GrpcReceiver(Refusal(grpc.StatusCode.PERMISSION_DENIED)), Status.FAIL, "PERMISSION_DENIED", "HEADERS"),
        (
            GrpcReceiver(Refusal(grpc.StatusCode.UNIMPLEMENTED)),
            Status.FAIL,
            "UNIMPLEMENTED",
            "receives no OTLP metrics",
        ),
        (GrpcReceiver(Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)), Status.WARN, "EXHAUSTED", "loses nothing"),
        (GrpcReceiver(otlp.partial(3, "")), Status.WARN, "3 points rejected", "documentation"),
    ],
)
def test_answers(receiver: Any, status: Status, found: str, advice: str) -> None:
    with receiver.serve():
        last = at(receiver)[-1]
    assert last.status is status
    assert found in last.found
    assert advice in last.advice


@pytest.mark.parametrize("talk", [otlp.trickle, otlp.trickle_body])
def test_a_peer_that_takes_a_push_and_never_comes_to_an_end(talk: Any) -> None:
    with otlp.peer(talk) as endpoint:
        states, found, _ = ends(look(endpoint=endpoint, timeout=0.3))
    assert states == ["ok", "ok", "ok", "warn"]
    assert UNREADABLE in found


def test_a_peer_that_does_not_answer() -> None:
    with otlp.peer() as endpoint:
        states, found, _ = ends(look(endpoint=endpoint, timeout=0.3))
    assert states == ["ok", "ok", "ok", "fail"]
    assert "was not accepted: no answer within 0.3 s" in found


def test_unix_socket(tmp_path: Path) -> None:
    findings = look(endpoint=f"unix://{tmp_path}/none", protocol="grpc", insecure="true")
    assert [finding.status for finding in findings] == [Status.OK, Status.SKIP, Status.FAIL]


@kinds
def test_a_proxy_is_told(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("http_proxy", f"http://user:{SECRET}@{HOST}:{otlp.free_port()}")
    findings = look(endpoint="http://collector.example:4318", protocol=kind.protocol, timeout=1)
    assert [finding.status for finding in findings] == [Status.OK, Status.OK, Status.FAIL]
    assert f"through the proxy {HOST}:" in findings[1].found
    assert SECRET not in findings[1].found
    monkeypatch.setenv("no_proxy", "collector.example")
    place = locate(Target("http://collector.example", kind.protocol, insecure=True))
    assert place is not None
    assert place.proxy == ""


@pytest.mark.parametrize(
    ("endpoint", "protocol", "host", "port"),
    [
        ("http://a/x", "http/protobuf", "a", 80),
        ("https://a", "http/protobuf", "a", 443),
        ("http://u:p@a:1/x", "http/protobuf", "a", 1),
        ("http://[::1]:4318", "http/protobuf", "::1", 4318),
        ("a:4317", "grpc", "a", 4317),
        ("http://a", "grpc", "a", 443),
        ("dns:///a:1", "grpc", "a", 1),
        ("[::1]:4317", "grpc", "::1", 4317),
    ],
)
def test_where_a_target_is(endpoint: str, protocol: str, host: str, port: int) -> None:
    found = locate(Target(endpoint, protocol))
    assert found is not None
    assert (found.host, found.port) == (host, port)
