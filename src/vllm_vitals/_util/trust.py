"""Which servers are trusted with a page, and how we prove who asks: the files are read anew when they change."""

import ssl
from pathlib import Path

from vllm_vitals._util.bounds import clean
from vllm_vitals._util.files import State, state
from vllm_vitals._util.log import LOGGER

LONGEST_REASON = 300


class Trust:
    """TLS contexts, made of the files that the settings name; of the system's roots where they name no CA.

    For one thread.
    """

    def __init__(self, ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> None:
        """Take note of the files; they are read when the first connection needs them."""
        self._ca = ca
        self._cert = cert
        self._key = key
        self._contexts: dict[bool, tuple[State, ssl.SSLContext]] = {}
        """By whether we prove who we are: the state of the files, and what was made of them."""
        self._refused: State = ()

    def context(self, *, proves: bool) -> ssl.SSLContext:
        """Return what a connection needs; `proves`: the server is the one that the client certificate is for.

        Files that have changed and cannot be used are told of once, and those before stay in force.

        Raises:
            OSError: when a file cannot be used and never could; the message names it.
        """
        proves = proves and self._cert is not None
        state = self._state()
        known = self._contexts.get(proves)
        if known is not None and known[0] == state:
            return known[1]
        try:
            made = self._make(proves=proves)
        except OSError as error:
            if known is None:
                raise
            if state != self._refused:
                LOGGER.error("The TLS files for vLLM's page have changed and cannot be used; those before stay in force: "
                             "%s", error)  # fmt: skip
            self._refused = state
            return known[1]
        self._contexts[proves] = state, made
        if known is not None:
            LOGGER.info("The TLS files for vLLM's page have changed and are read anew")
        return made

    def _make(self, *, proves: bool) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._ca)
        except OSError as error:
            raise OSError(f"tls_ca={self._ca}: {clean(str(error), LONGEST_REASON)}") from None
        if proves and self._cert is not None:
            try:
                # With a password OpenSSL asks nobody for that of a key which is encrypted.
                context.load_cert_chain(self._cert, self._key, password="")
            except OSError as error:
                files = f"tls_cert={self._cert}, tls_key={self._key}"
                raise OSError(f"{files}: {clean(str(error), LONGEST_REASON)}") from None
        return context

    def _state(self) -> State:
        system = ssl.get_default_verify_paths()
        roots = (self._ca,) if self._ca else (system.cafile, system.capath)
        return state((*roots, self._cert, self._key))
