"""A sidecar beside a real vLLM: it says the same, outlives it, and what is lost on the way is counted."""

import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.live.breakable import Beside
from tests.live.collector import Sink
from tests.live.load import LoadReport, Request, kept_busy, put_load, send
from tests.live.pages import LATE, Recovers, eventually, settled
from tests.live.server import MODEL_NAME, VllmServer
from tests.live.sidecar import SidecarProcess
from tests.parity import differences, parse, value
from vllm_vitals.transport.protocol import PROTOCOL, Batch, Hello, encode, frame

FINISHED = "vllm_requests_finished_total"
STEPS = "vitals_steps_total"
DROPPED = "vitals_steps_dropped_total"
ERRORS = "vitals_errors_total"
NATIVE_FINISHED = "vllm:request_success_total"
CALLS = "stat_logger_calls_total"
STOPPED = 12.0
"""Seconds for which the sidecar stands still."""
PROMPTLY = 60.0
"""Seconds that it is waited for until all is as it should be again, on a busy machine; on a quiet one it takes 5."""
MANY = 64
"""Choices of a request whose ends fill a buffer soon."""
EACH = 200
"""Connections of garbage of each kind, and twice as many that stay half open: 2000."""
LEAVING = (b"", frame(b"half of it")[:7])
"""What somebody says who then goes away, which is no error."""


@pytest.fixture(scope="module")
def sidecar(beside: Beside) -> tuple[SidecarProcess, Sink]:
    return beside.sidecar, beside.sink


@pytest.fixture(scope="module")
def server(beside: Beside) -> VllmServer:
    return beside.server


def native(server: VllmServer, name: str) -> float:
    return value(parse(server.metrics_text()), name)


def put_choices(server: VllmServer) -> LoadReport:
    """Ask for many choices of one token and return what the client saw; none may have failed."""
    report = LoadReport()
    body = {"model": MODEL_NAME, "prompt": [2, 3, 4, 5], "n": MANY, "max_tokens": 1, "temperature": 1.0}

    async def ask() -> None:
        async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(force_close=True)) as session:
            await asyncio.gather(*(send(session, Request("many choices", body), report) for _ in range(4)))

    asyncio.run(ask())
    assert not report.failures
    return report


def nonsense() -> tuple[bytes, ...]:
    """Return what makes the sidecar close a connection, and count an error."""
    return (
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02" + random.randbytes(500),
        frame(random.randbytes(100)),
        frame(encode(Hello(PROTOCOL + 1, "p", "0", 1, []))),
        frame(encode(Batch(1, 1.0, []))),
        frame(encode(Hello(PROTOCOL, uuid.uuid4().hex, "9", 1, []))) + frame(b"\xc1"),
    )


def bother(path: Path, said: bytes, *, leave: bool = False) -> None:
    """Say something and wait for the other side to hang up, after hanging up oneself if one is to leave."""
    with socket.socket(socket.AF_UNIX) as conn:
        conn.connect(str(path))  # waits if many others do
        conn.settimeout(30)
        with suppress(BrokenPipeError, ConnectionResetError):
            conn.sendall(said)
            if leave:
                conn.shutdown(socket.SHUT_WR)
            while conn.recv(4096):
                pass


def bother_much(path: Path) -> int:
    """Make 2000 connections of garbage and return how many of them are an error."""
    for said in LEAVING * EACH:
        bother(path, said, leave=True)
    with ThreadPoolExecutor(16) as pool:
        errors = list(pool.map(lambda said: bother(path, said), [each for _ in range(EACH) for each in nonsense()]))
    half = frame(bytes(300))[:100]
    with ThreadPoolExecutor(2 * EACH) as pool:  # more than it takes at once
        errors += list(pool.map(lambda _: bother(path, half), range(2 * EACH)))
    return len(errors)


@contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """Mount a tiny file system over a directory and fill it up."""
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", "size=4k,nr_inodes=4,mode=0700", "vitals", str(directory)]
    if os.geteuid() or mount is None or subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        pytest.skip("to fill a disk takes a mount, which is not allowed here")
    try:
        fill(directory)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)  # a socket there may still be in use


def fill(directory: Path) -> None:
    """Make files until there is no room for another."""
    with suppress(OSError):
        for number in range(100):
            (directory / f"{number}-{uuid.uuid4().hex}").touch()


def make_room(directory: Path) -> None:
    """Delete one of the files that fill a disk."""
    next(path for path in directory.iterdir() if path.is_file()).unlink()


def listened_to(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as conn:
        return conn.connect_ex(str(path)) == 0


def test_it_says_all_that_vllm_says(server: VllmServer) -> None:
    load = put_load(server, count=60, disconnects=False)
    native, ours = settled(server)
    assert list(differences(native, ours)) == []
    assert value(ours, FINISHED) == sum(load.finished.values())
    assert value(ours, "vllm_engine_up") == 1
    assert value(ours, DROPPED) == 0


def test_it_pushes_what_it_shows(server: VllmServer, sidecar: tuple[SidecarProcess, Sink]) -> None:
    _, sink = sidecar
    _, ours = settled(server)
    assert eventually(lambda: sink.total("vllm.tokens.generation") == value(ours, "vllm_tokens_generation_total"))
    # Which vLLM it is, is told a moment after the first push; it stays the same instance.
    assert len({dict(resource)["service.instance.id"] for resource in sink.resources}) == 1


def test_nothing_is_exported_by_the_serving_process(server: VllmServer) -> None:
    log = server.log.read_text()
    assert "Scrape endpoint" not in log
    assert log.count("Steps go to the sidecar at") == 1


def test_while_it_stands_still_steps_wait(
    server: VllmServer, sidecar: tuple[SidecarProcess, Sink], recovers: Recovers
) -> None:
    beside, _ = sidecar
    before = value(beside.page(), FINISHED)
    stopped = time.monotonic()
    beside.send(signal.SIGSTOP)
    load = put_load(server, count=20, disconnects=False, seed=1)
    time.sleep(max(0.0, stopped + STOPPED - time.monotonic()))
    beside.send(signal.SIGCONT)
    assert recovers(lambda: value(beside.page(), FINISHED) == before + sum(load.finished.values()), PROMPTLY)
    assert value(beside.page(), DROPPED) == 0


def test_killed_and_restarted_it_is_told_what_happened_meanwhile(
    server: VllmServer, sidecar: tuple[SidecarProcess, Sink], recovers: Recovers
) -> None:
    beside, _ = sidecar
    beside.send(signal.SIGKILL)
    load = put_load(server, count=20, disconnects=False, seed=2)
    started = time.monotonic()
    beside.start()
    # It starts from zero, as a counter does whose process is new; what happened meanwhile was kept for it.
    assert recovers(lambda: value(beside.page(), FINISHED) == sum(load.finished.values()), PROMPTLY, since=started)
    assert value(beside.page(), DROPPED) == 0
    assert value(beside.page(), "vllm_engine_up") == 1


def test_a_socket_that_somebody_deletes_is_made_anew(
    server: VllmServer, sidecar: tuple[SidecarProcess, Sink], recovers: Recovers
) -> None:
    beside, _ = sidecar
    before = value(beside.page(), FINISHED)
    beside.socket.unlink()
    assert recovers(lambda: listened_to(beside.socket), PROMPTLY)
    load = put_load(server, count=20, disconnects=False, seed=3)
    assert eventually(lambda: value(beside.page(), FINISHED) == before + sum(load.finished.values()), PROMPTLY)


def test_two_thousand_connections_of_garbage_are_counted_and_change_nothing(
    server: VllmServer, sidecar: tuple[SidecarProcess, Sink], recovers: Recovers
) -> None:
    beside, _ = sidecar
    assert beside.process is not None
    handles = Path(f"/proc/{beside.process.pid}/fd")
    before, opened = beside.page(), len(list(handles.iterdir()))
    finished = 0
    with ThreadPoolExecutor(1) as pool:
        bothering = pool.submit(bother_much, beside.socket)
        while not bothering.done():
            finished += sum(put_load(server, count=15, disconnects=False, seed=finished).finished.values())
    assert bothering.result() == 8 * EACH  # all but those that left
    assert recovers(lambda: value(beside.page(), FINISHED) == value(before, FINISHED) + finished, PROMPTLY)
    assert eventually(lambda: value(beside.page(), ERRORS) == value(before, ERRORS) + 8 * EACH)
    after = beside.page()
    assert value(after, ERRORS) == value(before, ERRORS) + 8 * EACH
    assert value(after, ERRORS, stage="wire", process="sidecar") >= 8 * EACH
    assert value(after, DROPPED) == value(before, DROPPED)
    assert value(after, "vllm_engine_up") == 1
    assert eventually(lambda: len(list(handles.iterdir())) <= opened + 2, PROMPTLY)
    assert "Traceback" not in beside.log.read_text()


def test_what_does_not_fit_while_it_stands_still_is_counted_to_the_step(
    server: VllmServer, sidecar: tuple[SidecarProcess, Sink], recovers: Recovers
) -> None:
    beside, _ = sidecar
    before, happened = beside.page(), native(server, CALLS)
    warnings = server.log.read_text().count("now the oldest are dropped")
    beside.send(signal.SIGSTOP)
    end = time.monotonic() + 2 * PROMPTLY
    while server.log.read_text().count("now the oldest are dropped") == warnings and time.monotonic() < end:
        put_choices(server)
    put_choices(server)
    beside.send(signal.SIGCONT)

    def came() -> tuple[float, float]:
        after = beside.page()
        return value(after, STEPS) - value(before, STEPS), value(after, DROPPED) - value(before, DROPPED)

    assert recovers(lambda: sum(came()) == native(server, CALLS) - happened, PROMPTLY), came()
    assert min(came()) > 0
    finished = value(beside.page(), FINISHED)
    load = put_load(server, count=10, disconnects=False, seed=4)
    assert eventually(lambda: value(beside.page(), FINISHED) == finished + sum(load.finished.values()), PROMPTLY)


def test_killed_under_load_the_next_has_all_that_it_had_not_taken(
    server: VllmServer, sidecar: tuple[SidecarProcess, Sink], recovers: Recovers
) -> None:
    """It was stopped before the load began: all was on the way to it or waited, and it took nothing."""
    beside, _ = sidecar
    start = native(server, NATIVE_FINISHED)
    beside.send(signal.SIGSTOP)
    with kept_busy(server, disconnects=False, seed=5) as load:
        assert eventually(lambda: native(server, NATIVE_FINISHED) > start + 20)
        beside.send(signal.SIGKILL)
        started = time.monotonic()
        beside.start()
        assert recovers(lambda: value(beside.page(), FINISHED) > 0, PROMPTLY, since=started)
    finished = sum(load.finished.values())
    assert eventually(lambda: value(beside.page(), FINISHED) == finished, PROMPTLY)
    assert native(server, NATIVE_FINISHED) == start + finished
    assert value(beside.page(), DROPPED) == 0
    assert value(beside.page(), ERRORS) == 0


def test_killed_at_work_nothing_that_it_showed_is_counted_again(
    server: VllmServer, sidecar: tuple[SidecarProcess, Sink], recovers: Recovers
) -> None:
    """What it took and nobody saw goes with it, and no more: it cannot be more than vLLM had counted then."""
    beside, _ = sidecar
    shown, start = value(beside.page(), FINISHED), native(server, NATIVE_FINISHED)
    with kept_busy(server, disconnects=False, seed=6) as load:
        assert eventually(lambda: value(beside.page(), FINISHED) > shown + 20)
        least = value(beside.page(), FINISHED)
        beside.send(signal.SIGKILL)
        most = shown + native(server, NATIVE_FINISHED) - start
        started = time.monotonic()
        beside.start()
        assert recovers(lambda: value(beside.page(), FINISHED) > 0, PROMPTLY, since=started)
    finished = sum(load.finished.values())

    def taken_by_the_killed_one() -> float:
        return shown + finished - value(beside.page(), FINISHED)

    assert eventually(lambda: taken_by_the_killed_one() <= most, PROMPTLY)
    before = value(beside.page(), FINISHED)
    last = put_load(server, count=5, disconnects=False, seed=7)  # steps come in order: all before it is there
    assert eventually(lambda: value(beside.page(), FINISHED) >= before + sum(last.finished.values()), PROMPTLY)
    finished += sum(last.finished.values())
    assert least <= taken_by_the_killed_one() <= most
    assert value(beside.page(), DROPPED) == 0


def test_a_full_disk_costs_the_socket_and_nothing_else(
    server: VllmServer, sidecar: tuple[SidecarProcess, Sink], recovers: Recovers
) -> None:
    beside, _ = sidecar
    directory = beside.socket.parent
    time.sleep(LATE)  # killed between taking steps and saying so, it would get them again
    beside.send(signal.SIGKILL)
    with full_disk(directory):
        assert beside.fail() == 1
        make_room(directory)  # for its lock
        assert beside.fail() == 1
        lock, bind = (line for line in beside.log.read_text().splitlines() if "The sidecar cannot start" in line)
        assert lock.endswith(f"[Errno 28] Cannot be used as a lock: No space left on device: '{beside.socket}.bind'")
        assert bind.endswith(f"[Errno 28] Cannot listen: No space left on device: '{beside.socket}'")
        finished = sum(put_load(server, count=20, disconnects=False, seed=8).finished.values())
        make_room(directory)
        started = time.monotonic()
        beside.start()
        told = recovers(lambda: value(beside.page(), FINISHED) == finished, PROMPTLY, since=started)
        assert told, beside.log.read_text()

        beside.send(signal.SIGSTOP)  # so that it cannot make the socket anew before there is no room for it
        beside.socket.unlink()
        fill(directory)
        beside.send(signal.SIGCONT)
        assert eventually(lambda: not beside.answers(), PROMPTLY)
        said = "cannot be made anew, trying on: [Errno 28] Cannot be used as a lock: No space left"
        assert said in beside.log.read_text()
        finished += sum(put_load(server, count=20, disconnects=False, seed=9).finished.values())
        assert eventually(lambda: value(beside.page(), FINISHED) == finished, PROMPTLY)  # who is connected stays so
        for _ in range(2):  # for its lock, and for itself
            make_room(directory)
        assert recovers(beside.answers, PROMPTLY)
    assert eventually(lambda: listened_to(beside.socket), PROMPTLY)
    finished += sum(put_load(server, count=10, disconnects=False, seed=10).finished.values())
    assert eventually(lambda: value(beside.page(), FINISHED) == finished, PROMPTLY)
    assert value(beside.page(), DROPPED) == 0


def test_it_outlives_vllm_and_says_that_it_is_gone(server: VllmServer, sidecar: tuple[SidecarProcess, Sink]) -> None:
    beside, sink = sidecar
    time.sleep(1)
    last = beside.page()
    os.killpg(server.pid, signal.SIGKILL)
    assert eventually(lambda: value(beside.page(), "vllm_engine_up") == 0)
    after = beside.page()
    assert value(after, FINISHED) == value(last, FINISHED)
    assert "vllm_engine_requests_running" not in after
    assert eventually(lambda: sink.total("vllm.engine.up") == 0)


def test_it_ends_in_order(sidecar: tuple[SidecarProcess, Sink]) -> None:
    beside, _ = sidecar
    assert beside.send(signal.SIGTERM) == 0
    log = beside.log.read_text()
    assert "Sidecar stopped" in log
    assert "Traceback" not in log
