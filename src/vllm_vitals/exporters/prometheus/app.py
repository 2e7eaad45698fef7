"""The content of the scrape endpoint: /metrics, /healthz and /readyz."""

import gzip
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from http import HTTPStatus
from inspect import signature
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector as RegistryCollector

from vllm_vitals._util.background import BackgroundCall
from vllm_vitals._util.labels import fit, fits
from vllm_vitals._util.log import log_once
from vllm_vitals._util.pacing import checkpoint, paced
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.exporters.prometheus.limits import MEDIA_RANGES, QUERY_FIELDS
from vllm_vitals.exporters.prometheus.message import RefusedError, Request, Response, plain
from vllm_vitals.exporters.prometheus.text import END, OPENMETRICS, TEXT, Renderer

MAX_NATIVE_WAIT_SECONDS = 2.0
"""Longest wait of a scrape for vLLM's own metrics. Late ones are on the next page."""


class Page(NamedTuple):
    """The form of a page. Requests for equal pages can share one."""

    openmetrics: bool
    gzipped: bool
    names: frozenset[str]
    """The wanted families; empty for all."""


class ScrapeApp:
    """The responses over one aggregator."""

    def __init__(
        self,
        aggregator: Aggregator,
        problem: Callable[[], str],
        native_registry: Callable[[], Any] | None,
        ended: Callable[[], str] | None = None,
    ) -> None:
        """`problem` returns why no data come in, or `""`. It must not wait.

        `native_registry` returns the registry whose metrics are served after ours. `ended` returns a problem that only a
        restart can solve, or `""`; by default it is `problem`.
        """
        self._aggregator = aggregator
        self._troubles = {"/healthz": ended or problem, "/readyz": problem}
        self._native = (
            BackgroundCall(lambda: self._families(native_registry()), "vitals-native") if native_registry else None
        )
        self._native_seconds = 0.0
        """Processor time that reading vLLM's registry has taken so far, on its own thread."""
        self._renderers: dict[bool, Renderer] = {}

    def answer(self, request: Request) -> Response | Page:
        """Return the response, or the page to render. It takes no lock and does not wait."""
        if request.method not in ("GET", "HEAD"):
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or HEAD", ("Allow", "GET, HEAD"))
        path = unquote(request.path).rstrip("/")
        if path == "/metrics":
            openmetrics, gzipped = prefers_openmetrics(request.accept), accepts_gzip(request.accept_encoding)
            return Page(openmetrics, gzipped, _names(request.query))
        if path in self._troubles:
            trouble = self._troubles[path]()
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, trouble) if trouble else plain(HTTPStatus.OK, "ok")
        return plain(HTTPStatus.NOT_FOUND, "the paths are /metrics, /healthz and /readyz")

    def page(self, page: Page, readers: int) -> Response:
        """Render a page for that many readers. For one thread only."""
        start = time.perf_counter()
        try:
            with paced():
                body = b"".join(self._page(openmetrics=page.openmetrics, names=page.names))
        except Exception as error:  # noqa: BLE001 - the scraper gets the reason
            self._aggregator.error("export", "A scrape failed", key="scrape")
            for _ in range(readers):
                self._aggregator.export("prometheus", None)
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}")
        headers = [("Content-Type", OPENMETRICS if page.openmetrics else TEXT), ("Vary", "Accept, Accept-Encoding")]
        if page.gzipped:
            body = gzip.compress(body, compresslevel=5)
            headers.append(("Content-Encoding", "gzip"))
        for _ in range(readers):
            self._aggregator.export("prometheus", time.perf_counter() - start)
        return Response(HTTPStatus.OK, tuple(headers), body)

    def _page(self, *, openmetrics: bool, names: frozenset[str]) -> Iterator[bytes]:
        renderer = self._renderers.get(openmetrics)
        if renderer is None:
            renderer = self._renderers[openmetrics] = Renderer(self._aggregator.store, openmetrics=openmetrics)
        self._aggregator.refresh()
        renderer.forget()
        wanted = _wanted(names)
        yield from renderer.render(wanted)
        if self._native is not None:
            yield from self._native_page(self._native, wanted, openmetrics=openmetrics)
        if openmetrics:
            yield END

    def _native_page(
        self, native: BackgroundCall[Metric], wanted: Callable[[str], bool], *, openmetrics: bool
    ) -> Iterator[bytes]:
        """Yield the families of vLLM's registry. If it is slow or cannot be read, our families are served without them."""
        found = native.result(lambda done: done(MAX_NATIVE_WAIT_SECONDS))
        if found is None:
            late = "Reading vLLM's own metrics takes too long: this page is served without them"
            log_once(logging.WARNING, late, key="native-late")
            self._aggregator.count_error("export")
            return
        try:
            yield from native_page(found.items, wanted, openmetrics=openmetrics)
            found.check()
        except Exception:  # noqa: BLE001 - such as a broken multiprocess directory; our families are still served
            self._aggregator.error("export", "vLLM's own metrics could not be rendered", key="native")

    def _families(self, registry: Any) -> Iterator[Metric]:
        begun = time.thread_time()
        try:
            with paced():
                for family in registry.collect():
                    yield family
                    checkpoint()
        finally:
            self._native_seconds += time.thread_time() - begun

    def work_seconds(self) -> float:
        """Return the processor time that pages have taken so far; for the thread that renders them."""
        return time.thread_time() + self._native_seconds

    def close(self) -> None:
        """End the thread that reads vLLM's registry."""
        if self._native is not None:
            self._native.end()


