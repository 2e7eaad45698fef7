"""Who holds the collector: one at a time, another soon after its end; a real lock, real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import wait_until
from vllm_vitals._util.directory import Directory
from vllm_vitals.deployment import leader_lock as election
from vllm_vitals.deployment.leader_lock import LeaderLock, meeting_point, sweep

HOLD = """
import sys, time
from pathlib import Path
from vllm_vitals.deployment.leader_lock import LeaderLock
LeaderLock(Path(sys.argv[1]), 0, lambda: False, lambda: print("led", flush=True)).start()
time.sleep(60)
"""
COMPETE = """
import os, sys, time
from pathlib import Path
from vllm_vitals.deployment.leader_lock import LeaderLock, sweep
socket = Path(sys.argv[1])
election = LeaderLock(socket, 0, lambda: False, lambda: None)
led, end = 0, time.monotonic() + 30
while led < 100 and time.monotonic() < end:
    if election._take():
        os.close(os.open(socket.with_suffix(".led"), os.O_CREAT | os.O_EXCL))  # fails if another leads
        led += 1
        time.sleep(0.0001)
        socket.with_suffix(".led").unlink()
        if led % 2:
            socket.with_suffix(".lock").unlink()
        election.after_fork_in_child()
    sweep(socket.parent)
print(led)
"""


class Voter:
    """An election and what came of it."""

    def __init__(self, socket: Path, rank: int, *, reached: bool) -> None:
        self.led = threading.Event()
        self.reached = reached
        self.election = LeaderLock(socket, rank, lambda: self.reached, self.led.set)
        self.election.start()


Vote = Callable[..., Voter]


@pytest.fixture
def vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Vote]:
    monkeypatch.setattr(election, "LOOK", 0.01)
    monkeypatch.setattr(election, "PATIENCE", 0.1)
    made: list[Voter] = []

    def start(rank: int, *, reached: bool = False) -> Voter:
        made.append(Voter(tmp_path / "deployment" / "s.sock", rank, reached=reached))
        return made[-1]

    yield start
    for voter in made:
        voter.election.stop()
        voter.election.leave()


def test_the_first_leads_and_no_other(vote: Vote) -> None:
    first = vote(0)
    assert first.led.wait(10)
    others = [vote(rank) for rank in (0, 1, 2)]
    time.sleep(0.5)
    assert [other.led.is_set() for other in others] == [False] * 3


def test_another_takes_over_when_it_is_gone(vote: Vote) -> None:
    first = vote(0)
    assert first.led.wait(10)
    second = vote(1)
    first.election.after_fork_in_child()
    assert second.led.wait(10)


def test_nobody_takes_over_what_can_be_reached(vote: Vote) -> None:
    second = vote(1, reached=True)
    assert not second.led.wait(0.3)
    second.reached = False
    assert second.led.wait(10)


def test_the_lock_of_a_killed_process_goes_free(tmp_path: Path, vote: Vote) -> None:
    socket = tmp_path / "deployment" / "s.sock"
    with subprocess.Popen([sys.executable, "-c", HOLD, socket], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"led\n"
        second = vote(1)
        assert not second.led.wait(0.3)
        holder.send_signal(signal.SIGKILL)
        assert second.led.wait(10)


def test_a_directory_that_is_not_ours_alone_is_refused_and_tried_again(
    tmp_path: Path, vote: Vote, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "deployment").write_text("in the way")
    first = vote(0)
    assert not first.led.wait(0.3)
    assert caplog.text.count("Cannot hold the collector") == 1
    (tmp_path / "deployment").unlink()
    assert first.led.wait(10)


def test_children_of_one_process_meet_and_others_do_not() -> None:
    ask = "from vllm_vitals.deployment.leader_lock import meeting_point; print(meeting_point())"
    told = [subprocess.check_output([sys.executable, "-c", ask], text=True).strip() for _ in range(2)]
    assert told[0] == told[1]
    assert told[0] != str(meeting_point())
    assert Path(told[0]).parent.name == f"vllm-vitals-{os.getuid()}"


# --- What is left behind


@contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that holds the lead of a socket's path, until it is killed."""
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"led\n"
        try:
            yield holder
        finally:
            holder.kill()


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def left_behind(path: Path) -> None:
    """Leave at a path what a killed host leaves there."""
    with holding(path), socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))


def test_whoever_leads_takes_away_what_killed_ones_left(tmp_path: Path) -> None:
    left_behind(tmp_path / "1-10.sock")
    for other in ("notes.lock", "1-x.lock", "2-20.sock", "2-20.txt"):
        (tmp_path / other).touch()
    (tmp_path / "4-40.lock").symlink_to(tmp_path / "notes.lock")
    with holding(tmp_path / "3-30.sock"):
        wait_until(lambda: "1-10.lock" not in names(tmp_path))
        (tmp_path / "3-30.sock").touch()
        stays = {"notes.lock", "1-x.lock", "2-20.sock", "2-20.txt", "4-40.lock", "3-30.lock", "3-30.sock"}
        assert names(tmp_path) == stays
        (tmp_path / "6-60.lock").touch()
        with holding(tmp_path / "5-50.sock"):
            wait_until(lambda: "6-60.lock" not in names(tmp_path))
            assert names(tmp_path) == {*stays, "5-50.lock"}


def test_a_path_that_somebody_chose_is_no_place_to_take_things_away(tmp_path: Path) -> None:
    left_behind(tmp_path / "1-10.sock")
    with holding(tmp_path / "mine.sock"):
        time.sleep(0.3)
        assert names(tmp_path) == {"1-10.lock", "1-10.sock", "mine.lock"}


def test_who_ends_in_order_leaves_nothing_and_another_leads(vote: Vote, tmp_path: Path) -> None:
    first = vote(0)
    assert first.led.wait(10)
    second = vote(1, reached=True)
    assert names(tmp_path / "deployment") == {"s.lock"}
    first.election.stop()
    first.election.leave()
    assert names(tmp_path / "deployment") == set()
    second.reached = False
    assert second.led.wait(10)
    assert names(tmp_path / "deployment") == {"s.lock"}


def test_who_does_not_lead_leaves_the_lock_where_it_is(vote: Vote, tmp_path: Path) -> None:
    first = vote(0)
    assert first.led.wait(10)
    second = vote(1)
    time.sleep(0.2)
    second.election.stop()
    second.election.leave()
    assert names(tmp_path / "deployment") == {"s.lock"}
    assert not vote(0).led.wait(0.3)


def test_one_leads_at_a_time_while_locks_are_taken_away(tmp_path: Path) -> None:
    """Four processes take the lead, give it up, and take every lock away that they can, as fast as they are able to."""
    command = [sys.executable, "-c", COMPETE, str(tmp_path / "1-10.sock")]
    rivals = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [rival.communicate(timeout=60) for rival in rivals]
    assert [rival.returncode for rival in rivals] == [0] * 4, said
    assert [out for out, _ in said] == ["100\n"] * 4


def test_a_lock_whose_file_was_taken_away_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "1-10.lock"
    path.touch()
    with path.open("r+") as before:
        sweep(tmp_path)
        assert not path.exists()
        with Directory(tmp_path) as directory:
            assert not directory.holds(before.fileno(), path.name)
            path.touch()
            assert not directory.holds(before.fileno(), path.name)
            with path.open("r+") as now:
                assert directory.holds(now.fileno(), path.name)
