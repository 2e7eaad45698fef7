"""Who holds the collector: one at a time, another soon after its end; a real lock, real processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vllm_vitals import election
from vllm_vitals.election import Election, meeting_point

HOLD = """
import sys, time
from pathlib import Path
from vllm_vitals.election import Election
Election(Path(sys.argv[1]), 0, lambda: False, lambda: print("led", flush=True)).start()
time.sleep(60)
"""


class Voter:
    """An election and what came of it."""

    def __init__(self, socket: Path, rank: int) -> None:
        self.led = threading.Event()
        self.reached = False
        self.election = Election(socket, rank, lambda: self.reached, self.led.set)
        self.election.start()


@pytest.fixture
def vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Voter]]:
    monkeypatch.setattr(election, "LOOK", 0.01)
    monkeypatch.setattr(election, "PATIENCE", 0.1)
    made: list[Voter] = []

    def start(rank: int) -> Voter:
        made.append(Voter(tmp_path / "deployment" / "s.sock", rank))
        return made[-1]

    yield start
    for voter in made:
        voter.election.stop()
        voter.election.abandon()


def test_the_first_leads_and_no_other(vote: Callable[[int], Voter]) -> None:
    first = vote(0)
    assert first.led.wait(10)
    others = [vote(rank) for rank in (0, 1, 2)]
    time.sleep(0.5)
    assert [other.led.is_set() for other in others] == [False] * 3


def test_another_takes_over_when_it_is_gone(vote: Callable[[int], Voter]) -> None:
    first = vote(0)
    assert first.led.wait(10)
    second = vote(1)
    first.election.abandon()
    assert second.led.wait(10)


def test_nobody_takes_over_what_can_be_reached(vote: Callable[[int], Voter]) -> None:
    second = vote(1)
    second.reached = True
    assert not second.led.wait(0.3)
    second.reached = False
    assert second.led.wait(10)


def test_the_lock_of_a_killed_process_goes_free(tmp_path: Path, vote: Callable[[int], Voter]) -> None:
    socket = tmp_path / "deployment" / "s.sock"
    with subprocess.Popen([sys.executable, "-c", HOLD, socket], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"led\n"
        second = vote(1)
        assert not second.led.wait(0.3)
        holder.send_signal(signal.SIGKILL)
        assert second.led.wait(10)


def test_a_directory_that_is_not_ours_alone_is_refused_and_tried_again(
    tmp_path: Path, vote: Callable[[int], Voter], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "deployment").write_text("in the way")
    first = vote(0)
    assert not first.led.wait(0.3)
    assert caplog.text.count("Cannot hold the collector") == 1
    (tmp_path / "deployment").unlink()
    assert first.led.wait(10)


def test_children_of_one_process_meet_and_others_do_not() -> None:
    ask = "from vllm_vitals.election import meeting_point; print(meeting_point())"
    told = [subprocess.check_output([sys.executable, "-c", ask], text=True).strip() for _ in range(2)]
    assert told[0] == told[1]
    assert told[0] != str(meeting_point())
    assert Path(told[0]).parent.name == f"vllm-vitals-{os.getuid()}"
