"""Doctor: certificates and keys."""

from datetime import datetime, timedelta, timezone

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from vllm_vitals.cli.doctor import CHECKS
from vllm_vitals.cli.doctor.finding import Status
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.config.load import SettingsError, load
from vllm_vitals.exporters.prometheus.tls import RELOAD_INTERVAL_SECONDS

NOW = datetime.now(tz=timezone.utc)


@pytest.fixture(scope="module")
def ca():
    return trustme.CA()


@pytest.fixture
def files(ca, tmp_path):
    """Return what writes a certificate and its key, valid for some days from now."""

    def write(days, name="a"):
        leaf = ca.issue_cert("localhost", not_before=NOW - timedelta(days=30), not_after=NOW + timedelta(days=days))
        cert, key = tmp_path / f"{name}.pem", tmp_path / f"{name}.key"
        cert.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        key.write_bytes(leaf.private_key_pem.bytes())
        return cert, key

    return write


def look(cert, key, client_ca=None):
    environ = {"VITALS_PROMETHEUS__TLS_CERT": str(cert), "VITALS_PROMETHEUS__TLS_KEY": str(key)}
    if client_ca:
        environ["VITALS_PROMETHEUS__TLS_CLIENT_CA"] = str(client_ca)
    return list(CHECKS["tls"](Launch(environ)))


def test_off():
    (finding,) = CHECKS["tls"](Launch({}))
    assert (finding.status, finding.found) == (Status.SKIP, "TLS is off")


def test_wrong_settings(tmp_path):
    (finding,) = look(tmp_path / "none", tmp_path / "none")
    assert finding.status is Status.SKIP


def test_a_sidecar_has_the_files(files):
    cert, key = files(90)
    environ = {"VITALS_PROMETHEUS__TLS_CERT": str(cert), "VITALS_PROMETHEUS__TLS_KEY": str(key)}
    (finding,) = CHECKS["tls"](Launch({"VITALS_WIRE__SIDECAR": "/run/vitals/s.sock", **environ}))
    assert (finding.status, "the sidecar listens" in finding.found) == (Status.SKIP, True)


def test_good(files):
    (finding,) = look(*files(90))
    assert finding.status is Status.OK
    assert "valid for another 90 days" in finding.found


def test_ends_soon(files):
    (finding,) = look(*files(3))
    assert (finding.status, "expires in 3 days" in finding.found) == (Status.WARN, True)
    assert f"reloads changed files within {RELOAD_INTERVAL_SECONDS:g} s" in finding.advice


def test_expired(files):
    (finding,) = look(*files(-1))
    assert (finding.status, "expired" in finding.found) == (Status.FAIL, True)


def test_not_valid_yet(ca, tmp_path):
    leaf = ca.issue_cert("localhost", not_before=NOW + timedelta(days=1), not_after=NOW + timedelta(days=9))
    cert, key = tmp_path / "c", tmp_path / "k"
    leaf.cert_chain_pems[0].write_to_path(str(cert))
    leaf.private_key_pem.write_to_path(str(key))
    (finding,) = look(cert, key)
    assert (finding.status, "not yet valid" in finding.found) == (Status.FAIL, True)


def test_key_of_another_certificate(files):
    (finding,) = look(files(9)[0], files(9, "b")[1])
    assert finding.status is Status.FAIL
    assert "mismatch" in finding.found
    assert "tls_key" in finding.advice


@pytest.mark.parametrize(
    "content", ["", "not a certificate", "-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"]
)
def test_broken_certificate(files, content):
    cert, key = files(9)
    cert.write_text(content)
    (finding,) = look(cert, key)
    assert (finding.status, "cannot be loaded" in finding.found) == (Status.FAIL, True)


def settings_errors(cert, key):
    environ = {"VITALS_PROMETHEUS__TLS_CERT": str(cert), "VITALS_PROMETHEUS__TLS_KEY": str(key)}
    with pytest.raises(SettingsError) as raised:
        load(environ)
    return str(raised.value)


def test_a_directory_is_refused_by_the_settings(files, tmp_path):
    said = settings_errors(tmp_path, files(9)[1])
    assert said.startswith(f"VITALS_PROMETHEUS__TLS_CERT='{tmp_path}': must be a file that this process can read")


def test_an_encrypted_key_is_refused_by_the_settings(files):
    cert, key = files(9)
    plain = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    assert "must not be encrypted" in settings_errors(cert, key)


def test_client_ca(ca, files, tmp_path):
    good, bad = tmp_path / "ca.pem", tmp_path / "bad.pem"
    ca.cert_pem.write_to_path(str(good))
    bad.write_text("nothing")
    assert [finding.status for finding in look(*files(90), good)] == [Status.OK]
    first, second = look(*files(90), bad)
    assert (first.status, second.status) == (Status.FAIL, Status.OK)
    assert "VITALS_PROMETHEUS__TLS_CLIENT_CA" in first.advice
