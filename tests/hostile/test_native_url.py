"""Whatever the server of `native.url` sends, a page is taken in or a bounded line says why not, and nothing else is lost."""

import gzip
import html
import logging
import zlib
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import trustme
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.hostile.documents import SECRET, damaged
from tests.hostile.receiver import listening, told
from tests.unit.builders import collect, examples
from tests.unit.native_vllm import OPENMETRICS, RUST, TEXT, Vllm, openmetrics_page, text_page
from tests.unit.peer import HOST, Peer, answer
from vllm_vitals.config.settings import NativeSettings
from vllm_vitals.exporters.prometheus.text import Renderer
from vllm_vitals.vllm_page import mapping as totals
from vllm_vitals.vllm_page import parse as page
from vllm_vitals.vllm_page.mapping import Totals
from vllm_vitals.vllm_page.parse import LONGEST_LINE, LONGEST_REASON, NativeSeries, PageError, parse
from vllm_vitals.vllm_page.poller import Poller

KIND = f"Content-Type: {TEXT}"


def _pages() -> list[str]:
    vllm = Vllm(0, 33, 0)
    for engine in ("0", "1"):
        vllm.count(engine, prompt_tokens=7, generation_tokens=9.5)
        vllm.of("num_requests_running", engine=engine).set(3)
        vllm.observe("iteration_tokens_total", 1, 3, 300, engine=engine)
    text, openmetrics = text_page(vllm.registry).decode(), openmetrics_page(vllm.registry).decode()
    return [text, openmetrics, RUST.decode()]


PAGES = _pages()
LINES = sorted({line for page in PAGES for line in page.splitlines()})
VALUES = [
    "NaN",
    "+Inf",
    "-Inf",
    "-1",
    "1e400",
    "1e-400",
    "0x1",
    "9" * 400,
    "1 2 3",
    "1 1e300",
    "",
    "1_0",
    "\x00",
    '1 # {a="b"} 1',
]


@st.composite
def bent(draw: st.DrawFn) -> str:
    """Return a page of lines of vLLM's, in any order, some with other numbers, labels or names."""
    lines = []
    for line in draw(st.lists(st.sampled_from(LINES), max_size=30)):
        how = draw(st.sampled_from(["", "", "value", "label", "name", "text"]))
        if how == "value":
            line = f"{line.rpartition(' ')[0]} {draw(st.sampled_from(VALUES))}"  # noqa: PLW2901
        elif how == "label":
            line = line.replace('"', f'"{draw(st.text(max_size=5))}', 1)  # noqa: PLW2901
        elif how == "name":
            line = line.replace("_", draw(st.sampled_from(["", ":", "_total_", "_bucket_", " ", "{"])), 1)  # noqa: PLW2901
        elif how == "text":
            line = draw(st.text(max_size=30))  # noqa: PLW2901
        lines.append(line)
    return "\n".join([*lines, *draw(st.sampled_from([[""], ["# EOF"], ["# EOF", ""], []]))])


