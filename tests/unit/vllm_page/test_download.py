"""A page is had in bounded time and size, or a clear word why not, whatever the peer does."""

import gzip
import socket
import ssl
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.unit.peer import HOST, Peer, answer, slowly
from vllm_vitals._util.http import Download, DownloadError, download
from vllm_vitals._util.trust import Trust
from vllm_vitals.config.settings import NativeSettings

BODY = b"# TYPE a gauge\na 1.0\n"
TEXT = "Content-Type: text/plain; version=0.0.4"
GZIP = "Content-Encoding: gzip"


def refused(url: str, timeout: float = 5.0, most: int = 2**20, trust: Trust | None = None) -> str:
    """Return the words of the error that a download ends in."""
    with pytest.raises(DownloadError) as caught:
        download(url, timeout, most, trust)
    return str(caught.value)


def test_a_page_is_returned_with_its_type() -> None:
    with Peer(answer(BODY, TEXT)) as peer:
        assert download(peer.url("/metrics?a=b c"), 5.0) == Download("text/plain; version=0.0.4", BODY)
    (request,) = peer.requests
    assert request.startswith(f"GET /metrics?a=b%20c HTTP/1.1\r\nHost: {HOST}:{peer.port}\r\n")


def test_text_is_asked_for_and_no_compression() -> None:
    with Peer(answer(BODY)) as peer:
        download(peer.url(""), 5.0)
    (request,) = peer.requests
    assert request.startswith("GET / HTTP/1.1\r\n")
    assert "Accept: text/plain;version=0.0.4,*/*;q=0.1\r\n" in request
    assert "Accept-Encoding: identity\r\n" in request
    assert "openmetrics" not in request
    assert "gzip" not in request


def test_a_page_may_come_in_chunks_or_end_with_the_connection() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n# TYP\r\n3\r\nE a\r\n0\r\n\r\n"
    with Peer(chunked, b"HTTP/1.0 200 OK\r\n\r\n" + BODY) as peer:
        assert download(peer.url(), 5.0).content == b"# TYPE a"
        assert download(peer.url(), 5.0).content == BODY


def test_gzip_is_taken_where_it_comes() -> None:
    with Peer(answer(gzip.compress(BODY * 9000, mtime=0), GZIP)) as peer:
        assert download(peer.url(), 5.0).content == BODY * 9000


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(bytes(2**26))
    with Peer(answer(bomb, GZIP)) as peer:
        tracemalloc.start()
        try:
            assert refused(peer.url()) == f"{peer.url()}: more than 1048576 bytes"
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 2**23


def test_a_page_without_end_is_cut_off() -> None:
    with Peer(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2**21)) as peer:
        assert refused(peer.url()) == f"{peer.url()}: more than 1048576 bytes"


def test_the_most_that_is_allowed_is_taken() -> None:
    with Peer(answer(bytes(1000)), answer(gzip.compress(bytes(1000)), GZIP)) as peer:
        assert len(download(peer.url(), 5.0, 1000).content) == 1000
        assert len(download(peer.url(), 5.0, 1000).content) == 1000
        assert "more than 999 bytes" in refused(peer.url(), most=999)


@pytest.mark.parametrize("sent", [answer(BODY), b"HTTP/1.1 200 OK\r\nA: b\r\n" * 20])
def test_a_peer_that_trickles_gets_no_more_time_than_one_that_is_silent(sent: bytes) -> None:
    with Peer(slowly(sent), gap=0.02) as peer:
        assert refused(peer.url(), timeout=0.3) == f"{peer.url()}: no complete answer within 0.3 s"


def test_a_peer_that_never_answers_is_left() -> None:
    with socket.create_server((HOST, 0)) as silent:
        url = f"http://{HOST}:{silent.getsockname()[1]}/metrics"
        assert refused(url, timeout=0.2) == f"{url}: no complete answer within 0.2 s"
        assert refused(url.replace("http", "https"), timeout=0.2).endswith("no complete answer within 0.2 s")


