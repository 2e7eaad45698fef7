"""Sockets and locks among planted links, other users, full tables and signals: nothing of others is touched.

Real directories, sockets and processes. What needs another user runs as root alone, and is skipped elsewhere.
"""

import fcntl
import itertools
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.wire import Client, Collecting, numbered, short_directory
from tests.waiting import wait_until
from vllm_vitals._util import log as logs
from vllm_vitals._util.directory import LONGEST_PATH, Directory
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment import leader_lock as election
from vllm_vitals.deployment.leader_lock import LeaderLock, meeting_point, sweep
from vllm_vitals.deployment.runtime import Runtime
from vllm_vitals.deployment.topology import of_serving_process
from vllm_vitals.transport.client import Sender
from vllm_vitals.transport.unix_socket import BINDING, Listener

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
COMMAND = (sys.executable, "-c", "import sys; from vllm_vitals.cli import app; app()")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_said", set())


@pytest.fixture
def short() -> Iterator[Path]:
    """Return a directory of ours in which a socket's path is not too long."""
    with short_directory() as made:
        yield made


def snapshot(directory: Path) -> dict[str, tuple[Any, ...]]:
    """Return all that there is below a directory: kinds, modes, owners, content and where links lead."""
    found = {}
    for path in sorted(directory.rglob("*")):
        what = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(what.st_mode) else b""
        leads = str(path.readlink()) if path.is_symlink() else ""
        found[str(path.relative_to(directory))] = (what.st_mode, what.st_uid, what.st_ino, content, leads)
    return found


def victim(directory: Path) -> Path:
    """Make a directory with files that are called as ours are."""
    directory.mkdir()
    for name in ("1-10.lock", "2-20.lock", "3-30.txt", f"1-10.sock{BINDING}"):
        (directory / name).write_text("precious")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(directory / "1-10.sock"))
    return directory


# Directories


def plant_link(place: Path, target: Path) -> None:
    place.symlink_to(target)


def plant_dangling(place: Path, target: Path) -> None:
    place.symlink_to(target / "nowhere")


def plant_file(place: Path, _: Path) -> None:
    place.write_text("in the way")


def plant_pipe(place: Path, _: Path) -> None:
    os.mkfifo(place)


def plant_open(place: Path, _: Path) -> None:
    place.mkdir()
    place.chmod(0o1777)


PLANTED = {
    plant_link: "symbolic link",
    plant_dangling: "symbolic link",
    plant_file: "no directory",
    plant_pipe: "no directory",
    plant_open: "mode 1777, wanted 0700",
}


def listen(place: Path) -> None:
    Listener(place / "1-10.sock").close()


def take(place: Path) -> None:
    LeaderLock(place / "1-10.sock", 0, lambda: False, lambda: None)._take()


def test_a_planted_directory_is_refused_and_what_it_leads_to_is_left_alone(short: Path) -> None:
    for number, (plant, said) in enumerate(PLANTED.items()):
        target, place = victim(short / f"v{number}"), short / f"p{number}"
        plant(place, target)
        before = snapshot(short)
        for use in (listen, take):
            with pytest.raises(OSError, match=said) as caught:
                use(place)
            assert str(place) in str(caught.value)
        sweep(place)
        assert snapshot(short) == before, plant.__name__


def test_the_next_place_is_taken_where_one_is_planted(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(election, "PLACES", (str(short / "second"),))
    (short / "second").mkdir()
    name = f"vllm-vitals-{os.geteuid()}"
    for number, plant in enumerate(PLANTED):
        first = short / f"f{number}"
        first.mkdir()
        monkeypatch.setenv("TMPDIR", str(first))
        target = victim(short / f"v{number}")
        plant(first / name, target)
        before = snapshot(target)
        for make in (False, True):
            assert meeting_point(make=make).parent == short / "second" / name
        assert snapshot(target) == before


def test_places_that_will_not_do_are_passed_over(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"vllm-vitals-{os.geteuid()}"
    long = short / ("x" * LONGEST_PATH)
    long.mkdir()
    monkeypatch.setattr(election, "PLACES", (str(short),))
    for useless in ("", "relative", str(short / "missing"), "/proc", str(long)):
        monkeypatch.setenv("TMPDIR", useless)
        monkeypatch.setenv("XDG_RUNTIME_DIR", useless)
        for make in (True,) if useless == "/proc" else (False, True):  # it says that root may write there
            assert meeting_point(make=make).parent == short / name, useless
    runtime = short / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert meeting_point(make=True).parent == runtime / name
    assert stat.S_IMODE((runtime / name).stat().st_mode) == 0o700
    assert meeting_point() == meeting_point(make=True)


def test_without_any_place_serving_goes_on_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(election, "PLACES", ("/proc",))
    monkeypatch.setattr(election, "LOOK", 0.01)
    for name in election.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    looks = itertools.count()
    original = LeaderLock._take
    monkeypatch.setattr(LeaderLock, "_take", lambda self: [next(looks), original(self)][1])
    settings = Settings(gpu={"enabled": False})
    host = Runtime(settings, of_serving_process(settings.wire, 0, 2))
    config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="m"))
    try:
        queue = host.attach(config, [0], object, "1")
        queue.record(SimpleNamespace(num_running_reqs=1), None, None, 0)
        wait_until(lambda: next(looks) > 10)
        assert (queue.dropped, queue.failed, host.drainer.problem()) == (0, 0, "")
        (line,) = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert "/proc/vllm-vitals-" in line
        assert "VITALS_WIRE__SOCKET" in line
    finally:
        assert host._remote is not None
        host._remote._lock.stop()  # type: ignore[union-attr]
        host._remote.sender._courier.stop(0.0)
        host.drainer.stop()


