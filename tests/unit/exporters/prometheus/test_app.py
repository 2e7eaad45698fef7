"""The scrape endpoint over real sockets: what it answers, whom it waits for, and how it comes up."""

import contextlib
import gzip
import http.client
import logging
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.unit.builders import ENGINE
from tests.unit.otlp import free_port
from tests.waiting import wait_until
from vllm_vitals.deployment.runtime import Runtime
from vllm_vitals.exporters.prometheus import app as web
from vllm_vitals.exporters.prometheus import exporter as prometheus
from vllm_vitals.exporters.prometheus.app import accepts_gzip, prefers_openmetrics
from vllm_vitals.exporters.prometheus.exporter import PrometheusExporter, limits
from vllm_vitals.exporters.prometheus.registry import VitalsCollector
from vllm_vitals.exporters.prometheus.text import OPENMETRICS, TEXT
from vllm_vitals.ingest import step_drainer

HOST = "127.0.0.1"
NAME = "vitals_prometheus"
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROTOBUF_FIRST = (
    f"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.7,{PROMETHEUS_3}"
)

Response = tuple[int, dict[str, str], bytes]


@contextlib.contextmanager
def taken(port: int = 0) -> Iterator[socket.socket]:
    """Hold a port."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, port))
        holder.listen()
        yield holder


def read_all(client: socket.socket) -> bytes:
    """Return what the other side says until it hangs up."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while more := client.recv(4096):
            said += more
    return said


class Endpoint:
    """A runtime with an engine and an exporter, and a client of it."""

    def __init__(self, runtime: Runtime, native: Callable[[], Any] = CollectorRegistry) -> None:
        self.runtime = runtime
        config = SimpleNamespace(model_config=SimpleNamespace(served_model_name="m"))
        self.queue = runtime.attach(config, [0], Endpoint, "0.32.0")
        self.exporter = PrometheusExporter(
            runtime.aggregator, runtime.settings.prometheus, runtime.drainer.problem, native
        )
        runtime.expose(NAME, lambda: self.exporter)

    def up(self) -> "Endpoint":
        wait_until(lambda: self.exporter.ports)
        return self

    @property
    def port(self) -> int:
        return self.exporter.ports[0]

    def ask(
        self, path: str = "/metrics", method: str = "GET", tls: ssl.SSLContext | None = None, **headers: str
    ) -> Response:
        if tls:
            client = http.client.HTTPSConnection(HOST, self.port, timeout=20, context=tls)
        else:
            client = http.client.HTTPConnection(HOST, self.port, timeout=20)  # type: ignore[assignment]
        with contextlib.closing(client):
            client.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = client.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()

    def text(self, path: str = "/metrics", **headers: str) -> str:
        status, _, body = self.ask(path, **headers)
        assert status == 200
        return body.decode()

    def value(self, name: str, **labels: str) -> float | None:
        for family in parse_text(self.text()):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return None

    def step(self, **fields: Any) -> None:
        self.queue.record(SimpleNamespace(num_running_reqs=1, **fields), None, None, 0)
        self.runtime.drainer.drain()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    """Serve one engine to every test that only asks."""
    from vllm_vitals.config.settings import Settings

    runtime = Runtime(Settings(drain_interval=10.0, stale_after=3600.0, prometheus={"host": HOST, "port": 0}))
    made = Endpoint(runtime).up()
    made.step(num_waiting_reqs=2)
    yield made
    runtime.stop()


@pytest.fixture
def serve(make_runtime: Callable[..., Runtime]) -> Callable[..., Endpoint]:
    """Start an endpoint with its own settings."""

    def start(native: Callable[[], Any] = CollectorRegistry, **values: Any) -> Endpoint:
        prometheus_settings = {"host": HOST, "port": 0, "retry_interval": 0.1, **values}
        return Endpoint(make_runtime(prometheus=prometheus_settings), native)

    return start


# --- Which format

ACCEPTS = [
    (PROMETHEUS_2, True), (PROMETHEUS_3, True), (PROTOBUF_FIRST, True), ("*/*", False), ("", False),
    ("text/plain", False), ("text/html,application/xhtml+xml,*/*;q=0.8", False),
    ("application/openmetrics-text", True), ("Application/OpenMetrics-Text; Version=1.0.0", True),
    ("text/plain;version=0.0.4;q=0.5, application/openmetrics-text;q=0.9", True),
    ("text/plain;version=0.0.4, application/openmetrics-text;q=0.9", False),
    ("application/openmetrics-text;q=0", False), ("application/openmetrics-text;q=0, */*", False),
    ("application/openmetrics-text;q=0.3,*/*;q=0.5", False),
    ("application/openmetrics-text;q=0.5,text/plain;q=0.1,*/*;q=0.9", True),
    ("*/*;q=0.9,text/plain;q=0.1,application/openmetrics-text;q=0.5", True),
    ("application/openmetrics-text;q=abc, text/plain", False),
    ("application/openmetrics-text;q=nan", False), ("application/openmetrics-text" + ",a/b" * 10000, True),
    ("a/b," * limits.MEDIA_RANGES + "application/openmetrics-text", False),  # no more of them are looked at
]  # fmt: skip


