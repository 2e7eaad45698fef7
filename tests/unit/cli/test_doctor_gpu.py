"""Doctor: the GPUs, by stand-ins for the libraries of both vendors."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.amd import stub as amd
from tests.unit.nvml import stub as nvidia
from vllm_vitals.cli.doctor import CHECKS, gpu
from vllm_vitals.cli.doctor.finding import Finding, Status
from vllm_vitals.cli.doctor.launch import Launch
from vllm_vitals.gpu import amd_source

A, B = "GPU-aaaaaaaa-0000", "GPU-bbbbbbbb-0000"
H100, MI300X = nvidia.H100["name"], amd.MI300X["name"]
OF_AMD = "aaaaaaaa-0000-1000-8000-aaaaaaaaaaaa"
NOWHERE = (Path("/nowhere/kfd"), Path("/nowhere/amdgpu"))


def look(environ: dict[str, str] | None = None, *command: str) -> list[Finding]:
    return list(CHECKS["gpu"](Launch(environ or {}, ["vllm", "serve", *command] if command else None)))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return drivers of both vendors, without devices, that of AMD not loaded."""
    for name in ("nvidia", "amd"):
        (tmp_path / name).mkdir()
    drivers = SimpleNamespace(
        amd=amd.driver(tmp_path / "amd", monkeypatch), nvidia=nvidia.driver(tmp_path / "nvidia", monkeypatch)
    )
    drivers.loaded = amd_source.DRIVER
    monkeypatch.setattr(amd_source, "DRIVER", NOWHERE)
    monkeypatch.setattr(gpu, "module_file", lambda _: None)
    return drivers


def test_devices_that_will_be_sampled(here):
    here.nvidia.plug(0)
    here.nvidia.plug(1)
    here.nvidia.plug(2)
    (finding,) = look({"CUDA_VISIBLE_DEVICES": "1,0"})
    assert (finding.status, finding.found) == (
        Status.OK, f"NVIDIA: 2 of 3 will be sampled: {H100} {B}, {H100} {A}",
    )  # fmt: skip


def test_devices_of_both_vendors(here, monkeypatch):
    monkeypatch.setattr(amd_source, "DRIVER", here.loaded)
    here.nvidia.plug(0)
    here.amd.plug(0)
    assert [(finding.status, finding.found) for finding in look()] == [
        (Status.OK, f"NVIDIA: 1 of 1 will be sampled: {H100} {A}"),
        (Status.OK, f"AMD: 1 of 1 will be sampled: {MI300X} {OF_AMD}"),
    ]
    assert here.nvidia.opened() == (1, 1)


def test_driver_that_shows_no_device(here):
    (finding,) = look()
    assert here.nvidia.opened() == (1, 1)
    assert finding.status is Status.WARN
    assert "shows no GPU" in finding.found
    assert "--gpus" in finding.advice


def test_library_that_cannot_be_used(here, monkeypatch):
    monkeypatch.setattr(amd_source, "DRIVER", here.loaded)
    here.nvidia.say({"init": nvidia.NO_PERMISSION})
    here.amd.say({"init": amd.NO_PERM})
    of_nvidia, of_amd = look()
    assert of_nvidia.status is of_amd.status is Status.WARN
    assert of_nvidia.found.endswith("its GPUs cannot be read: Insufficient Permissions")
    assert of_amd.found.endswith("its GPUs cannot be read: AMDSMI_STATUS_NO_PERM")
    assert "nvidia-smi has to work" in of_nvidia.advice
    assert "amd-smi has to work" in of_amd.advice


def test_package_that_is_missing(here, monkeypatch, tmp_path):
    monkeypatch.setattr(amd_source, "DRIVER", here.loaded)
    here.nvidia.plug(0)
    (tmp_path / "amdsmi.py").write_text("raise ModuleNotFoundError('x', name='amdsmi')", encoding="ascii")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    _, finding = look()
    assert finding.status is Status.WARN
    assert "pip install 'vllm-vitals[amd]'" in finding.found


