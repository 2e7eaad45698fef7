"""`vllm-vitals dashboards preview`: what it writes, and what it says when something is wrong.

The Prometheus here gives one answer to everything; a real one is asked in `tests/live/test_boards.py`.
"""

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.boards.previews import read
from vllm_vitals.cli import app
from vllm_vitals.mixin.dashboards import BOARDS
from vllm_vitals.preview import photo

NOTHING = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})
NATIVE = json.dumps(
    {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "histograms": []}]}}
)


class Server(ThreadingHTTPServer):
    """Answers what it is told to; the queries that it got are in `asked`, the last headers in `headers`."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.headers: dict[str, str] = {}
        self.status, self.text = 200, NOTHING
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.server.headers = dict(self.headers)
        probe = form["query"] == ["vector(1)"]
        self.server.asked += [] if probe else [(self.path, {name: values[0] for name, values in form.items()})]
        status, text = (200, NOTHING) if probe else (self.server.status, self.server.text)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["dashboards", "preview", *map(str, arguments)])


def test_one_file_of_all_boards(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "new" / "all.html"
    ran = run("--prometheus", server.url, "--out", out)
    assert (ran.exit_code, ran.output) == (0, f"{out}\n")
    found = read(out.read_text(encoding="utf-8"))
    assert [each.attributes["id"] for each in found.all("main")] == [f"vllm-vitals-{board.name}" for board in BOARDS]
    assert len(found.all("nav")[0].all("a")) == len(BOARDS)


def test_a_directory_has_a_file_for_each_board(server: Server, tmp_path: Path) -> None:
    ran = run("gpu", "fleet", "--prometheus", f"{server.url}/", "--out", tmp_path / "some", "--source", "native")
    assert ran.exit_code == 0, ran.output
    assert ran.output.split() == [str(tmp_path / "some" / f"{name}.html") for name in ("fleet", "gpu")]
    assert "vLLM / Fleet (native metrics)" in (tmp_path / "some" / "fleet.html").read_text(encoding="utf-8")


def test_the_time_the_windows_and_the_variables_are_those_that_are_asked_for(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "fleet.html"
    until = "2026-01-31T12:00:00Z"
    ran = run("fleet", "--prometheus", server.url, "--out", out, "--range", "4h", "--until", until, "--scrape-interval", "30s",
              "--var", "model=a.b", "--var", "model=c", "--var", "engine=0")  # fmt: skip
    assert ran.exit_code == 0, ran.output
    assert {path for path, _ in server.asked} == {"/api/v1/query", "/api/v1/query_range"}
    over = [form for path, form in server.asked if path.endswith("_range")]
    assert {form["step"] for form in over} == {"30", "35"}  # 14400 s on 624 and on 416 pixels
    for form in over:
        begin, end, step = (int(form[name]) for name in ("start", "end", "step"))
        assert begin % step == end % step == 0
        assert 1769846400 - step < begin <= 1769846400
        assert 1769860800 - step < end <= 1769860800
    assert {float(form["time"]) for path, form in server.asked if path.endswith("query")} == {1769860800}
    assert not [form for _, form in server.asked if "$" in form["query"]]
    narrowed = next(form["query"] for _, form in server.asked if "vllm_engine_requests_running" in form["query"])
    assert r'model_name=~"(a\\.b|c)"' in narrowed
    assert 'engine=~"0"' in narrowed
    assert 'cluster=~".*"' in narrowed
    assert any("[14400s]" in form["query"] for _, form in server.asked)
    assert "model=a.b, model=c, engine=0" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (422, '{"status":"error","errorType":"execution","error":"query <b>timed out</b>"}', "query <b>timed out</b>"),
        (503, "Service Unavailable", "HTTP 503 Service Unavailable"),
        (200, "<html>a login page</html>", "this is no answer of a Prometheus"),
        (
            200,
            '{"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "x"], "values": [[1, "x"]]}]}}',
            "this is no answer of a Prometheus",
        ),
    ],
)
def test_a_query_that_fails_is_said_where_it_is_missing(
    server: Server, tmp_path: Path, status: int, text: str, said: str
) -> None:
    server.status, server.text = status, text
    out = tmp_path / "telemetry.html"
    ran = run("telemetry", "--prometheus", server.url, "--out", out)
    assert ran.exit_code == 1
    assert f"vllm-vitals dashboards preview: vLLM / Telemetry health: Steps taken in [A]: {said}\n" in ran.output
    found = read(out.read_text(encoding="utf-8"))
    alerts = found.all("div", role="alert")
    assert len(alerts) > 10
    assert {each.text for each in alerts} == {said}


def test_native_histograms_are_no_failure(server: Server, tmp_path: Path) -> None:
    server.text = NATIVE
    out = tmp_path / "latency.html"
    ran = run("latency", "--prometheus", server.url, "--out", out, "--histograms", "exponential")
    assert ran.exit_code == 0, ran.output
    assert "native histograms are not drawn here" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "there is no board 'nobody' of vitals metrics: it must be one of fleet, engine, latency, cache, gpu, telemetry"),
        (["telemetry", "--source", "native"], "there is no board 'telemetry' of native metrics"),
        (["--range", "1 hour"], "'1 hour' must be a duration from 1s to 366d, such as 15m, 1h30m or 7d"),
        (["--scrape-interval", "0s"], "'0s' must be a duration"),
        (["--until", "noon"], "'noon' must be a time such as 2026-01-31T12:00:00Z"),
        (["--var", "model"], "--var model must be NAME=VALUE"),
        (["--var", "modell=x"], "there is no variable 'modell': it must be one of cluster, namespace, model, instance, engine"),
        (["--prometheus", "localhost:9090"], "'localhost:9090' must be a URL such as http://localhost:9090"),
        (["--prometheus", "file:///etc/passwd"], "must be a URL such as"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_one_line(server: Server, tmp_path: Path, arguments: list[str], said: str) -> None:
    ran = run("--prometheus", server.url, "--out", tmp_path / "x.html", *arguments)
    assert ran.exit_code == 2
    assert ran.output.startswith("vllm-vitals dashboards preview: ")
    assert said in ran.output
    assert ran.output.count("\n") == 1
    assert not server.asked
    assert not list(tmp_path.iterdir())


def test_a_prometheus_that_is_not_there_is_one_line_without_its_password(tmp_path: Path) -> None:
    ran = run("--prometheus", "http://me:secret@127.0.0.1:1", "--out", tmp_path / "x.html")
    assert ran.exit_code == 2
    assert "cannot query the Prometheus at http://127.0.0.1:" in ran.output
    assert ran.output.count("\n") == 1
    assert "secret" not in ran.output
    assert not list(tmp_path.iterdir())


def test_a_user_and_a_password_are_sent(server: Server, tmp_path: Path) -> None:
    ran = run("gpu", "--prometheus", server.url.replace("//", "//me:p%40ss@"), "--out", tmp_path / "x.html")
    assert ran.exit_code == 0, ran.output
    assert server.headers["Authorization"] == "Basic bWU6cEBzcw=="  # me:p@ss


def test_where_nothing_can_be_written_is_said(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = run("gpu", "--prometheus", server.url, "--out", tmp_path / "file" / "x.html")
    assert ran.exit_code == 2
    assert "cannot write" in ran.output


def test_a_png_takes_a_browser(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ran = run("gpu", "--prometheus", server.url, "--out", tmp_path / "gpu.png")
    assert ran.exit_code == 1
    assert "a PNG takes a browser, one of chromium" in ran.output
    assert not server.asked


@pytest.mark.skipif(not any(map(shutil.which, photo.BROWSERS)), reason="NOT RUN: there is no Chromium here")
def test_a_png_is_as_wide_as_a_page_and_ends_with_it(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "gpu.png"
    ran = run("gpu", "--prometheus", server.url, "--out", out, "--source", "native")
    assert ran.exit_code == 0, ran.output
    with Image.open(out) as taken:
        assert taken.width == 1280
        assert 300 < taken.height < 600
        last, above = (taken.crop((0, taken.height - rows, 1280, taken.height)) for rows in (8, 40))
        assert len(last.getcolors(1 << 20)) == 1
        assert len(above.getcolors(1 << 20)) > 1


def test_an_option_of_the_files_is_no_option_of_a_preview() -> None:
    ran = CliRunner().invoke(app, ["dashboards", "--source", "native", "preview", "fleet"])
    assert ran.exit_code == 2
    assert "--source must come after preview" in ran.output
