"""One end of the wire as a process of its own, which tests may stop and kill; it writes down what came of it."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vllm_vitals.records.step import Health, Record, Step
from vllm_vitals.transport.client import Sender
from vllm_vitals.transport.server import Peer, Receiver


def receive(path: Path, collector: str, log: Path) -> None:
    """Write down each batch at once before it is acknowledged: a line that is not there was not taken."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def take(peer: Peer, records: Sequence[Record], _: float) -> None:
        steps = [int(record.clock) for record in records if isinstance(record, Step)]
        dropped = sum(record.dropped for record in records if isinstance(record, Health))
        os.write(handle, json.dumps([peer.name, steps, dropped]).encode() + b"\n")

    receiver = Receiver(path, collector, take, lambda _: None, lambda: None)
    receiver.start()
    print("up", flush=True)
    time.sleep(300)


def send(path: Path, name: str, count: int, rest: float) -> None:
    """Send so many steps, twenty at a time, and say how many were dropped."""
    sender = Sender(path, name, 64 << 20)
    sender.start()
    for first in range(0, count, 20):
        steps = [Step("m", "0", 1.0, float(number), 1.0) for number in range(first, first + 20)]
        sender.add(steps)
        sender.flush(time.monotonic())
        time.sleep(rest)
    sender.stop(60.0)
    print(sender.dropped, flush=True)


if __name__ == "__main__":
    _, role, at, *rest = sys.argv
    if role == "receive":
        receive(Path(at), rest[0], Path(rest[1]))
    else:
        send(Path(at), rest[0], int(rest[1]), float(rest[2]))
