"""Text that clients, adapters and vLLM choose: it costs at most its own exemplar, never a page."""

import http.server
import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace as Stats
from typing import Any
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge

from tests.hostile.pages import Pages, Pushes, readable, total
from tests.live.bootstrap import prometheus_tools
from tests.live.pages import eventually
from tests.live.server import fetch, free_port
from tests.unit.builders import collect, examples, feed, finished, step
from tests.unit.exporters.otlp.test_pushes import Link
from tests.unit.fake_vllm import FakeVllm, fake_vllm
from vllm_vitals._util.labels import LONGEST_LABEL, UNKNOWN, label, named, shown
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.exporters.prometheus.app import native_page
from vllm_vitals.exporters.prometheus.text import OPENMETRICS, TEXT
from vllm_vitals.records.step import OTHER, Facts, Finished, Health, Rejection, Sleep, Step
from vllm_vitals.vllm.reader import Reader

__all__ = ["fake_vllm"]

HOSTILE = (
    "nul \0", "\0", "".join(map(chr, range(32))), "\x7f\x80\x9f", "new\nline", "\r\n", "\n", "\\", '"', '\\"', '"} 1\n# EOF\n',
    "\\n", "lone \ud800", "\udcff\udfff", "\u2028\u2029\x85", "\u202egnp.exe", "\ufeff", "\uffff", "é" * 300,
    "\N{PILE OF POO}" * 300, "x" * 2_000_000, "\0" * 2_000_000, "\n" * 500, '"' * 500, b"\xff\xfe".decode(errors="surrogateescape"), " ",
    'a # {request_id="b"} 1 2', "# EOF", "{", "}", ",", "=", "None",
)  # fmt: skip


class Text(str):
    """Text that behaves as no text does."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError

    def __getitem__(self, _: Any) -> str:
        raise RuntimeError


class Kind(Enum):
    NAMED = "a_name"
    NUMBERED = 7


class Raising:
    def __str__(self) -> str:
        raise SystemExit(1)


def everywhere(text: str) -> Aggregator:
    """Return a collector that has been told a text wherever there is text, its requests' ids by the reader."""
    reader = Reader("m", lambda *_: None)
    ended = [Stats(request_id=text, finish_reason=text, e2e_latency=0.4, num_generation_tokens=3, queued_time=0.1,
                   inference_time=0.2, prefill_time=0.1, decode_time=0.1)]  # fmt: skip
    scheduler = Stats(
        num_running_reqs=1, running_lora_adapters={text: 1, None: 2, 7: 3}, num_kv_fetch_reqs_by_stage={text: 1, None: 1},
        connector_prefix_cache_stats=Stats(queries=9, hits=3, hits_by_source={text: 2, None: 1}),
        kv_connector_stats={text: 1, f"Connector{text}": {"transfer_duration": [0.5]}},
    )  # fmt: skip
    calls = [(100.0, scheduler, Stats(num_generation_tokens=3, finished_requests=ended), None, 0)]
    steps = reader.read(calls, 1.7e9)
    aggregator = collect(exemplars=True, slos=[{"name": "s", "target": 0.9, "e2e": 1}])
    feed(aggregator, *steps, Sleep(text, text, text), Rejection(text, text), Health(process=text, errors={text: 1}))
    feed(
        aggregator,
        Step(text, text, 1.7e9, 1.0, 9.0, running=1, finished=(Finished(text, 1.7e9, 0.5, request_id=text),)),
    )
    aggregator.export(text, 0.5)
    return aggregator


def test_no_text_costs_a_page_or_a_push() -> None:
    for text in HOSTILE:
        aggregator = everywhere(text)
        for openmetrics in (False, True):
            numbers = Pages(aggregator, openmetrics=openmetrics).next()
            assert total(numbers, "vllm_tokens_generation_total", model_name="m", engine="0") == 3
            assert total(numbers, "vllm_request_duration_seconds_count") == 2
            longest = max(len(value) for _, labels in numbers for _, value in labels)
            assert longest <= LONGEST_LABEL
        for temporality in ("delta", "cumulative"):
            Pushes(aggregator, temporality=temporality, exponential=False).next()


