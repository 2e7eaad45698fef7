"""A sidecar that fetches vLLM's page: whatever the page is, nothing that it shows stands still, and it says how it is."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.unit.builders import collect
from tests.unit.native_vllm import TEXT
from tests.unit.peer import HOST, Peer, answer
from tests.waiting import wait_until
from vllm_vitals.config.settings import NativeSettings, Settings
from vllm_vitals.deployment.sidecar import NativeSidecar
from vllm_vitals.vllm_page import poller as source
from vllm_vitals.vllm_page.mapping import mapped
from vllm_vitals.vllm_page.parse import NativeSeries, PageError
from vllm_vitals.vllm_page.poller import MOST_REASONS, Poller

RUNNING = 'vllm_engine_requests_running{model_name="m",engine="0"}'
UP = 'vllm_engine_up{model_name="m",engine="0"}'
ERRORS = 'vitals_errors_total{process="sidecar",stage="read"}'
WRONG = 13
AWAY = answer(b"gone", status="503 Service Unavailable")


def page(running: int, more: str = "") -> bytes:
    name = "vllm:num_requests_running"
    text = f'# TYPE {name} gauge\n{name}{{model_name="m",engine="0"}} {running}\n{more}'
    return answer(text.encode(), f"Content-Type: {TEXT}")


class Watched:
    """A sidecar of a vLLM, and what is to be seen at its endpoint."""

    def __init__(self, vllm: Peer, sidecar: NativeSidecar) -> None:
        self._vllm = vllm
        self.sidecar = sidecar

    def shows(self, content: bytes) -> "Watched":
        """Let vLLM answer so from now on, and wait until that was fetched, and once more."""
        self._vllm._answers = [content]
        before = len(self._vllm.requests)
        wait_until(lambda: len(self._vllm.requests) >= before + 2, 20)
        return self

    def ask(self, path: str) -> tuple[int, str]:
        scrapes: Any = self.sidecar._exporters["prometheus"]
        connection = HTTPConnection(HOST, scrapes.ports[0], timeout=10)
        connection.request("GET", path)
        found = connection.getresponse()
        return found.status, found.read().decode()

    def value(self, series: str) -> float | None:
        found = [line for line in self.ask("/metrics")[1].splitlines() if line.startswith(f"{series} ")]
        return float(found[0].rpartition(" ")[2]) if found else None

    @property
    def states(self) -> tuple[int, int]:
        """Return what the endpoint says of whether it lives, and whether data comes."""
        return self.ask("/healthz")[0], self.ask("/readyz")[0]


@contextmanager
def watching(*answers: bytes | Iterable[bytes]) -> Iterator[Watched]:
    with Peer(*answers) as vllm:
        settings = {
            "prometheus": {"port": 0, "host": HOST},
            "gpu": {"enabled": False},
            "native": {"url": vllm.url(), "interval": 0.5, "timeout": 60},
        }
        sidecar = NativeSidecar(Settings.model_validate(settings), vllm.url())
        sidecar.start()
        try:
            scrapes: Any = sidecar._exporters["prometheus"]
            wait_until(lambda: scrapes.ports, 20)
            yield Watched(vllm, sidecar)
        finally:
            sidecar.stop()


@pytest.mark.parametrize(
    "bucket", ["foo_bucket 1", 'foo_bucket{le="x"} 1', 'foo_bucket{le="nan"} 1', 'foo_bucket{le=""} 1']
)
def test_a_bucket_without_a_bound_in_somebody_elses_family_costs_nothing(bucket: str) -> None:
    good = 'foo_bucket{le="+Inf"} 2'
    with watching(page(5)) as seen:
        seen.shows(page(6, f"# TYPE foo histogram\n{bucket}\n{good}\n"))
        assert (seen.value(RUNNING), seen.value(UP), seen.states) == (6.0, 1.0, (200, 200))
        assert not seen.value(ERRORS)


@pytest.fixture
def stumbling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what no test foresaw go wrong at a page of some number of requests."""

    def stumble(series: Iterable[NativeSeries]) -> Any:
        known = list(series)
        if any(each.value == WRONG for each in known):
            raise KeyError("le")
        return mapped(known)

    monkeypatch.setattr(source, "mapped", stumble)