@pytest.mark.parametrize(("accept", "openmetrics"), ACCEPTS)
def test_the_format_is_the_one_that_is_preferred(accept: str, *, openmetrics: bool) -> None:
    assert prefers_openmetrics(accept) is openmetrics


@pytest.mark.parametrize(
    ("header", "gzipped"),
    [("gzip", True), ("gzip, deflate, br", True), ("", False), ("identity", False), ("gzip;q=0", False),
     ("GZIP;q=0.5", True), ("*", True), ("deflate, gzip;q=1.0, *;q=0.5", True), ("*;q=0, gzip", True)],
)  # fmt: skip
def test_gzip_is_used_when_it_is_allowed(header: str, *, gzipped: bool) -> None:
    assert accepts_gzip(header) is gzipped


@pytest.mark.parametrize("accept", [PROMETHEUS_2, PROMETHEUS_3])
def test_prometheus_gets_openmetrics(endpoint: Endpoint, accept: str) -> None:
    _, headers, body = endpoint.ask(Accept=accept)
    assert headers["content-type"] == OPENMETRICS == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body.endswith(b"# EOF\n")
    assert "vllm_engine_requests_running" in {family.name for family in parse_openmetrics(body.decode())}


@pytest.mark.parametrize("headers", [{}, {"Accept": "*/*"}, {"Accept": "text/plain"}])
def test_others_get_text(endpoint: Endpoint, headers: dict[str, str]) -> None:
    _, got, body = endpoint.ask(**headers)
    assert got["content-type"] == TEXT == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# EOF" not in body
    assert "vllm_engine_requests_running" in {family.name for family in parse_text(body.decode())}


def test_gzip_on_demand(endpoint: Endpoint) -> None:
    _, plain, _ = endpoint.ask()
    _, packed, body = endpoint.ask(Accept_Encoding="gzip")
    assert "content-encoding" not in plain
    assert packed["content-encoding"] == "gzip"
    assert int(packed["content-length"]) == len(body)
    assert b"vllm_engine_requests_running{" in gzip.decompress(body)
    assert "Accept-Encoding" in packed["vary"]


# --- What is there


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/metrics?x=1"])
def test_metrics(endpoint: Endpoint, path: str) -> None:
    assert 'vllm_engine_requests_waiting{model_name="m",engine="0",reason="capacity"} 2.0\n' in endpoint.text(path)


def test_head_has_headers_only(endpoint: Endpoint) -> None:
    with socket.create_connection((HOST, endpoint.port), timeout=5) as client:
        client.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
        answer = read_all(client).decode()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK")
    assert f"Content-Type: {TEXT}" in head
    assert re.search(r"Content-Length: [1-9]\d{3,}", head)
    assert body == ""


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/metrics/x", "/metricsx", "//"])
def test_404(endpoint: Endpoint, path: str) -> None:
    status, headers, body = endpoint.ask(path)
    assert status == 404
    assert b"/metrics" in body
    assert int(headers["content-length"]) == len(body)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_405(endpoint: Endpoint, method: str) -> None:
    status, headers, _ = endpoint.ask(method=method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def named(endpoint: Endpoint, query: str, **headers: str) -> set[str]:
    text = endpoint.text(f"/metrics?{query}", **headers)
    return {name for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE) if not name.endswith("_created")}


@pytest.mark.parametrize(
    ("query", "families"),
    [("name[]=vllm_requests_finished_total", {"vllm_requests_finished_total"}),
     ("name%5B%5D=vllm_step_interval_seconds_bucket", {"vllm_step_interval_seconds"}),
     ("name[]=vllm_engine_sleep&name[]=vitals_info", {"vllm_engine_sleep", "vitals_info"}), ("name[]=none", set())],
)  # fmt: skip
def test_names_pick_families(endpoint: Endpoint, query: str, families: set[str]) -> None:
    assert named(endpoint, query) == families


def test_names_pick_families_in_openmetrics(endpoint: Endpoint) -> None:
    assert named(endpoint, "name[]=vitals_steps_total", Accept=PROMETHEUS_2) == {"vitals_steps"}
    assert endpoint.text("/metrics?name[]=none", Accept=PROMETHEUS_2) == "# EOF\n"