@given(st.text(st.characters(), max_size=300))
def test_any_text_becomes_a_label_that_utf8_can_carry(text: str) -> None:
    made = label(text)
    assert made.encode("utf-8").decode("utf-8") == made
    assert len(made) <= LONGEST_LABEL
    assert not set(made) & set(map(chr, [*range(10), *range(11, 32), *range(127, 160)]))
    if text.isprintable():
        assert made == text[:LONGEST_LABEL]
    assert label(made) == made


@examples(40)
@given(st.text(st.characters(), max_size=12) | st.text(' #{}",=\\\nre_1.', max_size=12))
def test_any_request_id_leaves_a_page_that_parses(text: str) -> None:
    ended = (Finished("stop", 1.7e9, 0.25, request_id=text), Finished("stop", 1.7e9, 5.0, request_id="fair"))
    pages = Pages(collect(finished(*ended), exemplars=True), openmetrics=True)
    assert total(pages.next(), "vllm_request_duration_seconds_count") == 2
    assert b'request_id="fair"' in pages.render()


def test_no_text_of_vllms_own_metrics_costs_a_page_or_a_push() -> None:
    """A client may name an adapter, and any library may have metrics in that registry."""
    registry = CollectorRegistry()
    texts = [f"{place} {text}" for place, text in enumerate(HOSTILE) if len(text) < LONGEST_LABEL]
    lora = Gauge("vllm:lora", "".join(texts), ["name"], registry=registry)
    for text in texts:
        lora.labels(text).set(1)
    Counter("vllm:z", "Last.", registry=registry).inc(7)
    for openmetrics in (False, True):
        page = b"".join(native_page(registry.collect(), lambda _: True, openmetrics=openmetrics))
        lines = page.decode().split("\n")
        assert "vllm:z_total 7.0" in lines
        assert not [letter for line in lines for letter in line if ord(letter) < ord(" ") or letter == "\x7f"]
        assert len([line for line in lines if line.startswith("vllm:lora{")]) == len(texts)
    link = Link(native=lambda: registry)
    assert link.push().ok
    assert link.sums()["vllm:z_total", frozenset()] == (7,)


def test_what_is_no_text_is_unknown_and_never_none() -> None:
    for value in (None, 7, 1.5, b"bytes", [], {}, object(), Raising(), True):
        assert label(value) == named(value) == UNKNOWN
    assert shown(None) == UNKNOWN
    assert shown(Raising()) == UNKNOWN
    assert (shown(7), shown(True), shown("a"), shown(Kind.NAMED)) == ("7", "true", "a", "a_name")
    assert (named(Kind.NAMED), named(Kind.NUMBERED)) == ("a_name", "numbered")
    assert (label(Text("odd")), type(label(Text("odd")))) == ("odd", str)


def test_none_is_unknown_wherever_vllm_gives_it() -> None:
    numbers = Pages(everywhere("x"), openmetrics=False).next()
    assert total(numbers, "vllm_lora_requests", adapter=UNKNOWN, state="running") == 5  # None and 7
    assert total(numbers, "vllm_engine_requests_kv_fetch", stage=UNKNOWN) == 1
    assert total(numbers, "vllm_tokens_prompt_cached_total", source=UNKNOWN) == 1
    assert not [labels for _, labels in numbers if "None" in dict(labels).values()]


def test_a_rejection_for_no_reason_is_for_an_unknown_one(vllm: FakeVllm) -> None:
    (logger,) = vllm.start()
    for reason in (None, None, 7, "max_num_queued_reqs", "nul\0"):
        logger.record_admission_rejection(reason)
    shown_ = vllm.sight()
    found = {
        labels["reason"]: shown_("vllm_requests_rejected_total", **labels)
        for labels in shown_.labels("vllm_requests_rejected_total")
    }
    assert found == {
        "max_num_queued_reqs": 1,
        "max_num_queued_tokens": 0,
        UNKNOWN: 3,
        "nul\N{REPLACEMENT CHARACTER}": 1,
    }


def test_of_too_many_reasons_each_rejection_still_counts(vllm: FakeVllm) -> None:
    (logger,) = vllm.start()
    for number in range(100):
        logger.record_admission_rejection(f"reason {number}")
    counted = vllm.sight()
    each = [
        counted("vllm_requests_rejected_total", **labels) or 0.0
        for labels in counted.labels("vllm_requests_rejected_total")
    ]
    assert sum(each) == 100
    assert counted("vllm_requests_rejected_total", model_name="m", reason=OTHER)


