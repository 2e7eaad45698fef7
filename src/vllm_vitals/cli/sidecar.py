"""`vllm-vitals sidecar`: the collector in a separate process."""

import logging
import os
import select
import signal
import sys
from pathlib import Path

from vllm_vitals._util.log import LOGGER
from vllm_vitals.config.load import SettingsError, load
from vllm_vitals.deployment.sidecar import NativeSidecar, StepSidecar, sidecar
from vllm_vitals.deployment.topology import of_sidecar

EXIT_WRONG_SETTINGS = 2
EXIT_NO_SOCKET = 1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that stop it in order. SIGHUP comes when its terminal is closed."""


def run(socket: Path | None, native_url: str | None) -> int:
    """Run until a signal to stop; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    stopped = _stop_signals()
    try:
        running = _make(socket, native_url)
        running.start()
    except SettingsError as error:
        for line in str(error).splitlines():
            LOGGER.error("%s", line)
        return EXIT_WRONG_SETTINGS
    except OSError as error:
        LOGGER.error("The sidecar cannot start: %s", error)
        return EXIT_NO_SOCKET
    stopped.poll()
    running.stop()
    # Python restores the default handlers before the process ends. A late signal would then set the exit code.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    LOGGER.info("Sidecar stopped")
    return 0


def _stop_signals() -> select.poll:
    """Return a poll object that becomes ready with the first signal to stop. Later signals change nothing."""
    # Python's handlers run only when this thread does. A signal just before the wait would be missed without this pipe.
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in STOP_SIGNALS:
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:  # ignored after nohup
            signal.signal(number, lambda *_: None)
    stopped = select.poll()
    stopped.register(reader, select.POLLIN)
    return stopped


def _make(socket: Path | None, native_url: str | None) -> StepSidecar | NativeSidecar:
    given = {} if socket is None else {"VITALS_WIRE__SIDECAR": str(socket.absolute())}
    given |= {} if native_url is None else {"VITALS_NATIVE__URL": native_url}
    loaded = load({**os.environ, **given})
    for warning in loaded.warnings:
        LOGGER.warning("%s", warning)
    return sidecar(loaded.settings, of_sidecar(loaded.settings))