def test_scrapes_are_counted(endpoint: Endpoint) -> None:
    before = endpoint.value("vitals_exports_total", exporter="prometheus") or 0
    endpoint.text()
    assert endpoint.value("vitals_exports_total", exporter="prometheus") == before + 2


def test_each_scrape_is_up_to_date(serve: Callable[..., Endpoint]) -> None:
    endpoint = serve().up()
    for running in (0, 1, 2):
        assert endpoint.value("vitals_steps_total", **ENGINE) == running
        endpoint.step()


# --- Health

HEALTH = ("/healthz", "/readyz")


def test_health_is_ok_while_the_feeder_drains(serve: Callable[..., Endpoint]) -> None:
    endpoint = serve().up()
    for path in HEALTH:
        assert endpoint.ask(path)[0::2] == (200, b"ok\n")


def test_health_is_bad_when_the_feeder_is_dead(serve: Callable[..., Endpoint]) -> None:
    endpoint = serve().up()
    endpoint.runtime.drainer.stop(20.0)
    for path in HEALTH:
        status, _, body = endpoint.ask(path)
        assert status == 503
        assert b"the thread that reads steps has ended" in body
    assert endpoint.ask()[0] == 200


def test_health_is_bad_when_the_feeder_hangs(serve: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = serve().up()
    monkeypatch.setattr(step_drainer, "DEAD_SECONDS", 0.0)
    assert endpoint.ask("/healthz")[0] == 503


# --- Failure of a scrape


def test_a_failed_scrape_is_told_counted_and_over(
    serve: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = serve().up()
    with monkeypatch.context() as patch:
        patch.setattr(endpoint.runtime.aggregator, "refresh", lambda *_: 1 / 0)
        status, _, body = endpoint.ask()
        assert status == 500
        assert b"ZeroDivisionError" in body
        endpoint.ask()
    assert endpoint.value("vitals_exports_failed_total", exporter="prometheus") == 2
    assert endpoint.value("vitals_errors_total", stage="export") == 2
    assert [record.levelno for record in caplog.records if "scrape failed" in record.getMessage()] == [logging.ERROR]


# --- vLLM's own metrics beside ours


def native_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Counter("vllm:prompt_tokens", "Prompt tokens.", ["engine"], registry=registry).labels("0").inc(7)
    Gauge("vllm:num_requests_running", "Running.", registry=registry).set(3)
    Histogram("vllm:iteration_tokens_total", "Tokens.", buckets=(1, 8), registry=registry).observe(5)
    return registry


NATIVE = ['vllm:prompt_tokens_total{engine="0"} 7.0\n', "vllm:num_requests_running 3.0\n",
          'vllm:iteration_tokens_total_bucket{le="8.0"} 1.0\n', "vllm:iteration_tokens_total_count 1.0\n"]  # fmt: skip


@pytest.mark.parametrize("accept", ["text/plain", PROMETHEUS_2, PROMETHEUS_3])
def test_native_names_keep_their_colons(serve: Callable[..., Endpoint], accept: str) -> None:
    text = serve(native_registry, include_native=True).up().text(Accept=accept)
    assert [line for line in NATIVE if line not in text] == []
    assert "vllm_prompt_tokens_total" not in text
    parse = parse_text if accept == "text/plain" else parse_openmetrics
    parsed = {family.name: family for family in parse(text)}
    assert [sample.value for sample in parsed["vllm:prompt_tokens"].samples if sample.name.endswith("_total")] == [7.0]
    assert parsed["vllm:prompt_tokens"].type == "counter"
    assert "vllm_engine_requests_running" in parsed


@pytest.mark.parametrize("accept", ["text/plain", PROMETHEUS_2])
def test_no_family_is_there_twice(serve: Callable[..., Endpoint], accept: str) -> None:
    text = serve(native_registry, include_native=True).up().text(Accept=accept)
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names))
    assert text.count("# EOF") == (accept != "text/plain")


def test_names_pick_native_families_too(serve: Callable[..., Endpoint]) -> None:
    endpoint = serve(native_registry, include_native=True).up()
    assert named(endpoint, "name[]=vllm:num_requests_running") == {"vllm:num_requests_running"}
    assert named(endpoint, "name[]=vllm:iteration_tokens_total_sum&name[]=vitals_info") == {
        "vllm:iteration_tokens_total", "vitals_info",
    }  # fmt: skip


def test_native_metrics_are_left_out_unless_asked_for(serve: Callable[..., Endpoint]) -> None:
    assert "vllm:" not in serve(native_registry).up().text()


