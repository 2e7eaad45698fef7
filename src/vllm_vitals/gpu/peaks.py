"""What a GPU can do at most, by the name that its driver gives it: dense rates, as its vendor states them.

NVIDIA's datasheets state rates with sparsity where they say so: half of those counts. Where a GPU multiplies faster
when it adds up in FP16, the rate that adds up in FP32 counts, as vLLM's kernels do. An AMD Instinct MI250X shows itself
as two GPUs: half of it counts. What no document is known of is not here, nor is a name that stands for several parts,
such as `NVIDIA H100`, nor that of a share of a GPU. Most documents were read as others quote them: `source` says who.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")
TERA, GIGA = 1e12, 1e9


class Peak(NamedTuple):
    """The rates of one GPU: bytes per second to and from its memory, operations per second by precision."""

    bandwidth: float
    rates: Mapping[str, float]
    source: str

    def flops(self, precisions: Iterable[str]) -> float | None:
        """Return the rate at the first of some precisions that the GPU has, `None` if it has none of them."""
        return next((self.rates[each] for each in precisions if each in self.rates), None)


def _peak(source: str, gigabytes: float, **rates: float) -> Peak:
    """Make an entry; rates are in TFLOP/s. `half` stands for BF16 and FP16."""
    if half := rates.pop("half", 0.0):
        rates |= {"bf16": half, "fp16": half}
    return Peak(gigabytes * GIGA, {precision: rate * TERA for precision, rate in rates.items()}, source)


_VOLTA = "NVIDIA V100 datasheet, in Lightning Fabric's throughput.py and in gpu-specs"
_A100 = "NVIDIA A100 datasheet, in ml-engineering and in gpu-specs"
_H100 = "NVIDIA H100 datasheet, in ml-engineering (2026-08)"
_NVL = "NVIDIA H100 and H200 product pages, as widely quoted; BF16 also in torchtitan"
_GH200 = "NVIDIA GH200 datasheet, in ml-engineering; its 144 GB: Arthur Chiao's notes on GH200"
_H20 = "NVIDIA H20 as sellers list it, in Tom's Hardware (2024); FP32: Arthur Chiao's notes; H20-3e's memory: LLM-Prof"
_BLACKWELL = "NVIDIA Blackwell datasheet, as quoted; NVIDIA's exemplar-performance (2026-08) agrees where it tells"
_GRACE = "NVIDIA Blackwell and Blackwell Ultra datasheets, as quoted; NVIDIA's exemplar-performance has 2 % less"
_ULTRA = "NVIDIA's exemplar-performance (2026-08) for memory, BF16, FP8, FP4; HGX page for FP32, TF32, as quoted"
_GEFORCE = "NVIDIA RTX Blackwell GPU Architecture whitepaper, table 3, as quoted"
_PRO = "NVIDIA RTX Blackwell PRO GPU Architecture whitepaper 1.0, table 4, as quoted"
_SERVER = "NVIDIA RTX PRO 6000 Server Edition page and datasheet (2025-12), as quoted; FP16 to FP4 by ratio from TF32"

_V100_PCIE = _peak(_VOLTA, 900, fp32=14, fp16=112)
_V100_SXM = _peak(_VOLTA, 900, fp32=15.7, fp16=125)
_AMPERE = {"fp32": 19.5, "tf32": 156, "half": 312, "int8": 624}
_HOPPER = {"fp32": 67, "tf32": 494.5, "half": 989.5, "fp8": 1979, "int8": 1979}
_HOPPER_NVL = {"fp32": 60, "tf32": 417.5, "half": 835.5, "fp8": 1670.5, "int8": 1670.5}
_HOPPER_20 = {"fp32": 44, "tf32": 74, "half": 148, "fp8": 296, "int8": 296}
_CDNA3 = {"fp32": 163.4, "tf32": 653.7, "half": 1307.4, "fp8": 2614.9, "int8": 2614.9}
_MI300X = _peak("AMD ROCm documentation, MI300 microarchitecture (2025-03)", 5300, **_CDNA3)
_MI325X = _peak("AMD Instinct MI325X page, in ml-engineering: the MI300X's rates", 6000, **_CDNA3)
_MI350X = _peak(
    "AMD Instinct MI350X page, in ml-engineering; FP16 to FP4, which it rounds, by clock from the MI355X's",
    8000, fp32=144.2, half=2306.9, fp8=4613.7, int8=4613.7, fp4=9227.5,
)  # fmt: skip
_MI355X = _peak(
    "AMD Instinct MI355X page, in ml-engineering and in InferenceX (2026-04)",
    8000, fp32=157.3, half=2516.6, fp8=5033.2, int8=5033.2, fp4=10066.3,
)  # fmt: skip

PEAKS: dict[str, Peak] = {
    "Tesla T4": _peak(
        "NVIDIA T4 datasheet, in Lightning Fabric's throughput.py; memory: product page, the datasheet has 300",
        320, fp32=8.1, fp16=65, int8=130,
    ),
    "Tesla V100-PCIE-16GB": _V100_PCIE,
    "Tesla V100-PCIE-32GB": _V100_PCIE,
    "Tesla V100-SXM2-16GB": _V100_SXM,
    "Tesla V100-SXM2-32GB": _V100_SXM,
    "Tesla V100S-PCIE-32GB": _peak(_VOLTA, 1134, fp32=16.4, fp16=130),
    "NVIDIA A10": _peak("NVIDIA A10 datasheet, in gpu-specs", 600, fp32=31.2, tf32=62.5, half=125, int8=250),
    "NVIDIA A10G": _peak(
        "NVIDIA A10G datasheet for AWS (2022-02), in The Full Stack's GPU table; memory: Baseten; INT8 by ratio",
        600, fp32=35, tf32=35, half=70, int8=140,
    ),
    "NVIDIA A30": _peak(
        "NVIDIA A30 datasheet, in Arthur Chiao's GPU reference (2023); TF32 by ratio",
        933, fp32=10.3, tf32=82, half=165, int8=330,
    ),
    "NVIDIA A40": _peak("NVIDIA A40 datasheet, as sellers copy it", 696, fp32=37.4, tf32=74.8, half=149.7, int8=299.3),
    "NVIDIA A100-PCIE-40GB": _peak(_A100, 1555, **_AMPERE),
    "NVIDIA A100-SXM4-40GB": _peak(_A100, 1555, **_AMPERE),
    "NVIDIA A100 80GB PCIe": _peak(_A100, 1935, **_AMPERE),
    "NVIDIA A100-SXM4-80GB": _peak(_A100, 2039, **_AMPERE),
    "NVIDIA L4": _peak("NVIDIA L4 datasheet, in gpu-specs", 300, fp32=30.3, tf32=60, half=121, fp8=242.5, int8=242.5),
    "NVIDIA L40": _peak(
        "NVIDIA L40 datasheet, as sellers copy it", 864, fp32=90.5, tf32=90.5, half=181, fp8=362, int8=362
    ),
    "NVIDIA L40S": _peak("NVIDIA L40S page, in ml-engineering", 864, fp32=91.6, tf32=183, half=362, fp8=733, int8=733),
    "NVIDIA GeForce RTX 4090": _peak(_GEFORCE, 1008, fp32=82.6, tf32=82.6, half=165.2, fp8=330.3, int8=660.6),
    "NVIDIA RTX 6000 Ada Generation": _peak(
        f"{_PRO}, for FP16, the rest by ratio; FP32 and memory: resellers",
        960, fp32=91.1, tf32=182.1, half=364.2, fp8=728.5, int8=728.5,
    ),
    "NVIDIA GeForce RTX 5090": _peak(_GEFORCE, 1792, fp32=104.8, tf32=104.8, half=209.5, fp8=419, int8=838, fp4=1676),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": _peak(
        _PRO, 1792, fp32=126, tf32=251.9, half=503.8, fp8=1007.6, int8=1007.6, fp4=2015.2
    ),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": _peak(
        _PRO, 1792, fp32=109.7, tf32=219.5, half=438.9, fp8=877.9, int8=877.9, fp4=1755.7
    ),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": _peak(
        _SERVER, 1597, fp32=120, tf32=234, half=468, fp8=936, int8=936, fp4=1872
    ),
    "NVIDIA H100 PCIe": _peak(_H100, 2000, fp32=51, tf32=378, half=756.5, fp8=1513, int8=1513),
    "NVIDIA H100 80GB HBM3": _peak(_H100, 3350, **_HOPPER),
    "NVIDIA H100 NVL": _peak(_NVL, 3900, **_HOPPER_NVL),
    "NVIDIA H200": _peak("NVIDIA H200 page, in ml-engineering", 4800, **_HOPPER),
    "NVIDIA H200 NVL": _peak(_NVL, 4800, **_HOPPER_NVL),
    "NVIDIA GH200 480GB": _peak(_GH200, 4000, **_HOPPER),
    "NVIDIA GH200 144G HBM3e": _peak(_GH200, 4900, **_HOPPER),
    "NVIDIA H20": _peak(_H20, 4000, **_HOPPER_20),
    "NVIDIA H20-3e": _peak(_H20, 4800, **_HOPPER_20),
    "NVIDIA B200": _peak(_BLACKWELL, 7700, fp32=75, tf32=1125, half=2250, fp8=4500, int8=4500, fp4=9000),
    "NVIDIA GB200": _peak(_GRACE, 8000, fp32=80, tf32=1250, half=2500, fp8=5000, int8=5000, fp4=10000),
    "NVIDIA B300 SXM6 AC": _peak(_ULTRA, 7700, fp32=75, tf32=1125, half=2250, fp8=4500, fp4=13500),
    "NVIDIA GB300": _peak(_GRACE, 8000, fp32=80, tf32=1250, half=2500, fp8=5000, fp4=15000),
    "AMD Instinct MI210": _peak("AMD Instinct MI210 data, in AnandTech (2022)", 1638, fp32=45.3, half=181, int8=181),
    "AMD Instinct MI250X": _peak(
        "AMD Instinct MI200 announcement (2021), as quoted", 1638, fp32=47.9, half=191.5, int8=191.5
    ),
    "AMD Instinct MI300X": _MI300X,
    "AMD Instinct MI300X OAM": _MI300X,
    "AMD Instinct MI325X": _MI325X,
    "AMD Instinct MI325 OAM": _MI325X,
    "AMD Instinct MI350X": _MI350X,
    "AMD Instinct MI350 OAM": _MI350X,
    "AMD Instinct MI355X": _MI355X,
    "AMD Instinct MI355 OAM": _MI355X,
}  # fmt: skip


def peak(name: str) -> Peak | None:
    """Return what a GPU of this name can do at most, `None` if that is not known; whole names count, in any case."""
    return _BY_NAME.get(_plain(name))


def _plain(name: str) -> str:
    """Return a name without the maker's, which older drivers leave out or give as `Tesla`."""
    words = name.casefold().split()
    return " ".join(words[1:] if words[:1] in (["nvidia"], ["tesla"], ["amd"]) else words)


_BY_NAME = {_plain(name): found for name, found in PEAKS.items()}
