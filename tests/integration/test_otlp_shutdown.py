"""The end of a process: the last push arrives, no peer holds it up, and a fork's child keeps out of it."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.builders import MODEL
from tests.unit.fake_vllm import QUIET
from tests.unit.otlp import (
    AGE,
    RECEIVERS,
    VERSION,
    HttpReceiver,
    Pusher,
    Reply,
    of,
    peer,
    points,
    refusing,
    said,
    trickle,
)
from tests.waiting import wait_until
from vllm_vitals.deployment.runtime import Runtime
from vllm_vitals.exporters.otlp.exporter import OtlpExporter, otlp_exporter

STEPS = ("vitals.steps", frozenset({("model_name", MODEL), ("engine", "0")}))
BOUND = 0.6
"""Seconds at the end that somebody who is no good receiver may take."""
AMPLE = 20.0
"""Seconds that a good one has, of which it takes few."""
PATIENCE = 300.0
"""Seconds that a push may take while nothing ends."""
LONGEST = 60.0
"""Seconds in which an end is over on any machine, unless somebody is waited for longer than the bound."""

kinds = pytest.mark.parametrize("kind", RECEIVERS)
protocols = pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])


@pytest.fixture(autouse=True)
def _direct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def serve(make_runtime: Callable[..., Runtime]) -> Callable[..., tuple[Runtime, Any]]:
    """Start a runtime that pushes to an endpoint."""

    def start(endpoint: str, **otlp: Any) -> tuple[Runtime, Any]:
        values = {"endpoint": endpoint, "interval": 3600.0, "shutdown_timeout": AMPLE, "timeout": PATIENCE, **otlp}
        host = make_runtime(otlp=values)
        config = SimpleNamespace(model_config=SimpleNamespace(served_model_name=MODEL))
        queue = host.attach(config, [0], OtlpExporter, VERSION)
        host.expose("vitals_otlp", lambda: otlp_exporter(host.aggregator, host.settings, VERSION, AGE))
        return host, queue

    return start


def step(queue: Any, times: int = 1) -> None:
    for _ in range(times):
        queue.record(SimpleNamespace(num_running_reqs=1), None, None, 0)


def seconds(stop: Callable[[], None]) -> float:
    begun = time.monotonic()
    stop()
    return time.monotonic() - begun


def close(host: Runtime) -> None:
    exporter: Any = host.exporters["vitals_otlp"]
    if exporter._transport is not None:
        exporter._transport.close()


@kinds
def test_the_last_push_brings_what_came_since_the_last_interval(kind: Any, serve: Any) -> None:
    with kind().serve() as receiver:
        host, queue = serve(receiver.endpoint, protocol=kind.protocol, temporality="delta")
        step(queue, 3)
        host.drainer.drain()
        host.exporters["vitals_otlp"].push(1.0)
        step(queue, 4)
        host.stop()
        close(host)
    assert [points(push.message)[STEPS].as_double for push in receiver.received] == [3, 4]


@protocols
def test_nobody_there_does_not_hold_the_end_up(protocol: str, serve: Any) -> None:
    host, queue = serve(refusing(), protocol=protocol, shutdown_timeout=BOUND)
    step(queue)
    assert seconds(host.stop) < LONGEST


@pytest.mark.parametrize(
    ("protocol", "talk"),
    [("http/protobuf", lambda _: None), ("grpc", lambda _: None), ("http/protobuf", trickle)],
    ids=["http-silent", "grpc-silent", "http-trickle"],
)
@pytest.mark.parametrize("under_way", [False, True])
def test_a_peer_that_hangs_does_not_hold_the_end_up(protocol: str, talk: Any, serve: Any, *, under_way: bool) -> None:
    with peer(talk) as endpoint:
        interval = 0.1 if under_way else 3600.0
        host, queue = serve(endpoint, protocol=protocol, interval=interval, shutdown_timeout=BOUND)
        step(queue)
        if under_way:
            wait_until(lambda: any(thread.name == "vitals-push" for thread in threading.enumerate()))
        assert seconds(host.stop) < LONGEST


@pytest.mark.parametrize("bound", [2.0, 0.5, 0.0])
def test_the_end_waits_as_long_as_it_may_and_no_longer(bound: float) -> None:
    waited: list[float | None] = []
    pusher = Pusher(refusing(), shutdown_timeout=bound)
    pusher.exporter._thread = SimpleNamespace(join=waited.append)  # type: ignore[assignment]
    pusher.exporter.stop()
    assert waited == [bound]


def test_a_slow_push_under_way_is_waited_for_and_followed_by_the_last(serve: Any) -> None:
    class Slow(HttpReceiver):
        def answer(self) -> Any:
            time.sleep(0.2)

    with Slow().serve() as receiver:
        host, queue = serve(receiver.endpoint, interval=0.1, temporality="delta")
        step(queue)
        host.drainer.drain()
        wait_until(lambda: any(thread.name == "vitals-push" for thread in threading.enumerate()))
        step(queue, 2)
        host.stop()
        close(host)
    assert (
        sum(points(each.message)[STEPS].as_double for each in receiver.received if STEPS in points(each.message)) == 3
    )


def test_a_bound_of_zero_sends_nothing_and_takes_no_time(serve: Any) -> None:
    with HttpReceiver().serve() as receiver:
        host, queue = serve(receiver.endpoint, shutdown_timeout=0.0)
        step(queue)
        assert seconds(host.stop) < LONGEST
    assert receiver.received == []


def test_a_peer_that_asked_to_be_left_alone_still_gets_the_last_push(serve: Any) -> None:
    with HttpReceiver(Reply(503, headers={"Retry-After": "60"}), None).serve() as receiver:
        host, queue = serve(receiver.endpoint, interval=0.1)
        wait_until(lambda: host.exporters["vitals_otlp"]._failures)
        step(queue)
        host.stop()
        close(host)
    assert points(receiver.received[-1].message)[STEPS].as_double == 1
    assert len(receiver.received) == 2


def test_nothing_is_pushed_after_the_end(serve: Any) -> None:
    with HttpReceiver().serve() as receiver:
        host, _ = serve(receiver.endpoint, interval=0.1)
        wait_until(lambda: receiver.received)
        host.stop()
        close(host)
        count = len(receiver.received)
        time.sleep(0.25)
    assert len(receiver.received) == count


def test_the_last_push_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with HttpReceiver().serve() as receiver:
        pusher = of(receiver, shutdown_timeout=AMPLE)
        pusher.push()
        first: Any = pusher.exporter._transport
        pusher.exporter.start()
        caplog.clear()
        pusher.exporter.stop()
        assert pusher.exporter._transport is None
        assert first._line is None
    assert said(caplog.records) == []


def test_the_last_push_needs_no_new_thread(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with HttpReceiver().serve() as receiver:
        host, queue = serve(receiver.endpoint)
        step(queue)
        host.exporters["vitals_otlp"].push(1.0)
        step(queue, 2)
        # So it is in Python 3.12 when functions run at exit; the receiver's own threads are not meant.
        plain = threading.Thread.start
        with monkeypatch.context() as late:
            late.setattr(
                threading.Thread, "start", lambda each: start(each) if each.name.startswith("vitals") else plain(each)
            )
            host.stop()
        close(host)
    assert points(receiver.received[-1].message)[STEPS].as_double == 3


def test_one_exporter_that_cannot_stop_leaves_the_others_their_end(serve: Any) -> None:
    with HttpReceiver().serve() as receiver:
        host, _ = serve(receiver.endpoint)
        exporters = {"broken": SimpleNamespace(stop=lambda: 1 / 0), **host.exporters}
        host.exporters.clear()
        host.exporters.update(exporters)
        try:
            host.stop()
        finally:
            del host.exporters["broken"]
        close(host)
    assert receiver.received


def test_abandoning_touches_no_lock() -> None:
    pusher = Pusher(refusing())
    held = [each for each in vars(pusher.exporter).values() if hasattr(each, "acquire")]
    held += [each._cond for each in vars(pusher.exporter).values() if isinstance(each, threading.Event)]
    for lock in held:
        lock.acquire()
    # What holds the locks at a fork is not there any more to release them.
    child = threading.Thread(target=pusher.exporter.after_fork_in_child, daemon=True)
    child.start()
    child.join(10.0)
    hangs = child.is_alive()
    for lock in held:
        lock.release()
    child.join(1.0)
    assert not hangs


# --- In processes of their own

PRELUDE = """
import os, sys, threading, time
from types import SimpleNamespace
from vllm_vitals.deployment import runtime
from vllm_vitals.exporters.otlp.exporter import otlp_exporter