def _names(query: str) -> frozenset[str]:
    """Return the families in a query.

    Raises:
        RefusedError: when it has too many fields.
    """
    try:
        return frozenset(parse_qs(query, max_num_fields=QUERY_FIELDS).get("name[]", ()))
    except ValueError:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"The query has more than {QUERY_FIELDS} fields") from None


def _wanted(names: frozenset[str]) -> Callable[[str], bool]:
    """Return a filter of families: those with a sample of such a name, or all without names."""
    if not names:
        return lambda _: True
    suffixes = ("_bucket", "_count", "_sum", "_total", "_created")
    stems = {name.removesuffix(suffix) for name in names for suffix in suffixes} | names
    return lambda family: family in stems or family.removesuffix("_total") in stems


def native_page(families: Iterable[Metric], wanted: Callable[[str], bool], *, openmetrics: bool) -> Iterator[bytes]:
    """Yield another registry's families one by one, in the same format, their names as they are."""
    for family in families:
        if wanted(family.name):
            yield _native(_fit(family), openmetrics=openmetrics)
        checkpoint()


def _fit(family: Metric) -> Metric:
    """Return a family with illegal text replaced, so that a bad label value such as an adapter's name loses no more than itself."""
    if all(fits(text) for sample in family.samples for text in sample.labels.values()) and fits(family.documentation):
        return family
    made = copy(family)
    made.documentation = fit(family.documentation)
    made.samples = [
        sample._replace(labels={name: fit(text) for name, text in sample.labels.items()}) for sample in family.samples
    ]
    return made


class _One(RegistryCollector):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        return [self._family]


def _native(family: Metric, *, openmetrics: bool) -> bytes:
    one: Any = _One(family)
    if not openmetrics:
        return generate_latest(one)
    # A colon is legal in a name, but client 0.23 and newer replace it by default. Older ones have no such parameter.
    options = {"escaping": "allow-utf-8"} if "escaping" in signature(generate_openmetrics).parameters else {}
    page: bytes = generate_openmetrics(one, **options)  # type: ignore[no-untyped-call]
    return page.removesuffix(END)


def prefers_openmetrics(accept: str) -> bool:
    """Return whether an Accept header prefers OpenMetrics to Prometheus text."""
    given = _qualities(accept)
    openmetrics = given.get("application/openmetrics-text", 0.0)
    text = next((given[kind] for kind in ("text/plain", "text/*", "*/*") if kind in given), 0.0)
    return openmetrics > 0 and openmetrics >= text


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip."""
    given = _qualities(header)
    return given.get("gzip", given.get("*", 0.0)) > 0


def _qualities(header: str) -> dict[str, float]:
    """Return the best quality of each media type or coding in a header."""
    given: dict[str, float] = {}
    for part in header.split(",", MEDIA_RANGES)[:MEDIA_RANGES]:
        kind, *parameters = (word.strip().lower() for word in part.split(";", MEDIA_RANGES)[:MEDIA_RANGES])
        given[kind] = max(given.get(kind, 0.0), _quality(parameters))
    return given


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
