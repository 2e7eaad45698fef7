"""Latencies that are one number over and over, folded into that number and how many times it comes.

vLLM takes the time between two outputs of a request from one step to another, so all requests that had a token in both
have it in common: in a step's list all are the same, unless a request comes back that was preempted.
"""

import struct
from typing import Any

from msgspec import Raw
from msgspec.msgpack import Encoder, Ext

MANY = 64
"""Numbers in a list from which it pays to look whether they are the same."""

_encode = Encoder().encode
_FLOAT = 0xCB
"""How MessagePack marks a float, of 8 bytes with the most significant first."""
_SIZE = 9
_LONG = 2**16
"""Items from which a list has a longer head."""
_FOLDED = struct.Struct(">BBbdI")
"""An extension of MessagePack: its head, the number, and how many times it comes."""
_HEAD = (0xC7, 12, 1)


def fold(values: Any) -> Any:
    """Return a long list in MessagePack, folded if it is one float over and over; anything else as it is."""
    if type(values) is not list or len(values) < MANY:
        return values
    try:
        content = _encode(values)
    except BaseException:  # noqa: BLE001 - something that cannot be packed
        return values
    count, last = len(values), content[-_SIZE:]
    head = 3 if count < _LONG else 5  # longer by this than its items, it is a list of nothing but the last of them
    if last[0] == _FLOAT and len(content) == head + _SIZE * count and content.endswith(last * count):
        return Raw(_FOLDED.pack(*_HEAD, *struct.unpack(">d", last[1:]), count))
    return Raw(content)


def unfold(values: Any) -> tuple[float, int] | None:
    """Return the number of a folded list and how many times it comes, at least once; `None` if it is none."""
    if type(values) is Ext:
        values = _encode(values)
    elif type(values) is not Raw:
        return None
    content = bytes(values)
    if len(content) != _FOLDED.size or content[0] != _HEAD[0]:
        return None
    *head, number, count = _FOLDED.unpack(content)
    return (number, count) if tuple(head) == _HEAD and count else None