def test_device_that_does_not_answer(here):
    here.nvidia.plug(0, total=nvidia.LOST)
    here.nvidia.plug(1)
    here.nvidia.plug(2, uuid=nvidia.NO_PERMISSION)
    good, bad = look()
    assert (good.status, good.found) == (Status.OK, f"NVIDIA: 1 of 3 will be sampled: {H100} {B}")
    assert bad.status is Status.WARN
    assert bad.found == f"NVIDIA: GPUs that do not answer: {A}: GPU is lost; Insufficient Permissions"


def test_variables_that_hide_every_device(here, monkeypatch):
    here.nvidia.plug(0)
    (finding,) = look({"CUDA_VISIBLE_DEVICES": "7"})
    assert finding.status is Status.WARN
    assert finding.found == "NVIDIA: of 1 GPUs none will be sampled, by CUDA_VISIBLE_DEVICES='7'"
    assert finding.advice == "Correct CUDA_VISIBLE_DEVICES, or name the devices in VITALS_GPU__DEVICES."
    monkeypatch.setattr(amd_source, "DRIVER", here.loaded)
    here.amd.plug(0)
    (_, finding) = look({"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "1"})
    assert "ROCR_VISIBLE_DEVICES='0', HIP_VISIBLE_DEVICES='1'" in finding.found


def test_setting_that_stands_for_nothing(here):
    here.nvidia.plug(0)
    (finding,) = look({"VITALS_GPU__DEVICES": "GPU-x"})
    assert finding.status is Status.WARN
    assert finding.found.endswith(f"stands for no device, so none is sampled; NVIDIA has: {A}")


def test_setting_that_stands_for_every_device(here):
    here.nvidia.plug(0)
    (finding,) = look({"VITALS_GPU__DEVICES": "all", "CUDA_VISIBLE_DEVICES": ""})
    assert finding.status is Status.OK


def test_user_who_may_not_use_amds_driver(here, monkeypatch):
    monkeypatch.setattr(amd_source, "DRIVER", here.loaded)
    here.nvidia.plug(0)
    here.amd.plug(0)
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != here.loaded[0])
    finding = look()[-1]
    assert finding.status is Status.WARN
    assert f"may not use {here.loaded[0]}" in finding.found
    assert "render" in finding.advice


TORCHES = [
    ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", ["NVIDIA"]),
    ("cuda: Optional[str] = None\nhip: Optional[str] = '7.0.51831'\n", ["AMD"]),
    ("cuda: Optional[str] = None\nhip: Optional[str] = None\n", ["NVIDIA", "AMD"]),
    ("cuda = '11.8'\nhip = None\n", ["NVIDIA"]),
    (None, ["NVIDIA", "AMD"]),
]


@pytest.mark.parametrize(("version", "expected"), TORCHES)
def test_devices_that_the_installed_pytorch_cannot_work_on_are_left_out(here, monkeypatch, tmp_path, version, expected):
    monkeypatch.setattr(amd_source, "DRIVER", here.loaded)
    here.nvidia.plug(0)
    here.amd.plug(0)
    if version:
        (tmp_path / "version.py").write_text(version, encoding="ascii")
    monkeypatch.setattr(gpu, "module_file", lambda _: tmp_path / "__init__.py")
    assert [finding.found.partition(":")[0] for finding in look()] == expected


def test_no_driver_at_all(monkeypatch):
    def down(_):
        raise gpu.NoDriverError("not found")

    for source in gpu.SOURCES.values():
        monkeypatch.setattr(source, "open", down)
    monkeypatch.setattr(gpu, "module_file", lambda _: None)
    (finding,) = look()
    assert finding.status is Status.SKIP
    assert finding.found.endswith("no hw.* metrics (NVIDIA: not found; AMD: not found)")


NOT_HERE = [
    ({"VITALS_GPU__ENABLED": "false"}, (), "gpu.enabled is off (from VITALS_GPU__ENABLED)"),
    ({"VITALS_GPU__INTERVAL": "x"}, (), "the settings are wrong"),
    ({"VITALS_WIRE__SIDECAR": "/run/vitals/s.sock"}, (), "the sidecar samples the GPUs, not vLLM"),
    ({}, ("m", "--headless"), "nothing samples the GPUs of this node"),
]


@pytest.mark.parametrize(("environ", "command", "expected"), NOT_HERE)
def test_gpus_that_this_vllm_does_not_sample(environ, command, expected):
    (finding,) = look(environ, *command)
    assert finding.status is Status.SKIP
    assert expected in finding.found