@pytest.mark.parametrize(
    "sent",
    [
        answer(BODY)[:-5],
        answer(gzip.compress(BODY, mtime=0), GZIP)[:-5],
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(BODY, mtime=0)[:-5],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n# TYP",
    ],
)
def test_half_a_page_is_none(sent: bytes) -> None:
    with Peer(sent) as peer:
        said = refused(peer.url())
        assert "in the middle of the page" in said or "IncompleteRead" in said


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (answer(b"no", status="404 Not Found"), "HTTP 404 Not Found; expected 200"),
        (answer(b"no", status="500 Internal Server Error"), "HTTP 500 Internal Server Error; expected 200"),
        (answer(b"", status="204 No Content"), "HTTP 204 No Content; expected 200"),
        (answer(b"", status="302 Found"), "HTTP 302 Found; expected 200"),
        (answer(BODY, "Content-Encoding: br"), "Content-Encoding is br; expected gzip or none"),
        (answer(BODY, GZIP), "error: Error -3 while decompressing data: incorrect header check"),
        (b"garbage\r\n\r\n", "BadStatusLine: garbage"),
        (b"", "RemoteDisconnected: Remote end closed connection without response"),
    ],
)
def test_what_came_and_what_was_expected_is_said(sent: bytes, said: str) -> None:
    with Peer(sent) as peer:
        assert refused(peer.url()) == f"{peer.url()}: {said}"


def test_nobody_listens() -> None:
    with socket.create_server((HOST, 0)) as closed:
        url = f"http://{HOST}:{closed.getsockname()[1]}/metrics"
    assert refused(url).startswith(f"{url}: ConnectionRefusedError: ")


@pytest.mark.parametrize(
    "url", ["", "localhost:8000/metrics", "ftp://localhost/metrics", "http://", "http://h:port/", "http://[::1/", "http://h:99999/"]
)  # fmt: skip
def test_what_is_no_url(url: str) -> None:
    assert "expected" in refused(url) or "ValueError" in refused(url) or "OverflowError" in refused(url)


def test_a_redirect_is_followed() -> None:
    moved = answer(b"", "Location: ../new?x=1", status="307 Temporary Redirect")
    with Peer(moved, answer(BODY)) as peer:
        assert download(peer.url("/old/metrics"), 5.0).content == BODY
    assert [request.split()[1] for request in peer.requests] == ["/old/metrics", "/new?x=1"]


def test_redirects_end() -> None:
    with Peer(answer(b"", "Location: /again", status="301 Moved Permanently")) as peer:
        assert refused(peer.url()) == f"{peer.url()} redirects more than 3 times, lastly to {peer.url('/again')}"
    assert len(peer.requests) == 4


def test_a_redirect_away_from_the_web_is_refused() -> None:
    with Peer(answer(b"", "Location: file:///etc/passwd", status="302 Found")) as peer:
        said = refused(peer.url())
    assert said.startswith(f"{peer.url()}, redirected to file:///etc/passwd: expected a URL that begins with http")


def test_a_user_and_password_are_sent_and_never_shown() -> None:
    with Peer(answer(BODY), answer(b"", status="401 Unauthorized")) as peer:
        url = peer.url("/metrics?token=s3cret#x", user="us%20er:p%40ss@")
        assert download(url, 5.0).content == BODY
        assert refused(url) == f"{peer.url()}: HTTP 401 Unauthorized; expected 200"
    assert "Authorization: Basic dXMgZXI6cEBzcw==\r\n" in peer.requests[0]  # us er:p@ss


def test_they_are_sent_to_no_other_server() -> None:
    with Peer(answer(BODY)) as other:
        here = answer(b"", "Location: /here", status="302 Found")
        there = answer(b"", f"Location: {other.url('/there')}", status="302 Found")
        with Peer(here, there) as peer:
            assert download(peer.url(user="u:p@"), 5.0).content == BODY
    assert ["Authorization" in request for request in [*peer.requests, *other.requests]] == [True, True, False]


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    return context


def pem(directory: Path, authority: trustme.CA, name: str = "ca.pem") -> Path:
    """Write the certificate of an authority, as whoever rotates it does: a new file in the place of the old one."""
    new = directory / f"{name}.new"
    authority.cert_pem.write_to_path(str(new))
    return new.replace(directory / name)


def test_a_certificate_must_be_trusted(authority: trustme.CA, tmp_path: Path) -> None:
    with Peer(answer(BODY), tls=server_context(authority)) as peer:
        assert "CERTIFICATE_VERIFY_FAILED" in refused(peer.url())
        trust = Trust(pem(tmp_path, authority))
        assert download(peer.url(), 5.0, trust=trust).content == BODY


