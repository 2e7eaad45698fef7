"""Both transports against real receivers: compression, headers, TLS, mTLS, and where a push goes."""

import datetime as dt
import json
import logging
import ssl
import stat
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.unit.otlp import HOST, RECEIVERS, GrpcReceiver, HttpReceiver, Pusher, Receiver, Refusal, Reply, of, said
from vllm_vitals.config.load import SettingsError, load
from vllm_vitals.config.settings import OtlpSettings
from vllm_vitals.deployment import runtime as runtime_module
from vllm_vitals.exporters.otlp.exporter import otlp_exporter
from vllm_vitals.exporters.otlp.target import Target, resolve

pytestmark = pytest.mark.versions

SECRET = "t0p-s3cret"  # noqa: S105

kinds = pytest.mark.parametrize("kind", RECEIVERS)


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go without what the environment says of proxies and exporters."""
    monkeypatch.setenv("NO_PROXY", "*")
    for name in (
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_CERTIFICATE",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _hear_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


# --- What is sent


@kinds
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_compression(kind: Any, compression: str) -> None:
    with kind().serve() as receiver:
        pusher = of(receiver, compression=compression)
        assert pusher.push().ok
        pusher.close()
    assert receiver.last
    if kind is HttpReceiver:
        headers = receiver.received[-1].headers
        assert headers.get("content-encoding", "none") == compression
        assert headers["content-type"] == "application/x-protobuf"


@kinds
def test_headers_are_sent_and_never_told(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    with kind().serve() as receiver:
        pusher = of(receiver, headers={"Authorization": f"Bearer {SECRET}", "x-scope": "a b"})
        pusher.exporter.start()
        assert pusher.push().ok
        pusher.exporter.stop()
        told = repr(pusher.exporter._target) + repr(pusher.settings) + repr(vars(pusher.exporter))
        pusher.close()
    sent = receiver.received[-1].headers
    assert (sent["authorization"], sent["x-scope"]) == (f"Bearer {SECRET}", "a b")
    assert SECRET not in told + caplog.text


@pytest.mark.parametrize("value", [f"{SECRET}\n.", f"\N{SNOWMAN}{SECRET}"], ids=["newline", "not-latin"])
def test_a_header_that_cannot_be_sent_is_refused_without_being_told(value: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load({"VITALS_OTLP__HEADERS": json.dumps({"authorization": value})})
    assert "'authorization' contains characters that are not printable ASCII" in str(refused.value)
    assert SECRET not in str(refused.value)


@kinds
@pytest.mark.parametrize(
    "words",
    [f"invalid token: Bearer {SECRET}", f"no such key: {SECRET}", f"{'.' * 270} {SECRET}"],
    ids=["whole", "bare", "where the line ends"],
)
def test_a_receiver_that_repeats_a_header_does_not_bring_it_into_the_log(
    words: str, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = Reply(401, words.encode(), type="text/plain")
    with kind(refusal if kind is HttpReceiver else Refusal(grpc.StatusCode.UNAUTHENTICATED, words)).serve() as receiver:
        pusher = of(receiver, headers={"authorization": f"Bearer {SECRET}"})
        answer = pusher.push()
        pusher.close()
    assert not answer.ok
    assert "***" in answer.error
    assert SECRET[:5] not in answer.error + caplog.text


@kinds
def test_a_header_too_short_for_a_secret_leaves_the_answer_as_it_is(kind: Any) -> None:
    refusal = Reply(401) if kind is HttpReceiver else Refusal(grpc.StatusCode.UNAUTHENTICATED, "1 of 1")
    with kind(refusal).serve() as receiver:
        pusher = of(receiver, headers={"X-Scope-OrgID": "1"})
        answer = pusher.push()
        pusher.close()
    assert answer.error == ("HTTP 401 Unauthorized" if kind is HttpReceiver else "gRPC UNAUTHENTICATED: 1 of 1")


def test_a_header_of_bytes_is_sent_as_bytes() -> None:
    data = bytes(range(256))
    written = b64encode(data).decode()
    for text in (written, written.rstrip("=")):
        with GrpcReceiver().serve() as receiver:
            pusher = of(receiver, headers={"x-Key-Bin": text, "x-plain": text})
            assert pusher.push().ok
            pusher.close()
        assert receiver.received[-1].headers["x-plain"] == text
        assert receiver.binary["x-key-bin"] == data


def test_a_header_of_bytes_that_is_no_base64_is_one_error_that_names_it() -> None:
    environ = {"VITALS_OTLP__ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(SettingsError) as refused:
        load({**environ, "OTEL_EXPORTER_OTLP_HEADERS": f"x-key-bin={SECRET},authorization={SECRET}"})
    assert "the header 'x-key-bin' must be written in base64" in str(refused.value)
    assert SECRET not in str(refused.value)
    over_http = {**environ, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    load({**over_http, "OTEL_EXPORTER_OTLP_HEADERS": f"x-key-bin={SECRET}"})


@pytest.mark.parametrize(
    ("endpoint", "shown"), [("http://c:abcd", "http://c:***"), ("http://", "http:"), ("http://a..b:4318",) * 2]
)
def test_what_is_no_address_is_an_error_that_names_it(
    endpoint: str, shown: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = Pusher(endpoint).push()
    assert (answer.ok, answer.permanent) == (False, True)
    assert answer.error.startswith(f"EndpointError: the endpoint {shown}")
    ((level, text),) = said(caplog.records)
    assert level == "ERROR"
    assert "until the setting or the receiver is changed" in text


@pytest.mark.parametrize("endpoint", ["http://[::1:4318", "[::1:4317"])
def test_an_endpoint_that_cannot_be_read_is_a_wrong_setting(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="is not a valid address"):
        load({"VITALS_OTLP__ENDPOINT": endpoint, "VITALS_OTLP__PROTOCOL": "grpc"})


def test_a_password_in_the_endpoint_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with HttpReceiver(Reply(503)).serve() as receiver:
        pusher = Pusher(f"http://user:{SECRET}@{HOST}:{receiver.port}")
        pusher.exporter.start()
        assert not pusher.push().ok
        pusher.exporter.stop()
        pusher.close()
    assert f"{HOST}:{receiver.port}" in caplog.text
    assert SECRET not in caplog.text


def test_a_user_in_the_endpoint_proves_who_asks_unless_a_header_does() -> None:
    with HttpReceiver().serve() as receiver:
        for headers in ({}, {"authorization": "Bearer mine"}):
            pusher = Pusher(f"http://u%40a:p%3Aw@{HOST}:{receiver.port}", headers=headers)
            assert pusher.push().ok
            pusher.close()
    sent = [push.headers["authorization"] for push in receiver.received]
    assert sent == [f"Basic {b64encode(b'u@a:p:w').decode()}", "Bearer mine"]


@kinds
def test_an_error_does_not_tell_the_endpoints_password(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    pusher = Pusher(f"http://user:{SECRET}@no-such-host.invalid:99999", protocol=kind.protocol, timeout=2.0)
    answer = pusher.push()
    pusher.close()
    assert not answer.ok
    assert SECRET not in answer.error + caplog.text


def test_a_netrc_does_not_replace_the_configured_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text(f"machine {HOST} login someone password else\n")
    netrc.chmod(stat.S_IRUSR | stat.S_IWUSR)
    monkeypatch.setenv("NETRC", str(netrc))
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, headers={"Authorization": "Bearer mine"})
        pusher.push()
        pusher.close()
    assert receiver.received[-1].headers["authorization"] == "Bearer mine"


@kinds
@pytest.mark.parametrize("headers", [{"x-ours": "1"}, {}])
def test_standard_variables_that_our_own_replace_have_no_effect(
    headers: dict[str, str], kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-generic=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-metrics=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-traces=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_INSECURE", "false")
    with kind().serve() as receiver:
        pusher = of(receiver, headers=headers, compression="none")
        assert pusher.push().ok
        pusher.close()
    sent = receiver.received[-1].headers
    assert {name: value for name, value in sent.items() if name.startswith("x-")} == headers
    assert "content-encoding" not in sent


@kinds
@pytest.mark.parametrize("timeout", ["", "soon", "2500.5"])
def test_variables_of_nonsense_cost_no_push_and_nobody_else_tells_them(
    timeout: str, kind: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Our own words on them are `standard`'s, and said once; these exporters would say theirs at every connection."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", timeout)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", timeout)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_HEADERS", f"authorization:{SECRET},x-right=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "sideways")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "round")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "zstd")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_INSECURE", "perhaps")
    busy = Reply(503) if kind is HttpReceiver else Refusal(grpc.StatusCode.UNAVAILABLE, "busy")
    with kind(busy, None).serve() as receiver:
        pusher = of(receiver)
        assert [pusher.push().ok for _ in range(3)] == [False, True, True]
        pusher.close()
    assert [record.name for record in caplog.records] == ["vllm.vitals"] * 2
    assert SECRET not in caplog.text
    assert "x-right" not in receiver.received[-1].headers


# --- TLS


class Authority:
    """A CA, and files of what it issued."""

    def __init__(self, directory: Path) -> None:
        self.ca = trustme.CA()
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.file = directory / "ca.pem"
        self.ca.cert_pem.write_to_path(self.file)

    def identity(self, name: str, **options: Any) -> tuple[Path, Path]:
        """Issue a certificate; return the files of its chain and its key."""
        issued = self.ca.issue_cert(name, **options)
        chain, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return chain, key


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


def secured(kind: Any, authority: Authority, *, mutual: bool = False, **options: Any) -> Any:
    """Return a context in which a receiver of a kind serves with TLS."""
    chain, key = authority.identity(HOST, **options)
    if kind is GrpcReceiver:
        pair = (key.read_bytes(), chain.read_bytes())
        roots = authority.file.read_bytes() if mutual else None
        return GrpcReceiver().serve(grpc.ssl_server_credentials([pair], roots, require_client_auth=mutual))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    if mutual:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    return HttpReceiver().serve(context)


def outcome(receiver: Receiver, **values: Any) -> Any:
    pusher = of(receiver, **values)
    answer = pusher.push()
    pusher.close()
    return answer


@kinds
def test_tls(kind: Any, authority: Authority) -> None:
    with secured(kind, authority) as receiver:
        assert outcome(receiver, tls_ca=authority.file).ok
    assert receiver.last


@kinds
def test_an_unknown_ca_is_a_clear_failure(
    kind: Any, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path / "theirs")
    with secured(kind, authority) as receiver:
        answer = outcome(receiver, tls_ca=other.file)
    assert not answer.ok
    assert "CERTIFICATE_VERIFY_FAILED" in answer.error
    assert answer.error in caplog.text
    assert receiver.received == []


@kinds
def test_the_systems_cas_do_not_know_ours(kind: Any, authority: Authority) -> None:
    with secured(kind, authority) as receiver:
        assert not outcome(receiver).ok
    assert receiver.received == []


@kinds
def test_an_expired_certificate_is_a_clear_failure(kind: Any, authority: Authority) -> None:
    past = dt.datetime.now(dt.timezone.utc) - dt.timedelta(days=1)
    with secured(kind, authority, not_after=past) as receiver:
        answer = outcome(receiver, tls_ca=authority.file)
    assert not answer.ok
    assert "CERTIFICATE_VERIFY_FAILED" in answer.error
    assert receiver.received == []


@kinds
def test_mutual_tls(kind: Any, authority: Authority, tmp_path: Path) -> None:
    chain, key = authority.identity("client.example")
    stranger, its_key = Authority(tmp_path / "theirs").identity("client.example")
    with secured(kind, authority, mutual=True) as receiver:
        assert outcome(receiver, tls_ca=authority.file, tls_cert=chain, tls_key=key).ok
        assert not outcome(receiver, tls_ca=authority.file).ok
        assert not outcome(receiver, tls_ca=authority.file, tls_cert=stranger, tls_key=its_key).ok
    assert len(receiver.received) == 1


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_the_configured_ca_wins_over_the_variables_of_the_http_library(
    variable: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority(tmp_path / "theirs")
    monkeypatch.setenv(variable, str(other.file))
    with secured(HttpReceiver, authority) as receiver:
        assert outcome(receiver, tls_ca=authority.file).ok
    monkeypatch.setenv(variable, str(authority.file))
    with secured(HttpReceiver, authority) as receiver:
        assert not outcome(receiver, tls_ca=other.file).ok


@kinds
def test_a_ca_that_is_replaced_counts_at_the_next_push_after_a_failure(
    kind: Any, authority: Authority, tmp_path: Path
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(Authority(tmp_path / "theirs").file.read_bytes())
    with secured(kind, authority) as receiver:
        pusher = of(receiver, tls_ca=trusted)
        assert not pusher.push().ok
        trusted.write_bytes(authority.file.read_bytes())
        assert pusher.push().ok
        pusher.close()


@kinds
def test_a_ca_file_that_goes_is_one_line_and_counts_once_it_is_back(
    kind: Any, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(authority.file.read_bytes())
    with secured(kind, authority) as receiver:
        pusher = of(receiver, tls_ca=trusted)
        trusted.unlink()
        for _ in range(2):
            assert str(trusted) in pusher.push().error
        ((level, text),) = said(caplog.records)
        assert (level, str(trusted) in text) == ("WARNING", True)
        trusted.write_bytes(authority.file.read_bytes())
        assert pusher.push().ok
        pusher.close()
    assert "Traceback" not in caplog.text


@kinds
def test_a_ca_file_of_nonsense_is_a_failed_push_and_no_more(kind: Any, authority: Authority, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    with secured(kind, authority) as receiver:
        answer = outcome(receiver, tls_ca=nonsense)
    assert not answer.ok
    assert answer.error not in ("", "no answer", "the push could not be encoded")


@pytest.mark.parametrize(
    ("variable", "setting"),
    [("VITALS_OTLP__TLS_CA", "tls_ca"), ("OTEL_EXPORTER_OTLP_CERTIFICATE", "tls_ca"),
     ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "tls_ca")],
)  # fmt: skip
def test_a_missing_ca_file_is_one_clear_line_and_the_scrape_endpoint_stays_on(
    variable: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "missing.pem")
    environ = {"VITALS_OTLP__ENDPOINT": "https://c:4318", variable: path}
    with pytest.raises(SettingsError) as error:
        load(environ)
    (line,) = str(error.value).splitlines()
    assert variable in line
    assert path in line
    assert setting in line
    assert "file that this process can read" in line
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    host = runtime_module._make()
    assert host.settings.prometheus.enabled
    assert not host.settings.otlp.enabled
    host.check("prometheus")
    with pytest.raises(SettingsError, match=setting):
        host.check("otlp")


# --- Where a push goes


def target(environ: dict[str, str]) -> Target:
    found = resolve(load(environ).settings.otlp)
    assert found is not None
    return found


ENDPOINTS = [
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "http://c:4318/v1/metrics"),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/metrics"),
    ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/otlp"}, "https://c/otlp/v1/metrics"),
    ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/my/path"}, "http://c:4318/my/path"),
    ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318"}, "http://c:4318"),
    ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://a/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b"}, "http://a/x"),
    ({"VITALS_OTLP__ENDPOINT": "http://c:4318"}, "http://c:4318/v1/metrics"),
    ({"VITALS_OTLP__ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/metrics"),
    ({"VITALS_OTLP__ENDPOINT": "http://c:4318/api/otlp"}, "http://c:4318/api/otlp"),
    ({"VITALS_OTLP__ENDPOINT": "http://c/x", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b"}, "http://c/x"),
    ({"VITALS_OTLP__ENDPOINT": "http://c", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://b"}, "http://c/v1/metrics"),
    ({"VITALS_OTLP__ENDPOINT": "http://c/x", "VITALS_OTLP__SIGNAL_PATH": "true"}, "http://c/x/v1/metrics"),
    ({"VITALS_OTLP__SIGNAL_PATH": "false", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b"}, "http://b"),
    ({"VITALS_OTLP__ENDPOINT": "http://c:4318?key=1"}, "http://c:4318/v1/metrics?key=1"),
    ({"VITALS_OTLP__ENDPOINT": "http://[::1]:4318"}, "http://[::1]:4318/v1/metrics"),
]


@pytest.mark.parametrize(("environ", "endpoint"), ENDPOINTS)
def test_the_path_of_an_http_push(environ: dict[str, str], endpoint: str) -> None:
    assert target(environ).endpoint == endpoint


@pytest.mark.parametrize(
    ("endpoint", "more", "tls"),
    [
        ("c:4317", {}, True),
        ("c:4317", {"insecure": True}, False),
        ("c:4317", {"insecure": False}, True),
        ("http://c:4317", {}, False),
        ("http://c:4317", {"insecure": False}, False),
        ("https://c:4317", {}, True),
        ("https://c:4317", {"insecure": True}, True),
    ],
)
def test_whether_grpc_goes_with_tls(endpoint: str, more: dict[str, Any], *, tls: bool) -> None:
    found = resolve(OtlpSettings(endpoint=endpoint, protocol="grpc", **more))
    assert found is not None
    assert (found.tls, found.insecure) == (tls, not tls)


def test_a_bare_host_and_port_is_tls_on_the_wire(authority: Authority) -> None:
    with secured(GrpcReceiver, authority) as receiver:
        pusher = Pusher(f"{HOST}:{receiver.port}", protocol="grpc", tls_ca=authority.file)
        assert pusher.push().ok
        pusher.close()
    with GrpcReceiver().serve() as receiver:
        pusher = Pusher(f"{HOST}:{receiver.port}", protocol="grpc", timeout=1.0)
        assert not pusher.push().ok
        pusher.close()
        pusher = Pusher(f"{HOST}:{receiver.port}", protocol="grpc", insecure=True)
        assert pusher.push().ok
        pusher.close()


@pytest.mark.parametrize(
    ("values", "path"), [({}, "/v1/metrics"), ({"signal_path": False}, "/"), ({"signal_path": True}, "/v1/metrics")]
)
def test_the_path_arrives(values: dict[str, Any], path: str) -> None:
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, **values)
        assert pusher.push().ok
        pusher.close()
    assert receiver.received[-1].path == path


@pytest.mark.parametrize("endpoint", ["c:4318", "c", "ftp://c", "grpc://c:4317"])
def test_http_needs_a_url(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="http"):
        load({"VITALS_OTLP__ENDPOINT": endpoint})


def test_without_an_endpoint_there_is_no_target(make_runtime: Callable[..., Any]) -> None:
    host = make_runtime()
    assert resolve(host.settings.otlp) is None
    with pytest.raises(ValueError, match=r"otlp\.endpoint"):
        otlp_exporter(host.aggregator, host.settings, "1", 1.0)