bodies = damaged(st.sampled_from(PAGES) | bent()) | st.binary(max_size=60)
headers = st.lists(
    st.sampled_from(
        [KIND, f"Content-Type: {OPENMETRICS}", "Content-Type: text/html", f"Content-Type: {'x' * 900}", "Content-Encoding: gzip",
         "Content-Encoding: gzip, gzip", "Content-Encoding: br\x01", "Transfer-Encoding: chunked", "Content-Length: -1",
         "Content-Length: 99999999999999999999", "Content-Length: x", "X: " + "y" * 3000, "no colon", ": none"]
    ),
    max_size=3,
)  # fmt: skip
packed = (
    bodies.map(lambda body: gzip.compress(body, 1, mtime=0))
    | bodies.map(lambda body: gzip.compress(gzip.compress(body, mtime=0), mtime=0))
    | bodies.map(zlib.compress)
)
statuses = st.sampled_from(
    [
        "200 OK",
        "200",
        "204 No Content",
        "500 " + "é" * 300,
        "999 ?",
        "0 x",
        "-1",
        "302 Found",
        "401 \x00\x1b[31m",
        "100 Continue",
    ]
)
locations = st.text(max_size=20) | st.sampled_from(
    ["http://[::1", "//", "http://127.0.0.1:9/x", "http://127.0.0.1:99999/", "file:///etc/passwd", "http://\u00e9..invalid/", "?"]
)  # fmt: skip


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Return the bytes of an answer, or what a confused peer sends in its place."""
    body = draw(bodies | packed)
    lines = draw(headers)
    status = draw(statuses) if draw(st.booleans()) else "200 OK"
    if draw(st.booleans()):
        lines.append("Content-Encoding: gzip")
    if status.startswith("302"):
        lines.append(f"Location: {draw(locations)}")
    head = "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("utf-8", "replace")
    whole = head + body if draw(st.booleans()) else answer(body, *lines[:1], status="200 OK").replace(b"\xff", b"")
    return draw(st.sampled_from([whole, whole[: draw(st.integers(0, len(whole)))], body]))


class Watch:
    """A poller of a peer that is asked once for each answer."""

    def __init__(self, tls: trustme.CA | None = None, directory: Any = None) -> None:
        context = None
        settings: dict[str, Any] = {"timeout": 60}
        if tls is not None:
            import ssl

            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.issue_cert(HOST).configure_cert(context)
            tls.cert_pem.write_to_path(str(directory / "ca.pem"))
            settings["tls_ca"] = directory / "ca.pem"
        self.peer = Peer(b"", tls=context)
        self.aggregator = collect()
        url = self.peer.url("/metrics?key=" + SECRET, user=f"me:{SECRET}@")
        self.poller = Poller(self.aggregator, url, NativeSettings(**settings))

    def poll(self, sent: bytes | list[bytes]) -> str:
        """Fetch what the peer sends, and return what is wrong with it, after a look at how that is said."""
        self.peer._answers = [sent]
        self.poller.poll()  # and nothing is raised
        said = self.poller._reason if self.poller._failures else ""
        assert len(said) <= LONGEST_REASON
        assert said.isprintable()
        assert SECRET not in said
        scraped = b"".join(Renderer(self.aggregator.store, openmetrics=False).render(lambda _: True))
        list(text_string_to_metric_families(scraped.decode()))  # it can be scraped
        return said


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch()
    with made.peer:
        yield made


def test_any_answer_is_taken_in_or_refused_in_words(watch: Watch) -> None:
    @examples(200)
    @given(answers())
    @example(answer(b"a 1\n", KIND))
    @example(answer(b'vllm:num_requests_running{engine="0",model_name="m"} 1e400\n', KIND))
    @example(answer(b'vllm:prompt_tokens_total{engine="0",model_name="m"} NaN\n', KIND))
    @example(answer(b'# TYPE vllm:x histogram\nvllm:x_bucket{le="+Inf"} NaN\n', KIND))
    def check(sent: bytes) -> None:
        watch.poll(sent)

    check()


def test_after_anything_a_good_page_is_taken_in(watch: Watch) -> None:
    @examples(30)
    @given(answers())
    def check(sent: bytes) -> None:
        watch.poll(sent)
        assert watch.poll(answer(PAGES[0].encode(), KIND)) == ""

    check()


def test_the_same_over_tls(tmp_path: Any) -> None:
    made = Watch(trustme.CA(), tmp_path)

    @examples(40)
    @given(answers())
    def check(sent: bytes) -> None:
        made.poll(sent)

    with made.peer:
        assert made.poll(answer(PAGES[0].encode(), KIND)) == ""
        check()


@examples(300)
@given(bodies, st.sampled_from([TEXT, OPENMETRICS, ""]))
def test_any_page_is_families_or_an_error(content: bytes, kind: str) -> None:
    said = ""
    try:
        parse(content, kind)
    except PageError as error:
        said = str(error)
    assert len(said) <= LONGEST_REASON
    assert said.isprintable()


def test_pages_that_cost_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_LINES", 1000)
    long = b'a{b="' + b"x" * LONGEST_LINE + b'"} 1\n'
    for content, words in (
        (b"a 1\n" + long, f"line 2 is longer than {LONGEST_LINE} characters"),
        (b"a 1\n" * 1001, "it has more than 1000 lines"),
        (b"x" * 2**20, "it ends in the middle of a line"),
    ):
        with pytest.raises(PageError, match=words):
            parse(content, TEXT)
    assert parse(b"a 1\n" + b'a{b="' + b"x" * (LONGEST_LINE - 20) + b'"} 1\n', TEXT)


def test_what_the_server_repeats_of_a_secret_is_hidden(watch: Watch) -> None:
    pair = b64encode(f"me:{SECRET}".encode()).decode()
    for proof in (pair, SECRET, quote(SECRET), f"/metrics?key={SECRET}", html.escape(SECRET)):
        for sent in (
            answer(b"", status=f"401 no {proof}"),
            answer(b"", f"Location: http://127.0.0.1:9/{proof}", status="302 Found"),
            answer(b"a 1\n", f"Content-Type: {proof}"),
            answer(b"a 1\n", f"Content-Encoding: {proof}"),
            answer(f"you sent {proof} and more\n".encode(), KIND),
            answer(f"you sent {proof}".encode(), KIND),
            f"hello {proof}\r\n\r\n".encode(),
        ):
            with listening() as lines:
                watch.poller._said.clear()
                said = watch.poll(sent)
            told_ = "\n".join([said, *lines])
            assert said
            assert not told(SECRET, told_), told_
            assert not told(pair, told_), told_


def test_bombs_are_refused(watch: Watch) -> None:
    zeros = gzip.compress(bytes(2**26), 9)
    for sent, words in (
        (answer(zeros, "Content-Encoding: gzip"), "more than 16777216 bytes"),
        (answer(gzip.compress(zeros), "Content-Encoding: gzip"), "no UTF-8"),
        (answer(gzip.compress(zeros), "Content-Encoding: gzip, gzip"), "Content-Encoding is gzip, gzip"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 90 + b"C: " + b"d" * 2**17, "the head of the answer has more"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n"] * 10_000, "the head of the answer has more than 65536 bytes"),
    ):
        assert words in watch.poll(sent)


def test_a_secret_of_the_url_that_a_server_sends_back_is_not_shown(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the log, nor where /readyz has it from; in whatever form, and once only a part of it."""
    encoded = b64encode(f"me:{SECRET}".encode()).decode()
    for sent, words in (
        (answer(b"", status=f"401 wrong password {SECRET}"), "401 wrong password ***"),
        (answer(b"", status=f"401 you sent Basic {encoded}"), "401 you sent Basic ***"),
        (answer(b"", f"Content-Type: text/{SECRET}"), "it is text/***"),
        (answer(b"", "Content-Encoding: " + SECRET), "Content-Encoding is ***"),
        (
            answer(b"", f"Location: http://127.0.0.1:9/{SECRET}", status="302 Found"),
            "redirected to http://127.0.0.1:9/***",
        ),
        (answer(f"no page, {SECRET[:-1]}\n".encode(), KIND), "line 1 is not as it should be: 'no page, ***"),
        (f"{SECRET} is no HTTP\r\n\r\n".encode(), "*** is no HTTP"),
    ):
        said = watch.poll(sent)
        assert words in said
        assert SECRET[:-1].lower() not in said.lower()
        assert encoded not in said
    logging.getLogger("vllm.vitals").error("something else, with %s", SECRET)
    lines = "\n".join(map(logging.Formatter().format, caplog.records))
    assert "401 wrong password ***" in lines
    assert "something else, with ***" in lines
    assert SECRET[:-1].lower() not in lines.lower()


def test_labels_that_are_made_up_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(totals, "MOST_HELD", 100_000)
    kept = Totals()

    def series(number: int, value: float = 1.0, buckets: int = 0) -> NativeSeries:
        bounds = tuple(map(float, range(buckets)))
        kind = "histogram" if buckets else "counter"
        return NativeSeries("n", kind, (("model_name", str(number)),), value, bounds, (0,) * (buckets + bool(buckets)))

    taken = [number for number in range(1000) if kept.total(series(number))]
    assert taken == list(range(len(taken)))
    assert 50 < len(taken) < 100
    assert kept.total(series(0, 5.0)) == series(0, 5.0)  # those that there are go on
    assert kept.total(series(1, buckets=500)) is None
    assert kept.total(series(1, 7.0)) == series(1, 7.0)
    assert [record.getMessage() for record in caplog.records] == [
        "vllm-vitals: vLLM's page has brought too many series; new ones are left out"
    ]