@pytest.mark.usefixtures("stumbling")
def test_what_goes_wrong_with_a_page_is_an_outage_until_the_next_that_can_be_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with watching(page(5)) as seen:
        seen.shows(page(5))
        assert (seen.value(RUNNING), seen.value(UP), seen.states) == (5.0, 1.0, (200, 200))
        with caplog.at_level(logging.WARNING):
            seen.shows(page(WRONG))
        assert (seen.value(RUNNING), seen.value(UP), seen.states) == (None, 0.0, (200, 503))
        assert "could not be fetched and read" in seen.ask("/readyz")[1]
        assert seen.value(ERRORS)
        seen.shows(page(6))
        assert (seen.value(RUNNING), seen.value(UP), seen.states) == (6.0, 1.0, (200, 200))
    said = [record for record in caplog.records if "cannot be had" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"]
    assert "KeyError: 'le'" in said[0].getMessage()


def test_each_reason_of_an_outage_is_told_once_and_the_endpoint_says_the_latest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)

    def reasons() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "cannot be had" in record.getMessage()]
        return [line.rpartition("metrics: ")[2] for line in found]

    with watching(AWAY) as seen:
        seen.shows(AWAY)
        assert reasons() == ["HTTP 503 Service Unavailable; expected 200"]
        assert seen.ask("/readyz")[1].endswith(
            "in a row: " + caplog.records[-1].getMessage().partition(" s: ")[2] + "\n"
        )
        seen.shows(answer(b"x", status="401 Un\x00auth\x1borized \xff" + "y" * 9000))
        assert len(reasons()) == 2
        assert reasons()[1].startswith("HTTP 401 Un auth orized")
        assert len(reasons()[1]) < 800
        assert reasons()[1].partition(";")[0] in seen.ask("/readyz")[1]
        seen.shows(AWAY)
        assert len(reasons()) == 2
        assert "HTTP 503" in seen.ask("/readyz")[1]
        seen.shows(page(1))
        assert seen.states == (200, 200)
        seen.shows(AWAY)
        assert len(reasons()) == 3  # it is another outage


def test_a_peer_that_finds_a_new_reason_each_time_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    poller = Poller(collect(), "http://127.0.0.1:9/metrics", NativeSettings())
    for number in range(100):
        poller._fail(PageError(f"reason {number}"))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == MOST_REASONS + 1
    assert "No further reasons are logged" in said[-1]
    poller._succeed()
    poller._fail(PageError("reason 0"))
    assert caplog.records[-1].getMessage().endswith(": reason 0")


def test_it_lives_while_vllm_is_away_and_is_ready_once_data_comes() -> None:
    with watching(AWAY) as seen:
        wait_until(lambda: "in a row" in seen.ask("/readyz")[1], 20)
        assert seen.states == (200, 503)
        assert seen.ask("/healthz")[1] == "ok\n"
        seen.shows(page(1))
        assert seen.states == (200, 200)
        seen.shows(AWAY)
        assert seen.states == (200, 503)


def test_it_does_not_live_once_nothing_will_be_fetched_any_more() -> None:
    with watching(page(1)) as seen:
        seen.shows(page(1))
        poller = seen.sidecar._poller
        poller._stopped.set()
        poller._thread.join(10)
        assert seen.states == (503, 503)
        assert "has ended" in seen.ask("/healthz")[1]


def test_it_is_not_ready_before_the_first_page() -> None:
    asked = threading.Event()

    def late() -> Iterator[bytes]:
        yield page(1)[:20]
        asked.wait(30)
        yield page(1)[20:]

    with watching(late(), page(1)) as seen:
        assert seen.states == (200, 503)
        assert "has not been fetched yet" in seen.ask("/readyz")[1]
        asked.set()
        wait_until(lambda: seen.states == (200, 200), 20)
