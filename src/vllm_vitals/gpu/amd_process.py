"""A process that asks AMD SMI on behalf of another: `python -m vllm_vitals.gpu.amd_process`, over its own pipes."""

import os
import select
import signal
from typing import BinaryIO

from vllm_vitals.gpu import amd_messages as messages
from vllm_vitals.gpu.amd import Amd
from vllm_vitals.gpu.source import DownError, LostError

ORPHANED = 5.0
"""Seconds after which it is seen that whoever asks is gone, if a fork of it keeps the pipe open."""


def answer(amd: Amd, request: messages.Request) -> messages.Answer:
    """Return what comes of a request; never raises."""
    try:
        if request.device:
            return messages.Answer(said=amd.read(request.device, request.clock))
        listed, gpus = amd.open()
        return messages.Answer(listed, gpus)
    except LostError as error:
        return messages.Answer(lost=str(error) or "it does not say why")
    except DownError as error:
        return messages.Answer(down=str(error) or "it does not say why")
    except Exception as error:  # noqa: BLE001 - it goes to the log of whoever asks
        return messages.Answer(down=f"{type(error).__name__}: {error}")


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer one request after the other until nobody asks any more."""
    amd, parent = Amd(), os.getppid()
    while True:
        ready = select.select([source], [], [], ORPHANED)[0]
        if os.getppid() != parent:
            return
        if not ready:
            continue
        size = source.read(messages.SIZE.size)
        if len(size) < messages.SIZE.size:
            return
        request = messages.requests.decode(source.read(*messages.SIZE.unpack(size)))
        content = messages.encode(answer(amd, request))
        sink.write(messages.SIZE.pack(len(content)) + content)
        sink.flush()


def main() -> None:
    """Serve over the standard pipes, which the library gets others for: it prints."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(os.dup(1), "wb") as sink, os.fdopen(os.dup(0), "rb", buffering=0) as source:
        quiet = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(quiet, standard)
        serve(source, sink)
    os._exit(0)  # without what a library does at the end of a process


if __name__ == "__main__":
    main()
