"""What the sampler and the process that asks AMD SMI say to each other."""

import struct

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from vllm_vitals.gpu.amd_device import Said
from vllm_vitals.gpu.visible import Listed
from vllm_vitals.records.gpu import Gpu

SIZE = struct.Struct("<I")
"""What comes before each message: its length."""


class Request(Struct):
    """Asks what a device says at monotonic seconds `clock`; without a `device`, which there are."""

    device: str = ""
    clock: float = 0.0


class Answer(Struct):
    """What came of it; `down` and `lost` are why nothing did: the library, or the device, does not work."""

    listed: list[Listed] = []
    gpus: list[Gpu] = []
    said: Said | None = None
    down: str = ""
    lost: str = ""


encode = Encoder().encode
requests = Decoder(Request)
answers = Decoder(Answer)
