"""Doctor: can the scrape endpoint listen, and who is there already."""

import errno
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prometheus_client import CollectorRegistry

import vllm_vitals
from vllm_vitals.cli.doctor import CHECKS, endpoint
from vllm_vitals.cli.doctor.finding import Status
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.exporters.prometheus.exporter import PrometheusExporter
from vllm_vitals.ingest.step_drainer import Source
from vllm_vitals.ingest.step_queue import StepQueue

LOCAL = "127.0.0.1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - in words, or for a moment


def look(check, words=(), **settings):
    environ = {f"VITALS_PROMETHEUS__{name.upper()}": str(value) for name, value in settings.items()}
    return list(CHECKS[check](Launch(environ, list(words))))


@contextmanager
def taken(address=LOCAL, port=0):
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, port))
        held.listen()
        yield held.getsockname()[1]


def free():
    """Return a port that is free, and far from those that the system gives away."""
    return next(port for port in range(21000, 30000, 37) if endpoint.listen(LOCAL, port) is None)


@contextmanager
def exporter(host, problem=None, ended=None):
    problem = problem or host.drainer.problem
    made = PrometheusExporter(host.aggregator, host.settings.prometheus, problem, CollectorRegistry, ended)
    made.start()
    deadline = time.monotonic() + 20
    while not made.ports and time.monotonic() < deadline:
        time.sleep(0.01)
    try:
        yield made.ports[0]
    finally:
        made.stop()


def test_free_port_is_left_free():
    port = free()
    for _ in range(2):
        (finding,) = look("port", host=LOCAL, port=port)
        assert (finding.status, str(port) in finding.found) == (Status.OK, True)


def test_taken_port(monkeypatch):
    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 0.2)  # what holds it never answers
    with taken() as port:
        (finding,) = look("port", host=LOCAL, port=port)
    assert finding.status is Status.FAIL
    assert (
        f"port {port} of {LOCAL} (prometheus.port, from VITALS_PROMETHEUS__PORT) is in use by process " in finding.found
    )
    assert "VITALS_PROMETHEUS__PORT=N, with N from 0 to 65535" in finding.advice
    assert "is free" in finding.advice


def test_port_taken_on_all_addresses(monkeypatch):
    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 0.2)
    with taken(EVERYWHERE) as port:
        assert look("port", host=LOCAL, port=port)[0].status is Status.FAIL


def test_taken_by_another_web_server():
    class Fine(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok\n")

        def log_message(self, *_):
            pass

    with HTTPServer((LOCAL, 0), Fine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (finding,) = look("port", host=LOCAL, port=server.server_port)
        server.shutdown()
    assert (finding.status, "is in use" in finding.found) == (Status.FAIL, True)


def test_taken_by_ourselves_and_well(make_runtime, monkeypatch):
    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 20.0)
    host = make_runtime(prometheus={"host": LOCAL, "port": 0})
    host.drainer.attach(Source(StepQueue(16), lambda *_: None))
    with exporter(host) as port:
        (finding,) = look("port", host=LOCAL, port=port)
    assert finding.status is Status.WARN
    assert f"already serves vllm-vitals {vllm_vitals.__version__}, which is ready" in finding.found


def test_taken_by_ourselves_and_sick(make_runtime, monkeypatch):
    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 20.0)
    with exporter(make_runtime(prometheus={"host": LOCAL, "port": 0})) as port:  # its feeder was never started
        (finding,) = look("port", host=LOCAL, port=port)
    assert finding.status is Status.FAIL
    assert "not ready: the thread that reads steps has ended" in finding.found


def test_taken_by_ourselves_alive_but_without_data(make_runtime, monkeypatch):
    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 20.0)
    host = make_runtime(prometheus={"host": LOCAL, "port": 0})
    with exporter(host, lambda: "vLLM is away", lambda: "") as port:
        (finding,) = look("port", host=LOCAL, port=port)
    assert (finding.status, "not ready: vLLM is away" in finding.found) == (Status.FAIL, True)


def test_several_api_servers_need_one_port(monkeypatch):
    tried = []
    monkeypatch.setattr(endpoint, "listen", lambda _, port: tried.append(port))
    (finding,) = look("port", ["-asc", "3"], host=LOCAL, port=65535)
    assert (finding.status, finding.found) == (Status.OK, f"port 65535 of {LOCAL} ({LOCAL}) is free")
    assert tried == [65535]


