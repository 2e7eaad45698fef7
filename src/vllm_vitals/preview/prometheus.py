"""Queries to a Prometheus, or what speaks its HTTP API."""

import http.client
import json
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.redact import Redactor, of_url, shown_url

TIMEOUT = 30
"""Seconds for an answer."""
MOST_BYTES = 64 * 2**20
"""The largest answer."""
MOST_OF_AN_ERROR = 65536
"""Bytes of an answer that says what went wrong that are read."""
MOST_OF_A_MESSAGE = 500
NO_ANSWER = "this is no answer of a Prometheus"


class PrometheusError(Exception):
    """A Prometheus could not be asked, or would not answer; the message says why."""


class NotDrawnError(Exception):
    """An answer is of a kind that is not drawn here; the message says which."""


@dataclass(frozen=True)
class Series:
    """Labels, and values by their time (Unix seconds)."""

    labels: dict[str, str]
    points: Sequence[tuple[float, float]]


class Prometheus:
    """A Prometheus at a URL, which may hold a user and a password; raise `ValueError` when it is none."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{shown_url(url)!r} must be a URL such as http://localhost:9090")
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._redactor = Redactor(of_url(url))
        self._headers = {}
        if parts.username:
            who = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {b64encode(who.encode()).decode()}"

    def check(self) -> None:
        """Raise `PrometheusError` unless it answers."""
        self._ask("query", query="vector(1)")

    def instant(self, query: str, at: float) -> list[Series]:
        """Return the values of a query at a moment."""
        return [_series(each, [each.get("value")]) for each in self._ask("query", query=query, time=at)]

    def over(self, query: str, begin: int, end: int, step: int) -> list[Series]:
        """Return the values of a query from one moment to another."""
        found = self._ask("query_range", query=query, start=begin, end=end, step=step)
        return [_series(each, each.get("values")) for each in found]

    def _ask(self, what: str, **parameters: object) -> list[dict[str, Any]]:
        """Return the series of an answer; asked by POST, since a URL may be too short for a query."""
        url = f"{self._url}/api/v1/{what}"
        try:
            request = urllib.request.Request(url, urlencode(parameters).encode())  # noqa: S310 - http or https
            for name, value in self._headers.items():
                request.add_unredirected_header(name, value)  # for this host alone, not for one it redirects to
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
                text = answer.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise PrometheusError(self._shown(_reason(error))) from error
        except (OSError, http.client.HTTPException) as error:
            raise PrometheusError(self._shown(str(getattr(error, "reason", "") or error))) from error
        if len(text) > MOST_BYTES:
            raise PrometheusError(f"its answer has more than {MOST_BYTES} bytes")
        return _result(text)

    def _shown(self, said: str) -> str:
        return clean(self._redactor.clean(said), MOST_OF_A_MESSAGE)


def _result(text: bytes) -> list[dict[str, Any]]:
    try:
        data = json.loads(text)["data"]
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        return list(data["result"])
    except (ValueError, KeyError, TypeError) as error:
        raise PrometheusError(NO_ANSWER) from error


def _series(found: dict[str, Any], points: Any) -> Series:
    if points in (None, [None]):
        raise NotDrawnError("native histograms are not drawn here")
    try:
        return Series(dict(found["metric"]), [(float(time), float(value)) for time, value in points])
    except (KeyError, TypeError, ValueError) as error:
        raise PrometheusError(NO_ANSWER) from error


def _reason(error: urllib.error.HTTPError) -> str:
    text = error.read(MOST_OF_AN_ERROR).decode(errors="replace")
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code} {error.reason}"
