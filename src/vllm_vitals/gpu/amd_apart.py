"""The process that asks AMD SMI, from the side of whoever asks.

In this one vLLM itself opens and closes AMD SMI, which in many releases does not count who has opened it: closing it for
one takes it from all, and opening it again and again has crashed. A process of its own can be given up when it hangs.
"""

import os
import select
import subprocess
import sys
import time
from contextlib import suppress

from msgspec import MsgspecError

from vllm_vitals.gpu import amd_messages as messages
from vllm_vitals.gpu.source import DownError

OPENING, READING = 60.0, 10.0
"""Seconds that opening the library, and a reading, may take."""
PARTING = 0.5
"""Seconds that the process has for its end."""
PIECE = 65536
PROGRAM = (sys.executable, "-m", "vllm_vitals.gpu.amd_process")


class Process:
    """A process that can be started anew. For one thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: messages.Request) -> messages.Answer:
        """Return the answer to a request; raises DownError when there is none."""
        if self._process is None:
            self._process = _start()
        patience = READING if request.device else OPENING
        try:
            return self._exchange(self._process, messages.encode(request), patience)
        except DownError:
            self.close()
            raise

    def close(self) -> None:
        """End the process; never raises."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()
        try:
            process.wait(PARTING)
        except subprocess.TimeoutExpired:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PARTING)

    def _exchange(self, process: subprocess.Popen[bytes], content: bytes, patience: float) -> messages.Answer:
        if process.stdin is None or process.stdout is None:
            raise DownError("the process that asks AMD SMI has no pipes")
        deadline = time.monotonic() + patience
        try:
            process.stdin.write(messages.SIZE.pack(len(content)) + content)
            (size,) = messages.SIZE.unpack(_receive(process, messages.SIZE.size, deadline))
            return messages.answers.decode(_receive(process, size, deadline))
        except OSError as error:
            raise DownError(_end(process)) from error
        except MsgspecError as error:
            raise DownError(f"the process that asks AMD SMI is not understood: {error}") from error


def _start() -> subprocess.Popen[bytes]:
    environ = {**os.environ, "PYTHONSAFEPATH": "1"}  # not what happens to lie in the working directory
    try:
        return subprocess.Popen(  # noqa: S603 - no text of anybody else's
            PROGRAM, env=environ, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise DownError(f"no process can be started to ask AMD SMI: {error}") from error


def _receive(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    received = b""
    while len(received) < size:
        pipe = process.stdout
        if pipe is None or not select.select([pipe], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            raise DownError("AMD SMI does not answer any more")
        piece = os.read(pipe.fileno(), min(size - len(received), PIECE))
        if not piece:
            raise DownError(_end(process))
        received += piece
    return received


def _end(process: subprocess.Popen[bytes]) -> str:
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(PARTING)
        return f"the process that asks AMD SMI ended with {f'signal {-code}' if code < 0 else f'status {code}'}"
    return "the process that asks AMD SMI has closed its pipe"
