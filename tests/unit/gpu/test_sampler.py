"""The thread that samples, and how it finds its library, or none; what needs a process of its own runs in one."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.unit.nvml import stub
from tests.waiting import wait_until
from vllm_vitals._util.pacing import checkpoint
from vllm_vitals.gpu import amd_source
from vllm_vitals.gpu.fleet import Fleet
from vllm_vitals.gpu.sampler import Sampler, sampler
from vllm_vitals.records.gpu import Gpu, Reading, Sample
from vllm_vitals.records.placement import Placement

A, B = "GPU-aaaaaaaa-0000", "GPU-bbbbbbbb-0000"


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def add(self, records) -> None:
        self.samples += records
        checkpoint()


class Readers:
    """Stands in for a fleet; says what a function returns."""

    vendor = "X"

    def __init__(self, say) -> None:
        self.say = say
        self.closed = threading.Event()

    def read(self) -> list[Reading]:
        checkpoint()
        return self.say()

    def found(self) -> str:
        return "some"

    def close(self) -> None:
        self.closed.set()


def test_all_fleets_are_in_one_sample():
    sink = Sink()
    fleets: list[Any] = [Readers(lambda: [Reading(Gpu("a"))]), Readers(list), Readers(lambda: [Reading(Gpu("b"))])]
    before = time.time(), time.monotonic()
    Sampler(sink, 1.0, fleets).sample()
    (sample,) = sink.samples
    assert [reading.gpu.id for reading in sample.readings] == ["a", "b"]
    assert before[0] <= sample.time <= time.time()
    assert before[1] <= sample.clock <= time.monotonic()


def test_nothing_is_told_without_devices():
    sink = Sink()
    Sampler(sink, 1.0, []).sample()
    assert sink.samples == []


def test_thread_samples_at_its_interval_and_ends():
    sink, readers = Sink(), Readers(lambda: [Reading(Gpu("a"))])
    made = Sampler(sink, 0.5, [readers])
    made.start()
    wait_until(lambda: len(sink.samples) == 3)
    made.stop()
    wait_until(readers.closed.is_set)
    clocks = [sample.clock for sample in sink.samples]
    assert 0.7 <= clocks[2] - clocks[0] < 5.0  # the first may be late, and the last
    count = len(sink.samples)
    time.sleep(0.2)
    assert len(sink.samples) == count


def test_thread_goes_on_after_an_error_which_is_told_once(caplog):
    caplog.set_level(logging.INFO, "vllm.vitals")
    said = iter([ZeroDivisionError("x"), ValueError("y"), [Reading(Gpu("a"))]])

    def say() -> list[Reading]:
        each = next(said, [])
        if isinstance(each, Exception):
            raise each
        return each

    sink = Sink()
    made = Sampler(sink, 0.1, [Readers(say)])
    made.start()
    wait_until(lambda: sink.samples)
    made.stop()
    assert caplog.messages == ["vllm-vitals: The GPUs could not be sampled", "vllm-vitals: GPUs: X: some"]


def test_driver_that_hangs_does_not_keep_the_end_up():
    hung = threading.Event()
    made = Sampler(Sink(), 1.0, [Readers(lambda: hung.wait(200) and [])])
    made.start()
    began = time.monotonic()
    made.stop()
    assert time.monotonic() - began < 100
    hung.set()


def test_sampler_that_was_never_started_can_be_stopped_and_abandoned():
    made = sampler(Sink(), 1.0)
    made.after_fork_in_child()
    made.stop()


CHOICES = [
    (None, {}, [A, B]),
    (None, {"CUDA_VISIBLE_DEVICES": "1"}, [B]),
    ("all", {"CUDA_VISIBLE_DEVICES": ""}, [A, B]),
    ("0", {"CUDA_VISIBLE_DEVICES": "1"}, [A]),
    ("GPU-b", {}, [B]),
]


@pytest.mark.parametrize(("devices", "environ", "expected"), CHOICES)
def test_setting_wins_over_the_environment(tmp_path, monkeypatch, devices, environ, expected):
    driver = stub.driver(tmp_path, monkeypatch)
    driver.plug(0)
    driver.plug(1)
    sink = Sink()
    made = sampler(sink, 1.0, devices, environ=environ)
    made.sample()
    assert [reading.gpu.id for reading in sink.samples[0].readings] == expected


@pytest.mark.parametrize("devices", ["7", "GPU-cccc", "none"])
def test_setting_that_stands_for_nothing_is_told_of(tmp_path, monkeypatch, caplog, devices):
    stub.driver(tmp_path, monkeypatch).plug(0)
    sink = Sink()
    sampler(sink, 1.0, devices, environ={}).sample()
    assert not sink.samples
    (line,) = [record.getMessage() for record in caplog.records if "gpu.devices" in record.getMessage()]
    assert f"gpu.devices={devices!r} (VITALS_GPU__DEVICES) stands for no device" in line
    assert line.endswith(f"NVIDIA has: {A}")


def test_environment_counts_as_it_was_in_the_beginning(tmp_path, monkeypatch):
    driver = stub.driver(tmp_path, monkeypatch)
    driver.plug(0)
    driver.plug(1)
    sink = Sink()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    made = sampler(sink, 1.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    made.sample()
    assert [reading.gpu.id for reading in sink.samples[0].readings] == [B]


def test_all_are_all_parts_of_devices_in_mig_mode_and_their_gpu(tmp_path, monkeypatch):
    driver = stub.driver(tmp_path, monkeypatch)
    driver.plug(0, mig=2)
    driver.part(0, 0, uuid="MIG-0")
    driver.part(0, 1, uuid="MIG-1")
    driver.plug(1)
    sink = Sink()
    sampler(sink, 1.0, "all").sample()
    assert [reading.gpu.id for reading in sink.samples[0].readings] == ["MIG-0", "MIG-1", B, A]


def test_all_are_nobodys(tmp_path, monkeypatch):
    driver = stub.driver(tmp_path, monkeypatch)
    driver.plug(0)
    driver.plug(1)
    sink = Sink()
    sampler(sink, 1.0, "all", lambda: [Placement("m", ("0",), 1)]).sample()
    assert [(r.gpu.id, r.engine) for r in sink.samples[0].readings] == [(A, ""), (B, "")]


def test_placements_are_asked_for_when_a_driver_is_opened(tmp_path, monkeypatch):
    driver = stub.driver(tmp_path, monkeypatch)
    driver.plug(0)
    driver.plug(1)
    sink, known = Sink(), []
    made = sampler(sink, 1.0, placements=lambda: known, environ={})
    known.append(Placement("m", ("0",), 1))
    made.sample()
    assert [(r.gpu.id, r.model, r.engine) for r in sink.samples[0].readings] == [(A, "m", "0")]


SCRIPT = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
from vllm_vitals.gpu.sampler import sampler
assert "pynvml" not in sys.modules

class Sink:
    samples = []
    def add(self, records):
        self.samples += records

made = sampler(Sink(), 1.0)
for _ in range(2):
    made.sample()
print(json.dumps([[r.gpu.id, r.state, r.power, r.temperatures] for s in Sink.samples for r in s.readings]))
"""


