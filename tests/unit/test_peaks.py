"""Peaks of GPUs, against what their units and clocks make; names as drivers give them; precisions of configurations."""

from types import SimpleNamespace as Section
from typing import Any

import pytest

from vllm_vitals.gpu.peaks import PEAKS, PRECISIONS, Peak, peak
from vllm_vitals.vllm.facts import engine_facts
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
# GPUs, and petaFLOP/s of all of them with sparsity in BF16 and in FP8, and without it in FP4.
SYSTEMS = {
    "NVIDIA B200": (8, 36, 72, 72),
    "NVIDIA GB200": (72, 360, 720, 720),
    "NVIDIA B300 SXM6 AC": (8, 36, 72, 108),
    "NVIDIA GB300": (72, 360, 720, 1080),
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
    assert 7.5e12 < known(name).bandwidth <= 8e12


@pytest.mark.parametrize("name", PEAKS)
def test_each_peak_is_sound(name: str) -> None:
    found = known(name)
    rates = found.rates
    assert set(rates) <= set(PRECISIONS)
    assert rates["fp32"] < rates["fp16"]
    assert rates.get("bf16", rates["fp16"]) == rates["fp16"]
    for precision, times in {"tf32": 0.5, "fp8": 2, "fp4": 4}.items():
        if precision in rates and "RTX" not in name and "300" not in name:
            assert rates[precision] == pytest.approx(rates["fp16"] * times, rel=0.03), precision
    assert found.source.split()[0] in name or (found.source.startswith("NVIDIA") and name.startswith("Tesla"))
    assert 1e11 < found.bandwidth < 1e13


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
