"""What tests share is made once, ahead of them, and ended once; here it is no server."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from tests.live.fleet import Fleet


def test_each_is_made_once_ahead_on_a_thread_and_ended_once() -> None:
    happened: list[str] = []
    made = threading.Event()

    @contextlib.contextmanager
    def maker(name: str) -> Iterator[str]:
        happened.append(f"begin {name}")
        made.set()
        yield name
        happened.append(f"end {name}")

    fleet = Fleet({name: lambda name=name: maker(name) for name in ("one", "two")})
    fleet.begin("one")
    assert made.wait(60)
    assert [fleet.get("one"), fleet.get("one"), fleet.get("two")] == ["one", "one", "two"]
    fleet.end("one")
    fleet.end("one")
    fleet.close()
    assert happened == ["begin one", "begin two", "end one", "end two"]


def test_what_cannot_be_made_says_why_to_each_who_asks_and_is_ended_in_silence() -> None:
    @contextlib.contextmanager
    def broken() -> Iterator[None]:
        raise RuntimeError("no port")
        yield

    fleet = Fleet({"broken": broken})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no port"):
            fleet.get("broken")
    fleet.close()
