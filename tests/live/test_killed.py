"""A vLLM that is killed, as a whole in the middle of a push or one of its API servers: nothing is doubled, nothing falls."""

import asyncio
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.live.breakable import Doomed
from tests.live.collector import Totals
from tests.live.load import LoadReport, put_load, run_until_cancelled
from tests.live.pages import TIMED, Recovers, eventually, settled
from tests.live.pushes import added, contradictions
from tests.live.receivers import SilentHttp
from tests.live.server import VllmServer
from tests.parity import Samples, differences, value
from tests.unit.otlp import Received, Receiver, identity, metrics
from vllm_vitals.catalog import CATALOG
from vllm_vitals.catalog.metric import Scope


def test_a_kill_in_the_middle_of_a_push_doubles_nothing(doomed: Doomed, model: Path) -> None:
    front, receiver, hanging = doomed.front, doomed.receiver, doomed.hanging
    pages = [put_and_push(doomed.server, receiver, [])]
    front.lead(hanging.port)
    asyncio.run(killed_under_load(doomed.server, hanging))
    doomed.server.stop()
    front.lead(receiver.port)
    with VllmServer(model, env=doomed.environment) as server:
        pages.append(put_and_push(server, receiver, pages))
    first, second = by_instance(receiver.received)
    name, shown = "vllm.tokens.generation", "vllm_tokens_generation_total"
    assert first.total(name) + second.total(name) == sum(value(page, shown) for page in pages)
    check_sequences(receiver.received)


def put_and_push(server: VllmServer, receiver: Receiver, pages: list[Samples]) -> Samples:
    """Put load on a server until all that its page shows has been pushed too; return that. `pages`: of those before."""
    put_load(server, count=26, seed=len(pages))
    page = settled(server)[1]
    assert eventually(lambda: missing(receiver, [*pages, page]) == [[]] * (len(pages) + 1)), missing(receiver, pages)
    return page


def test_an_api_server_that_is_killed_takes_vllm_along_and_the_sidecar_keeps_what_all_of_them_told(
    doomed: Doomed, recovers: Recovers
) -> None:
    beside, server = doomed.sidecar, doomed.two_api_servers
    load = put_load(server, count=30, disconnects=False)
    native, before = settled(server)
    assert list(differences(native, before)) == []
    assert value(before, "vllm_requests_finished_total") == sum(load.finished.values())
    assert (value(before, "vllm_engine_up"), value(before, "vllm_engine_requests_running")) == (1, 0)

    one, other = api_servers(server)
    assert {one, other} < set(server.processes())
    killed = time.monotonic()
    os.kill(one, signal.SIGKILL)
    assert recovers(lambda: not server.processes(), 120, what="vLLM had ended"), server.log_tail()
    assert not server.alive()
    assert f"(PID: {one}) died with exit code" in server.log.read_text()
    down = recovers(lambda: value(beside.page(), "vllm_engine_up") == 0, 60, since=killed, what="its engine was down")
    assert down, beside.log.read_text()
    after = beside.page()
    assert counted(after) == counted(before)
    assert "vllm_engine_requests_running" not in after
    assert value(after, "vitals_steps_dropped_total") == 0
    assert value(after, "vitals_errors_total") == 0
    gone = {int(pid) for pid in re.findall(r"Serving process \d+ \(pid (\d+)\) is gone", beside.log.read_text())}
    assert gone == {one, other}


def api_servers(server: VllmServer) -> list[int]:
    """Return the process ids of a server's API servers, by their numbers."""
    said = re.findall(r"\(ApiServer_(\d+) pid=(\d+)\)", server.log.read_text(errors="replace"))
    return [int(pid) for _, pid in sorted(set(said))]


def counted(page: Samples) -> Samples:
    """Return what a page has of counters and histograms that only requests move."""
    names = {
        f"{metric.prometheus}{suffix}"
        for metric in CATALOG
        if metric.kind != "gauge" and metric.scope is not Scope.PROCESS and metric not in TIMED
        for suffix in ("", "_bucket", "_count", "_sum")
    }
    return {name: samples for name, samples in page.items() if name in names}


def missing(receiver: Receiver, pages: list[Samples]) -> list[list[str]]:
    """Return what contradicts the page of each process that pushed."""
    each = zip(by_instance(receiver.received), pages, strict=False)
    return [contradictions(totals, page) for totals, page in each]


async def killed_under_load(server: VllmServer, hanging: SilentHttp) -> None:
    """Kill a server while it works and a push of it waits for its answer."""
    load = asyncio.create_task(run_until_cancelled(server.url, LoadReport(), seed=5))
    assert await asyncio.to_thread(hanging.reached.wait, 60)
    os.killpg(server.pid, signal.SIGKILL)
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)


def by_instance(pushes: Iterable[Received]) -> list[Totals]:
    """Return what each process's pushes add up to, in the order in which the processes came."""
    found: dict[str, list[Received]] = defaultdict(list)
    for push in pushes:
        found[identity(push.message)["service.instance.id"]].append(push)
    return [added(each) for each in found.values()]


def check_sequences(pushes: Iterable[Received]) -> None:
    """See to it that no series of a process falls or is negative, and that it starts when its process did."""
    latest: dict[Any, float] = defaultdict(float)
    starts: dict[str, set[int]] = defaultdict(set)
    ends: dict[str, int] = {}
    for push in pushes:
        instance = identity(push.message)["service.instance.id"]
        for name, labels, point in grown(push.message):
            starts[instance].add(point.start_time_unix_nano)
            ends[instance] = point.time_unix_nano
            numbers = (point.count, point.sum) if hasattr(point, "count") else (point.as_double,)
            for place, number in enumerate(numbers):
                assert number >= latest[instance, name, labels, place], (name, labels)
                latest[instance, name, labels, place] = number
    first, second = starts
    assert (len(starts[first]), len(starts[second])) == (1, 1)
    assert max(starts[second]) > ends[first] > max(starts[first])


def grown(message: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the points of a push that are totals: name, attributes, point."""
    for name, metric in metrics(message).items():
        if metric.WhichOneof("data") != "gauge":
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                yield name, str(sorted((each.key, str(each.value)) for each in point.attributes)), point
