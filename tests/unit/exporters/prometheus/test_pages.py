"""The thread that renders pages keeps to its budget."""

import socket
import time
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from prometheus_client import CollectorRegistry, Gauge

from tests.unit.builders import collect
from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.exporters.prometheus.app import Page, ScrapeApp
from vllm_vitals.exporters.prometheus.connections import Client, State
from vllm_vitals.exporters.prometheus.message import Response, plain
from vllm_vitals.exporters.prometheus.pages import Pages, RenderBudget


class Simulation:
    """Pages that take a known time on a clock that only this test moves."""

    def __init__(self, page_seconds: float, newcomers: int = 0) -> None:
        """`newcomers`: the requests that come during each pause."""
        self.now = 0.0
        self.worked = 0.0
        self.rendered_for: list[int] = []
        self._page_seconds = page_seconds
        self._newcomers = newcomers
        self.pages: Pages[str] = Pages(
            self.render, lambda: None, lambda: self.worked, clock=lambda: self.now, sleep=self.sleep
        )

    def ask(self, page: str = "page") -> None:
        with socket.socket() as connection:
            client = Client(connection, b"a", 0.0)
        client.state = State.WAITING
        self.pages.ask(client, page)

    def render(self, page: str, readers: int) -> Response:
        self.now += self._page_seconds
        self.worked += self._page_seconds
        self.rendered_for.append(readers)
        if self.now >= 60:
            self.pages.end()
        else:
            self.ask()  # as a client does that scrapes without a pause
        return plain(HTTPStatus.OK, page)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(self._newcomers):
            self.ask()

    def run(self) -> None:
        self.ask()
        self.pages._run()


@pytest.mark.parametrize("page_seconds", [0.002, 0.011, 0.1, 1.0])
def test_clients_that_scrape_without_a_pause_get_a_share_of_the_time(page_seconds: float) -> None:
    simulation = Simulation(page_seconds)
    simulation.run()
    allowed = limits.RENDER_BURST_SECONDS + limits.RENDER_SHARE * simulation.now
    assert allowed - 2 * page_seconds <= simulation.worked <= allowed + page_seconds


def test_requests_that_come_during_a_pause_share_the_page() -> None:
    simulation = Simulation(0.5, newcomers=5)
    simulation.run()
    assert set(simulation.rendered_for[1:]) == {6}


def test_scrapers_in_usual_intervals_never_wait() -> None:
    """Thirty scrapers whose pages differ, each every 15 s, with pages of 100 ms."""
    now = 0.0
    budget = RenderBudget(lambda: now)
    for scrape in range(300):
        now = max(now, scrape * 0.5)
        assert budget.pause() == 0
        budget.spend(0.1)
        now += 0.1


def test_a_pause_is_over_at_the_end() -> None:
    pages: Pages[str] = Pages(lambda page, _: plain(HTTPStatus.OK, page), lambda: None, lambda: 0.0)
    pages._budget.spend(1e9)
    pages.end()
    assert pages._sleep(1e9)  # it returns


def test_the_processor_time_of_vllms_registry_counts_though_another_thread_reads_it() -> None:
    class Busy(CollectorRegistry):
        def collect(self) -> Iterator[object]:  # type: ignore[override]
            begun = time.thread_time()
            while time.thread_time() - begun < 0.02:
                pass
            yield from super().collect()

    registry = Busy()
    Gauge("theirs", "A gauge", registry=registry)
    app = ScrapeApp(collect(), lambda: "", lambda: registry)
    try:
        before, begun = app.work_seconds(), time.thread_time()
        app.page(Page(openmetrics=False, gzipped=False, names=frozenset()), 1)
        assert app.work_seconds() - before >= time.thread_time() - begun + 0.02
    finally:
        app.close()
