"""Several API servers as real processes: one that is killed is replaced, one that comes late joins, and counts are right.

Each records on our own runtime what it is told to, over a stand-in for vLLM; the page of the deployment is what counts.
"""

import inspect
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.builders import MODEL, iteration_stats, request_stats
from tests.unit.fake_vllm import FakeVllm, make_config
from tests.unit.otlp import HOST, free_port
from tests.waiting import wait_until
from vllm_vitals.aggregation.merge import LONGEST_HOLD, REST
from vllm_vitals.config.settings import WireSettings
from vllm_vitals.deployment import collector_server as hosts
from vllm_vitals.deployment.leader_lock import LeaderLock, _started, meeting_point
from vllm_vitals.transport.buffer import Outbox
from vllm_vitals.transport.client import Courier, Outage
from vllm_vitals.transport.protocol import PROTOCOL, Hello
from vllm_vitals.transport.server import TICK, Receiver

ROOT = Path(__file__).parents[2]
SERVERS = 3
SHARED = 0
"""The engine that all servers drive; each has one of its own besides, numbered by its rank + 1."""
TOKENS = (3, 5, 7)
"""What a step brings in the server of each rank, in either of its engines; one request ends in each step."""
PROMPTLY = 60.0
"""Seconds within which all is as it should be again, on a busy machine; on a quiet one it is less than 5."""
RECOVERY = 5.0
"""Seconds within which all is as it should be again, as far as that is for us to say."""
FOR_EVER, AT_ONCE = "3600", "0.5"
"""Seconds for which a process may be away until its engines are gone: longer than any test takes, and hardly any."""

Shown = dict[str, tuple[float, float, float]]
"""Steps, tokens and finished requests by engine."""


def serve(rank: int) -> None:
    """Be one of the API servers: begin at the first line, do what the others say, and answer each."""
    logging.basicConfig(level=logging.INFO)
    vllm = FakeVllm()
    sys.modules.update(vllm.modules)
    engines = (SHARED, rank + 1)
    if grace := os.environ.get("TAKEOVER_GRACE"):
        hosts.Receiver = partial(Receiver, grace=float(grace))  # type: ignore[misc,assignment]
    config = make_config(parallel_config=SimpleNamespace(_api_process_rank=rank, _api_process_count=SERVERS))
    assert vllm.plugins  # which is imported by now
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    (logger,) = vllm.start(config=config, engines=engines)
    for line in sys.stdin:
        answer = held(vllm) if line == "held\n" else record(logger, int(line), engines, TOKENS[rank])
        print(json.dumps(answer), flush=True)


def record(logger: Any, steps: int, engines: tuple[int, ...], tokens: int) -> int:
    for _ in range(steps):
        for engine in engines:
            iteration = iteration_stats(num_generation_tokens=tokens, finished_requests=[request_stats()])
            logger.record(SimpleNamespace(num_running_reqs=0), iteration, None, engine)
    return steps


def held(vllm: FakeVllm) -> list[int]:
    """Return how many steps wait to be sent, and how many were sent that no collector is known to have."""
    vllm.host.drainer.drain()
    link = vllm.host._remote
    assert link is not None
    outbox = link.sender._outbox
    with outbox._lock:
        return [sum(parcel.steps for parcel in parcels) for parcels in (outbox._waiting, outbox._sent)]


class Server:
    """An API server as a process."""

    def __init__(self, rank: int, port: int, log: Path, grace: str = "") -> None:
        self.rank = rank
        self.log = log
        self.begun = False
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("VITALS_", "OTEL_"))}
        listen = {"VITALS_PROMETHEUS__HOST": HOST, "VITALS_PROMETHEUS__PORT": str(port), "TAKEOVER_GRACE": grace}
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.test_takeover", str(rank)],
                env={**clean, **listen}, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
            )  # fmt: skip

    @property
    def leads(self) -> bool:
        """Whether it ever held the collector."""
        return "holds the collector" in self.log.read_text()

    def begin(self) -> None:
        """Let it start as an API server; its process is up already."""
        self.begun = True
        self._say("begin")

    def record(self, steps: int) -> None:
        """Let it record so many steps of each of its two engines."""
        assert self._ask(str(steps)) == steps

    def held(self) -> tuple[int, int]:
        """Return how many steps it has not sent, and of how many sent ones it knows of no collector that has them."""
        waiting, sent = self._ask("held")
        return waiting, sent

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _ask(self, what: str) -> Any:
        self._say(what)
        return self.hear()

    def _say(self, what: str) -> None:
        assert self.process.stdin is not None
        print(what, file=self.process.stdin, flush=True)

    def hear(self) -> Any:
        """Return what it answers."""
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text()
        return json.loads(answer)