host = runtime.runtime()
config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="m"))
queue = host.attach(config, [0], object, "0.32.0")
host.expose("vitals_otlp", lambda: otlp_exporter(host.aggregator, host.settings, "0.32.0", 1.0))


def step(times=1):
    for _ in range(times):
        queue.record(SimpleNamespace(num_running_reqs=1), None, None, 0)

"""


def run(body: str, endpoint: str, **settings: str) -> tuple[float, str]:
    """Run a script after the prelude; return how long it took from its last line on and what it said."""
    variables = {"VITALS_OTLP__ENDPOINT": endpoint, "VITALS_OTLP__INTERVAL": "3600", "NO_PROXY": "*"}
    variables["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", f"{PRELUDE}{body}\nprint(time.time(), flush=True)"],
        env={**variables, **settings}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    ended = time.time()
    assert done.returncode == 0, done.stderr
    return ended - float(done.stdout.splitlines()[-1]), done.stderr


@kinds
def test_the_end_of_a_process_brings_the_last_push(kind: Any) -> None:
    with kind().serve() as receiver:
        _, errors = run("step(5)", receiver.endpoint, VITALS_OTLP__PROTOCOL=kind.protocol)
    assert errors == ""
    assert [points(push.message)[STEPS].as_double for push in receiver.received] == [5]


@kinds
def test_the_child_of_a_fork_pushes_nothing_and_ends(kind: Any) -> None:
    body = """
