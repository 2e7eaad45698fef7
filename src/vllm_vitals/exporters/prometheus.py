"""The scrape endpoint: `/metrics`, `/healthz` and `/readyz` on our own port, off vLLM's event loop."""

import errno
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import make_server

from prometheus_client import REGISTRY
from prometheus_client.exposition import ThreadingWSGIServer, _SilentHandler

from vllm_vitals.collector.collector import Collector
from vllm_vitals.exporters.registry import VitalsCollector
from vllm_vitals.exporters.tls import Certificates
from vllm_vitals.exporters.web import ScrapeApp
from vllm_vitals.logs import LOGGER, log_once
from vllm_vitals.settings import PrometheusSettings

SLOWEST_CLIENT = 10.0
"""Seconds that a client may take to send its request or to read its answer."""
SLOWEST_ANSWER = 60.0
"""Seconds that a connection may last in all."""
MOST_CLIENTS = 128
"""Connections at once; more are closed."""
LOOK = 10.0
"""Seconds between two looks whether the TLS files have changed."""


class Handler(_SilentHandler):
    """Answers one connection, and gives a client that stalls up."""

    timeout = SLOWEST_CLIENT


class _ClosedError(Exception):
    """The server was told to end."""


class Server(ThreadingWSGIServer):
    """`prometheus_client`'s server with room for many clients, each of whom may misbehave without a word."""

    request_queue_size = 128

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.closing = False
        self.certificates: Certificates | None = None
        self._open: dict[socket.socket, float] = {}
        """Connections and the monotonic seconds by which they have to be done."""

    def serve(self) -> None:
        """Answer until told to end."""
        with suppress(_ClosedError):
            self.serve_forever()

    def service_actions(self) -> None:
        """Look after connections; called after each of them and twice a second."""
        if self.closing:
            raise _ClosedError
        now = time.monotonic()
        for connection in [connection for connection, end in list(self._open.items()) if end < now]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Return the next connection. With TLS, hands are shaken on its own thread: some clients never do."""
        connection, address = super().get_request()
        if self.certificates is not None:
            try:
                context = self.certificates.context
                connection = context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except OSError:
                connection.close()
                raise
        return connection, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection on a thread of its own, unless there are too many."""
        if len(self._open) >= MOST_CLIENTS:
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic() + SLOWEST_ANSWER
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Say nothing of clients that hang up, stall or speak no TLS; anything else is logged once."""
        if not isinstance(sys.exc_info()[1], OSError):
            log_once(logging.ERROR, "A request of the scrape endpoint failed", traceback=True)


class PrometheusExporter:
    """Listens, and keeps trying to while it cannot; serving never waits for it."""

    def __init__(
        self,
        collector: Collector,
        settings: PrometheusSettings,
        problem: Callable[[], str],
        native_registry: Callable[[], Any] | None = None,
        ended: Callable[[], str] | None = None,
    ) -> None:
        """`problem`, `ended`: see `ScrapeApp`. `native_registry` gives the registry behind vLLM's own /metrics."""
        self._settings = settings
        self._joined = VitalsCollector(collector) if settings.join_native else None
        self._servers: list[Server] = []
        self._stopped = threading.Event()
        self._app = ScrapeApp(collector, problem, native_registry if settings.include_native else None, ended)

    @property
    def ports(self) -> list[int]:
        """Return the ports that are listened on, none while none could be had."""
        return [server.server_port for server in self._servers]

    def start(self) -> None:
        """Begin listening, on another thread: even to look a host name up may take seconds."""
        if self._joined:
            REGISTRY.register(self._joined)
        threading.Thread(target=self._listen, name="vitals-prometheus", daemon=True).start()

    def stop(self) -> None:
        """Close the sockets and leave vLLM's page; requests in progress end with the process."""
        self._stopped.set()
        if self._joined:
            with suppress(KeyError):
                REGISTRY.unregister(self._joined)
        self._close()
        self._app.close()

    def abandon(self) -> None:
        """Close what a fork copied of the sockets, so that the port goes free with the parent."""
        if self._joined:
            self._joined.closed = True
        for server in self._servers:
            server.socket.close()

    def _close(self) -> None:
        for server in self._servers:
            server.closing = True
            server.server_close()

    def _listen(self) -> None:
        said = ""
        while not self._stopped.is_set():
            try:
                certificates = Certificates(self._settings) if self._settings.tls_cert else None
                self._servers = listen(self._settings, self._app, certificates)
            except Exception as error:  # noqa: BLE001 - whatever it is, serving goes on and so do we
                message = f"{type(error).__name__}: {error}"
                if message != said:
                    LOGGER.error(
                        "No scrape endpoint on %s:%d (prometheus.host, prometheus.port): %s. Serving goes on; trying "
                        "again every %g s", self._settings.host, self._settings.port, message, self._settings.retry_interval,
                    )  # fmt: skip
                    said = message
                self._stopped.wait(self._settings.retry_interval)
                continue
            if self._stopped.is_set():
                self._close()
                return
            scheme = "https" if certificates else "http"
            LOGGER.info("Scrape endpoint: %s://%s:%d/metrics", scheme, self._settings.host, self.ports[0])
            while certificates and not self._stopped.wait(LOOK):
                certificates.refresh()
            return


def listen(settings: PrometheusSettings, app: ScrapeApp, certificates: Certificates | None) -> list[Server]:
    """Return running servers, one for each address of the host; `certificates`: `None` without TLS.

    Raises:
        OSError: when the host is unknown, or the port is taken.
    """
    servers: list[Server] = []
    for address in addresses(settings.host):
        try:
            servers.append(_bind(address, servers[0].server_port if servers else settings.port, app))
        except OSError as error:
            # The first address must do; a second is a courtesy that not every container can have.
            if not servers:
                raise
            _tell_missing(address, servers[0], error)
    for server in servers:
        server.certificates = certificates
        threading.Thread(target=server.serve, name="vitals-scrapes", daemon=True).start()
    return servers


def _tell_missing(address: str, first: Server, error: OSError) -> None:
    taken = error.errno == errno.EADDRINUSE
    LOGGER.log(
        logging.WARNING if taken else logging.INFO,
        "Scrape endpoint: it listens on %s port %d, but not on %s as well: %s%s",
        first.server_address[0],
        first.server_port,
        address,
        error,
        ". A scraper that takes this address reaches another process" if taken else "",
    )


def addresses(host: str) -> list[str]:
    """Return the addresses of a host, IPv4 first; `localhost` may be both 127.0.0.1 and ::1.

    Raises:
        OSError: when it has none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    return sorted({str(sockaddr[0]) for *_, sockaddr in found}, key=lambda address: ":" in address)


def _bind(address: str, port: int, app: ScrapeApp) -> Server:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = type("Server", (Server,), {"address_family": family})
    return make_server(address, port, app, kind, handler_class=Handler)