class Deployment:
    """API servers of one parent, which is this process, and the page that one of them serves."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.grace = ""
        self._directory = directory
        self._started: list[Server] = []

    def prepare(self, *ranks: int) -> list[Server]:
        """Start the processes of servers, each of which then begins when it is told to."""
        log = self._directory / str(len(self._started))
        made = [Server(rank, self.port, log.with_suffix(f".{rank}"), self.grace) for rank in ranks]
        self._started += made
        assert [server.hear() for server in made] == ["ready"] * len(made)
        return made

    def start(self, *ranks: int) -> list[Server]:
        """Start servers at once and wait until they serve; whoever shall lead is best started alone."""
        made = self.prepare(*ranks)
        for server in made:
            server.begin()
        for server in made:
            server.held()
        return made

    def start_all(self) -> list[Server]:
        """Start all of them, the first leading."""
        first = self.start(0)
        wait_until(self.page)
        return first + self.start(1, 2)

    def page(self) -> dict[str, dict[str, float]]:
        """Return the sums by name and engine, nothing while nobody serves."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return {}
        sums: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                of_name = sums.setdefault(sample.name, {})
                engine = sample.labels.get("engine", "")
                of_name[engine] = of_name.get(engine, 0.0) + sample.value
        return sums

    def shown(self) -> Shown:
        page = self.page()
        names = ("vitals_steps_total", "vllm_tokens_generation_total", "vllm_requests_finished_total")
        # A page may be made while steps are added up: what one metric knows another may not yet.
        sums = [page.get(name, {}) for name in names]
        return {engine: tuple(of_name.get(engine, 0.0) for of_name in sums) for engine in sums[0]}  # type: ignore[misc]

    def up(self) -> dict[str, float]:
        return self.page().get("vllm_engine_up", {})

    def settle(self, wanted: Shown, within: float = PROMPTLY) -> None:
        """Wait until the page shows what it should and all servers know it; nothing may be dropped or go wrong."""
        end = time.monotonic() + within
        while (shown := self.shown()) != wanted and time.monotonic() < end:
            time.sleep(0.02)
        assert shown == wanted
        page = self.page()
        assert page["vitals_steps_dropped_total"] == {"": 0.0}
        assert page["vitals_errors_total"] == {"": 0.0}
        for server in self._started:
            if server.begun and server.process.poll() is None:
                wait_until(lambda server=server: server.held() == (0, 0))

    def end(self) -> None:
        for server in self._started:
            server.kill()
        here = meeting_point().parent / f"{os.getpid()}-{_started(os.getpid())}"
        for suffix in (".sock", ".lock"):
            here.with_suffix(suffix).unlink(missing_ok=True)


