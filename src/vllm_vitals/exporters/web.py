"""What the scrape endpoint answers."""

import gzip
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from typing import Any
from urllib.parse import parse_qs

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector as RegistryCollector

from vllm_vitals.collector.collector import Collector
from vllm_vitals.exporters.exposition import END, OPENMETRICS, TEXT, Renderer
from vllm_vitals.feed.pace import Pace
from vllm_vitals.logs import log_once
from vllm_vitals.native.apart import Apart

Environ = dict[str, Any]
Answer = tuple[str, list[tuple[str, str]], bytes]
PLAIN = "text/plain; charset=utf-8"
PATIENCE = 2.0
"""Seconds that a scrape waits for vLLM's own metrics at most; those that come later are on the next page."""


class ScrapeApp:
    """A WSGI application over one collector; any number of threads may call it."""

    def __init__(
        self,
        collector: Collector,
        problem: Callable[[], str],
        native_registry: Callable[[], Any] | None,
        ended: Callable[[], str] | None = None,
    ) -> None:
        """`problem` tells why nothing comes in, `""` when all is well.

        `native_registry` gives the registry whose metrics are served after ours, `None` for none. `ended` tells what
        only a restart mends, `""` when there is nothing; unless given, it is what `problem` tells.
        """
        self._collector = collector
        self._troubles = {"/healthz": ended or problem, "/readyz": problem}
        self._native = Apart(lambda: _families(native_registry()), "vitals-native") if native_registry else None
        self._rendering = threading.Lock()
        self._renderers: dict[bool, Renderer] = {}

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer one request."""
        status, headers, body = self._answer(environ)
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _answer(self, environ: Environ) -> Answer:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", [("Allow", "GET, HEAD"), ("Content-Type", PLAIN)], b"use GET or HEAD\n"
        path = environ.get("PATH_INFO", "").rstrip("/")
        if path == "/metrics":
            return self._metrics(environ)
        if path in self._troubles:
            return _health(self._troubles[path]())
        return "404 Not Found", [("Content-Type", PLAIN)], b"there are /metrics, /healthz and /readyz\n"

    def _metrics(self, environ: Environ) -> Answer:
        start = time.perf_counter()
        try:
            openmetrics = prefers_openmetrics(environ.get("HTTP_ACCEPT", ""))
            names = parse_qs(environ.get("QUERY_STRING", "")).get("name[]", [])
            with self._rendering:
                body = b"".join(self._page(openmetrics=openmetrics, names=names))
        except Exception as error:  # noqa: BLE001 - the scraper shall know
            self._collector.error("export", "A scrape failed", key="scrape")
            self._collector.export("prometheus", None)
            return "500 Internal Server Error", [("Content-Type", PLAIN)], f"{type(error).__name__}: {error}\n".encode()
        headers = [("Content-Type", OPENMETRICS if openmetrics else TEXT), ("Vary", "Accept, Accept-Encoding")]
        if accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING", "")):
            body = gzip.compress(body, compresslevel=5)
            headers.append(("Content-Encoding", "gzip"))
        self._collector.export("prometheus", time.perf_counter() - start)
        return "200 OK", headers, body

    def _page(self, *, openmetrics: bool, names: list[str]) -> Iterator[bytes]:
        pause = Pace().breathe
        renderer = self._renderers.get(openmetrics)
        if renderer is None:
            renderer = self._renderers[openmetrics] = Renderer(self._collector.store, openmetrics=openmetrics)
        self._collector.refresh(pause)
        renderer.forget()
        wanted = _wanted(names)
        yield from renderer.render(pause, wanted)
        if self._native is not None:
            yield from self._native_page(self._native, pause, wanted, openmetrics=openmetrics)
        if openmetrics:
            yield END

    def _native_page(
        self, native: Apart[Metric], pause: Callable[[], None], wanted: Callable[[str], bool], *, openmetrics: bool
    ) -> Iterator[bytes]:
        """Yield the families of vLLM's registry; one that takes long, or cannot be read, does not cost ours."""
        found = native.latest(lambda over: over(PATIENCE))
        if found is None:
            late = "vLLM's own metrics take long to be read: ours are served without them"
            log_once(logging.WARNING, late, key="native-late")
            self._collector.count_error("export")
            return
        try:
            yield from native_page(found.items, pause, wanted, openmetrics=openmetrics)
            found.check()
        except Exception:  # noqa: BLE001 - a broken multiprocess directory, say, must not cost ours
            self._collector.error("export", "vLLM's own metrics could not be rendered", key="native")

    def close(self) -> None:
        """Let the thread that reads vLLM's registry end."""
        if self._native is not None:
            self._native.end()


def _health(trouble: str) -> Answer:
    if trouble:
        return "503 Service Unavailable", [("Content-Type", PLAIN)], f"{trouble}\n".encode()
    return "200 OK", [("Content-Type", PLAIN)], b"ok\n"


def _wanted(names: list[str]) -> Callable[[str], bool]:
    """Return what picks families: all without names, else those that have a sample of such a name."""
    if not names:
        return lambda _: True
    suffixes = ("_bucket", "_count", "_sum", "_total", "_created")
    stems = {name.removesuffix(suffix) for name in names for suffix in suffixes} | set(names)
    return lambda family: family in stems or family.removesuffix("_total") in stems


def _families(registry: Any) -> Iterator[Metric]:
    pause = Pace().breathe
    for family in registry.collect():
        yield family
        pause()


def native_page(
    families: Iterable[Metric], pause: Callable[[], None], wanted: Callable[[str], bool], *, openmetrics: bool
) -> Iterator[bytes]:
    """Yield another registry's families one by one, in the same format, their names as they are."""
    for family in families:
        if wanted(family.name):
            yield _native(family, openmetrics=openmetrics)
        pause()


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
    # A colon is legal in a name, but since 0.23 the client rewrites it unless asked not to; older ones cannot be asked.
    asked = {"escaping": "allow-utf-8"} if "escaping" in signature(generate_openmetrics).parameters else {}
    page: bytes = generate_openmetrics(one, **asked)  # type: ignore[no-untyped-call]
    return page.removesuffix(END)


def prefers_openmetrics(accept: str) -> bool:
    """Tell whether an Accept header prefers OpenMetrics to Prometheus text."""
    given = _qualities(accept)
    openmetrics = given.get("application/openmetrics-text", 0.0)
    text = next((given[kind] for kind in ("text/plain", "text/*", "*/*") if kind in given), 0.0)
    return openmetrics > 0 and openmetrics >= text


def accepts_gzip(header: str) -> bool:
    """Tell whether an Accept-Encoding header allows gzip."""
    given = _qualities(header)
    return given.get("gzip", given.get("*", 0.0)) > 0


def _qualities(header: str) -> dict[str, float]:
    """Return the best quality of each kind that a header names."""
    given: dict[str, float] = {}
    for part in header.split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
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
