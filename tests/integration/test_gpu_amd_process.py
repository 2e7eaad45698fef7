"""AMD SMI in a process of its own: what becomes of a library that crashes, hangs or is not there; both vendors at once."""

import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.amd import stub
from tests.unit.nvml import stub as nvidia
from tests.waiting import wait_until
from vllm_vitals.gpu import amd_apart, amd_source
from vllm_vitals.gpu.amd_apart import Process
from vllm_vitals.gpu.amd_source import AmdSource
from vllm_vitals.gpu.choice import vendors
from vllm_vitals.gpu.fleet import Fleet
from vllm_vitals.gpu.processes import Family
from vllm_vitals.gpu.sampler import sampler
from vllm_vitals.gpu.source import DownError
from vllm_vitals.gpu.visible import visible
from vllm_vitals.records.gpu import FAILED, OK, Reading, Sample
from vllm_vitals.records.placement import Placement, place

A, B = "aaaaaaaa-0000-1000-8000-aaaaaaaaaaaa", "bbbbbbbb-0000-1000-8000-bbbbbbbbbbbb"
NAME = stub.MI300X["name"]
NVIDIA_A = "GPU-aaaaaaaa-0000"


@pytest.fixture
def driver(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "vllm.vitals")
    return stub.driver(tmp_path, monkeypatch)


class Watched:
    """A fleet and the clock that it goes by."""

    def __init__(self, environ: dict[str, str], placements: tuple[Placement, ...]) -> None:
        self.now = 1000.0
        self.process = Process()
        self.fleet = Fleet(
            AmdSource(Family(), lambda: self.process),
            lambda vendor, listed: visible(environ, vendor, listed),
            lambda ids: place(placements, ids),
            lambda: self.now,
        )

    @property
    def pid(self) -> int:
        assert self.process._process
        return self.process._process.pid

    def states(self, after: float = 1.0) -> dict[str, str]:
        return {reading.gpu.id: reading.state for reading in self.read(after)}

    def read(self, after: float = 1.0) -> list[Reading]:
        self.now += after
        return self.fleet.read()


@pytest.fixture
def watch():
    made = []

    def make(environ: dict[str, str] | None = None, *placements: Placement) -> Watched:
        made.append(Watched(environ or {}, placements))
        return made[-1]

    yield make
    for each in made:
        each.fleet.close()


def said(caplog) -> list[str]:
    """Return the lines of the log, without those of what devices never tell."""
    return [line.removeprefix("vllm-vitals: ") for line in caplog.messages if "does not tell" not in line]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_process_says_what_the_library_says(driver, watch):
    driver.plug(0)
    driver.plug(1)
    first, second = watch({"HIP_VISIBLE_DEVICES": "1,0"}, Placement("m", ("4", "5"), 1)).read()
    assert [(each.gpu.id, each.model, each.engine) for each in (first, second)] == [(B, "m", "4"), (A, "m", "5")]
    assert (first.gpu.name, first.power, first.process_memory) == (NAME, 650, 5000)
    assert first.temperature_limits["gpu", "throttled"] == 100


