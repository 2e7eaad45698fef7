"""OpenTelemetry's libraries kept from telling what we tell ourselves, or must not be told."""

import logging
import threading

from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, attach, detach, set_value

LOGGERS = ("opentelemetry.exporter.otlp.proto.common._internal.metrics_encoder",)
"""Those that the encoder of any release writes to."""


class quiet:  # noqa: N801 - reads as a statement
    """Keeps the encoder's own log lines of this thread out: we say the same once, not at every interval.

    Nor does gRPC's client tell of itself where somebody has instrumented it: a push is no work of vLLM's.
    """

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self._passes)
        self._context = attach(set_value(_SUPPRESS_INSTRUMENTATION_KEY, value=True))

    def __exit__(self, *_: object) -> None:
        detach(self._context)
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self._passes)

    def _passes(self, record: logging.LogRecord) -> bool:
        return record.thread != self._thread
