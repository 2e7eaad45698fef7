"""The scrape endpoint: `/metrics` and `/healthz` on our own port, off vLLM's event loop."""

import socket
import threading
from collections.abc import Callable
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.exposition import _SilentHandler

from vllm_vitals.exporters.registry import VitalsCollector
from vllm_vitals.exporters.web import ScrapeApp
from vllm_vitals.logs import LOGGER
from vllm_vitals.runtime import Runtime
from vllm_vitals.settings import PrometheusSettings

SLOWEST_CLIENT = 10.0
"""Seconds that a client may take to send its request or to read its answer."""


class Handler(_SilentHandler):
    """Answers one connection, and gives a client that stalls up."""

    timeout = SLOWEST_CLIENT


class PrometheusExporter:
    """Listens, and keeps trying to while it cannot; serving never waits for it."""

    def __init__(self, host: Runtime, rank: int, native_registry: Callable[[], Any]) -> None:
        """`rank`: of this API server; each listens on a port of its own, counted from the set one."""
        self._settings = host.settings.prometheus
        self._host = host
        self._port = self._settings.port + rank if self._settings.port else 0
        self._native_registry = native_registry
        self._servers: list[WSGIServer] = []
        self._stopped = threading.Event()
        self._app = ScrapeApp(host.collector, host.feed, native_registry if self._settings.include_native else None)

    @property
    def ports(self) -> list[int]:
        """Return the ports that are listened on, none while none could be had."""
        return [server.server_port for server in self._servers]

    def start(self) -> None:
        """Begin listening, on another thread: even to look a host name up may take seconds."""
        if self._settings.join_native:
            REGISTRY.register(VitalsCollector(self._host.collector))
        threading.Thread(target=self._listen, name="vitals-prometheus", daemon=True).start()

    def stop(self) -> None:
        """Close the sockets; requests in progress end with the process."""
        self._stopped.set()
        for server in self._servers:
            # `shutdown` waits for the server to look up, up to half a second: not on our time.
            threading.Thread(target=server.shutdown, daemon=True).start()
            server.server_close()

    def abandon(self) -> None:
        """Close what a fork copied of the sockets, so that the port goes free with the parent."""
        self._stopped.set()
        for server in self._servers:
            server.socket.close()

    def _listen(self) -> None:
        said = ""
        while not self._stopped.is_set():
            try:
                self._servers = listen(self._settings, self._port, self._app)
            except Exception as error:  # noqa: BLE001 - whatever it is, serving goes on and so do we
                message = f"{type(error).__name__}: {error}"
                if message != said:
                    LOGGER.error(
                        "No scrape endpoint on %s:%d (prometheus.host, prometheus.port): %s. Serving goes on; trying "
                        "again every %g s", self._settings.host, self._port, message, self._settings.retry_interval,
                    )  # fmt: skip
                    said = message
                self._stopped.wait(self._settings.retry_interval)
                continue
            scheme = "https" if self._settings.tls_cert else "http"
            LOGGER.info("Scrape endpoint: %s://%s:%d/metrics", scheme, self._settings.host, self.ports[0])
            return


def listen(settings: PrometheusSettings, port: int, app: ScrapeApp) -> list[WSGIServer]:
    """Return running servers, one for each address of the host; `localhost` may be both 127.0.0.1 and ::1.

    Raises:
        OSError: when the host is unknown, the port is taken, or a TLS file cannot be used.
    """
    found = socket.getaddrinfo(settings.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = sorted({str(sockaddr[0]) for *_, sockaddr in found}, key=lambda address: ":" in address)
    servers: list[WSGIServer] = []
    for address in addresses:
        try:
            servers.append(_serve(settings, address, servers[0].server_port if servers else port, app))
        except OSError:
            # The first address must do; a second is a courtesy that not every container can have.
            if not servers:
                raise
    return servers


def _serve(settings: PrometheusSettings, address: str, port: int, app: ScrapeApp) -> WSGIServer:
    server, _ = start_http_server(
        port,
        addr=address,
        registry=CollectorRegistry(),
        certfile=str(settings.tls_cert) if settings.tls_cert else None,
        keyfile=str(settings.tls_key) if settings.tls_key else None,
        client_cafile=str(settings.tls_client_ca) if settings.tls_client_ca else None,
        client_auth_required=settings.tls_client_ca is not None,
    )
    if settings.tls_cert:
        # Shake hands on the connection's own thread: a client that never does would block every other.
        server.socket.do_handshake_on_connect = False  # type: ignore[attr-defined]
    server.RequestHandlerClass = Handler
    server.set_app(app)
    return server