def totals(*steps: int | None) -> Shown:
    """Return what the page must show if the servers, by rank, recorded so many steps; `None`: it never heard of one."""
    known = [(rank, count) for rank, count in enumerate(steps) if count is not None]
    together = sum(count for _, count in known)
    shared = sum(count * TOKENS[rank] for rank, count in known)
    own = {str(rank + 1): (count, count * TOKENS[rank], count) for rank, count in known}
    return {str(SHARED): (together, shared, together), **own}


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Give API servers that meet as those of one vLLM do; none is left in the end."""
    made = Deployment(tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_what_is_to_be_shown_is_right() -> None:
    assert totals(4, None, 8) == {"0": (12, 4 * 3 + 8 * 7, 12), "1": (4, 12, 4), "3": (8, 56, 8)}
    assert MODEL == "m"


def test_one_after_another_takes_the_lead_when_it_is_killed(deployment: Deployment) -> None:
    """The next counts from zero, and has all that was recorded while nobody led."""
    first, second, third = deployment.start_all()
    for count in (1, 2, 3):
        for server in (first, second, third):
            server.record(count)
    deployment.settle(totals(6, 6, 6))
    first.record(4)
    third.record(8)
    deployment.settle(totals(10, 6, 14))
    wait_until(lambda: (first.leads, second.leads, third.leads) == (True, False, False))

    first.kill()
    second.record(5)
    third.record(9)
    deployment.settle(totals(None, 5, 9))
    second.record(2)
    third.record(1)
    deployment.settle(totals(None, 7, 10))
    wait_until(lambda: (second.leads, third.leads) == (True, False))

    second.kill()
    third.record(4)
    deployment.settle(totals(None, None, 4))
    third.record(30)
    deployment.settle(totals(None, None, 34))
    wait_until(lambda: third.leads)
    assert deployment.up() == {"0": 1, "3": 1}


def test_what_a_host_had_not_taken_when_it_was_killed_is_told_to_the_next(deployment: Deployment) -> None:
    """It is stopped first, so that all of it is on the way, in the socket of one who will never read it."""
    first, second, third = deployment.start_all()
    for server in (first, second, third):
        server.record(3)
    deployment.settle(totals(3, 3, 3))
    first.process.send_signal(signal.SIGSTOP)
    second.record(20)
    third.record(40)
    wait_until(lambda: second.held() == (0, 2 * 20))
    wait_until(lambda: third.held() == (0, 2 * 40))
    first.kill()
    deployment.settle(totals(None, 20, 40))
    wait_until(lambda: second.leads)


def test_a_host_that_stands_still_stays_the_host_and_takes_everything_afterwards(deployment: Deployment) -> None:
    first, second, third = deployment.start_all()
    for server in (first, second, third):
        server.record(3)
    deployment.settle(totals(3, 3, 3))
    first.process.send_signal(signal.SIGSTOP)
    for _ in range(8):  # for longer than the others would wait for one who is away
        second.record(2)
        third.record(1)
        time.sleep(0.5)
    first.process.send_signal(signal.SIGCONT)
    first.record(1)
    deployment.settle(totals(4, 19, 11))
    assert (second.leads, third.leads) == (False, False)


def test_a_killed_one_that_is_back_in_time_was_never_down_and_all_totals_go_on(deployment: Deployment) -> None:
    deployment.grace = FOR_EVER
    first, second, third = deployment.start_all()
    for server, steps in ((first, 4), (second, 6), (third, 8)):
        server.record(steps)
    deployment.settle(totals(4, 6, 8))
    assert deployment.up() == {"0": 1, "1": 1, "2": 1, "3": 1}
    third.kill()
    first.record(1)
    deployment.settle(totals(5, 6, 8))
    seen = [deployment.up()]
    (third,) = deployment.start(2)
    third.record(3)
    deployment.settle(totals(5, 6, 11))
    seen.append(deployment.up())
    assert {up["3"] for up in seen} == {1}
    assert (first.leads, second.leads, third.leads) == (True, False, False)


def test_a_killed_one_is_down_until_it_is_back_and_all_totals_go_on(deployment: Deployment) -> None:
    deployment.grace = AT_ONCE
    first, second = deployment.start(0)[0], deployment.start(1)[0]
    for server, steps in ((first, 4), (second, 6)):
        server.record(steps)
    deployment.settle(totals(4, 6))
    second.kill()
    wait_until(lambda: deployment.up() == {"0": 1, "1": 1, "2": 0})
    first.record(1)
    deployment.settle(totals(5, 6))
    (second,) = deployment.start(1)
    second.record(2)
    deployment.settle(totals(5, 8))
    assert deployment.up() == {"0": 1, "1": 1, "2": 1}
    assert (first.leads, second.leads) == (True, False)


def test_a_process_may_be_away_for_some_seconds() -> None:
    assert inspect.signature(Receiver).parameters["grace"].default == 5.0


def test_the_first_may_come_last_and_joins(deployment: Deployment) -> None:
    (third,) = deployment.start(2)
    third.record(7)
    deployment.settle(totals(None, None, 7))
    (first,) = deployment.start(0)
    first.record(4)
    third.record(1)
    deployment.settle(totals(4, None, 8))
    (second,) = deployment.start(1)
    second.record(2)
    deployment.settle(totals(4, 2, 8))
    assert (first.leads, second.leads, third.leads) == (False, False, True)
    for server in (first, second, third):
        assert "No scrape endpoint" not in server.log.read_text()
    third.kill()
    second.record(3)
    deployment.settle(totals(0, 3, None))
    wait_until(lambda: (first.leads, second.leads) == (True, False))


def test_a_killed_host_that_is_started_again_joins_the_one_that_took_over(deployment: Deployment) -> None:
    first, second, third = deployment.start_all()
    for server in (first, second, third):
        server.record(2)
    deployment.settle(totals(2, 2, 2))
    first.kill()
    second.record(1)
    third.record(2)
    deployment.settle(totals(None, 1, 2))
    (again,) = deployment.start(0)
    again.record(4)
    second.record(1)
    deployment.settle(totals(4, 2, 2))
    assert (again.leads, second.leads, third.leads) == (False, True, False)
    second.kill()
    again.record(5)
    third.record(6)
    deployment.settle(totals(5, None, 6))
    wait_until(lambda: (again.leads, third.leads) == (True, False))


class Waits:
    """Stands in for the event on which a thread waits between two tries: it notes for how long, and nobody waits."""

    def __init__(self, most: int = 10_000) -> None:
        """Let the event be set after so many waits."""
        self.seconds: list[float] = []
        self._most = most

    def is_set(self) -> bool:
        return len(self.seconds) >= self._most

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return self.is_set()


def seconds_to_lead(rank: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return for how long a server of a rank looks on, once there is no collector, until it leads."""
    waits, led = Waits(), threading.Event()
    election = LeaderLock(directory / "d" / "s.sock", rank, lambda: False, led.set)
    monkeypatch.setattr(election, "_stopped", waits)
    election._run()
    election.after_fork_in_child()
    assert led.is_set()
    return math.fsum(waits.seconds)


