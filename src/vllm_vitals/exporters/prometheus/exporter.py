"""The scrape endpoint: `/metrics`, `/healthz` and `/readyz` on our own port, off vLLM's event loop."""

import errno
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from prometheus_client import REGISTRY

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.log import LOGGER
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import PrometheusSettings
from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.exporters.prometheus.app import Page, ScrapeApp
from vllm_vitals.exporters.prometheus.registry import VitalsCollector
from vllm_vitals.exporters.prometheus.server import Server
from vllm_vitals.exporters.prometheus.tls import RELOAD_INTERVAL_SECONDS, Certificates

MAX_HOST_LENGTH = 100
MAX_REASON_LENGTH = 300
"""Characters in the log."""


class PrometheusExporter:
    """The scrape endpoint. While it cannot listen, it retries. vLLM never waits for it."""

    def __init__(
        self,
        aggregator: Aggregator,
        settings: PrometheusSettings,
        problem: Callable[[], str],
        native_registry: Callable[[], Any] | None = None,
        ended: Callable[[], str] | None = None,
    ) -> None:
        """`problem`, `ended`: see `ScrapeApp`. `native_registry` gives the registry behind vLLM's own /metrics."""
        self._settings = settings
        self._joined = VitalsCollector(aggregator) if settings.join_native else None
        self._server: Server[Page] | None = None
        self._stopped = threading.Event()
        self._app = ScrapeApp(aggregator, problem, native_registry if settings.include_native else None, ended)

    @property
    def ports(self) -> list[int]:
        """Return the ports in use; empty while the endpoint cannot listen."""
        return self._server.ports if self._server else []

    def start(self) -> None:
        """Start listening, on another thread: even the lookup of a host name may take seconds."""
        if self._joined:
            REGISTRY.register(self._joined)
        threading.Thread(target=self._listen, name="vitals-prometheus", daemon=True).start()

    def stop(self) -> None:
        """Stop listening and leave vLLM's page. Requests in progress end with the process."""
        self._stopped.set()
        if self._joined:
            with suppress(KeyError):
                REGISTRY.unregister(self._joined)
        self._close()
        self._app.close()

    def after_fork_in_child(self) -> None:
        """Close the copied sockets in the child of a fork, so that the port is free when the parent ends."""
        if self._joined:
            self._joined.closed = True
        if self._server:
            self._server.after_fork_in_child()

    def _close(self) -> None:
        if self._server:
            self._server.close()

    def _listen(self) -> None:
        last_logged, host = "", clean(self._settings.host, MAX_HOST_LENGTH)
        while not self._stopped.is_set():
            try:
                certificates = Certificates(self._settings) if self._settings.tls_cert else None
                self._server = listen(self._settings, self._app, certificates)
            except Exception as error:  # noqa: BLE001 - vLLM goes on serving, and we retry
                message = clean(f"{type(error).__name__}: {error}", MAX_REASON_LENGTH)
                if message != last_logged:
                    LOGGER.error(
                        "No scrape endpoint on %s:%d (prometheus.host, prometheus.port): %s. Serving goes on; retrying "
                        "every %g s",
                        host,
                        self._settings.port,
                        message,
                        self._settings.retry_interval,
                    )
                    last_logged = message
                self._stopped.wait(self._settings.retry_interval)
                continue
            if self._stopped.is_set():
                self._close()
                return
            scheme = "https" if certificates else "http"
            LOGGER.info("Scrape endpoint: %s://%s:%d/metrics", scheme, host, self.ports[0])
            while certificates and not self._stopped.wait(RELOAD_INTERVAL_SECONDS):
                certificates.refresh()
            return


def listen(settings: PrometheusSettings, app: ScrapeApp, certificates: Certificates | None) -> Server[Page]:
    """Return a running server on every address of the host; `certificates`: `None` without TLS.

    Raises:
        OSError: when the host is unknown, or the port is taken.
    """
    listeners: list[socket.socket] = []
    with ExitStack() as failed:
        for address in addresses(settings.host):
            try:
                listener = _bind(address, listeners[0].getsockname()[1] if listeners else settings.port)
            except OSError as error:
                # The first address is required. A second one is optional: not every container has IPv6.
                if not listeners:
                    raise
                _log_missing(address, listeners[0].getsockname(), error)
            else:
                listeners.append(failed.enter_context(listener))
        server = Server(listeners, app, certificates)
        server.start()
        failed.pop_all()
    return server


def _log_missing(address: str, first: tuple[Any, ...], error: OSError) -> None:
    taken = error.errno == errno.EADDRINUSE
    LOGGER.log(
        logging.WARNING if taken else logging.INFO,
        "The scrape endpoint listens on %s port %d, but not also on %s: %s%s",
        first[0],
        first[1],
        address,
        error,
        ". A scraper that uses this address reaches another process" if taken else "",
    )


def addresses(host: str) -> list[str]:
    """Return the addresses of a host, IPv4 first. `localhost` may be both 127.0.0.1 and ::1.

    Raises:
        OSError: when it has none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    return sorted({str(sockaddr[0]) for *_, sockaddr in found}, key=lambda address: ":" in address)


def _bind(address: str, port: int) -> socket.socket:
    """Return a listening socket. `address` is numeric, so no name is looked up."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit these. Otherwise the kernel would buffer megabytes for each.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.SEND_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.RECEIVE_BYTES)
        listener.bind((address, port))
        listener.listen(limits.BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
