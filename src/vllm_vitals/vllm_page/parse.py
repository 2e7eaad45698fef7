"""A page of metrics as the families that a registry would give, whichever format and release it is of."""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from typing import Any, NamedTuple

from prometheus_client.core import Metric as NativeMetric
from prometheus_client.openmetrics.parser import text_fd_to_metric_families as openmetrics_families
from prometheus_client.parser import text_fd_to_metric_families as text_families

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.bounds import shown as shown_value
from vllm_vitals._util.http import DownloadError, download, shown
from vllm_vitals._util.labels import fit
from vllm_vitals._util.log import keep_out
from vllm_vitals._util.pacing import checkpoint, paced
from vllm_vitals._util.redact import Redactor, of_url
from vllm_vitals._util.trust import Trust

Labels = tuple[tuple[str, str], ...]
GROWING = {"counter": ("_total",), "summary": ("_sum", "_count")}
"""The endings of the samples that only grow."""


class NativeSeries(NamedTuple):
    """One series of somebody else's; a histogram's value is its sum, its counts are not cumulated."""

    name: str
    """That of the sample, or the family of a histogram."""
    kind: str
    labels: Labels
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    created: float | None = None
    """Unix time at which it began to count, where that is told."""


def read(family: NativeMetric) -> Iterator[NativeSeries]:
    """Yield the series of a family, `_created` times as a part of theirs."""
    return _histograms(family) if family.type == "histogram" else _numbers(family)


def _numbers(family: NativeMetric) -> Iterator[NativeSeries]:
    """Yield a series for each sample: counters of what only grows, gauges of the rest."""
    created = _created(family)
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            kind = "counter" if sample.name.endswith(GROWING.get(family.type, ())) else "gauge"
            labels = _labels(sample.labels)
            yield NativeSeries(sample.name, kind, labels, float(sample.value), created=created.get(labels))


def _histograms(family: NativeMetric) -> Iterator[NativeSeries]:
    """Yield a series for each label set whose buckets are those of a histogram."""
    within: dict[Labels, dict[float, float]] = {}
    for sample in family.samples:
        edge = _edge(sample.labels.get("le", "")) if sample.name.endswith("_bucket") else None
        if edge is not None:
            own = {name: value for name, value in sample.labels.items() if name != "le"}
            within.setdefault(_labels(own), {})[edge] = sample.value
    sums = {_labels(sample.labels): sample.value for sample in family.samples if sample.name.endswith("_sum")}
    created = _created(family)
    for labels, buckets in within.items():
        edges = sorted(buckets)
        counts = tuple(high - low for low, high in pairwise(chain([0], map(buckets.__getitem__, edges))))
        if edges[-1] == math.inf and all(0 <= count < math.inf for count in counts):
            whole = tuple(map(int, counts))
            total = float(sums.get(labels, 0.0))
            yield NativeSeries(family.name, "histogram", labels, total, tuple(edges[:-1]), whole, created.get(labels))


def _edge(text: str) -> float | None:
    """Return the upper bound of a bucket, `None` where it tells none: any library may have written the page."""
    try:
        edge = float(text)
    except ValueError:
        return None
    return None if math.isnan(edge) else edge


def _created(family: NativeMetric) -> dict[Labels, float]:
    return {_labels(sample.labels): sample.value for sample in family.samples if sample.name.endswith("_created")}


def _labels(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, fit(value)) for name, value in labels.items()))


TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
END = ("# EOF", "# EOF\n")
"""How OpenMetrics ends."""
LONGEST_REASON = 800
"""Characters of why a page cannot be had; they hold two URLs and a peer's words at most."""
MOST_SHOWN = 100
"""Characters of a line that an error shows."""
LONGEST_LINE = 2**15
"""Characters; the parsers take time that grows with the square of a line's length."""
MOST_LINES = 250_000
"""Each takes some hundred bytes of memory once it is parsed; 64 engines make a page of some 30,000."""
HEAD = re.compile(r"# (?:HELP|TYPE|UNIT) (\S+)")
SAMPLE = r"(?=(?:_total|_created|_bucket|_count|_sum|_info|_gcount|_gsum)?[{ ])"
COUNTING = ("counter", "histogram", "summary")

LONGEST_REASON = 800
"""Characters of why a page cannot be had; they hold two URLs and a peer's words at most."""


class PageError(Exception):
    """A page is no page of metrics; the text says in which line, what came and what was expected."""


