"""A sidecar: what it pushes says which vLLM it collects for, and what it has of vLLM's own metrics that it is that."""

import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from tests.unit.builders import facts
from tests.unit.otlp import HttpReceiver, identity, points
from tests.unit.peer import Peer, answer
from tests.unit.wire import short_directory
from tests.waiting import wait_until
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.sidecar import NATIVE, NativeSidecar, StepSidecar
from vllm_vitals.records.step import Gone
from vllm_vitals.transport.client import Sender

VERSION = "service.version"


class Serving:
    """A process that serves one engine, and tells which vLLM that is."""

    def __init__(self, socket: Path, engine: str) -> None:
        self._engine = engine
        self._sender = Sender(socket, engine, 2**20)
        self._sender.start()

    def runs(self, version: str) -> None:
        self._sender.add([facts(self._engine, info={"vllm_version": version})])
        self._sender.flush(time.monotonic())

    def ends(self) -> None:
        self._sender.add([Gone("m", self._engine)])
        self._sender.stop(5.0)


class Pushed:
    """A sidecar, and what comes of it at a receiver."""

    def __init__(self, socket: Path, receiver: HttpReceiver) -> None:
        self.socket = socket
        self._receiver = receiver

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [identity(each.message) for each in list(self._receiver.received)]

    @property
    def versions(self) -> list[str | None]:
        """Return the version in each push; one that is in several, one after another, once."""
        return [version for version, _ in groupby(each.get(VERSION) for each in self.resources)]

    def wait(self, *versions: str | None) -> None:
        wait_until(lambda: len(self.versions) >= len(versions), 20)
        assert self.versions == list(versions)

    def pass_by(self) -> None:
        """Let two more pushes come."""
        before = len(self._receiver.received)
        wait_until(lambda: len(self._receiver.received) >= before + 2, 20)

    def engines(self) -> list[set[str]]:
        """Return the engines that are up by each push."""
        pushes = [points(each.message) for each in self._receiver.received]
        return [
            {dict(labels)["engine"] for (name, labels), point in push.items() if name == "vllm.engine.up" and point.as_double}
            for push in pushes
        ]  # fmt: skip


@contextmanager
def pushing(**resource: str) -> Iterator[Pushed]:
    """Run a sidecar that pushes ten times a second."""
    with short_directory() as directory, HttpReceiver().serve() as receiver:
        socket = directory / "s.sock"
        settings = Settings.model_validate(
            {
                "prometheus": {"enabled": False},
                "gpu": {"enabled": False},
                "otlp": {"endpoint": receiver.endpoint, "interval": 0.1, "resource": resource},
            }
        )
        sidecar = StepSidecar(settings, socket)
        sidecar.start()
        try:
            yield Pushed(socket, receiver)
        finally:
            sidecar.stop()


def test_the_version_is_told_from_the_first_push_that_has_an_engine() -> None:
    with pushing() as pushed:
        pushed.wait(None)
        engine = Serving(pushed.socket, "0")
        engine.runs("0.32.0")
        pushed.wait(None, "0.32.0")
        engine.ends()
        pushed.pass_by()
    assert {each.get(VERSION) for each, up in zip(pushed.resources, pushed.engines(), strict=True) if up} == {"0.32.0"}
    assert pushed.versions == [None, "0.32.0"], "it stays when the engine is gone"


def test_there_is_none_while_engines_of_several_versions_are_up() -> None:
    with pushing() as pushed:
        first, second = (Serving(pushed.socket, name) for name in ("0", "1"))
        pushed.wait(None)
        first.runs("0.31.0")
        pushed.wait(None, "0.31.0")
        second.runs("0.31.0")
        pushed.pass_by()
        second.runs("0.32.0")
        pushed.wait(None, "0.31.0", None)
        first.ends()
        pushed.wait(None, "0.31.0", None, "0.32.0")
        second.ends()
        pushed.pass_by()
    assert pushed.versions == [None, "0.31.0", None, "0.32.0"]
    others = [{name: value for name, value in each.items() if name != VERSION} for each in pushed.resources]
    assert all(each == others[0] for each in others), "it is the same instance throughout"


@pytest.mark.parametrize("version", ["", "unknown"])
def test_an_engine_that_does_not_know_its_version_says_nothing(version: str) -> None:
    with pushing() as pushed:
        one, other = (Serving(pushed.socket, name) for name in ("0", "1"))
        one.runs(version)
        wait_until(lambda: {"0"} in pushed.engines(), 20)
        other.runs("0.32.0")
        pushed.wait(None, "0.32.0")
        one.ends()
        other.ends()


def test_a_version_that_is_configured_stays() -> None:
    with pushing(**{VERSION: "mine"}) as pushed:
        engine = Serving(pushed.socket, "0")
        engine.runs("0.32.0")
        wait_until(lambda: {"0"} in pushed.engines(), 20)
        engine.ends()
    assert pushed.versions == ["mine"]


def native_page(tokens: int) -> bytes:
    registry = CollectorRegistry()
    labels = ("model_name", "engine")
    Counter("vllm:generation_tokens", "Tokens.", labels, registry=registry).labels("m", "0").inc(tokens)
    return answer(generate_latest(registry), "Content-Type: text/plain; version=0.0.4")


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as page:
            return int(page.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_without_its_socket_it_is_not_ready_but_lives() -> None:
    """It makes the socket anew by itself as soon as it can, and a restart would cost what it has counted."""
    settings = Settings.model_validate({"prometheus": {"port": 0, "host": "127.0.0.1"}, "gpu": {"enabled": False}})
    with short_directory() as outer:
        directory = outer / "wire"
        sidecar = StepSidecar(settings, directory / "s")
        sidecar.start()
        try:
            scrapes: Any = sidecar._server.exporters["prometheus"]
            wait_until(lambda: scrapes.ports)
            (port,) = scrapes.ports
            assert (status(port, "/healthz"), status(port, "/readyz")) == (200, 200)
            shutil.rmtree(directory)
            directory.touch()
            wait_until(lambda: status(port, "/readyz") == 503, 20)
            assert status(port, "/healthz") == 200
            directory.unlink()
            wait_until(lambda: status(port, "/readyz") == 200, 20)
        finally:
            sidecar.stop()


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        return str(page.read().decode())


def test_what_is_native_is_marked_wherever_it_goes() -> None:
    with Peer(native_page(7)) as vllm, HttpReceiver().serve() as receiver:
        settings = Settings.model_validate(
            {
                "prometheus": {"port": 0, "host": "127.0.0.1"},
                "otlp": {"endpoint": receiver.endpoint, "interval": 0.5, "resource": {"team": "a"}},
                "native": {"url": vllm.url(), "interval": 0.5},
            }
        )
        sidecar = NativeSidecar(settings, vllm.url())
        sidecar.start()
        try:
            scrapes: Any = sidecar._exporters["prometheus"]
            wait_until(lambda: receiver.received and scrapes.ports)
            wait_until(
                lambda: 'vllm_tokens_generation_total{model_name="m",engine="0"} 7.0' in scraped(scrapes.ports[0])
            )
            shown = scraped(scrapes.ports[0])
        finally:
            sidecar.stop()
    (resource,) = {each.message.resource_metrics[0].resource.SerializeToString() for each in receiver.received}
    told = {
        pair.key: pair.value.string_value
        for pair in receiver.received[0].message.resource_metrics[0].resource.attributes
    }
    assert resource
    assert (told["vitals.source"], told["team"]) == (NATIVE, "a")
    assert 'vllm_tokens_generation_total{model_name="m",engine="0"} 7.0' in shown
    assert f'source="{NATIVE}"' in shown