def test_the_highest_port_has_none_after_it(monkeypatch):
    monkeypatch.setattr(endpoint, "listen", lambda *_: OSError(errno.EADDRINUSE, "in use"))
    monkeypatch.setattr(endpoint, "running_endpoint", lambda *_, **__: None)
    (finding,) = look("port", host=LOCAL, port=65535)
    assert (finding.status, "is free" in finding.advice) == (Status.FAIL, False)


def test_a_sidecar_listens_in_place_of_vllm():
    environ = {"VITALS_WIRE__SIDECAR": "/run/vitals/s.sock", "VITALS_OTLP__ENDPOINT": "http://c"}
    for check, does in (("port", "listens"), ("reach", "listens"), ("otlp", "pushes")):
        (finding,) = CHECKS[check](Launch(environ))
        assert finding.status is Status.SKIP
        assert finding.found == f"wire.sidecar is set (from VITALS_WIRE__SIDECAR): the sidecar {does}, not vLLM"


def test_second_address_of_a_name(monkeypatch):
    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(endpoint, "addresses", lambda _: [LOCAL, "127.0.0.2"])
    with taken("127.0.0.2") as port:
        (finding,) = look("port", port=port)
    assert (finding.status, "127.0.0.2" in finding.advice) == (Status.WARN, True)


def test_second_address_that_is_not_there(monkeypatch):
    monkeypatch.setattr(endpoint, "addresses", lambda _: [LOCAL, "192.0.2.1"])
    assert look("port", port=free())[0].status is Status.OK


def test_port_chosen_by_the_system():
    (finding,) = look("port", host=LOCAL, port=0)
    assert (finding.status, "VITALS_PROMETHEUS__PORT" in finding.advice) == (Status.WARN, True)


def test_host_that_is_no_address_of_this_machine():
    (finding,) = look("port", host="192.0.2.1", port=free())
    assert (finding.status, "VITALS_PROMETHEUS__HOST" in finding.advice) == (Status.FAIL, True)
    assert "not an address of this machine" in finding.found


@pytest.mark.parametrize("host", ["no such host", "a..b", "999.1.1.1"])
def test_host_that_is_no_host(host):
    (finding,) = look("port", host=host)
    assert finding.status is Status.FAIL
    assert f"prometheus.host={host!r} (from VITALS_PROMETHEUS__HOST)" in finding.found
    assert "VITALS_PROMETHEUS__HOST" in finding.advice
    assert look("reach", host=host)[0].status is Status.SKIP


def test_port_that_this_user_may_not_have(monkeypatch):
    monkeypatch.setattr(endpoint, "listen", lambda *_: PermissionError(13, "Permission denied"))
    (finding,) = look("port", host=LOCAL, port=80)
    assert (finding.status, "above 1023" in finding.advice) == (Status.FAIL, True)


def test_vllms_own_port(monkeypatch):
    monkeypatch.setattr(endpoint, "listen", lambda *_: None)
    assert look("port", ["--port", "9464"], port=9464)[0].status is Status.FAIL
    assert look("port", ["serve", "m"], port=8000)[0].status is Status.FAIL
    assert look("port", port=8000)[0].status is Status.WARN
    assert look("port", ["--port", "81"], port=8000)[0].status is Status.OK


@pytest.mark.parametrize("settings", [{"enabled": "false"}, {"port": "x"}])
def test_nothing_will_listen(settings):
    told = [look(check, **settings) for check in ("port", "reach")]
    assert told[0] == told[1]
    assert [finding.status for finding in told[0]] == [Status.SKIP]


def test_reach(monkeypatch, tmp_path):
    monkeypatch.setattr(endpoint, "CONTAINER_MARKS", ())
    (finding,) = look("reach", host=LOCAL)
    assert (finding.status, "only this machine" in finding.found) == (Status.OK, True)
    assert look("reach", host=EVERYWHERE)[0].status is Status.OK
    monkeypatch.setattr(endpoint, "CONTAINER_MARKS", (tmp_path,))
    (finding,) = look("reach", host=LOCAL)
    assert (finding.status, "VITALS_PROMETHEUS__HOST=0.0.0.0" in finding.advice) == (Status.WARN, True)


def test_reach_in_kubernetes(monkeypatch):
    monkeypatch.setattr(endpoint, "CONTAINER_MARKS", ())
    (finding,) = CHECKS["reach"](Launch({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}))
    assert (finding.status, "localhost (the default)" in finding.found) == (Status.WARN, True)


def test_whose_process_it_is():
    with taken() as port:
        assert endpoint.listening_process(port).startswith("process ")
    assert not endpoint.listening_process(port)