# Files in a directory of ours


def test_what_is_planted_in_our_directory_is_not_followed(short: Path) -> None:
    """By an older release, say, or by hand."""
    target = short / "target"
    target.write_text("precious")
    for name, use in ((f"1-10.sock{BINDING}", listen), ("1-10.sock", listen), ("1-10.lock", take)):
        for plant in (plant_link, plant_dangling, plant_pipe, lambda place, _: place.mkdir()):
            place = short / "place"
            place.mkdir(mode=0o700)
            plant(place / name, target)
            before = snapshot(short)
            with pytest.raises(OSError, match=str(place)):
                use(place)
            sweep(place)
            if name == "1-10.lock" or plant is not plant_pipe:
                assert {key: value for key, value in snapshot(short).items() if key != "place/1-10.lock"} == {
                    key: value for key, value in before.items() if key != "place/1-10.lock"
                }
            assert target.read_text() == "precious"
            (place / name).rmdir() if (place / name).is_dir() and not (place / name).is_symlink() else (
                place / name
            ).unlink()
            for left in place.iterdir():
                left.unlink()
            place.rmdir()


def test_an_orphaned_socket_is_swept_and_one_that_listens_under_a_lock_is_not(short: Path) -> None:
    short.chmod(0o700)
    for name in ("1-10.sock", "2-20.sock", "mine.sock"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(short / name))
    (short / f"3-30.sock{BINDING}").touch()
    (short / "4-40.lock").touch()
    with Directory(short) as directory:
        held = directory.open_lock("2-20.lock")
        assert directory.holds(held, "2-20.lock")
        sweep(short)
        os.close(held)
    assert {path.name for path in short.iterdir()} == {"2-20.sock", "2-20.lock", "mine.sock"}