class BrokenCollector:
    """Collects half of its families, as a truncated file in a multiprocess directory would let it."""

    def collect(self) -> Iterator[Any]:
        yield next(iter(native_registry().collect()))
        raise OSError("truncated")


def broken_registry() -> Any:
    raise RuntimeError("no registry")


def test_a_broken_file_of_vllms_multiprocess_directory_does_not_cost_our_page(
    serve: Callable[..., Endpoint], tmp_path: Path
) -> None:
    (tmp_path / "counter_1.db").write_bytes(b"\xff\x00\x00\x00")

    def multiprocess() -> CollectorRegistry:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(tmp_path))
        return registry

    endpoint = serve(multiprocess, include_native=True).up()
    assert endpoint.ask()[0] == 200
    assert "vitals_series" in endpoint.text()
    assert 'vitals_errors_total{process="0",stage="export"} 0' not in endpoint.text()


CONTAINER = """
import sys
from prometheus_client import CollectorRegistry, Counter, values
number, tokens = map(int, sys.argv[1:])
values.ValueClass = values.MultiProcessValue(lambda: number)
counter = Counter("vllm:generation_tokens", "Tokens.", ["model_name", "engine"], registry=CollectorRegistry())
series = counter.labels("m", "0")
print("up", flush=True)
sys.stdin.readline()
series.inc(tokens)
"""
"""A serving process with a number of its container's, which counts tokens once it is told to."""


def serve_in_containers(directory: Path, *processes: tuple[int, int]) -> None:
    """Let processes of such numbers, each in a container, count so many tokens one after another in one directory."""
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)}
    made = [
        subprocess.Popen(
            [sys.executable, "-c", CONTAINER, str(number), str(tokens)],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number, tokens in processes
    ]  # fmt: skip
    for process in made:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
    for process in made:
        process.communicate("\n", timeout=60)
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("processes", "theirs"), [(((1, 3), (2, 4)), 3 + 4), (((1, 3), (1, 4)), 4)], ids=["added up", "overwritten"]
)
def test_two_containers_in_one_directory_spoil_vllms_numbers_and_not_ours(
    serve: Callable[..., Endpoint], tmp_path: Path, processes: tuple[tuple[int, int], ...], theirs: int
) -> None:
    serve_in_containers(tmp_path, *processes)

    def multiprocess() -> CollectorRegistry:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(tmp_path))
        return registry

    endpoint = serve(multiprocess, include_native=True).up()
    endpoint.step()
    assert endpoint.value("vllm:generation_tokens_total", **ENGINE) == theirs
    assert endpoint.value("vitals_steps_total", **ENGINE) == 1


@pytest.mark.parametrize("native", [BrokenCollector, broken_registry])
@pytest.mark.parametrize("accept", ["text/plain", PROMETHEUS_2])
def test_a_broken_native_registry_does_not_cost_our_page(
    serve: Callable[..., Endpoint], native: Callable[[], Any], accept: str
) -> None:
    endpoint = serve(native, include_native=True).up()
    for errors in (0, 1):
        text = endpoint.text(Accept=accept)
        assert f'vitals_errors_total{{process="0",stage="export"}} {float(errors)}\n' in text
        assert "vllm_engine_requests_running{" in text
        list((parse_text if accept == "text/plain" else parse_openmetrics)(text))


