"""`vllm-vitals sidecar`: the collector as a process of its own."""

import logging
import os
import select
import signal
import sys
from pathlib import Path

from vllm_vitals._util.log import LOGGER
from vllm_vitals.config.load import SettingsError, load
from vllm_vitals.deployment.sidecar import NativeSidecar, StepSidecar

WRONG_SETTINGS = 2
NO_SOCKET = 1
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end it in order: also when its terminal is closed."""


def run(socket: Path | None, native_url: str | None) -> int:
    """Run until a signal asks to end; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ended = _signals()
    try:
        sidecar = _sidecar(socket, native_url)
        sidecar.start()
    except SettingsError as error:
        for line in str(error).splitlines():
            LOGGER.error("%s", line)
        return WRONG_SETTINGS
    except OSError as error:
        LOGGER.error("The sidecar cannot start: %s", error)
        return NO_SOCKET
    ended.poll()
    sidecar.stop()
    for (
        number
    ) in ENDS:  # Python puts their usual effect back before the process is gone, and its exit code would be theirs
        signal.signal(number, signal.SIG_IGN)
    LOGGER.info("Sidecar ended")
    return 0


def _signals() -> select.poll:
    """Return what can be polled until the first signal that asks to end; later ones change nothing."""
    # Python's own handler runs only once this thread does: a signal that comes just before it waits would wake nobody.
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in ENDS:
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:  # as after nohup
            signal.signal(number, lambda *_: None)
    ended = select.poll()
    ended.register(reader, select.POLLIN)
    return ended


def _sidecar(socket: Path | None, native_url: str | None) -> StepSidecar | NativeSidecar:
    given = {} if socket is None else {"VITALS_WIRE__SIDECAR": str(socket.absolute())}
    given |= {} if native_url is None else {"VITALS_NATIVE__URL": native_url}
    loaded = load({**os.environ, **given})
    for warning in loaded.warnings:
        LOGGER.warning("%s", warning)
    settings = loaded.settings
    if settings.wire.sidecar is not None and settings.native.url is not None:
        raise SettingsError("wire.sidecar and native.url are both set: a sidecar takes steps or fetches, not both")
    if settings.wire.sidecar is not None:
        return StepSidecar(settings, settings.wire.sidecar)
    if settings.native.url is not None:
        return NativeSidecar(settings, settings.native.url)
    raise SettingsError(
        "neither wire.sidecar nor native.url is set: give the socket by --socket (VITALS_WIRE__SIDECAR), or "
        "vLLM's /metrics by --native-url (VITALS_NATIVE__URL)"
    )
