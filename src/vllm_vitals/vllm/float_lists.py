"""Long lists of floats, read quickly: the encoder of MessagePack walks a list several times faster than an array does.

vLLM takes the time between two outputs of a request from one step to another, so all requests that had a token in both
have it in common. In the list of a step all numbers are the same, unless a request comes back that was preempted.
"""

import struct
from array import array
from typing import Any

import numpy as np
from msgspec.msgpack import Encoder

MANY = 64
"""Numbers in a list from which the quick way is worth its start."""

_encode = Encoder().encode
_FLOAT = b"\xcb"
"""MessagePack's mark of a float64, which follows in 8 bytes, most significant first."""
_ITEM = np.dtype([("mark", "u1"), ("value", ">f8")])


def packed(values: Any) -> bytes | None:
    """Return a list in MessagePack; `None` for anything else, and for a list with items that cannot be packed."""
    if type(values) is not list:
        return None
    try:
        return _encode(values)
    except BaseException:  # noqa: BLE001 - an item is an object of vLLM's, which may raise anything
        return None


def only_number(content: bytes) -> tuple[float, int] | None:
    """Return the float that a packed list repeats, and how many times; `None` if the list holds anything else."""
    head, count = _head(content)
    last = content[-_ITEM.itemsize :]
    if not count or last[:1] != _FLOAT or len(content) != head + _ITEM.itemsize * count:
        return None
    return (struct.unpack(">d", last[1:])[0], count) if content.endswith(last * count) else None


def unpacked(content: bytes) -> "array[float] | None":
    """Return a packed list as an array; `None` if it holds anything but floats."""
    head, count = _head(content)
    size = _ITEM.itemsize
    if not head or len(content) != head + size * count or content[head::size].count(_FLOAT) != count:
        return None
    made = array("d", bytes(8 * count))
    np.frombuffer(made)[:] = np.frombuffer(content, dtype=_ITEM, offset=head)["value"]
    return made


def quickly(values: list[Any]) -> "array[float] | None":
    """Return a list of floats as an array; `None` if it holds anything else."""
    content = packed(values)
    return None if content is None else unpacked(content)


def _head(content: bytes) -> tuple[int, int]:
    """Return the size of the head of a packed list, 0 if it is none, and the number of its items."""
    mark = content[0] if content else 0
    if mark & 0xF0 == 0x90:  # noqa: PLR2004 - a short array
        return 1, mark & 0x0F
    size = {0xDC: 2, 0xDD: 4}.get(mark, 0)
    return size and 1 + size, int.from_bytes(content[1 : 1 + size], "big")