class HangingCollector:
    """Collects its families once it is let go on."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def collect(self) -> Iterator[Any]:
        self.let_go.wait(60)
        yield from native_registry().collect()


def test_a_native_registry_that_hangs_does_not_cost_our_page(
    serve: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(web, "MAX_NATIVE_WAIT_SECONDS", 0.2)
    hanging = HangingCollector()
    endpoint = serve(lambda: hanging, include_native=True).up()
    for _ in range(3):
        text = endpoint.text()
        assert "vllm_engine_requests_running{" in text
        assert "vllm:" not in text
    assert [record.getMessage() for record in caplog.records if "takes too long" in record.getMessage()] == [
        "vllm-vitals: Reading vLLM's own metrics takes too long: this page is served without them"
    ]
    assert 'vitals_errors_total{process="0",stage="export"} 3.0\n' in endpoint.text()
    hanging.let_go.set()
    wait_until(lambda: "vllm:" in endpoint.text())


@pytest.fixture
def _clean_global_registry() -> Iterator[None]:
    yield
    for each in list(REGISTRY._collector_to_names):
        if isinstance(each, VitalsCollector):
            REGISTRY.unregister(each)


@pytest.mark.usefixtures("_clean_global_registry")
def test_joining_puts_our_metrics_on_vllms_page_once(serve: Callable[..., Endpoint]) -> None:
    endpoint = serve(join_native=True).up()
    endpoint.runtime.expose(NAME, lambda: pytest.fail("it has one"))
    endpoint.step()
    assert REGISTRY.get_sample_value("vllm_engine_requests_running", ENGINE) == 1
    families = [family.name for family in REGISTRY.collect()]
    assert families.count("vllm_engine_requests_running") == 1


@pytest.mark.usefixtures("_clean_global_registry")
def test_a_stopped_exporter_is_off_vllms_page(serve: Callable[..., Endpoint]) -> None:
    endpoint = serve(join_native=True).up()
    endpoint.runtime.stop()
    assert REGISTRY.get_sample_value("vllm_engine_requests_running", ENGINE) is None


def test_nothing_is_put_on_vllms_page_unless_asked_for(serve: Callable[..., Endpoint]) -> None:
    serve().up()
    assert not [each for each in REGISTRY._collector_to_names if isinstance(each, VitalsCollector)]


# --- Coming up


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_a_taken_port_is_one_clear_error_and_had_as_soon_as_it_is_free(
    serve: Callable[..., Endpoint], caplog: pytest.LogCaptureFixture
) -> None:
    with taken() as holder:
        port = holder.getsockname()[1]
        endpoint = serve(port=port)
        wait_until(lambda: errors(caplog))
        time.sleep(0.35)  # several more tries
        (message,) = errors(caplog)
        for word in (f"{HOST}:{port}", "prometheus.port", "in use"):
            assert word in message
        assert endpoint.exporter.ports == []
        endpoint.step()  # serving goes on
    wait_until(lambda: endpoint.exporter.ports)
    assert endpoint.port == port
    assert endpoint.value("vitals_steps_total", **ENGINE) == 1
    assert len(errors(caplog)) == 1


def test_an_unknown_host_is_a_clear_error_and_tried_again(
    serve: Callable[..., Endpoint], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo
    known = threading.Event()

    def lookup(host: Any, *args: Any, **options: Any) -> Any:
        if host == "vitals.example" and not known.is_set():
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(HOST if host == "vitals.example" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    endpoint = serve(host="vitals.example")
    wait_until(lambda: errors(caplog))
    time.sleep(0.25)
    (message,) = errors(caplog)
    for word in ("vitals.example", "prometheus.host", "not known"):
        assert word in message
    known.set()
    assert endpoint.up().ask()[0] == 200


def test_a_host_that_is_too_long_is_shown_bounded_and_clean(
    serve: Callable[..., Endpoint], caplog: pytest.LogCaptureFixture
) -> None:
    serve(host="a\x1b[31m" + "h" * 5000)
    wait_until(lambda: errors(caplog))
    (message,) = errors(caplog)
    assert message.isprintable()
    assert len(message) < 600
    assert "h" * 50 in message


def test_a_certificate_that_is_none_is_a_clear_error(
    serve: Callable[..., Endpoint], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    pem = tmp_path / "cert.pem"
    pem.write_text("no certificate")
    endpoint = serve(tls_cert=pem, tls_key=pem)
    wait_until(lambda: errors(caplog))
    time.sleep(0.25)
    (message,) = errors(caplog)
    assert str(pem) in message
    assert endpoint.exporter.ports == []


def test_no_name_server_is_asked_for_an_address(
    serve: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might not answer, and the port would refuse connections for as long as that is waited for."""
    for name in ("getfqdn", "gethostbyaddr", "gethostbyname", "getnameinfo"):
        monkeypatch.setattr(socket, name, lambda *_: pytest.fail("a name was looked up"))
    endpoint = serve(host="0.0.0.0").up()  # noqa: S104 - for a moment
    assert endpoint.ask("/healthz")[0] == 200


@pytest.mark.parametrize("path", ["http://vitals.example:9464/metrics", "HTTP://h/metrics?name[]=vitals_info"])
def test_a_target_with_scheme_and_host_is_that_path(endpoint: Endpoint, path: str) -> None:
    assert "vitals_info{" in endpoint.text(path)