@pytest.mark.parametrize("wanted", ["GPU-b", "1", "GPU-bbbbbbbbbbbbbbbb"])
@pytest.mark.parametrize("variable", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_devices_are_chosen_by_what_rocm_calls_them(driver, watch, variable, wanted):
    driver.plug(0)
    driver.plug(1)
    assert watch({variable: wanted}).states() == {B: OK}


def test_partitions_are_devices_and_their_gpu_is_read_too(driver, watch):
    driver.plug(0, mode="DPX", metrics__gfx_busy_inst__0__0=40, metrics__gfx_busy_inst__1__0=10)
    driver.plug(1, uuid=A, partition=1, bus="0000:05:00.1", hip_uuid="GPU-aaaaaaaaaaaaaaaa")
    readings = watch({"HIP_VISIBLE_DEVICES": "1"}, Placement("m", ("0",), 1)).read()
    found = {each.gpu.id: (each.gpu.parent, each.engine, each.utilization, each.power) for each in readings}
    assert found == {f"{A}/1": (A, "0", 0.1, None), A: ("", "", 0.87, 650)}


def test_device_that_falls_off_the_bus_is_marked_and_returns(driver, watch, caplog):
    driver.plug(0, energy=1_000_000)
    driver.plug(1)
    watched = watch()
    assert watched.states() == {A: OK, B: OK}
    driver.say({"0": stub.NOT_SUPPORTED})
    for _ in range(3):
        lost, well = watched.read()
        assert (lost.gpu.id, lost.gpu.name, lost.state, lost.power) == (A, NAME, FAILED, None)
        assert (well.state, well.power) == (OK, 650)
    driver.say({"0": None, "0.energy": 5_000_000})
    back, well = watched.read(60.0)
    assert (back.state, back.energy, well.state) == (OK, pytest.approx(61.0), OK)
    assert said(caplog) == [
        f"{NAME} {A} is lost: AMDSMI_STATUS_NOT_SUPPORTED. The others are read on",
        f"{NAME} {A} answers again",
    ]


def test_lost_device_is_not_taken_for_the_one_that_gets_its_index(driver, watch):
    driver.plug(0)
    driver.plug(1)
    watched = watch({"HIP_VISIBLE_DEVICES": "0"})
    assert watched.states() == {A: OK}
    driver.say({"0": stub.NOT_FOUND})
    watched.read()
    driver.plug(0, uuid=B)
    driver.say({"0": None, "count": 1})
    assert watched.states(60.0) == {A: FAILED}
    driver.plug(0)
    assert watched.states(300.0) == {A: OK}


def test_library_that_crashes_costs_one_line_and_is_begun_anew(driver, watch, monkeypatch, caplog):
    monkeypatch.setattr(amd_apart, "PARTING", 20.0)  # else its end may come too late to be told
    driver.plug(0)
    watched = watch()
    watched.read()
    before = watched.pid
    driver.say({"crash": 1})
    assert watched.states() == {A: FAILED}
    assert watched.states() == {A: FAILED}
    assert not alive(before)
    driver.say({"crash": None})
    assert watched.states(5.0) == {A: OK}
    assert said(caplog) == [
        "The AMD GPUs cannot be read, trying again from time to time: the process that asks AMD SMI ended with signal 6",
        "The AMD GPUs can be read now",
    ]


def test_library_that_hangs_is_given_up(driver, watch, monkeypatch, caplog):
    driver.plug(0)
    watched = watch()
    watched.read()
    before = watched.pid
    monkeypatch.setattr(amd_apart, "READING", 0.3)
    driver.say({"hang": 1})
    assert watched.states() == {A: FAILED}
    wait_until(lambda: not alive(before))
    driver.say({"hang": None})
    monkeypatch.setattr(amd_apart, "READING", 30.0)
    assert watched.states(5.0) == {A: OK}
    assert "AMD SMI does not answer any more" in said(caplog)[0]


def test_driver_that_goes_and_returns(driver, watch, caplog):
    driver.plug(0)
    watched = watch()
    watched.read()
    driver.say({"0": stub.DRIVER_NOT_LOADED, "init": stub.DRIVER_NOT_LOADED})
    for _ in range(10):
        assert watched.states() == {A: FAILED}
    driver.say({"0": None, "init": None})
    assert watched.states(100.0) == {A: OK}
    reason = "AMDSMI_STATUS_DRIVER_NOT_LOADED"
    assert said(caplog) == [
        f"The AMD GPUs cannot be read, trying again from time to time: {reason}",
        "The AMD GPUs can be read now",
    ]


def test_library_is_never_opened_twice_in_a_process_nor_closed(driver, watch):
    driver.plug(0)
    watched = watch()
    watched.read()
    pids = {watched.pid}
    for _ in range(3):
        driver.say({"0": stub.NOT_FOUND})
        watched.read()
        driver.say({"0": None})
        watched.read(300.0)
        pids.add(watched.pid)
    assert len(pids) == 4
    assert driver.opened() == (4, 0)
    assert sum(map(alive, pids)) == 1


FORK = "if os.fork() == 0: os.close(1); os.close(2); time.sleep(60)"  # it keeps the pipe open


@pytest.mark.parametrize("fork", ["", FORK], ids=["alone", "with a fork"])
def test_process_ends_with_what_started_it(driver, fork):
    driver.plug(0)
    script = (
        "import os, time\n"
        "from vllm_vitals.gpu.amd_apart import Process\n"
        "from vllm_vitals.gpu.amd_messages import Request\n"
        "process = Process()\n"
        "assert process.ask(Request()).gpus\n"
        "print(process._process.pid, os.getpid(), flush=True)\n"
        f"{fork}\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60, start_new_session=True
    )
    pid, group = map(int, done.stdout.split())
    try:
        wait_until(lambda: not alive(pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def test_interrupt_from_the_keyboard_is_not_the_processes_affair(driver, watch):
    driver.plug(0)
    watched = watch()
    watched.read()
    assert os.getpgid(watched.pid) != os.getpgid(0)
    os.kill(watched.pid, signal.SIGINT)
    assert watched.states() == {A: OK}


def reason(monkeypatch, **variables: str) -> str:
    """Return why the library cannot be opened."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(amd_apart, "PARTING", 20.0)  # else its end may come too late to be told
    source = AmdSource(Family())
    with pytest.raises(DownError) as caught:
        source.open()
    source.close()
    return str(caught.value)


@pytest.mark.skipif(Path("/opt/rocm/lib/libamd_smi.so").exists(), reason="this machine has ROCm")
def test_library_that_is_not_there(driver, monkeypatch, tmp_path, capfd):
    assert driver.values
    why = reason(monkeypatch, ROCM_HOME=str(tmp_path), ROCM_PATH=str(tmp_path))
    assert why.startswith("amdsmi cannot be imported, does it find ROCm's libamd_smi.so? ")
    assert why.endswith("libamd_smi.so: cannot open shared object file: No such file or directory")
    assert capfd.readouterr() == ("", "")  # it prints


def test_library_of_another_release(driver, monkeypatch, tmp_path):
    assert driver.values
    stub.build(tmp_path, without="amdsmi_get_gpu_xcd_counter")
    why = reason(monkeypatch, ROCM_HOME=str(tmp_path))
    assert "undefined symbol: amdsmi_get_gpu_xcd_counter" in why
    assert why.endswith("have to be of the same release of ROCm")


ODDITIES = [
    ("raise ModuleNotFoundError('x', name='amdsmi')", "pip install 'vllm-vitals[amd]'"),
    ("raise KeyError('libamd_smi.so')", "does it find ROCm's libamd_smi.so? KeyError"),
    ("import nothing_of_that_name", "nothing_of_that_name"),
    ("import os; os._exit(7)", "ended with status 7"),
    ("def amdsmi_init(): raise SystemError", "amdsmi fails: SystemError"),
]


@pytest.mark.parametrize(("content", "expected"), ODDITIES)
def test_what_calls_itself_amdsmi_and_is_not(driver, monkeypatch, tmp_path, content, expected):
    assert driver.values
    (tmp_path / "amdsmi.py").write_text(content, encoding="ascii")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert expected in reason(monkeypatch, PYTHONPATH=path)


def test_what_lies_in_the_working_directory_is_not_taken_for_amdsmi(driver, monkeypatch, tmp_path, watch):
    driver.plug(0)
    (tmp_path / "amdsmi.py").write_text("raise ValueError", encoding="ascii")
    monkeypatch.chdir(tmp_path)
    if sys.version_info >= (3, 11):
        assert watch().states() == {A: OK}


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(self, records) -> None:
        self.samples += records


def sampled(devices: str | None = None, **environ: str) -> dict[str, Reading]:
    """Return the readings of one sample by id."""
    sink = Sink()
    made = sampler(sink, 1.0, devices, environ=environ)
    made.sample()
    for fleet in made._fleets:
        fleet.close()
    return {reading.gpu.id: reading for sample in sink.samples for reading in sample.readings}


@pytest.fixture
def both(driver, tmp_path, monkeypatch):
    folder = tmp_path / "nvidia"
    folder.mkdir()
    other = nvidia.driver(folder, monkeypatch)
    other.plug(0)
    driver.plug(0)
    return SimpleNamespace(amd=driver, nvidia=other)


def test_devices_of_both_vendors_are_in_one_sample(both, caplog):
    found = sampled()
    assert {name: (each.gpu.vendor, each.power) for name, each in found.items()} == {
        NVIDIA_A: ("NVIDIA", 412.5), A: ("AMD", 650),
    }  # fmt: skip
    assert said(caplog) == [f"GPUs: NVIDIA: 1 of 1 watched (NVIDIA H100 80GB HBM3); AMD: 1 of 1 watched ({NAME})"]
    both.nvidia.say({"init": nvidia.DRIVER_NOT_LOADED})
    assert set(sampled()) == {A}


def test_one_vendor_is_found_without_the_other(both, monkeypatch, caplog):
    monkeypatch.setattr(amd_source, "DRIVER", (Path("/nowhere/kfd"), Path("/nowhere/amdgpu")))
    assert set(sampled()) == {NVIDIA_A}
    none = "AMD: none (no driver: neither /nowhere/kfd nor /nowhere/amdgpu is there)"
    assert said(caplog) == [f"GPUs: NVIDIA: 1 of 1 watched (NVIDIA H100 80GB HBM3); {none}"]
    assert both.amd.opened() == (0, 0)


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(("devices", "expected"), [("GPU-aaaaaaaa-", NVIDIA_A), ("GPU-aaaaaaaaaa", A)])
def test_setting_that_stands_for_a_device_of_one_vendor_is_in_order(caplog, devices, expected):
    assert set(sampled(devices)) == {expected}
    assert not [line for line in said(caplog) if "gpu.devices" in line]


@pytest.mark.usefixtures("both")
def test_setting_that_stands_for_nothing_of_either_vendor(caplog):
    assert sampled("GPU-c") == {}
    (line,) = [line for line in said(caplog) if "gpu.devices" in line]
    assert line.endswith(f"so none is sampled; NVIDIA has: {NVIDIA_A}; AMD has: GPU-aaaaaaaaaaaaaaaa")


TORCHES = [
    (SimpleNamespace(version=SimpleNamespace(cuda="12.8", hip=None)), {NVIDIA_A}),
    (SimpleNamespace(version=SimpleNamespace(cuda=None, hip="7.0")), {A}),
    (SimpleNamespace(version=SimpleNamespace(cuda=None, hip=None)), {NVIDIA_A, A}),
    (SimpleNamespace(), {NVIDIA_A, A}),
]


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize(("torch", "expected"), TORCHES)
def test_devices_that_this_pytorch_cannot_work_on_are_left_alone(monkeypatch, torch: Any, expected):
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert set(sampled()) == expected
    assert set(sampled("all")) == {NVIDIA_A, A}


def test_without_pytorch_nothing_is_known(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert vendors() == ("NVIDIA", "AMD")


SCRIPT = """
import sys
from vllm_vitals.gpu.sampler import sampler
import vllm_vitals.gpu.amd_source

class Sink:
    def add(self, records):
        pass

made = sampler(Sink(), 1.0)
made.sample()
assert not [name for name in sys.modules if name.startswith("amdsmi")], "imported where vLLM runs"
"""


@pytest.mark.skipif(any(path.exists() for path in amd_source.DRIVER), reason="this machine has a driver")
def test_nothing_is_imported_nor_started_where_there_is_no_driver():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)
