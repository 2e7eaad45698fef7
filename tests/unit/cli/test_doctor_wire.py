"""Doctor: will the steps that leave their process arrive."""

import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from vllm_vitals.cli.doctor import CHECKS
from vllm_vitals.cli.doctor import wire as check
from vllm_vitals.cli.doctor.finding import Finding, Status
from vllm_vitals.cli.doctor.launch import Launch

SEVERAL = "vllm serve m -asc 2"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a sidecar may listen: in a directory of ours alone."""
    (tmp_path / "vitals").mkdir(mode=0o700)
    return tmp_path / "vitals" / "s.sock"


@contextmanager
def listening(path: Path, backlog: int = 8) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
        made.listen(backlog)
        yield


def look(words: str = "", **environ: object) -> list[Finding]:
    return list(CHECKS["wire"](Launch({name: str(value) for name, value in environ.items()}, shlex.split(words))))


def sidecar(path: Path) -> Finding:
    (finding,) = look(VITALS_WIRE__SIDECAR=path)
    return finding


def refused(path: Path, said: str, advice: str = "") -> None:
    """See that the sidecar's socket is found fault with, and that it is said how to start one or to mend it."""
    finding = sidecar(path)
    assert (finding.status, said in finding.found) == (Status.FAIL, True), finding
    assert (advice or f"Start `vllm-vitals sidecar --socket {path}`") in finding.advice


def test_nothing_leaves() -> None:
    for words in ("", "vllm serve m", "vllm serve m --headless"):
        assert [finding.status for finding in look(words)] == [Status.SKIP]


def test_a_sidecar_listens(path: Path) -> None:
    with listening(path):
        finding = sidecar(path)
    assert (finding.status, finding.advice) == (Status.OK, "")
    assert f"wire.sidecar (from VITALS_WIRE__SIDECAR): a sidecar listens at {path}" in finding.found


def test_no_sidecar_yet(path: Path) -> None:
    refused(path, f"{path} does not exist")
    path.parent.rmdir()
    refused(path, f"{path} does not exist")


def test_the_sidecar_has_ended(path: Path) -> None:
    with listening(path):
        pass
    refused(path, f"nothing listens at {path} any more")


def test_the_sidecar_hangs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "TIMEOUT_SECONDS", 0.1)
    with listening(path, backlog=0), socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(path))
        refused(path, "accepts no connection")


def test_a_file_in_its_place(path: Path) -> None:
    path.write_text("in the way")
    refused(path, "is not a socket", "Remove it.")


def test_a_directory_that_others_may_write_to(path: Path) -> None:
    path.parent.chmod(0o777)
    with listening(path):
        refused(path, f"other users may write to {path.parent} (mode 0777)", f"chmod 0700 {path.parent}")


def test_a_directory_that_is_a_symbolic_link(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))
    path.parent.symlink_to("elsewhere")
    refused(path, f"{path.parent} is a symbolic link", "as the same user")
    meeting(path, f"{path.parent} is a symbolic link")


def test_another_users(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    monkeypatch.setattr(check.os, "geteuid", lambda: uid + 1)
    with listening(path):
        refused(path, f"belongs to user {uid}, but this is user {uid + 1}", "as the same user")


def test_another_users_socket_in_our_directory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, uid = Path.stat, os.geteuid()
    other = SimpleNamespace(st_mode=0o140600, st_uid=uid + 1)
    monkeypatch.setattr(Path, "stat", lambda self, **given: other if self == path else stat(self, **given))
    with listening(path):
        refused(path, f"user {uid + 1} listens at {path}, but this is user {uid}")


def test_several_api_servers_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "meeting_point", lambda: tmp_path / "vitals" / "1-2.sock")
    (finding,) = look(SEVERAL)
    assert finding == Finding(
        Status.OK, f"{tmp_path / 'vitals'}, the directory for the socket of the API servers, will be created"
    )
    assert not (tmp_path / "vitals").exists()
    (tmp_path / "vitals").mkdir(mode=0o700)
    (finding,) = look(SEVERAL)
    assert (finding.status, "can be used" in finding.found) == (Status.OK, True)


def meeting(path: Path, said: str) -> None:
    (finding,) = look(SEVERAL, VITALS_WIRE__SOCKET=path)
    assert (finding.status, said in finding.found) == (Status.FAIL, True), finding
    assert "VITALS_WIRE__SOCKET" in finding.advice or "chmod 0700" in finding.advice


def test_where_api_servers_cannot_meet(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting(tmp_path / "none" / "vitals" / "s.sock", f"cannot be created: {tmp_path / 'none'} does not exist")
    (tmp_path / "file").touch()
    meeting(tmp_path / "file" / "s.sock", f"{tmp_path / 'file'} is not a directory")
    path.parent.chmod(0o770)
    meeting(path, "(mode 0770)")
    path.parent.chmod(0o500)
    monkeypatch.setattr(check.os, "access", lambda *_: False)  # root may write anywhere
    meeting(path, "cannot be written to")
    uid = os.geteuid()
    monkeypatch.setattr(check.os, "geteuid", lambda: uid + 1)
    meeting(path, f"belongs to user {uid}")
