"""Who may stay: the connections there are, by address, and which of them has to go when another comes."""

from collections.abc import Iterator

from vllm_vitals.exporters.prometheus import limits
from vllm_vitals.exporters.prometheus.client import Client, State


class Address:
    """The connections of one address, each kind from old to new."""

    __slots__ = ("answering", "unfinished", "waiting")

    def __init__(self) -> None:
        self.unfinished: dict[Client, None] = {}
        """Those without a whole request, or with their answer."""
        self.answering: dict[Client, None] = {}
        self.waiting: dict[Client, None] = {}

    def __len__(self) -> int:
        return len(self.unfinished) + len(self.answering) + len(self.waiting)

    def kind(self, state: State) -> dict[Client, None]:
        """Return those in the same kind of state."""
        if state is State.WAITING:
            return self.waiting
        return self.answering if state is State.ANSWERING else self.unfinished

    def oldest(self) -> Client | None:
        """Return who has to go first, if anybody can: not those that wait for a page, whose number has its own limit."""
        return next(iter(self.unfinished), None) or next(iter(self.answering), None)


class Slots:
    """All connections."""

    def __init__(self) -> None:
        self._addresses: dict[bytes, Address] = {}
        self._count = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Client]:
        for address in self._addresses.values():
            yield from address.unfinished
            yield from address.answering
            yield from address.waiting

    def surplus(self, peer: bytes) -> Client | None:
        """Return who has to go before another connection of this address may come."""
        own = self._addresses.get(peer)
        if own is not None and len(own) >= limits.ADDRESS_CLIENTS:
            return own.oldest()
        if self._count < limits.CLIENTS:
            return None
        # Whoever has the most connections loses one, so that many of one client do not cost others theirs.
        largest = max(self._addresses.values(), key=lambda address: len(address.unfinished) + len(address.answering))
        return largest.oldest()

    def idle(self) -> Client | None:
        """Return an old connection without a whole request, if there is one."""
        largest = max(self._addresses.values(), key=lambda address: len(address.unfinished), default=None)
        return next(iter(largest.unfinished), None) if largest else None

    def may_wait(self, peer: bytes) -> bool:
        """Return whether another request of this address may wait for a page."""
        return self._waiting < limits.WAITING and len(self._addresses[peer].waiting) < limits.ADDRESS_WAITING

    def enter(self, client: Client) -> None:
        """Count a connection in."""
        self._addresses.setdefault(client.peer, Address()).kind(client.state)[client] = None
        self._count += 1
        self._waiting += client.state is State.WAITING

    def leave(self, client: Client) -> None:
        """Count a connection out; its state must be the one that it was counted in with."""
        address = self._addresses[client.peer]
        del address.kind(client.state)[client]
        self._count -= 1
        self._waiting -= client.state is State.WAITING
        if not len(address):
            del self._addresses[client.peer]
