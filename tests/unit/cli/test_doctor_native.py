"""Doctor: vLLM's own metrics, beside ours or from their URL."""

import shlex
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme

from tests.unit.native_vllm import TEXT, Vllm, text_page
from tests.unit.peer import HOST, Peer, answer
from vllm_vitals.catalog import CATALOG
from vllm_vitals.cli.doctor import CHECKS
from vllm_vitals.cli.doctor.finding import Finding, Status
from vllm_vitals.cli.doctor.launch import Launch

JOIN = {"VITALS_PROMETHEUS__JOIN_NATIVE": "true"}
INCLUDE = {"VITALS_PROMETHEUS__INCLUDE_NATIVE": "true"}
SIDECAR = {"VITALS_WIRE__SIDECAR": "/run/vitals/s.sock"}


def look(check: str, environ: Mapping[str, str], words: str = "") -> Finding:
    (finding,) = CHECKS[check](Launch(environ, shlex.split(words)))
    return finding


@pytest.mark.parametrize(
    ("environ", "words", "status"),
    [
        ({}, "", Status.SKIP),
        ({**JOIN, "VITALS_PROMETHEUS__ENABLED": "false"}, "", Status.SKIP),
        ({"VITALS_PROMETHEUS__PORT": "x"}, "", Status.SKIP),
        (SIDECAR, "", Status.SKIP),
        (JOIN, "", Status.OK),
        (JOIN, "-asc 2", Status.WARN),
        ({**JOIN, **SIDECAR}, "", Status.WARN),
        ({**JOIN, "PROMETHEUS_MULTIPROC_DIR": "metrics"}, "", Status.WARN),
        ({**JOIN, "PROMETHEUS_MULTIPROC_DIR": ""}, "", Status.WARN),
        ({"PROMETHEUS_MULTIPROC_DIR": "metrics"}, "", Status.SKIP),
        (INCLUDE, "", Status.OK),
        (INCLUDE, "-asc 2", Status.OK),
        ({**INCLUDE, "PROMETHEUS_MULTIPROC_DIR": ""}, "", Status.OK),
        ({**INCLUDE, **SIDECAR}, "", Status.WARN),
    ],
)
def test_beside_ours(environ: Mapping[str, str], words: str, status: Status) -> None:
    finding = look("native", environ, words)
    assert finding.status is status
    if status is Status.WARN:
        (variable,) = environ.keys() & {*JOIN, *INCLUDE}
        assert "has no effect" in finding.found
        assert f"unset {variable}" in finding.advice


def test_files_of_others_where_vllm_will_write_its_own(tmp_path: Path) -> None:
    environ = {**INCLUDE, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    assert look("native", environ, "-asc 2").status is Status.OK
    for number in (7, 8):
        (tmp_path / f"counter_{number}.db").touch()
    finding = look("native", environ, "-asc 2")
    assert finding.status is Status.WARN
    assert f"PROMETHEUS_MULTIPROC_DIR={tmp_path} holds, and 2 files" in finding.found
    assert "Unset PROMETHEUS_MULTIPROC_DIR" in finding.advice


def test_no_url() -> None:
    assert look("native-url", {}).status is Status.SKIP


def at(url: str) -> Finding:
    finding = look("native-url", {"VITALS_NATIVE__URL": url, "VITALS_NATIVE__TIMEOUT": "30"})
    assert "native.url (from VITALS_NATIVE__URL)" in finding.found
    return finding


def test_a_page_of_vllm() -> None:
    vllm = Vllm(0, 33, 0)
    vllm.count("0", prompt_tokens=7, generation_tokens=9)
    with Peer(answer(text_page(vllm.registry), f"Content-Type: {TEXT}")) as peer:
        finding = at(peer.url())
    assert finding.status is Status.OK
    assert finding.found.endswith(f" of our {len(CATALOG)} metrics")


def test_nobody_listens_before_vllm_is_up() -> None:
    with Peer(answer(b"")) as peer:
        url = peer.url()
    finding = at(url)
    assert finding.status is Status.WARN
    assert "nothing listens there" in finding.found
    assert "look again once it is" in finding.advice


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (answer(b"", status="404 Not Found"), "HTTP 404"),
        (answer(b"{}\n", "Content-Type: application/json"), "is no page of metrics"),
        (answer(b"# TYPE up gauge\nup 1.0\n", f"Content-Type: {TEXT}"), "with 1 metrics of which none is vLLM's"),
    ],
)
def test_something_else_answers(page: bytes, said: str) -> None:
    with Peer(page) as peer:
        finding = at(peer.url())
    assert finding.status is Status.FAIL
    assert said in finding.found
    assert "Correct VITALS_NATIVE__URL" in finding.advice


def test_a_certificate_that_is_not_trusted_until_its_authority_is_set(tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(HOST).configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    with Peer(answer(b"", status="404 Not Found"), tls=context) as peer:
        finding = at(peer.url())
        assert finding.status is Status.FAIL
        assert "CERTIFICATE_VERIFY_FAILED" in finding.found
        assert "Set VITALS_NATIVE__TLS_CA" in finding.advice
        trusting = look(
            "native-url", {"VITALS_NATIVE__URL": peer.url(), "VITALS_NATIVE__TLS_CA": str(tmp_path / "ca.pem")}
        )
        assert "HTTP 404" in trusting.found


def test_its_password_is_not_shown() -> None:
    with Peer(answer(b"", status="403 Forbidden")) as peer:
        finding = at(peer.url(user="me:t0psecret@"))
    assert f"{HOST}:{peer.port}" in finding.found
    assert "t0psecret" not in finding.found + finding.advice