class _Lines:
    """The lines of a page, one by one, so that it is known which of them a parser was given last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.number = 0
        self.latest = ""

    def __iter__(self) -> Iterator[str]:
        start = 0
        while start < len(self._text):
            end = self._text.find("\n", start) + 1 or len(self._text)
            self.number += 1
            if end - start > LONGEST_LINE:
                raise PageError(f"line {self.number} is longer than {LONGEST_LINE} characters")
            if self.number > MOST_LINES:
                raise PageError(f"it has more than {MOST_LINES} lines")
            line = self._text[start:end]
            self.latest = line.rstrip("\n")
            checkpoint()
            yield line
            start = end


def fetch(url: str, timeout: float, trust: Trust | None = None) -> list[NativeMetric]:
    """Return the families of the page at a URL, which must come within so many seconds.

    `trust`: the system's roots unless it is given.

    Raises:
        DownloadError: when there is no page.
        PageError: when it is none of metrics. Neither shows a secret of the URL, which a server may send back.
    """
    try:
        page = download(url, timeout, trust=trust)
    except DownloadError as error:
        raise DownloadError(_without_secrets(url, error)) from error.__cause__
    try:
        return parse(page.content, page.type)
    except PageError as error:
        raise PageError(f"{shown(url)}: {_without_secrets(url, error)}") from None  # its own words may hold one


def _without_secrets(url: str, error: Exception) -> str:
    return clean(Redactor(of_url(url)).clean(str(error)), LONGEST_REASON)


def parse(content: bytes, content_type: str) -> list[NativeMetric]:
    """Return the families of a page, in the format that its Content-Type, or its last line, says.

    Raises:
        PageError: when anything in it is malformed: who believes the half of a page takes the rest for gone.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in (TEXT, OPENMETRICS, ""):
        raise PageError(f"it is {clean(kind, MOST_SHOWN)}; expected {TEXT} or {OPENMETRICS}")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise PageError(f"it is no UTF-8: {error}") from error
    if kind == OPENMETRICS or text.endswith(END):
        return _families(text, _openmetrics_families)
    if not text.endswith("\n"):
        raise PageError(f"it ends in the middle of a line: {_quoted(text[text.rfind(chr(10)) + 1 :])}")
    return list(_whole(_families(text, text_families)))


def _families(text: str, parser: Callable[[Any], Iterable[NativeMetric]]) -> list[NativeMetric]:
    lines = _Lines(text)
    try:
        found = list(parser(lines))
    except PageError:
        raise
    except Exception as error:  # the parsers raise whatever their code runs into
        what = f"line {lines.number} is not as it should be: {_quoted(lines.latest)}"
        raise PageError(f"{what} ({type(error).__name__}: {clean(str(error), MOST_SHOWN)})") from error
    if not found:
        raise PageError(f"it has no metric; it begins with {_quoted(text)}")
    return found


def _quoted(text: str) -> str:
    """Return the beginning of a text that the page holds."""
    return shown_value(text[:MOST_SHOWN], 2 * MOST_SHOWN)


def _openmetrics_families(lines: Iterable[str]) -> Iterable[NativeMetric]:
    found: Iterable[NativeMetric] = openmetrics_families(_repaired(lines))  # type: ignore[no-untyped-call]
    return found


def _repaired(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines of OpenMetrics with the samples named as their family is.

    `prometheus_client` from 0.23 on writes `# TYPE vllm:x`, then samples of `vllm_x`, unless a scraper asks otherwise.
    """
    wrong: re.Pattern[str] | None = None
    right = ""
    for line in lines:
        if head := HEAD.match(line):
            right = head[1]
            wrong = re.compile(re.escape(right.replace(":", "_")) + SAMPLE) if ":" in right else None
        elif wrong and wrong.match(line):
            line = right + line[len(right) :]  # noqa: PLW2901
        yield line


def _whole(families: Iterable[NativeMetric]) -> Iterator[NativeMetric]:
    """Yield families of the text format with the times at which they began; it shows those as families of gauges."""
    latest: NativeMetric | None = None
    for family in families:
        if latest and latest.type in COUNTING and family.name == f"{latest.name}_created":
            latest.samples += family.samples
        else:
            if latest:
                yield latest
            latest = family
    if latest:
        yield latest


class Page:
    """The latest page of a URL, in the shape of a registry."""

    def __init__(self, url: str, timeout: float, trust: Trust | None = None) -> None:
        keep_out(Redactor(of_url(url)))
        self._url = url
        self._timeout = timeout
        self._trust = trust or Trust()
        keep_out(Redactor(of_url(url)))
        self._families: list[NativeMetric] = []
        self.time = 0.0
        """Unix time at which it came, 0 when none did yet."""

    def refresh(self) -> None:
        """Get the page anew; when that fails the one before stays.

        Raises:
            DownloadError, PageError: as `fetch` does.
        """
        self._families = fetch(self._url, self._timeout, self._trust)
        self.time = time.time()

    def fresh(self) -> "Page":
        """Return this page as it is now.

        Raises:
            DownloadError, PageError: as `fetch` does.
        """
        with paced():
            self.refresh()
        return self

    def collect(self) -> list[NativeMetric]:
        """Return the families of the latest page."""
        return self._families