def test_made_up_models_stay_bounded_and_none_is_lost() -> None:
    aggregator = collect()
    for number in range(3000):
        feed(aggregator, Rejection(f"model {number}", "max_num_queued_reqs"))
    numbers = Pages(aggregator, openmetrics=False).next()
    assert total(numbers, "vllm_requests_rejected_total") == 3000
    assert len(aggregator._models) <= 1025


def test_a_long_request_id_is_cut_where_it_is_read() -> None:
    ended = [Stats(request_id="i" * 1_000_000, finish_reason="stop", e2e_latency=0.4, num_generation_tokens=3)]
    calls = [(100.0, None, Stats(finished_requests=ended), None, 0)]
    (read,) = Reader("m", lambda *_: None).read(calls, 1.7e9)
    assert len(read.finished[0].request_id or "") == 256


# --- The real Prometheus


def all_at_once() -> Aggregator:
    """Return a collector that has been told all hostile texts."""
    aggregator = collect(exemplars=True)
    for number, text in enumerate(HOSTILE):
        feed(
            aggregator,
            Rejection("m", text),
            step(100.0 + number, running=1, lora_running={text: 1}, generation_tokens=1),
        )
        ended = Finished("stop", 1.7e9 + number, 0.25 * number, request_id=text)
        feed(aggregator, finished(ended), Facts(text, text, info={"dtype": text}))
    return aggregator


def test_promtool_takes_the_page() -> None:
    _, promtool = prometheus_tools()
    page = Pages(all_at_once(), openmetrics=False).render()
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False, timeout=60)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")


@contextmanager
def served(pages: Mapping[str, tuple[str, bytes]]) -> Iterator[int]:
    """Serve pages, each with its content type, by their paths; give the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, page = pages[self.path]
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def prometheus(home: Path, port: int, paths: tuple[str, ...]) -> Iterator[Callable[[str], Any]]:
    """Run a Prometheus that scrapes these paths; give what asks its API."""
    binary, _ = prometheus_tools()
    targets = [f"{{job_name: {path[1:]}, metrics_path: {path}, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}"
               for path in paths]  # fmt: skip
    (home / "prometheus.yml").write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs: [{', '.join(targets)}]\n")
    own = free_port()
    process = subprocess.Popen(
        [binary, f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data",
         f"--web.listen-address=127.0.0.1:{own}", "--enable-feature=exemplar-storage"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(path: str) -> Any:
        try:
            return json.loads(fetch(f"http://127.0.0.1:{own}/api/v1/{path}"))["data"]
        except OSError:
            return {"result": [], "activeTargets": []}

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_prometheus_scrapes_both_pages_whole(tmp_path: Path) -> None:
    aggregator = all_at_once()
    pages = {
        "/text": (TEXT, Pages(aggregator, openmetrics=False).render()),
        "/openmetrics": (OPENMETRICS, Pages(aggregator, openmetrics=True).render()),
    }
    wanted = {path[1:]: len(list(readable(page))) for path, (_, page) in pages.items()}
    with served(pages) as port, prometheus(tmp_path, port, tuple(pages)) as ask:

        def scraped() -> dict[str, str]:
            return {each["labels"]["job"]: each["health"] for each in ask("targets")["activeTargets"]}

        def seen(query: str) -> dict[str, float]:
            return {
                each["metric"]["job"]: float(each["value"][1]) for each in ask(f"query?query={quote(query)}")["result"]
            }

        assert eventually(lambda: len(scraped()) == 2 and "unknown" not in scraped().values(), 120)
        assert scraped() == {"text": "up", "openmetrics": "up"}, ask("targets")
        assert eventually(lambda: len(seen("scrape_samples_scraped > 0")) == 2, 120)
        assert seen("scrape_samples_scraped") == wanted
        total_ = "sum by (job) (vllm_requests_rejected_total)"
        assert seen(total_) == {"text": len(HOSTILE), "openmetrics": len(HOSTILE)}
        query = f"query_exemplars?query=vllm_request_duration_seconds_bucket&start=0&end={2e9}"
        found = [exemplar for series in ask(query) for exemplar in series["exemplars"]]
        assert found
        assert all(len(each["labels"]["request_id"]) <= 128 - len("request_id") for each in found)
