"""Peaks of GPUs, against units, clocks, ratios and what others quote; drivers' names; precisions of configurations."""

import re
from types import SimpleNamespace as Section
from typing import Any

import pytest

from vllm_vitals.gpu.peaks import PEAKS, PRECISIONS, Peak, peak
from vllm_vitals.vllm.engine_config import engine_facts
from vllm_vitals.vllm.precision import precisions

# Units, operations of a unit at a clock in FP16 with sums in FP32, MHz; bits of the memory's bus, Gbit/s of each.
MADE_OF = {
    "Tesla T4": (40, 1024, 1590, 256, 10.0),
    "Tesla V100-PCIE-32GB": (80, 1024, 1370, 4096, 1.754),
    "Tesla V100-SXM2-16GB": (80, 1024, 1530, 4096, 1.754),
    "Tesla V100S-PCIE-32GB": (80, 1024, 1597, 4096, 2.214),
    "NVIDIA A10": (72, 1024, 1695, 384, 12.5),
    "NVIDIA A10G": (80, 512, 1710, 384, 12.5),
    "NVIDIA A30": (56, 2048, 1440, 3072, 2.43),
    "NVIDIA A40": (84, 1024, 1740, 384, 14.5),
    "NVIDIA A100-PCIE-40GB": (108, 2048, 1410, 5120, 2.43),
    "NVIDIA A100-SXM4-40GB": (108, 2048, 1410, 5120, 2.43),
    "NVIDIA A100 80GB PCIe": (108, 2048, 1410, 5120, 3.024),
    "NVIDIA A100-SXM4-80GB": (108, 2048, 1410, 5120, 3.186),
    "NVIDIA L4": (58, 1024, 2040, 192, 12.5),
    "NVIDIA L40": (142, 512, 2490, 384, 18.0),
    "NVIDIA L40S": (142, 1024, 2490, 384, 18.0),
    "NVIDIA GeForce RTX 4090": (128, 512, 2520, 384, 21.0),
    "NVIDIA RTX 6000 Ada Generation": (142, 1024, 2505, 384, 20.0),
    "NVIDIA GeForce RTX 5090": (170, 512, 2407, 512, 28.0),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": (188, 1024, 2617, 512, 28.0),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": (188, 1024, 2280, 512, 28.0),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": (188, 1024, 2430, 512, 24.95),
    "NVIDIA H100 PCIe": (114, 4096, 1620, 5120, 3.186),
    "NVIDIA H100 80GB HBM3": (132, 4096, 1830, 5120, 5.24),
    "NVIDIA H100 NVL": (132, 4096, 1545, 6144, 5.1),
    "NVIDIA H200": (132, 4096, 1830, 6144, 6.25),
    "NVIDIA H200 NVL": (132, 4096, 1545, 6144, 6.25),
    "NVIDIA GH200 480GB": (132, 4096, 1830, 6144, 5.24),
    "AMD Instinct MI210": (104, 1024, 1700, 4096, 3.2),
    "AMD Instinct MI250X": (110, 1024, 1700, 4096, 3.2),
    "AMD Instinct MI300X": (304, 2048, 2100, 8192, 5.2),
    "AMD Instinct MI325X": (304, 2048, 2100, 8192, 6.0),
    "AMD Instinct MI350X": (256, 4096, 2200, 8192, 8.0),
    "AMD Instinct MI355X": (256, 4096, 2400, 8192, 8.0),
}
# HGX and NVL72: GPUs, and petaFLOP/s of all of them with sparsity in BF16 and in FP8, and without it in FP4.
SYSTEMS = {
    "NVIDIA B200": (8, 36, 72, 72),
    "NVIDIA GB200": (72, 360, 720, 720),
    "NVIDIA B300 SXM6 AC": (8, 36, 72, 108),
    "NVIDIA GB300": (72, 360, 720, 1080),
}
# By architecture: the rate of each precision that it has beside FP32 and FP16, in FP16's.
ARCHITECTURES: dict[str, dict[str, float]] = {
    "Tesla V100": {},
    "Tesla T4": {"int8": 2},
    r"NVIDIA A\d+": {"bf16": 1, "tf32": 0.5, "int8": 2},
    r"NVIDIA L\d|NVIDIA RTX 6000 Ada": {"bf16": 1, "tf32": 0.5, "fp8": 2, "int8": 2},
    "NVIDIA GeForce RTX 4090": {"bf16": 1, "tf32": 0.5, "fp8": 2, "int8": 4},
    "NVIDIA GeForce RTX 5090": {"bf16": 1, "tf32": 0.5, "fp8": 2, "int8": 4, "fp4": 8},
    "NVIDIA RTX PRO|NVIDIA G?B200": {"bf16": 1, "tf32": 0.5, "fp8": 2, "int8": 2, "fp4": 4},
    "NVIDIA G?B300": {"bf16": 1, "tf32": 0.5, "fp8": 2, "fp4": 6},  # its INT8, a thirtieth of B200's, is left out
    r"NVIDIA G?H\d": {"bf16": 1, "tf32": 0.5, "fp8": 2, "int8": 2},
    "AMD Instinct MI2": {"bf16": 1, "int8": 1},
    "AMD Instinct MI3[02]": {"bf16": 1, "tf32": 0.5, "fp8": 2, "int8": 2},
    "AMD Instinct MI35": {"bf16": 1, "fp8": 2, "int8": 2, "fp4": 4},  # TF32 in software alone
}
# Copied by hand: GB/s and TFLOP/s, dense.
QUOTED: dict[str, tuple[float, dict[str, float]]] = {
    # README of NVIDIA/exemplar-performance: peak theoretical throughput, reference architectures
    "NVIDIA B200": (7700, {"bf16": 2250, "fp8": 4500, "fp4": 9000}),
    "NVIDIA B300 SXM6 AC": (7700, {"bf16": 2250, "fp8": 4500, "fp4": 13500}),
    # README of stas00/ml-engineering's accelerators; GB300's memory from the former
    "NVIDIA GB200": (8000, {"fp32": 80, "tf32": 1250, "bf16": 2500, "fp8": 5000, "int8": 5000, "fp4": 10000}),
    "NVIDIA GB300": (8000, {"fp32": 80, "tf32": 1250, "bf16": 2500, "fp8": 5000, "fp4": 15000}),
    "NVIDIA H100 PCIe": (2000, {"fp32": 51, "tf32": 378, "bf16": 756, "fp8": 1513, "int8": 1513}),
    "NVIDIA H100 80GB HBM3": (3350, {"fp32": 67, "tf32": 494.5, "bf16": 989, "fp8": 1979, "int8": 1979}),
    "NVIDIA H200": (4800, {"fp32": 67, "tf32": 494.5, "bf16": 989, "fp8": 1979, "int8": 1979}),
    "NVIDIA GH200 480GB": (4000, {"fp32": 67, "tf32": 494.5, "bf16": 989, "fp8": 1979, "int8": 1979}),
    "NVIDIA L40S": (864, {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp8": 733, "int8": 733}),
    # Lightning Fabric's throughput.py, gpu-specs
    "Tesla V100-PCIE-16GB": (900, {"fp32": 14, "fp16": 112}),
    "Tesla V100-SXM2-32GB": (900, {"fp32": 15.7, "fp16": 125}),
    "NVIDIA A10": (600, {"fp32": 31.2, "tf32": 62.5, "bf16": 125, "int8": 250}),
    "NVIDIA A100-PCIE-40GB": (1555, {"fp32": 19.5, "tf32": 156, "fp16": 312, "int8": 624}),
    "NVIDIA A100 80GB PCIe": (1935, {"fp32": 19.5, "tf32": 156, "fp16": 312, "int8": 624}),
    "NVIDIA A100-SXM4-80GB": (2039, {"fp32": 19.5, "tf32": 156, "fp16": 312, "int8": 624}),
    "Tesla V100S-PCIE-32GB": (1134, {"fp32": 16.4, "fp16": 130}),
    # Lists that name NVIDIA's datasheet, page or whitepaper; with sparsity there, half of it here: NVL, L4
    "Tesla T4": (320, {"fp32": 8.1, "fp16": 65, "int8": 130}),
    "NVIDIA L4": (300, {"fp32": 30.3, "tf32": 120 / 2, "bf16": 242 / 2, "fp8": 485 / 2, "int8": 485 / 2}),
    "NVIDIA A10G": (600, {"fp32": 35, "tf32": 35, "fp16": 70}),
    "NVIDIA A30": (933, {"fp32": 10.3, "bf16": 165, "fp16": 165, "int8": 330}),
    "NVIDIA L40": (864, {"fp32": 90.5, "tf32": 90.5, "bf16": 181.05, "fp8": 362, "int8": 362}),
    "NVIDIA A40": (696, {"fp32": 37.4, "tf32": 74.8, "fp16": 149.7, "bf16": 149.7, "int8": 299.3}),
    "NVIDIA H100 NVL": (3900, {"fp32": 60, "tf32": 835 / 2, "bf16": 1671 / 2, "fp8": 3341 / 2, "int8": 3341 / 2}),
    "NVIDIA H200 NVL": (4800, {"fp32": 60, "tf32": 835 / 2, "bf16": 1671 / 2, "fp8": 3341 / 2, "int8": 3341 / 2}),
    "NVIDIA H20": (4000, {"fp32": 44, "tf32": 74, "bf16": 148, "fp16": 148, "fp8": 296, "int8": 296}),
    "NVIDIA GeForce RTX 4090": (1008, {"fp32": 82.6, "tf32": 82.6, "bf16": 165.2, "fp8": 330.3, "int8": 660.6}),
    "NVIDIA GeForce RTX 5090": (1792, {"fp32": 104.8, "bf16": 209.5, "fp8": 419, "int8": 838, "fp4": 1676}),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": (1792, {"fp32": 126, "fp8": 1007.6, "fp4": 4030.4 / 2}),
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": (1792, {"fp32": 109.7, "fp8": 877.9, "fp4": 3511.4 / 2}),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": (1597, {"fp32": 120, "tf32": 234}),
    # AMD's ROCm documentation: MI300X's table, half of MI250's memory; AMD's pages
    "AMD Instinct MI300X": (5300, {"fp32": 163.4, "tf32": 653.7, "bf16": 1307.4, "fp8": 2614.9, "int8": 2614.9}),
    "AMD Instinct MI210": (1638.4, {"fp32": 45.3, "fp16": 181, "int8": 181}),
    "AMD Instinct MI250X": (3276.8 / 2, {"fp32": 95.7 / 2, "fp16": 383 / 2, "int8": 383 / 2}),
    # InferenceX
    "AMD Instinct MI325X": (6000, {"bf16": 1307, "fp8": 2615}),
    "AMD Instinct MI355X": (8000, {"bf16": 2516, "fp8": 5033, "fp4": 10066}),
}
# As vLLM has them in the names of its files of tuned kernels, which it makes of what the driver says.
REPORTED = [
    "NVIDIA_H100_80GB_HBM3",
    "NVIDIA_H200",
    "AMD_Instinct_MI300X",
    "NVIDIA_B200",
    "NVIDIA_H20",
    "NVIDIA_A100-SXM4-80GB",
    "AMD_Instinct_MI325X",
    "AMD_Instinct_MI325_OAM",
    "NVIDIA_H20-3e",
    "NVIDIA_GB200",
    "NVIDIA_L40S",
    "AMD_Instinct_MI350_OAM",
    "NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition",
    "AMD_Instinct_MI355_OAM",
    "NVIDIA_B300_SXM6_AC",
    "NVIDIA_A100-SXM4-40GB",
    "AMD_Instinct_MI355X",
    "AMD_Instinct_MI350X",
    "NVIDIA_RTX_PRO_6000_Blackwell_Workstation_Edition",
    "NVIDIA_GeForce_RTX_4090",
    "NVIDIA_H100_PCIe",
    "NVIDIA_A100_80GB_PCIe",
]


def known(name: str) -> Peak:
    found = peak(name)
    assert found is not None
    return found


# Peaks


@pytest.mark.parametrize("name", MADE_OF)
def test_peaks_are_what_units_and_clocks_make(name: str) -> None:
    units, operations, megahertz, bits, gigabits = MADE_OF[name]
    assert known(name).rates["fp16"] == pytest.approx(units * operations * megahertz * 1e6, rel=0.015)
    assert known(name).bandwidth == pytest.approx(bits * gigabits * 1e9 / 8, rel=0.025)


@pytest.mark.parametrize("name", SYSTEMS)
def test_peaks_are_the_share_in_those_of_a_system(name: str) -> None:
    gpus, half, eighth, quarter = SYSTEMS[name]
    rates = known(name).rates
    assert rates["bf16"] == rates["fp16"] == half * 1e15 / 2 / gpus
    assert rates["fp8"] == eighth * 1e15 / 2 / gpus
    assert rates["fp4"] == quarter * 1e15 / gpus


@pytest.mark.parametrize("name", PEAKS)
def test_precisions_and_their_ratios_are_those_of_the_architecture(name: str) -> None:
    [ratios] = [each for pattern, each in ARCHITECTURES.items() if re.match(pattern, name)]
    rates = known(name).rates
    assert set(rates) == {"fp32", "fp16", *ratios}
    assert set(rates) <= set(PRECISIONS)
    assert {each: rates[each] / rates["fp16"] for each in ratios} == pytest.approx(ratios, rel=0.015)


@pytest.mark.parametrize("name", QUOTED)
def test_peaks_are_as_others_quote_them(name: str) -> None:
    bandwidth, rates = QUOTED[name]
    found = known(name)
    assert found.bandwidth == pytest.approx(bandwidth * 1e9, rel=0.001)
    assert {each: found.rates[each] / 1e12 for each in rates} == pytest.approx(rates, rel=0.0015)


@pytest.mark.parametrize("name", PEAKS)
def test_fewer_bits_are_never_slower(name: str) -> None:
    found = known(name)
    rates = [found.rates[each] for each in ("fp32", "tf32", "fp16", "fp8", "fp4") if each in found.rates]
    assert rates == sorted(rates)
    assert rates[0] < found.rates["fp16"]
    assert 3e11 <= found.bandwidth <= 8e12


@pytest.mark.parametrize("name", PEAKS)
def test_sources_name_a_document_of_the_maker(name: str) -> None:
    source = known(name).source
    assert source.startswith("AMD " if name.startswith("AMD ") else "NVIDIA")
    assert re.search("datasheet|page|whitepaper|list|data|documentation|announcement|exemplar", source)


def test_the_first_precision_that_a_gpu_has_counts() -> None:
    assert known("NVIDIA H200").flops(("fp8", "bf16")) == 1979e12
    assert known("NVIDIA A100-SXM4-80GB").flops(("fp8", "bf16")) == 312e12  # which has no such units
    assert known("NVIDIA B200").flops(("fp4", "bf16")) == 9000e12
    assert known("NVIDIA H200").flops(("fp4", "bf16")) == 989.5e12
    assert known("Tesla T4").flops(("bf16",)) is None
    assert known("NVIDIA H200").flops(()) is None


# Names


@pytest.mark.parametrize("reported", REPORTED)
def test_names_are_those_that_drivers_give(reported: str) -> None:
    assert peak(reported.replace("_", " ")) is not None


@pytest.mark.parametrize(
    ("older", "newer"),
    [("A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"), ("NVIDIA T4", "Tesla T4"), ("nvidia h200", "NVIDIA H200"),
     ("AMD INSTINCT MI210", "AMD Instinct MI210"), ("V100-SXM2-16GB", "Tesla V100-SXM2-16GB")],
)  # fmt: skip
def test_older_drivers_name_the_maker_otherwise(older: str, newer: str) -> None:
    assert peak(older) is known(newer)


@pytest.mark.parametrize(
    "name",
    ["", "NVIDIA", "NVIDIA H100", "H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "GRID A100-10C", "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
     "AMD Instinct MI300X VF", "AMD Instinct MI308X", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU",
     "NVIDIA H800", "AMD Instinct MI250X / MI250", "cpu"],
)  # fmt: skip
def test_nothing_is_guessed(name: str) -> None:
    assert peak(name) is None


# Precisions


def config(quantization: str | None = None, dtype: str = "torch.bfloat16", described: Any = None) -> Section:
    hf = Section(quantization_config=described)
    return Section(model_config=Section(dtype=dtype, quantization=quantization, hf_config=hf))


def scheme(weights: tuple[str, int], activations: tuple[str, int] | None) -> dict[str, Any]:
    made = {"weights": {"type": weights[0], "num_bits": weights[1]}, "input_activations": None}
    return (
        made
        if activations is None
        else {**made, "input_activations": {"type": activations[0], "num_bits": activations[1]}}
    )


def compressed(*schemes: dict[str, Any]) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {f"group_{n}": each for n, each in enumerate(schemes)},
    }


@pytest.mark.parametrize(
    ("quantization", "dtype", "expected"),
    [
        (None, "torch.bfloat16", ("bf16",)),
        (None, "bfloat16", ("bf16",)),
        (None, "torch.float16", ("fp16",)),
        (None, "torch.float32", ("fp32",)),
        (None, "torch.float64", ()),
        ("awq_marlin", "torch.float16", ("fp16",)),
        ("gptq", "torch.bfloat16", ("bf16",)),
        ("fp8", "torch.bfloat16", ("fp8", "bf16")),
        ("modelopt", "torch.float16", ("fp8", "fp16")),
        ("modelopt_fp4", "torch.bfloat16", ("fp4", "bf16")),
        ("mxfp4", "torch.bfloat16", ()),
        ("quark", "torch.bfloat16", ()),
        ("one of the year after next", "torch.bfloat16", ()),
    ],
)
def test_precisions_are_those_of_dtype_and_quantization(
    quantization: str | None, dtype: str, expected: tuple[str, ...]
) -> None:
    assert precisions(config(quantization, dtype)) == expected


@pytest.mark.parametrize(
    ("schemes", "expected"),
    [
        ([scheme(("float", 8), ("float", 8))], ("fp8", "bf16")),
        ([scheme(("int", 8), ("int", 8))], ("int8",)),
        ([scheme(("float", 4), ("float", 4))], ("fp4", "bf16")),
        ([scheme(("int", 4), None)], ("bf16",)),
        ([scheme(("int", 4), ("int", 8))], ()),
        ([scheme(("int", 4), ("int", 4))], ()),
        ([scheme(("float", 8), ("float", 8)), scheme(("float", 8), ("float", 8))], ("fp8", "bf16")),
        ([scheme(("float", 8), ("float", 8)), scheme(("int", 4), None)], ()),
        ([], ()),
    ],
)
def test_compressed_tensors_say_how_they_are_multiplied(
    schemes: list[dict[str, Any]], expected: tuple[str, ...]
) -> None:
    assert precisions(config("compressed-tensors", described=compressed(*schemes))) == expected


@pytest.mark.parametrize("described", [None, 7, {}, {"config_groups": None}, {"config_groups": {"a": None}},
                                       {"config_groups": {"a": {"weights": {"num_bits": []}, "input_activations": {}}}},
                                       {"config_groups": {"a": {"weights": 1, "input_activations": 1}}}])  # fmt: skip
def test_descriptions_that_make_no_sense_say_nothing(described: Any) -> None:
    assert precisions(config("compressed-tensors", described=described)) in ((), ("bf16",))


@pytest.mark.parametrize(
    ("setting", "expected"), [(None, "fp32"), ("highest", "fp32"), ("high", "tf32"), ("medium", "tf32")]
)
def test_float32_is_multiplied_as_vllm_is_told(setting: str | None, expected: str, monkeypatch: Any) -> None:
    name = "VLLM_FLOAT32_MATMUL_PRECISION"
    monkeypatch.delenv(name, raising=False)
    if setting:
        monkeypatch.setenv(name, setting)
    assert precisions(config(dtype="torch.float32")) == (expected,)


@pytest.mark.parametrize(("world", "expected"), [(1, 1), (8, 8), (0, 1), (None, 1), ("4", 1)])
def test_an_engine_has_as_many_gpus_as_ranks(world: Any, expected: int) -> None:
    found = engine_facts(Section(parallel_config=Section(world_size=world)), "0", 1, "0.32.0")
    assert found.gpus == expected
