"""Which devices a process may use, by the variables that CUDA and HIP obey.

`CUDA_VISIBLE_DEVICES` is read as the CUDA Programming Guide has it (Environment Variables), and where that is silent,
such as on devices that are named twice, as PyTorch has found CUDA to read it (`torch.cuda._parse_visible_devices`).
Indices count as the driver's management library counts, by PCI bus: CUDA does so too where all devices are of one model
or `CUDA_DEVICE_ORDER=PCI_BUS_ID` is set.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

NVIDIA, AMD = "NVIDIA", "AMD"


class Part(NamedTuple):
    """A MIG device; `alias` is the name that drivers before R470 gave it, `MIG-GPU-<uuid>/<instance>/<compute>`."""

    id: str
    alias: str = ""


class Listed(NamedTuple):
    """A GPU in the driver's order, with its MIG devices; `id` is `""` when it does not say who it is, `trouble` why.

    `alias` is the UUID by which HIP knows it. A partition of one of AMD's GPUs is listed as a GPU: so does HIP count.
    """

    id: str
    parts: tuple[Part, ...] = ()
    trouble: str = ""
    alias: str = ""


def visible(environ: Mapping[str, str], vendor: str, listed: Sequence[Listed]) -> list[str]:
    """Return the ids of the devices that a process with this environment may use, in the order that it sees.

    An id is `""` where a device is meant that does not say who it is.
    """
    if vendor == NVIDIA:
        return select(environ.get("CUDA_VISIBLE_DEVICES"), listed)
    # ROCR hides devices from HIP, which numbers what is left; HIP takes CUDA's variable where its own is not set.
    known = {gpu.id: gpu for gpu in listed}
    left = [known[each] for each in select(environ.get("ROCR_VISIBLE_DEVICES"), listed)]
    return select(environ.get("HIP_VISIBLE_DEVICES", environ.get("CUDA_VISIBLE_DEVICES")), left)


def select(wanted: str | None, listed: Sequence[Listed]) -> list[str]:
    """Return the ids of what a list of indices, or of beginnings of UUIDs, stands for; `None` stands for all.

    The first word that stands for no device, or for more than one, ends the list; a device named twice empties it.
    """
    if wanted is None:
        return _all(listed)
    kind = next((prefix for prefix in ("GPU-", "MIG-") if wanted.startswith(prefix)), "")
    words = list(takewhile(bool, (_word(word, kind) for word in wanted.split(","))))
    if len(set(words)) < len(words):
        return []
    matches = (_by_uuid(word, kind, listed) if kind else _by_index(int(word), listed) for word in words)
    found = [match[0] for match in takewhile(lambda match: len(match) == 1, matches)]
    known = list(filter(None, found))
    return found if len(set(known)) == len(known) else []


def _all(listed: Sequence[Listed]) -> list[str]:
    """Return every device; CUDA uses one MIG device alone as soon as there is any."""
    parts = [part.id for gpu in listed for part in gpu.parts]
    return parts[:1] or [gpu.id for gpu in listed]


def _word(word: str, kind: str) -> str:
    """Return a word of a list of UUIDs as it is, of others the number that it begins with; `""` if it is neither."""
    if kind:
        return word if word.startswith(kind) else ""
    number = re.match(r"\+?(\d{1,9})", word.strip())  # as C's strtoul reads it: `1gpu` is 1
    return str(int(number[1])) if number else ""


def _by_index(index: int, listed: Sequence[Listed]) -> list[str]:
    """Return the id at an index, that of its first part for a GPU in MIG mode."""
    return [(gpu.parts[0].id if gpu.parts else gpu.id) for gpu in listed[index : index + 1]]


def _by_uuid(word: str, kind: str, listed: Sequence[Listed]) -> list[str]:
    """Return every id that begins with a word."""
    if kind == "GPU-":
        return [gpu.id for gpu in listed if gpu.id.startswith(word) or gpu.alias.startswith(word)]
    return [part.id for gpu in listed for part in gpu.parts if part.id.startswith(word) or part.alias == word]
