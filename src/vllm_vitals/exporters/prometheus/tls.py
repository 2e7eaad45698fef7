"""The TLS side of the scrape endpoint: its files are read anew when they change, as certificates do that expire."""

import ssl

from vllm_vitals._util.files import State, state
from vllm_vitals._util.log import LOGGER
from vllm_vitals.config.settings import PrometheusSettings

RELOAD_INTERVAL_SECONDS = 10.0
"""Time between two checks for changed TLS files."""


class Certificates:
    """The files that the settings name, and what was made of them."""

    def __init__(self, settings: PrometheusSettings) -> None:
        """Read the files.

        Raises:
            OSError: when one cannot be used; the message names it.
        """
        self._settings = settings
        self._refused: State = ()
        self._read = self._state()
        self.context = tls_context(settings)
        """For the connections to come; those that there are keep theirs."""

    def refresh(self) -> None:
        """Read the files anew if they are others than before; what cannot be used is told once, and tried again."""
        state = self._state()
        if state == self._read:
            return
        try:
            self.context = tls_context(self._settings)
        except OSError as error:
            if state != self._refused:
                LOGGER.error("The TLS files of the scrape endpoint have changed and cannot be used; it stays with "
                             "those before: %s", error)  # fmt: skip
            self._refused = state
            return
        self._read = state
        LOGGER.info("The TLS files of the scrape endpoint have changed and are read anew: %s", self._settings.tls_cert)

    def _state(self) -> State:
        settings = self._settings
        return state((settings.tls_cert, settings.tls_key, settings.tls_client_ca))


def tls_context(settings: PrometheusSettings) -> ssl.SSLContext:
    """Return a server's context.

    Raises:
        OSError: when a file cannot be used; the message names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # each would cost us far more than the client
    files = f"tls_cert={settings.tls_cert}, tls_key={settings.tls_key}"
    try:
        # With a password OpenSSL asks nobody for that of a key which is encrypted.
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