step(2)
host.drainer.drain()
host.exporters["vitals_otlp"].push(5.0)
child = os.fork()
if not child:
    step(100)
    time.sleep(0.3)
    sys.exit(0)
end = time.monotonic() + 20
while os.waitpid(child, os.WNOHANG) == (0, 0):
    if time.monotonic() > end:
        os.kill(child, 9)
        os.waitpid(child, 0)
        sys.exit("the child hangs")
    time.sleep(0.01)
step(1)
"""
    with kind().serve() as receiver:
        _, errors = run(body, receiver.endpoint, VITALS_OTLP__PROTOCOL=kind.protocol, VITALS_OTLP__TEMPORALITY="delta")
    assert "hangs" not in errors
    assert [points(push.message)[STEPS].as_double for push in receiver.received] == [2, 1]


def test_the_global_meter_provider_stays_untouched() -> None:
    body = """
import json
from opentelemetry import metrics
host.exporters["vitals_otlp"].push(5.0)
kinds = [type(metrics.get_meter_provider()).__name__]
from opentelemetry.sdk.metrics import MeterProvider
mine = MeterProvider(shutdown_on_exit=False)
metrics.set_meter_provider(mine)
host.exporters["vitals_otlp"].push(5.0)
kinds.append(metrics.get_meter_provider() is mine)
print(json.dumps(kinds), file=sys.stderr)
"""
    with HttpReceiver().serve() as receiver:
        _, errors = run(body, receiver.endpoint)
        names = {name for push in receiver.received for name, _ in points(push.message)}
    assert json.loads(errors) == ["_ProxyMeterProvider", True]
    assert len(receiver.received) == 3
    assert not {name for name in names if name.startswith("otel.")}


# --- From SIGTERM to the end

SERVING = """
import signal, sys, threading, time
from types import SimpleNamespace
from prometheus_client import CollectorRegistry
from tests.unit.fake_vllm import FakeVllm

registry = CollectorRegistry()
registry.register(type("Hanging", (), {"describe": lambda _: [], "collect": lambda _: threading.Event().wait()})())
vllm = FakeVllm()
sys.modules.update(vllm.modules)
sys.modules["vllm.v1.metrics.prometheus"] = SimpleNamespace(get_prometheus_registry=lambda: registry)
logger, _ = vllm.start("prometheus", "otlp")
exporter = vllm.host.exporters.get("vitals_otlp")


def end(*_):
    logger.record(SimpleNamespace(num_running_reqs=1), None, None, 0)
    sys.exit()


signal.signal(signal.SIGTERM, end)
while exporter and exporter._transport is None and not exporter._failures:
    time.sleep(0.001)
print("serving", flush=True)
while True:
    time.sleep(0.01)  # a signal that comes just before a sleep waits for its end
"""


def end(endpoint: str, **settings: str) -> None:
    """Let a process serve and push, end it, and see that it ends although a push may take much longer."""
    environment = {**QUIET, "VITALS_OTLP__INTERVAL": "0.1", "NO_PROXY": "*", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {"VITALS_OTLP__ENDPOINT": endpoint, "VITALS_OTLP__TIMEOUT": str(PATIENCE)}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SERVING],
        env={**environment, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "serving\n":
                pytest.fail(process.communicate()[1])
            process.terminate()
            _, errors = process.communicate(timeout=LONGEST)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@contextlib.contextmanager
def absent() -> Iterator[str]:
    yield refusing()


@pytest.mark.parametrize(
    ("protocol", "serve", "bound"),
    [
        ("http/protobuf", absent, 0.5), ("http/protobuf", peer, 0.5), ("http/protobuf", peer, 0.0),
        ("http/protobuf", partial(peer, trickle), 0.5), ("grpc", absent, 0.5), ("grpc", peer, 0.5),
    ],
    ids=["http-refuses", "http-hangs", "http-hangs-without-bound", "http-trickles", "grpc-refuses", "grpc-hangs"],
)  # fmt: skip
def test_a_process_ends_whatever_its_receiver_does(protocol: str, serve: Any, bound: float) -> None:
    with serve() as endpoint:
        end(endpoint, VITALS_OTLP__PROTOCOL=protocol, VITALS_OTLP__SHUTDOWN_TIMEOUT=str(bound))


def test_a_process_whose_registry_hangs_ends_and_the_last_push_arrives() -> None:
    with HttpReceiver().serve() as receiver:
        end(receiver.endpoint, VITALS_OTLP__INCLUDE_NATIVE="true", VITALS_OTLP__SHUTDOWN_TIMEOUT="30")
        last = points(receiver.received[-1].message)
    assert last[STEPS].as_double == 1