def test_an_authority_that_is_replaced_is_trusted_from_then_on(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    trust = Trust(pem(tmp_path, authority))
    before = trust.context(proves=True)
    assert trust.context(proves=False) is before
    newer = trustme.CA()
    with Peer(answer(BODY), tls=server_context(newer)) as peer:
        assert "CERTIFICATE_VERIFY_FAILED" in refused(peer.url(), trust=trust)
        pem(tmp_path, newer)
        assert download(peer.url(), 5.0, trust=trust).content == BODY
        (tmp_path / "ca.pem").write_text("no certificate")
        for _ in range(2):
            assert download(peer.url(), 5.0, trust=trust).content == BODY
        pem(tmp_path, authority)
        assert "CERTIFICATE_VERIFY_FAILED" in refused(peer.url(), trust=trust)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert f"cannot be used; those before stay in force: tls_ca={tmp_path / 'ca.pem'}: " in said[1]
    assert [line.endswith("have changed and are read anew") for line in said] == [True, False, True]


def test_a_file_that_cannot_be_used_is_named(authority: trustme.CA, tmp_path: Path) -> None:
    (tmp_path / "none.pem").touch()
    for trust, name in (
        (Trust(tmp_path / "none.pem"), "tls_ca"),
        (Trust(pem(tmp_path, authority), tmp_path / "none.pem", tmp_path / "none.pem"), "tls_cert"),
    ):
        said = refused("https://127.0.0.1:9/metrics", trust=trust)
        assert f"{name}={tmp_path / 'none.pem'}" in said


def test_the_systems_roots_are_those_that_are_trusted_by_default(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = Trust()
    assert trust.context(proves=True) is trust.context(proves=True)
    assert trust.context(proves=True).verify_mode is ssl.CERT_REQUIRED
    assert trust.context(proves=True).check_hostname
    with Peer(answer(BODY), tls=server_context(authority)) as peer:
        assert "CERTIFICATE_VERIFY_FAILED" in refused(peer.url(), trust=trust)
        monkeypatch.setenv("SSL_CERT_FILE", str(pem(tmp_path, authority)))
        assert download(peer.url(), 5.0, trust=trust).content == BODY


def test_a_client_certificate_is_shown_to_its_server_and_to_no_other(authority: trustme.CA, tmp_path: Path) -> None:
    shown: list[Any] = []

    class Watching(Peer):
        def _converse(self, conn: Any) -> None:
            shown.append(conn.getpeercert())
            super()._converse(conn)

    mine = authority.issue_cert("me")
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    mine.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    settings = NativeSettings(
        tls_ca=pem(tmp_path, authority), tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem"
    )
    strict, lenient = server_context(authority), server_context(authority)
    for context, mode in ((strict, ssl.CERT_REQUIRED), (lenient, ssl.CERT_OPTIONAL)):
        authority.configure_trust(context)
        context.verify_mode = mode
    with Watching(answer(BODY), tls=lenient) as other:
        there = answer(b"", f"Location: {other.url('/there')}", status="302 Found")
        with Watching(there, tls=strict) as peer:
            assert (
                download(peer.url(), 5.0, trust=Trust(settings.tls_ca, settings.tls_cert, settings.tls_key)).content
                == BODY
            )
            assert refused(peer.url(), trust=Trust(settings.tls_ca))  # without a certificate
    assert [bool(each) for each in shown[:2]] == [True, False]


def test_a_head_without_end_is_cut_off() -> None:
    def endless(piece: bytes) -> Any:
        while True:
            yield piece

    for start in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: b\r\n"):
        with Peer(endless(start)) as peer:
            said = refused(peer.url(), timeout=60.0)
        assert "the head of the answer has more than 65536 bytes" in said or "HTTPException" in said


def test_what_follows_a_packed_page_is_an_error() -> None:
    packed = gzip.compress(BODY, mtime=0)
    for sent in (packed + packed, packed + b"x" * 10**6):
        with Peer(answer(sent, GZIP)) as peer:
            assert "something follows the page" in refused(peer.url())


def test_a_page_that_is_packed_into_nothing_is_cut_off() -> None:
    empty = b"\x00\x00\x00\xff\xff" * 2**20  # blocks of no length
    with Peer(answer(gzip.compress(b"")[:10] + empty, GZIP)) as peer:
        assert refused(peer.url()) == f"{peer.url()}: more than 1048576 bytes"


def test_a_password_that_is_not_encoded_is_not_shown() -> None:
    for url in ("http://me:S3/cret@host:80/metrics", "http://me:S3?cret@host/", "http://me:S3#cret@host/"):
        said = refused(url)
        assert "S3" not in said
        assert "cret" not in said
        assert "expected a URL" in said