NO_AMD = "AMD: none (no driver: neither /dev/kfd nor /sys/module/amdgpu is there)"
FOUND = f"vllm-vitals: GPUs: NVIDIA: 1 of 1 watched (NVIDIA H100 80GB HBM3); {NO_AMD}"
needs_no_amd = pytest.mark.skipif(
    any(path.exists() for path in amd_source.DRIVER), reason="this machine has AMD's driver"
)


def run(**variables: str) -> tuple[Any, list[str]]:
    """Run the script and return what it prints and logs."""
    environ = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr.splitlines()


@needs_no_amd
def test_library_is_found_as_that_of_a_driver_is(tmp_path):
    pytest.importorskip("pynvml")
    stub.build(tmp_path)
    driver = stub.Driver(tmp_path)
    driver.plug(0)
    said, logged = run(LD_LIBRARY_PATH=str(tmp_path), **driver.variables)
    assert said == [[A, "ok", 412.5, {"gpu": 66, "memory": 78}]] * 2
    assert logged == [FOUND]
    assert driver.opened() == (1, 0)


@needs_no_amd
def test_functions_that_an_old_driver_lacks_have_others_in_their_place(tmp_path):
    pytest.importorskip("pynvml")
    stub.build(tmp_path, "-DOLD_DRIVER")
    driver = stub.Driver(tmp_path)
    driver.plug(0)
    said, logged = run(LD_LIBRARY_PATH=str(tmp_path), **driver.variables)
    assert said == [[A, "ok", 412.5, {"gpu": 66, "memory": 78}]] * 2
    assert logged == [FOUND]


@needs_no_amd
@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has a driver")  # noqa: PTH110
def test_without_a_driver_there_is_one_line(tmp_path):
    pytest.importorskip("pynvml")
    said, logged = run(LD_LIBRARY_PATH=str(tmp_path))
    assert said == []
    assert logged == [f"vllm-vitals: GPUs: NVIDIA: none (NVML Shared Library Not Found); {NO_AMD}"]


@needs_no_amd
@pytest.mark.parametrize("content", ["raise KeyError('HOME')", "import nothing_of_that_name", "nvmlInit = None"])
def test_what_calls_itself_pynvml_and_is_not_costs_one_line(tmp_path, content):
    (tmp_path / "pynvml.py").write_text(content, encoding="ascii")
    said, logged = run(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    assert said == []
    line, found = logged
    assert line.startswith("vllm-vitals: The NVIDIA GPUs cannot be read")
    assert found == f"vllm-vitals: GPUs: NVIDIA: none so far; {NO_AMD}"


def power_of_first(made: Sampler, sink: Sink) -> float | None:
    made.sample()
    return sink.samples[0].readings[0].power


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_child_of_a_fork_may_sample_anew(tmp_path, monkeypatch):
    driver = stub.driver(tmp_path, monkeypatch)
    driver.plug(0)
    sink, of_child = Sink(), Sink()
    made = sampler(sink, 0.1, environ={})
    made.start()
    wait_until(lambda: sink.samples)
    child = os.fork()
    if not child:
        outcome = 1
        try:
            made.after_fork_in_child()
            outcome = 0 if power_of_first(sampler(of_child, 0.1, environ={}), of_child) == 412.5 else 2
        finally:
            os._exit(outcome)
    _, status = os.waitpid(child, 0)
    made.stop()
    assert os.waitstatus_to_exitcode(status) == 0


def test_fleet_is_what_the_sampler_takes():
    """`Readers` above is no more than a fleet is."""
    assert {name for name in vars(Readers) if not name.startswith("_")} <= set(vars(Fleet))