def test_a_socket_in_a_sticky_directory_is_refused_in_one_line(short: Path) -> None:
    shared = short / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    said = subprocess.run(
        [*COMMAND, "sidecar", "--socket", shared / "vitals.sock"],
        env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert said.returncode == 1
    (line,) = [each for each in said.stderr.splitlines() if "ERROR" in each]
    for word in ("Others may write", "1777", "Give a path in a directory of this user alone", str(shared)):
        assert word in line
    assert list(shared.iterdir()) == []
    listen(shared / "own")
    assert stat.S_IMODE((shared / "own").stat().st_mode) == 0o700


# Other users


def environment() -> dict[str, str]:
    quiet = {"VITALS_PROMETHEUS__PORT": "0", "VITALS_GPU__ENABLED": "false", "VITALS_PROMETHEUS__HOST": "127.0.0.1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VITALS_", "OTEL_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **quiet}


def as_nobody(work: Callable[[], None]) -> None:
    """Do something in a child that is another user; what it raises is raised here."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        said = b""
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the parent
            said = repr(error).encode()[:4000]
        os.write(writer, said)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    assert not said, said.decode()


@as_root
def test_the_directory_of_another_user_is_neither_used_nor_swept(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user finds root's directory under its name, and root one of an ordinary user's."""
    short.chmod(0o1777)
    roots = victim(short / f"vllm-vitals-{NOBODY}")
    others = victim(short / "vllm-vitals-0")
    os.chown(others, NOBODY, NOBODY)
    (short / "second").mkdir()
    (short / "second").chmod(0o1777)
    before = snapshot(short)
    monkeypatch.setenv("TMPDIR", str(short))
    monkeypatch.setattr(election, "PLACES", (str(short / "second"),))

    def nobody() -> None:
        for use in (listen, take):
            with pytest.raises(OSError, match="belongs to user 0, not to 65534"):
                use(roots)
        sweep(roots)
        assert meeting_point().parent == short / "second" / f"vllm-vitals-{NOBODY}"

    as_nobody(nobody)
    for use in (listen, take):
        with pytest.raises(OSError, match="belongs to user 65534, not to 0"):
            use(others)
    sweep(others)
    assert meeting_point().parent == short / "second" / "vllm-vitals-0"
    assert snapshot(short) == before


@as_root
def test_nobody_can_keep_us_out_by_a_lock_on_the_directory(short: Path) -> None:
    """Whoever may read a directory may lock it."""
    place = short / "place"
    place.mkdir()
    for each in (short, place):
        each.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.setuid(NOBODY)
            fcntl.flock(os.open(place, os.O_RDONLY), fcntl.LOCK_EX)
            os.write(writer, b"held")
            time.sleep(600)
        os._exit(0)
    try:
        assert os.read(reader, 10) == b"held"
        listen(place)
        assert LeaderLock(place / "s.sock", 0, lambda: False, lambda: None)._take()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@as_root
def test_nobody_can_open_our_lock(short: Path) -> None:
    short.chmod(0o755)
    election_ = LeaderLock(short / "s.sock", 0, lambda: False, lambda: None)
    assert election_._take()

    def nobody() -> None:
        for flags in (os.O_RDONLY, os.O_RDWR):
            with pytest.raises(PermissionError):
                os.open(short / "s.lock", flags)

    as_nobody(nobody)
    election_.after_fork_in_child()


# Paths that are too long


def test_a_path_that_is_too_long_is_said_at_both_ends(short: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = short / ("x" * LONGEST_PATH)
    with pytest.raises(OSError, match=f"at most {LONGEST_PATH} bytes.*{path}"):
        Listener(path)
    sender = Sender(path, "0", 2**20)
    sender._outage._since = time.monotonic() - 60.0
    sender.start()
    wait_until(lambda: f"at most {LONGEST_PATH} bytes" in caplog.text)
    sender.stop(0.0)


# Signals


ENDS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


STARTED = """
import os, signal
for each in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):  # as in a terminal, whatever runs this test
    signal.signal(each, signal.SIG_IGN if each.name == os.environ.get("IGNORED") else signal.SIG_DFL)
from vllm_vitals.cli import app
app()
"""


@contextmanager
def sidecar(short: Path, log: Path, ignored: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run a sidecar that listens; it is killed in the end if it is still there."""
    path = short / "d" / "s"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", STARTED, "sidecar", "--socket", path],
            env={**environment(), "IGNORED": ignored}, stdout=said, stderr=said,
        )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is not None or b"takes steps at" in log.read_bytes())
        yield process
    finally:
        process.kill()
        process.wait()


def test_every_signal_that_asks_to_end_ends_it_in_order(short: Path, tmp_path: Path, effort: str) -> None:
    places = {"test": (1,), "all": range(len(ENDS))}[effort]
    orders = [[*ENDS[place:], *ENDS[:place]] * 10 for place in places]
    for number, order in enumerate([ENDS[:1], *orders]):
        log = tmp_path / str(number)
        with sidecar(short, log) as process:
            process.send_signal(signal.SIGPIPE)  # changes nothing
            for each in order:
                process.send_signal(each)
            assert process.wait(60) == 0, (order, log.read_text())
        assert log.read_text().count("Sidecar stopped") == 1
        assert not (short / "d" / "s").exists()


def test_what_was_ignored_before_its_start_is_ignored(short: Path, tmp_path: Path) -> None:
    """As `nohup` has it."""
    with sidecar(short, tmp_path / "log", "SIGHUP") as process:
        process.send_signal(signal.SIGHUP)
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(short / "d" / "s"))
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


# A full table of descriptors

FULL = """
import os, resource, sys, threading, time
from pathlib import Path
from tests.unit.wire import Client, Collecting, numbered, GREETING
from tests.waiting import wait_until
from msgspec.structs import replace

path = Path(sys.argv[1])
collecting = Collecting(path, grace=0.2)
collecting.receiver.start()
served, going = Client(path), Client(path)
served.greet()
going.greet(replace(GREETING, process="going"))

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
waiting = Client(path)  # one that is not accepted yet holds no descriptor at the other end
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
os.close(held.pop())
late = __import__("socket").socket(1)
late.setblocking(False)
late.connect(str(path))
wait_until(lambda: collecting.broken)
served.tell(1, *numbered(0, 3))
going.socket.shutdown(2)
wait_until(lambda: collecting.gone)
tries = collecting.broken
for each in held:
    os.close(each)
again = Client(path)
again.greet(replace(GREETING, process="again"))
again.tell(1, *numbered(3, 5))
print(collecting.steps, [peer.process for peer in collecting.gone if peer.process == "going"], tries < 100)
os._exit(0)
"""


def test_with_no_descriptor_left_others_are_heard_and_it_goes_on_later(short: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, short / "d" / "s"], env=environment(), cwd=ROOT, capture_output=True, text=True,
        timeout=180, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[0, 1, 2, 3, 4] ['going'] True\n"), done.stderr


# Connections that say nothing


def test_connections_that_say_nothing_keep_nobody_out(short: Path) -> None:
    collecting = Collecting(short / "d" / "s", most=64)
    collecting.receiver.start()
    try:
        known = Client(short / "d" / "s")
        known.greet()
        silent = [Client(short / "d" / "s") for _ in range(200)]
        for number in range(5):
            fresh = Client(short / "d" / "s")
            fresh.socket.settimeout(60)
            fresh.greet(_named(f"fresh{number}"))
            fresh.tell(1, *numbered(number, number + 1))
            fresh.close()
        known.tell(1, *numbered(5, 6))
        assert sorted(collecting.steps) == list(range(6))
        assert collecting.receiver.connections <= 64
        for each in silent:
            each.close()
        known.close()
    finally:
        collecting.receiver.stop()


def _named(process: str) -> Any:
    from msgspec.structs import replace

    from tests.unit.wire import GREETING

    return replace(GREETING, process=process)
