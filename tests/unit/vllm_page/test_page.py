"""Pages of every format and client come out as the registry that they were made from, or as a clear error."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from tests.checkpoints import at_checkpoints
from tests.unit.builders import examples
from tests.unit.native_vllm import (
    OPENMETRICS,
    RUST,
    TEXT,
    Vllm,
    broken_page,
    openmetrics_page,
    plain,
    text_page,
)
from tests.unit.peer import Peer, answer
from vllm_vitals._util.http import DownloadError
from vllm_vitals.exporters.otlp.series import native_series
from vllm_vitals.vllm_page.parse import Page, PageError, fetch, parse


def busy(*release: int) -> Vllm:
    vllm = Vllm(*release)
    for engine in ("0", "1"):
        vllm.count(engine, prompt_tokens=7, generation_tokens=9.5)
        vllm.of("num_requests_running", engine=engine).set(3)
        vllm.of("request_success", "stop", engine=engine).inc()
        vllm.observe("iteration_tokens_total", 1, 3, 300, engine=engine)
    return vllm


def said(content: bytes, content_type: str = TEXT) -> str:
    with pytest.raises(PageError) as caught:
        parse(content, content_type)
    return str(caught.value)


@pytest.mark.parametrize("release", [(0, 11, 0), (0, 33, 0)])
@pytest.mark.parametrize(
    ("render", "content_type"),
    [(text_page, TEXT), (text_page, ""), (openmetrics_page, OPENMETRICS), (broken_page, OPENMETRICS)],
)
def test_a_page_of_vllm_is_the_registry_again(
    release: tuple[int, ...], render: Callable[[Any], bytes], content_type: str
) -> None:
    vllm = busy(*release)
    units = render is not text_page
    assert plain(parse(render(vllm.registry), content_type), units=units) == plain(vllm.families, units=units)


def test_names_and_types_are_what_the_clients_defect_takes_away() -> None:
    lines = broken_page(busy(0, 33, 0).registry).decode().splitlines()
    assert "# TYPE vllm:prompt_tokens counter" in lines
    assert 'vllm_prompt_tokens_total{engine="0",model_name="m"} 7.0' in lines
    families = {family.name: family for family in parse("\n".join([*lines, ""]).encode(), OPENMETRICS)}
    assert {sample.name for sample in families["vllm:prompt_tokens"].samples} == {
        "vllm:prompt_tokens_total", "vllm:prompt_tokens_created",
    }  # fmt: skip
    assert not [name for name in families if name.startswith("vllm_")]


def test_a_name_with_underscores_of_its_own_is_left_alone() -> None:
    page = b"# TYPE vllm:a gauge\nvllm:a 1.0\n# TYPE vllm_a_b gauge\nvllm_a_b 2.0\n# EOF\n"
    assert {family.name: family.samples[0].value for family in parse(page, OPENMETRICS)} == {"vllm:a": 1, "vllm_a_b": 2}


@pytest.mark.parametrize("content_type", [OPENMETRICS, TEXT, ""])
def test_a_page_of_the_rust_front_end(content_type: str) -> None:
    families = {family.name: family for family in parse(RUST, content_type)}
    assert {name: family.type for name, family in families.items()} == {
        "vllm:num_requests_running": "gauge", "vllm:prompt_tokens": "counter",
        "vllm:time_to_first_token_seconds": "histogram",
    }  # fmt: skip
    assert families["vllm:prompt_tokens"].samples[0].value == 34567503


NAMES = st.from_regex(r"vllm:[a-z]{1,8}_[a-z]{1,8}", fullmatch=True)
SUFFIXES = ("_total", "_created", "_bucket", "_count", "_sum", "_info")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
NUMBERS = st.floats(min_value=0, max_value=1e18)
FAMILIES = st.dictionaries(
    NAMES.filter(lambda name: not name.endswith(SUFFIXES)),
    st.tuples(
        st.sampled_from([Counter, Gauge, Histogram, Summary]),
        st.dictionaries(st.tuples(TEXTS, TEXTS), st.lists(NUMBERS, min_size=1, max_size=3), max_size=3),
    ),
    min_size=1,
    max_size=4,
)


def registry(families: dict[str, Any]) -> CollectorRegistry:
    made = CollectorRegistry()
    for name, (kind, series) in families.items():
        metric = kind(name, 'Help with \\ and "quotes"\nand lines.', ("model_name", "b"), registry=made)
        for labels, values in series.items():
            change = getattr(metric.labels(*labels), {Counter: "inc", Gauge: "set"}.get(kind, "observe"))
            for value in values:
                change(value)
    return made


@given(FAMILIES)
@examples(60)
def test_any_registry_comes_back_from_any_page_of_it(families: dict[str, Any]) -> None:
    made = registry(families)
    expected = plain(made.collect())
    for render, content_type in ((text_page, TEXT), (openmetrics_page, OPENMETRICS), (broken_page, OPENMETRICS)):
        assert plain(parse(render(made), content_type)) == expected


LINES = st.lists(st.one_of(st.sampled_from(RUST.decode().splitlines()), st.text(max_size=30)), max_size=8)


@given(LINES.map("\n".join), st.sampled_from([TEXT, OPENMETRICS]))
@examples(200)
def test_whatever_comes_is_families_or_an_error(page: str, content_type: str) -> None:
    families: list[Any] | None = None
    with suppress(PageError):
        families = parse(page.encode(errors="replace"), content_type)
    assert families != []


def test_the_line_that_is_wrong_is_named() -> None:
    page = b"# TYPE a gauge\na 1.0\nnot a metric %b\nb 2.0\n" % (b"x" * 200)
    assert said(page).startswith(f"line 3 is not as it should be: 'not a metric {'x' * 87}' (ValueError: ")
    assert said(b"# HELP a A.\n" + page + b"# EOF\n", OPENMETRICS).startswith("line 4 is not as it should be: 'not a m")


@pytest.mark.parametrize(
    ("content", "content_type", "words"),
    [
        (b"<html>", "text/html; charset=utf-8", "it is text/html; expected text/plain or application/openmetrics-text"),
        (b"{}", "application/json", "it is application/json; expected text/plain or application/openmetrics-text"),
        (b"", TEXT, "it ends in the middle of a line: ''"),
        (b"\n", TEXT, "it has no metric; it begins with '\\n'"),
        (b"a 1.0\nb 12", TEXT, "it ends in the middle of a line: 'b 12'"),
        (b"a \xff\n", TEXT, "it is no UTF-8: 'utf-8' codec can't decode byte 0xff in position 2: invalid start byte"),
    ],
)
def test_what_came_and_what_was_expected_is_said(content: bytes, content_type: str, words: str) -> None:
    assert said(content, content_type) == words


def test_half_a_page_of_openmetrics_is_an_error() -> None:
    whole = openmetrics_page(busy(0, 33, 0).registry)
    assert "Missing # EOF" in said(whole[: whole.index(b"# EOF")], OPENMETRICS)
    assert said(whole[: len(whole) // 2], OPENMETRICS).startswith("line ")


def test_work_is_done_in_small_pieces() -> None:
    rests: list[None] = []
    page = text_page(busy(0, 33, 0).registry)
    with at_checkpoints(lambda: rests.append(None)):
        parse(page, TEXT)
    assert len(rests) == page.count(b"\n")


def test_errors_name_the_url_without_its_secrets() -> None:
    with Peer(answer(b"garbage\n", f"Content-Type: {TEXT}")) as peer:
        with pytest.raises(PageError) as caught:
            fetch(peer.url("/metrics?key=s3cret", user="u:s3cret@"), 5.0)
        assert str(caught.value).startswith(f"{peer.url()}: line 1 is not as it should be: 'garbage'")


def test_the_page_before_stays_when_there_is_no_new_one() -> None:
    good, bad = busy(0, 33, 0), answer(b"garbage\n", f"Content-Type: {TEXT}")
    gone = answer(b"", status="503 Service Unavailable")
    with Peer(answer(text_page(good.registry), f"Content-Type: {TEXT}"), bad, gone) as peer:
        page = Page(peer.url(), 5.0)
        assert (page.collect(), page.time) == ([], 0.0)
        page.refresh()
        taken, families = page.time, page.collect()
        for expected in (PageError, DownloadError):
            with pytest.raises(expected):
                page.refresh()
            assert (page.collect(), page.time) == (families, taken)
    assert plain(families) == plain(good.families)


def test_a_page_is_pushed_as_its_registry_would_be() -> None:
    vllm = busy(0, 33, 0)
    with Peer(answer(broken_page(vllm.registry), f"Content-Type: {OPENMETRICS}")) as peer:
        page = Page(peer.url(), 5.0)
        page.refresh()

    def pushed(source: Any) -> list[Any]:
        return sorted(native_series(source, "vllm:prompt_tokens".__eq__), key=lambda series: series.id)

    assert pushed(page) == pushed(vllm.registry) != []
