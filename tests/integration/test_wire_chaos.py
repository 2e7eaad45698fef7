"""Real processes that are killed, stopped and cut off: each step is taken by some collector, once, or counted."""

import json
import random
import signal
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.wire import numbered, short_directory
from tests.waiting import wait_until
from vllm_vitals.transport.client import Sender

ROOT = Path(__file__).parents[2]
SENDERS = 3
STEPS = 2000
LATENCIES = array("d", [0.01] * 1024)


class Place:
    """Processes that meet at one socket, and what each collector wrote down."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "d" / "s"
        self._directory = directory
        self._processes: list[subprocess.Popen[str]] = []
        self._logs: list[Path] = []

    def receiver(self) -> subprocess.Popen[str]:
        """Start another collector and wait until it listens."""
        number = str(len(self._logs))
        self._logs.append(self._directory / number)
        process = self._start("receive", f"collector-{number}", str(self._logs[-1]))
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        return process

    def sender(self, name: str) -> subprocess.Popen[str]:
        return self._start("send", name, str(STEPS), "0.02")

    def taken(self) -> list[tuple[Counter[tuple[str, int]], int]]:
        """Return of each collector how often it took each step of each process, and how many it heard were dropped."""
        found = []
        for log in self._logs:
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            steps = Counter((name, number) for name, numbers, _ in lines for number in numbers)
            found.append((steps, sum(dropped for *_, dropped in lines)))
        return found

    def end(self) -> None:
        for each in self._processes:
            each.kill()
            each.communicate()

    def _start(self, role: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.unit.wire_process", role, str(self.path), *arguments]
        self._processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        return self._processes[-1]


@pytest.fixture
def place() -> Iterator[Place]:
    """Return where processes meet; in the end they are no more."""
    with short_directory() as made:
        place = Place(made)
        yield place
        place.end()


def test_each_step_is_taken_although_collectors_are_killed(place: Place, seed: int) -> None:
    chance = random.Random(seed)
    senders = [place.sender(str(number)) for number in range(SENDERS)]
    receiver = place.receiver()
    wait_until(lambda: place.taken()[0][0])  # or the last one might get all of it
    for _ in range(4):
        time.sleep(chance.uniform(0.1, 0.5))
        receiver.kill()
        receiver.wait()
        receiver = place.receiver()
    dropped = [int(each.communicate(timeout=250)[0]) for each in senders]
    assert dropped == [0] * SENDERS
    taken = [steps for steps, _ in place.taken()]
    assert sum(map(bool, taken)) > 1
    for steps in taken:
        assert max(steps.values(), default=1) == 1
    assert set().union(*taken) == {(str(name), number) for name in range(SENDERS) for number in range(STEPS)}


def test_each_step_is_taken_once_although_the_socket_is_deleted(place: Place) -> None:
    place.receiver()
    senders = [place.sender(str(number)) for number in range(SENDERS)]
    for _ in range(2):
        time.sleep(0.3)
        place.path.unlink(missing_ok=True)
    wait_until(place.path.exists)
    senders.append(place.sender("late"))
    assert [int(each.communicate(timeout=250)[0]) for each in senders] == [0] * (SENDERS + 1)
    ((steps, _),) = place.taken()
    assert len(steps) == (SENDERS + 1) * STEPS
    assert max(steps.values()) == 1


def test_what_a_stopped_collector_cannot_take_is_counted_to_the_step(place: Place) -> None:
    """Its socket is full of steps that it takes when it goes on: they must not be counted as dropped too."""
    receiver = place.receiver()
    sender = Sender(place.path, "0", 2 << 20)
    sender.start()
    wait_until(lambda: sender.connected)
    count = 0
    for stopped in (False, True, False, True, False):
        receiver.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
        for _ in range(60):
            sender.add(numbered(count, count + 10, inter_token_latencies=LATENCIES))
            sender.flush(time.monotonic())
            count += 10
        if not stopped:
            wait_until(lambda: sender._outbox.idle)
    sender.stop(20.0)
    ((steps, told),) = place.taken()
    assert sender.dropped > 0
    assert len(steps) + sender.dropped == count
    assert max(steps.values()) == 1
    assert told == sender.dropped


def test_killing_a_full_collector_loses_no_count(place: Place) -> None:
    """A step that the dead collector had, and nobody knew, may be counted as dropped besides; never is one missed."""
    sender = Sender(place.path, "0", 1 << 20)
    sender.start()
    count = 0
    for _ in range(3):
        receiver = place.receiver()
        wait_until(lambda: sender.connected)
        receiver.send_signal(signal.SIGSTOP)
        for _ in range(30):
            sender.add(numbered(count, count + 10, inter_token_latencies=LATENCIES))
            sender.flush(time.monotonic())
            count += 10
        receiver.kill()
        receiver.wait()
    place.receiver()
    wait_until(lambda: sender._outbox.idle)
    sender.stop(20.0)
    taken = [steps for steps, _ in place.taken()]
    assert sender.dropped > 0
    assert all(max(steps.values(), default=1) == 1 for steps in taken)
    assert len(set().union(*taken)) + sender.dropped >= count
