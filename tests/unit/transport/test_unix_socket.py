"""A socket that only we can reach is made, and whatever stands in the way of that is said."""

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.wire import short_directory
from vllm_vitals._util.directory import LONGEST_PATH, Directory
from vllm_vitals.transport import unix_socket as module
from vllm_vitals.transport.unix_socket import Listener

NOBODY = 65534


@pytest.fixture
def short() -> Iterator[Path]:
    """Return a directory."""
    with short_directory() as made:
        yield made


@pytest.fixture
def path(short: Path) -> Path:
    """Return where a socket can be, in a directory that is not there yet."""
    return short / "d" / "s"


@pytest.fixture
def listening(path: Path) -> Iterator[Listener]:
    """Return a listener at the path."""
    listener = Listener(path)
    yield listener
    listener.close()


def left_behind(path: Path) -> None:
    """Leave a socket on which nobody listens."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_only_we_can_reach_it(listening: Listener, path: Path) -> None:
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert listening.ours()
    assert connects(path)


def test_there_may_be_nobody_after_all(listening: Listener) -> None:
    assert listening.accept() is None


def test_it_takes_the_place_of_one_that_is_left_behind(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    left_behind(path)
    assert not connects(path)
    listener = Listener(path)
    assert connects(path)
    listener.close()
    assert not path.exists()


def test_it_takes_nobody_s_place(listening: Listener, path: Path) -> None:
    with pytest.raises(OSError, match=f"in use.*{path}"):
        Listener(path)
    assert listening.ours()


def test_it_is_in_use_even_if_its_owner_is_stuck(listening: Listener, path: Path) -> None:
    """A process that is stopped accepts nobody, until no more can wait."""
    assert listening.ours()
    waiting = []
    for _ in range(module.BACKLOG + 1):
        waiting.append(socket.socket(socket.AF_UNIX))
        waiting[-1].setblocking(False)
        waiting[-1].connect(str(path))
    with pytest.raises(OSError, match="in use"):
        Listener(path)
    for each in waiting:
        each.close()


def test_only_one_at_a_time_looks_and_binds(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    refused = pytest.raises(OSError, match=f"about to listen.*{path}")
    with Directory(path.parent) as directory, module._locked(directory, path.name), refused:
        Listener(path)
    Listener(path).close()


def test_a_file_is_left_alone(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_text("mine")
    with pytest.raises(OSError, match=f"no socket.*{path}"):
        Listener(path)
    assert path.read_text() == "mine"


def test_a_link_is_left_alone(path: Path, short: Path) -> None:
    path.parent.mkdir(mode=0o700)
    left_behind(short / "other")
    path.symlink_to(short / "other")
    with pytest.raises(OSError, match="no socket"):
        Listener(path)


def test_a_path_that_is_too_long_is_said(short: Path) -> None:
    fits = short / ("x" * (LONGEST_PATH - len(str(short)) - 1))
    short.chmod(0o700)
    Listener(fits).close()
    with pytest.raises(OSError, match=f"at most {LONGEST_PATH} bytes.*{short}"):
        Listener(fits.with_name(fits.name + "x"))


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_may_write_to_will_not_do(path: Path, mode: int) -> None:
    path.parent.mkdir()
    path.parent.chmod(mode)
    with pytest.raises(PermissionError, match=f"mode {mode:04o}, wanted 0700.*{path.parent}"):
        Listener(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_will_not_do(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    os.chown(path.parent, NOBODY, -1)
    with pytest.raises(PermissionError, match=f"belongs to user {NOBODY}.*{path.parent}"):
        Listener(path)


def test_a_directory_that_cannot_be_made_is_said(short: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(short / "no" / "where")):
        Listener(short / "no" / "where" / "s")


def test_a_directory_that_is_none_is_said(short: Path) -> None:
    (short / "file").touch()
    with pytest.raises(NotADirectoryError, match=str(short / "file")):
        Listener(short / "file" / "s")


def test_what_the_system_says_is_passed_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the disk is full."""

    class Full(socket.socket):
        def bind(self, _: object) -> None:
            raise OSError(28, os.strerror(28))

    monkeypatch.setattr(module.socket, "socket", Full)
    with pytest.raises(OSError, match=f"No space left.*{path}"):
        Listener(path)


def test_it_knows_when_the_path_leads_elsewhere(path: Path) -> None:
    first = Listener(path)
    path.unlink()
    assert not first.ours()
    second = Listener(path)
    assert not first.ours()
    first.close()
    assert second.ours()
    second.close()
