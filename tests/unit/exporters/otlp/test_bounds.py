"""What a receiver says is bounded where it comes in."""

import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vllm_vitals._util.deadline_socket import Deadline
from vllm_vitals._util.http_connection import Plain
from vllm_vitals._util.redact import MOST_SEARCHED
from vllm_vitals.exporters.otlp.grpc_transport import from_error


class Waning:
    """A deadline of which a second is gone each time that it is looked at."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds + 1

    def left(self) -> float:
        self._left -= 1
        if self._left <= 0:
            raise TimeoutError
        return self._left


def test_the_details_of_a_grpc_error_are_cut() -> None:
    error = SimpleNamespace(
        code=lambda: SimpleNamespace(name="UNAVAILABLE"),
        details=lambda: "x" * 10 * MOST_SEARCHED,
        trailing_metadata=lambda: (),
    )
    assert from_error(error).error == f"gRPC UNAVAILABLE: {'x' * MOST_SEARCHED}"


def test_all_reads_of_an_exchange_share_one_deadline() -> None:
    ours, peer = socket.socketpair()
    with ours, peer:
        line = Plain(ours, cast("Deadline", Waning(3)))
        piece: Any = b"x" * 512  # not so small that the line waits for more
        came = 0
        with pytest.raises(TimeoutError):  # noqa: PT012 - which read it is, is counted
            for _ in range(10):
                peer.sendall(piece)
                came += len(line.receive())
        assert came == 3 * len(piece)
