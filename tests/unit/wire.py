"""Both ends of the wire, as tests need them, and records of every kind."""

import socket
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import strategies as st
from msgspec import Meta, Struct
from msgspec.structs import fields

from tests.unit.builders import step
from vllm_vitals.records.step import Health, Record, Step
from vllm_vitals.transport.protocol import (
    MOST_FROM_SERVER,
    PROTOCOL,
    Batch,
    Frames,
    Hello,
    Welcome,
    encode,
    frame,
    from_server,
    receive,
)
from vllm_vitals.transport.server import Peer, Receiver

GREETING = Hello(PROTOCOL, "p" * 32, "0", 4711, [])


def numbered(first: int, last: int, **values: Any) -> list[Step]:
    """Return steps that are told apart by their clocks."""
    return [step(float(number), **values) for number in range(first, last)]


def numbers(records: Sequence[Record]) -> list[int]:
    return [int(record.clock) for record in records if isinstance(record, Step)]


@contextmanager
def short_directory() -> Iterator[Path]:
    """Make a directory in which a socket's path is not too long."""
    with TemporaryDirectory(prefix="w") as made:
        yield Path(made)


class Collecting:
    """A receiver and all that it handed on."""

    def __init__(self, path: Path, name: str = "collector", **options: Any) -> None:
        self.told: list[tuple[Peer, Sequence[Record], float]] = []
        self.gone: list[Peer] = []
        self.broken = 0
        self.begun = 0
        """How often something came, be it taken or held up."""
        self.holding = threading.Lock()
        """While it is held, nothing is taken."""
        self.receiver = Receiver(path, name, self._take, self.gone.append, self._break, **options)

    @property
    def records(self) -> list[Record]:
        return [record for _, records, _ in list(self.told) for record in records]

    @property
    def steps(self) -> list[int]:
        return numbers(self.records)

    @property
    def dropped(self) -> int:
        return sum(record.dropped for record in self.records if isinstance(record, Health))

    def _take(self, peer: Peer, records: Sequence[Record], until: float) -> None:
        self.begun += 1
        with self.holding:
            self.told.append((peer, records, until))

    def _break(self) -> None:
        self.broken += 1


class Client:
    """A serving process of which every byte is up to the test."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))  # waits if many others do
        self.socket.settimeout(20)
        self._frames = Frames(MOST_FROM_SERVER)

    def send(self, message: Any) -> None:
        self.socket.sendall(frame(encode(message)))

    def hear(self) -> Any:
        return from_server(receive(self.socket, self._frames))

    def greet(self, hello: Hello = GREETING) -> Welcome:
        self.send(hello)
        answer = self.hear()
        assert isinstance(answer, Welcome)
        return answer

    def tell(self, sequence: int, *records: Record, until: float = 1.0) -> Any:
        self.send(Batch(sequence, until, list(records)))
        return self.hear()

    def ended(self) -> bool:
        """Wait for the other side to close; what it still says is passed over."""
        try:
            while self.socket.recv(4096):
                pass
        except ConnectionResetError:
            return True
        return True

    def close(self) -> None:
        self.socket.close()


def kinds(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type as the records have them."""
    simple = {
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=8),
        NoneType: st.none(),
        array: st.lists(st.floats(allow_nan=False), max_size=4).map(lambda values: array("d", values)),
    }
    if kind in simple:
        return simple[kind]
    if get_origin(kind) is Annotated:
        return limited(*get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Struct) and get_origin(kind) is None:
        return structs(kind)
    origin, arguments = get_origin(kind), [kinds(each) for each in get_args(kind) if each is not Ellipsis]
    if origin in (Union, UnionType):
        return st.one_of(arguments)
    if origin is dict:
        return st.dictionaries(*arguments, max_size=3)
    return st.lists(*arguments, max_size=3).map(origin)


def limited(kind: type, limits: Meta) -> st.SearchStrategy[Any]:
    """Return values of a type within its limits."""
    if kind is int:
        return st.integers(limits.ge, limits.lt - 1)  # type: ignore[operator,arg-type]
    if kind is float:
        return st.floats(limits.ge, limits.le)
    return kinds(kind)


def structs(kind: type[Struct]) -> st.SearchStrategy[Any]:
    """Return structs with some of their fields filled."""
    hints = get_type_hints(kind, include_extras=True)
    needed = {each.name for each in fields(kind) if each.required}
    values = {name: kinds(hint) for name, hint in hints.items() if name in kind.__struct_fields__}
    return st.fixed_dictionaries(
        {name: each for name, each in values.items() if name in needed},
        optional={name: each for name, each in values.items() if name not in needed},
    ).map(lambda chosen: kind(**chosen))


RECORDS = st.one_of([structs(kind) for kind in get_args(Record)])


@pytest.fixture(name="path")
def path_() -> Iterator[Path]:
    """Return where the socket is."""
    with short_directory() as made:
        yield made / "d" / "s"


@pytest.fixture(name="connect")
def connect_(path: Path) -> Iterator[Callable[[], Client]]:
    """Connect to the receiver."""
    made: list[Client] = []

    def make() -> Client:
        made.append(Client(path))
        return made[-1]

    yield make
    for each in made:
        each.close()
