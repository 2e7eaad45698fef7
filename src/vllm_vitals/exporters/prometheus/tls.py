"""TLS of the scrape endpoint. Its files are reloaded when they change, as with renewed certificates."""

import ssl

from vllm_vitals._util.files import State, state
from vllm_vitals._util.log import LOGGER
from vllm_vitals.config.settings import PrometheusSettings

RELOAD_INTERVAL_SECONDS = 10.0
"""Time between two checks for changed TLS files."""


class Certificates:
    """The TLS files of the settings, and the context made from them."""

    def __init__(self, settings: PrometheusSettings) -> None:
        """Read the files.

        Raises:
            OSError: when one cannot be used; the message names it.
        """
        self._settings = settings
        self._refused: State = ()
        self._read = self._state()
        self.context = tls_context(settings)
        """For new connections. Present connections keep theirs."""

    def refresh(self) -> None:
        """Reload the files if they have changed. An error is logged once, and the next call retries."""
        state = self._state()
        if state == self._read:
            return
        try:
            self.context = tls_context(self._settings)
        except OSError as error:
            if state != self._refused:
                LOGGER.error(
                    "The TLS files of the scrape endpoint have changed but cannot be used; it keeps the previous ones: %s",
                    error,
                )
            self._refused = state
            return
        self._read = state
        LOGGER.info("The TLS files of the scrape endpoint have changed and were reloaded: %s", self._settings.tls_cert)

    def _state(self) -> State:
        settings = self._settings
        return state((settings.tls_cert, settings.tls_key, settings.tls_client_ca))


def tls_context(settings: PrometheusSettings) -> ssl.SSLContext:
    """Return a server's context.

    Raises:
        OSError: when a file cannot be used; the message names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # each costs us far more than the client
    files = f"tls_cert={settings.tls_cert}, tls_key={settings.tls_key}"
    try:
        # With a password given, OpenSSL does not prompt for the password of an encrypted key.
        context.load_cert_chain(str(settings.tls_cert), settings.tls_key, password="")
    except OSError as error:
        raise OSError(f"{files}: {error}") from error
    if settings.tls_client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise OSError(f"tls_client_ca={settings.tls_client_ca}: {error}") from error
    return context