def longest_rest(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the longest time between two tries to connect, of many in vain."""
    waits = Waits(100)
    courier = Courier(nobody, lambda: Hello(PROTOCOL, "p", "0", 1, []), Outbox(2**20), Outage(nobody, 2**20))
    monkeypatch.setattr(courier, "_ending", waits)
    monkeypatch.setattr("vllm_vitals.transport.client.random", SimpleNamespace(uniform=lambda _, most: most))
    courier._run()
    return max(waits.seconds)


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 63])
def test_by_its_schedule_a_takeover_is_over_within_five_seconds(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is waited for, at the longest; what the machine takes to do its work comes on top."""
    batch = WireSettings().interval
    away = batch + seconds_to_lead(rank, tmp_path, monkeypatch) + longest_rest(tmp_path / "none", monkeypatch)
    # That the collector is gone shows at the latest when a batch cannot be sent. What was recorded before is then sent at
    # once, and shown with the next batch, unless it is so young that steps of others may come that belong before it.
    assert max(away, LONGEST_HOLD) + batch < RECOVERY


def test_by_its_schedule_a_collector_that_is_there_again_has_everything_within_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sidecar that is started again, or that has just looked for its socket when somebody deletes that."""
    reached = TICK + longest_rest(tmp_path / "none", monkeypatch)
    assert reached + LONGEST_HOLD + REST + WireSettings().interval < RECOVERY


def test_whoever_is_left_takes_the_lead_within_seconds(tmp_path: Path) -> None:
    led = threading.Event()
    election = LeaderLock(tmp_path / "d" / "s.sock", 63, lambda: False, led.set)
    election.start()
    assert led.wait(PROMPTLY)
    election.stop()
    election.after_fork_in_child()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        serve(int(sys.argv[1]))