def test_one_page_is_rendered_for_all_who_wait_for_it(
    serve: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is begun after the last of them has asked, so it is as new as each of them may expect."""
    endpoint = serve().up()
    begun, go_on, times = threading.Event(), threading.Event(), []
    refresh = endpoint.runtime.aggregator.refresh

    def slow_refresh() -> None:
        times.append(1)
        begun.set()
        assert go_on.wait(60)
        refresh()

    monkeypatch.setattr(endpoint.runtime.aggregator, "refresh", slow_refresh)
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(endpoint.text)
        assert begun.wait(60)
        others = [pool.submit(endpoint.text) for _ in range(5)]
        pages = endpoint.exporter._server._pages  # type: ignore[union-attr]
        wait_until(lambda: len(pages._waiting) == 5)
        assert endpoint.ask("/healthz")[0::2] == (200, b"ok\n")  # meanwhile
        endpoint.step()
        go_on.set()
        assert "vitals_steps_total" in first.result()
        assert len({other.result() for other in others}) == 1
        assert 'vitals_steps_total{model_name="m",engine="0"} 1.0' in others[0].result()
    assert len(times) == 2
    assert endpoint.value("vitals_exports_total", exporter="prometheus") == 6


def test_localhost_is_reached_by_either_address(serve: Callable[..., Endpoint]) -> None:
    endpoint = serve(host="localhost").up()
    assert len(set(endpoint.exporter.ports)) == 1
    for *_, address in socket.getaddrinfo("localhost", endpoint.port, type=socket.SOCK_STREAM):
        with contextlib.closing(http.client.HTTPConnection(str(address[0]), endpoint.port, timeout=5)) as client:
            client.request("GET", "/healthz")
            assert client.getresponse().status == 200


@pytest.mark.parametrize(
    ("level", "told", "addresses"),
    [
        ("WARNING", "127.0.0.2: [Errno 98] Address already in use. A scraper that", (HOST, "127.0.0.2")),
        ("INFO", "192.0.2.1: [Errno 99] Cannot assign requested address", (HOST, "192.0.2.1")),
    ],
)
def test_a_second_address_that_cannot_be_had_is_told_once(
    serve: Callable[..., Endpoint],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    level: str,
    told: str,
    addresses: tuple[str, ...],
) -> None:
    monkeypatch.setattr(prometheus, "addresses", lambda _: list(addresses))
    with caplog.at_level(logging.INFO), socket.socket() as holder:
        holder.bind(("127.0.0.2", port := free_port()))
        holder.listen()
        endpoint = serve(port=port).up()
        assert endpoint.ask("/healthz")[0] == 200
    (record,) = [record for record in caplog.records if "but not also on" in record.getMessage()]
    assert record.levelname == level
    assert f"The scrape endpoint listens on {HOST} port {port}, but not also on {told}" in record.getMessage()


def test_a_stopped_exporter_frees_its_port(serve: Callable[..., Endpoint]) -> None:
    endpoint = serve().up()
    port = endpoint.port
    endpoint.runtime.stop()

    def is_free() -> bool:
        with contextlib.suppress(OSError), taken(port):
            return True
        return False

    wait_until(is_free)


def test_an_exporter_that_is_stopped_while_it_comes_up_does_not_listen(
    serve: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, found = threading.Event(), threading.Event()
    listen = prometheus.listen

    def slow_listen(*args: Any) -> Any:
        looking.set()
        found.wait(60)
        return listen(*args)

    monkeypatch.setattr(prometheus, "listen", slow_listen)
    port = free_port()
    endpoint = serve(port=port)
    assert looking.wait(20)
    endpoint.exporter.stop()
    found.set()
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "vitals-prometheus"])

    def is_refused() -> bool:
        try:
            socket.create_connection((HOST, port), timeout=2).close()
        except ConnectionRefusedError:
            return True
        return False

    try:
        wait_until(is_refused)
    finally:
        endpoint.exporter.stop()


# --- TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """Sign the certificates of these tests."""
    return trustme.CA()


@pytest.fixture
def tls_files(authority: trustme.CA, tmp_path: Path) -> dict[str, Path]:
    """Write a server's certificate and key, and the authority's."""
    certificate = authority.issue_cert(HOST)
    paths = {name: tmp_path / f"{name}.pem" for name in ("cert", "key", "ca")}
    paths["cert"].write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    paths["key"].write_bytes(certificate.private_key_pem.bytes())
    authority.cert_pem.write_to_path(paths["ca"])
    return paths


def trusting(authority: trustme.CA, *, identity: bool = False) -> ssl.SSLContext:
    """Return a client's context, with a certificate of its own if it has an identity."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if identity:
        authority.issue_cert("scraper.example").configure_cert(context)
    return context


def test_tls(serve: Callable[..., Endpoint], authority: trustme.CA, tls_files: dict[str, Path]) -> None:
    endpoint = serve(tls_cert=tls_files["cert"], tls_key=tls_files["key"]).up()
    status, headers, body = endpoint.ask(tls=trusting(authority))
    assert (status, headers["content-type"]) == (200, TEXT)
    assert b"vllm_engine_requests_running{" in body
    with pytest.raises(ssl.SSLCertVerificationError):
        endpoint.ask(tls=ssl.create_default_context())


def test_mtls_wants_a_certificate_of_its_authority(
    serve: Callable[..., Endpoint], authority: trustme.CA, tls_files: dict[str, Path]
) -> None:
    endpoint = serve(tls_cert=tls_files["cert"], tls_key=tls_files["key"], tls_client_ca=tls_files["ca"]).up()
    assert endpoint.ask(tls=trusting(authority, identity=True))[0] == 200
    stranger = trusting(authority)
    trustme.CA().issue_cert("stranger.example").configure_cert(stranger)
    for context in (trusting(authority), stranger):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            endpoint.ask(tls=context)
    assert endpoint.ask(tls=trusting(authority, identity=True))[0] == 200


def test_a_tls_client_that_says_nothing_blocks_no_other(
    serve: Callable[..., Endpoint],
    authority: trustme.CA,
    tls_files: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "HANDSHAKE_SECONDS", 600.0)
    endpoint = serve(tls_cert=tls_files["cert"], tls_key=tls_files["key"]).up()
    with contextlib.ExitStack() as silent:
        for _ in range(3):
            silent.enter_context(socket.create_connection((HOST, endpoint.port)))
        assert endpoint.ask(tls=trusting(authority))[0] == 200


class Rotated:
    """A directory in which certificates are put in place as a mounted secret is: all files at once, by a link."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._versions = 0

    def put(self, certificate: trustme.LeafCert, authority: trustme.CA) -> None:
        self._versions += 1
        fresh = self._directory / f"version-{self._versions}"
        fresh.mkdir()
        (fresh / "tls.crt").write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
        (fresh / "tls.key").write_bytes(certificate.private_key_pem.bytes())
        authority.cert_pem.write_to_path(fresh / "ca.crt")
        link = self._directory / "link"
        link.symlink_to(fresh)
        link.rename(self._directory / "now")

    def replace(self, name: str, content: bytes) -> None:
        """Replace one file, at once."""
        fresh = self._directory / "fresh"
        fresh.write_bytes(content)
        fresh.rename(self.path(name))

    def files(self) -> dict[str, Path]:
        return {"tls_cert": self.path("tls.crt"), "tls_key": self.path("tls.key")}

    def path(self, name: str) -> Path:
        return self._directory / "now" / name


@pytest.fixture
def rotated(tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> Rotated:
    """Give certificates that are replaced, and look often whether they were."""
    monkeypatch.setattr(prometheus, "RELOAD_INTERVAL_SECONDS", 0.05)
    made = Rotated(tmp_path)
    made.put(authority.issue_cert(HOST), authority)
    return made


def served(endpoint: Endpoint) -> bytes:
    """Return the certificate that a client is shown."""
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((HOST, endpoint.port), timeout=10))


def first(certificate: trustme.LeafCert) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.cert_chain_pems[0].bytes().decode())


def told_of_files(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    return [(level, line) for level, line in lines if "TLS files" in line]


def test_a_certificate_that_is_replaced_is_used(
    serve: Callable[..., Endpoint], authority: trustme.CA, rotated: Rotated, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = serve(**rotated.files()).up()
    before, after = served(endpoint), authority.issue_cert(HOST)
    with caplog.at_level(logging.INFO), socket.create_connection((HOST, endpoint.port), timeout=10) as plain:
        with trusting(authority).wrap_socket(plain, server_hostname=HOST) as early:
            rotated.put(after, authority)
            wait_until(lambda: served(endpoint) != before)
            early.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert read_all(early).startswith(b"HTTP/1.1 200")
        assert served(endpoint) == first(after)
        assert endpoint.ask(tls=trusting(authority))[0] == 200
        wait_until(lambda: told_of_files(caplog))
    ((level, line),) = told_of_files(caplog)
    assert (level, str(rotated.path("tls.crt")) in line) == ("INFO", True)


def test_files_that_do_not_fit_change_nothing_until_they_do(
    serve: Callable[..., Endpoint], authority: trustme.CA, rotated: Rotated, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = serve(**rotated.files()).up()
    before, after = served(endpoint), authority.issue_cert(HOST)
    with caplog.at_level(logging.INFO):
        rotated.replace("tls.crt", b"".join(blob.bytes() for blob in after.cert_chain_pems))
        wait_until(lambda: told_of_files(caplog))
        time.sleep(0.3)
        assert served(endpoint) == before
        rotated.replace("tls.key", after.private_key_pem.bytes())
        wait_until(lambda: served(endpoint) == first(after))
        wait_until(lambda: len(told_of_files(caplog)) > 1)
    levels = [level for level, _ in told_of_files(caplog)]
    assert levels == ["ERROR", "INFO"]
    assert "KEY_VALUES_MISMATCH" in told_of_files(caplog)[0][1]


ENCRYPTED = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n"


@pytest.mark.parametrize("content", [None, b"", b"no key", ENCRYPTED])
def test_a_key_that_is_gone_or_is_none_changes_nothing(
    serve: Callable[..., Endpoint], rotated: Rotated, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    endpoint = serve(**rotated.files()).up()
    before = served(endpoint)
    if content is None:
        rotated.path("tls.key").unlink()
    else:
        rotated.replace("tls.key", content)
    wait_until(lambda: told_of_files(caplog))
    time.sleep(0.3)
    ((level, line),) = told_of_files(caplog)
    assert (level, str(rotated.path("tls.key")) in line) == ("ERROR", True)
    assert served(endpoint) == before


def test_the_authority_of_clients_is_replaced_too(
    serve: Callable[..., Endpoint], authority: trustme.CA, rotated: Rotated
) -> None:
    """What the former one signed counts no more."""
    endpoint = serve(**rotated.files(), tls_client_ca=rotated.path("ca.crt")).up()
    other = trustme.CA()
    former, latter = trusting(authority, identity=True), trusting(authority)
    other.issue_cert("scraper.example").configure_cert(latter)

    def admits(client: ssl.SSLContext) -> bool:
        try:
            return endpoint.ask(tls=client)[0] == 200
        except (ssl.SSLError, ConnectionError):
            return False

    assert (admits(former), admits(latter)) == (True, False)
    rotated.put(authority.issue_cert(HOST), other)
    wait_until(lambda: admits(latter))
    assert not admits(former)


@pytest.mark.parametrize("said", [b"", b"GET /metrics HTTP/1.1\r\n\r\n", b"\x16\x03\x01"])
def test_a_probe_of_the_tls_port_leaves_nothing_on_standard_error(
    serve: Callable[..., Endpoint],
    tls_files: dict[str, Path],
    capfd: pytest.CaptureFixture[str],
    said: bytes,
) -> None:
    endpoint = serve(tls_cert=tls_files["cert"], tls_key=tls_files["key"]).up()
    with socket.create_connection((HOST, endpoint.port), timeout=5) as probe:
        probe.sendall(said)
        with contextlib.suppress(OSError):  # it may have hung up on us already
            probe.shutdown(socket.SHUT_WR)
            read_all(probe)
    time.sleep(0.1)
    assert "Traceback" not in capfd.readouterr().err


# --- Clients that stall, and many of them

HALVES = [b"", b"GET", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: x\r\nAcce"]


def test_a_client_that_sends_half_a_request_blocks_no_other(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 600.0)
    with contextlib.ExitStack() as stalled:
        for half in HALVES:
            stalled.enter_context(socket.create_connection((HOST, endpoint.port))).sendall(half)
        assert endpoint.ask()[0] == 200


def test_a_client_that_stalls_is_given_up_quietly(
    serve: Callable[..., Endpoint], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.1)
    endpoint = serve().up()
    with contextlib.ExitStack() as stalled:
        clients = [stalled.enter_context(socket.create_connection((HOST, endpoint.port), timeout=5)) for _ in HALVES]
        for client, half in zip(clients, HALVES, strict=True):
            client.sendall(half)
        for client in clients:
            read_all(client)
    time.sleep(0.1)
    assert "Traceback" not in capfd.readouterr().err


def test_a_client_that_resets_leaves_nothing_on_standard_error(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        with socket.create_connection((HOST, endpoint.port)) as client:
            client.sendall(b"GET /met")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # close with a reset
    time.sleep(0.1)
    assert "Traceback" not in capfd.readouterr().err
    assert endpoint.ask()[0] == 200


@pytest.mark.parametrize("accept", ["text/plain", PROMETHEUS_2])
def test_fifty_scrapes_at_once(endpoint: Endpoint, accept: str) -> None:
    together = threading.Barrier(50)

    def scrape(_: int) -> str:
        together.wait(10)
        return endpoint.text(Accept=accept)

    with ThreadPoolExecutor(50) as pool:
        texts = list(pool.map(scrape, range(50)))
    assert limits.BACKLOG >= 50  # one that finds no place in the queue is tried again after a second only
    parse = parse_text if accept == "text/plain" else parse_openmetrics
    assert {text.count("\nvllm_engine_requests_running{") for text in texts} == {1}
    assert len(list(parse(texts[0]))) == len(list(parse(texts[-1])))
