"""Serving processes that have steps to send at any time, simulated by as many connections to a sidecar."""

import os
import socket
import time
import uuid
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from vllm_vitals._util.clock import epoch
from vllm_vitals.records.step import Sleep, Step
from vllm_vitals.transport.buffer import Kept, Packer
from vllm_vitals.transport.client import FULL
from vllm_vitals.transport.protocol import (
    MOST_FROM_SERVER,
    PROTOCOL,
    REFUSED,
    Frames,
    Hello,
    Taken,
    Welcome,
    WireError,
    deliver,
    encode,
    from_server,
    receive,
)
from vllm_vitals.vllm.engine_config import engine_facts, model_name
from vllm_vitals.vllm.reader import Reader

from .engine import vllm_config
from .stats import STEP_SECONDS, STEPS_PER_REQUEST, StepMaker

BATCH = 25
"""Steps that an engine makes between two batches: 0.25 s of them."""

ON_THE_WAY = 2
"""Batches of a connection that may wait for an answer: the sidecar has the next one before it is done with one."""

PATIENCE = 10.0


def steps(running: int) -> list[Step]:
    """Return steps of so many requests, as many as pass until each request has ended once."""
    make = StepMaker(running)
    calls = [(time.monotonic(), *make(), None, 0) for _ in range(STEPS_PER_REQUEST)]
    return Reader(model_name(vllm_config()), _complain).read(calls, epoch())


def _complain(field: str, value: object, expected: str) -> None:
    raise ValueError(f"{field} is {value}, not {expected}")


class Process:
    """One connection, over which some engines' steps go, encoded as a serving process does."""

    def __init__(self, path: Path, name: str, engines: Sequence[str], made: Sequence[Step]) -> None:
        """Connect and present the engines; `made` are the steps that each of them makes over and over."""
        self.taken = 0
        """Steps that the other side says to have."""
        self._engines = engines
        self._steps = cycle(made)
        self._packer = Packer(name, FULL)
        self._clock = time.monotonic()
        self._epoch = epoch()
        self._waiting: list[int] = []
        """Steps in each batch that is on its way."""
        self._frames = Frames(MOST_FROM_SERVER)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        facts = [engine_facts(vllm_config(), engine, len(engines), "bench") for engine in engines]
        states = [Sleep(each.model, each.engine, "awake") for each in facts]
        hello = Hello(PROTOCOL, uuid.uuid4().hex, name, os.getpid(), [*facts, *states])
        deliver(self._socket, encode(hello))
        self._hear(Welcome)

    def send(self) -> None:
        """Let every engine make a batch of steps, and send them all as soon as the other side takes more."""
        packed = 0
        for step in islice(self._steps, BATCH):
            self._clock += STEP_SECONDS
            step.clock, step.time = self._clock, self._epoch + self._clock
            for engine in self._engines:
                step.engine = engine
                self._packer.add(step)
                packed += 1
                if self._packer.full:
                    self._seal(packed, self._clock - STEP_SECONDS)
                    packed = 0
        self._seal(packed, self._clock)

    def finish(self) -> None:
        """Tell that nothing more will come for a while, so that nothing is held back, and return when all was taken."""
        self._seal(0, self._clock + PATIENCE)
        while self._waiting:
            self._hear(Taken)

    def _seal(self, packed: int, until: float) -> None:
        """Send so many packed steps: all up to a time, monotonic seconds."""
        while len(self._waiting) >= ON_THE_WAY:
            self._hear(Taken)
        parcel = self._packer.seal(until, Kept())
        self._socket.sendall(parcel.head)
        self._socket.sendall(parcel.body)
        self._waiting.append(packed)

    def _hear(self, expected: type) -> None:
        """Wait for an answer.

        Raises:
            WireError: when it is another one.
        """
        answer = from_server(receive(self._socket, self._frames, idle=PATIENCE))
        if not isinstance(answer, expected):
            raise WireError(REFUSED, str(answer))
        if isinstance(answer, Taken):
            self.taken += self._waiting.pop(0)
