"""What NVIDIA's devices say, from a stub of the driver's library through the real nvidia-ml-py."""

import logging
import os

import pytest

from tests.checkpoints import at_checkpoints
from tests.unit.nvml import stub
from tests.unit.nvml.stub import EVERY_LINK, GIB
from vllm_vitals.gpu.nvml import Nvml
from vllm_vitals.gpu.processes import Family
from vllm_vitals.gpu.source import DownError, LostError
from vllm_vitals.gpu.visible import Listed, Part
from vllm_vitals.records.gpu import DEGRADED, NVIDIA_REASONS, OK, Gpu, Reading

A, B = "GPU-aaaaaaaa-0000", "GPU-bbbbbbbb-0000"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    return stub.driver(tmp_path, monkeypatch)


@pytest.fixture
def nvml(driver):  # noqa: ARG001 - the variables have to be there before
    source = Nvml(Family())
    yield source
    source.close()


def read(nvml: Nvml, identity: str, *clocks: float) -> list[Reading]:
    """Return what a device says at some times, the source just opened."""
    nvml.open()
    device = nvml.device(identity)
    return [device.read(clock) for clock in clocks]


def test_devices_are_listed_and_described(driver, nvml):
    driver.plug(0)
    driver.plug(1, name="NVIDIA L4", bus=None, serial=stub.NO_PERMISSION)
    assert nvml.open() == [Listed(A), Listed(B)]
    assert nvml.device(A).gpu == Gpu(
        A, "NVIDIA H100 80GB HBM3", "NVIDIA", "", "0", "00000000:1B:00.0", "165", "550.54.15", "96.00"
    )
    assert nvml.device(B).gpu == Gpu(B, "NVIDIA L4", "NVIDIA", "", "1", "", "", "550.54.15", "96.00")


def test_values_of_the_moment_come_in_the_units_of_the_conventions(driver, nvml):
    driver.plug(0)
    (said,) = read(nvml, A, 100.0)
    assert said.state == OK
    assert (said.utilization, said.memory_activity) == (0.87, 0.4)
    assert (said.memory_usage, said.memory_limit) == (60 * GIB, 80 * GIB)
    assert (said.power, said.power_limit) == (412.5, 700.0)
    assert said.temperatures == {"gpu": 66, "memory": 78}
    assert said.temperature_limits == {
        ("gpu", "throttled"): 87,
        ("gpu", "high.critical"): 92,
        ("memory", "throttled"): 95,
    }
    assert said.clocks == {"sm": 1.98e9, "memory": 2.619e9}
    assert said.process_memory == 5000


def test_counters_tell_what_came_since_the_reading_before(driver, nvml):
    driver.plug(0)
    nvml.open()
    device = nvml.device(A)
    first = device.read(100.0)
    assert first.energy == 0.0
    assert first.errors == {"corrected": 0.0, "uncorrected": 0.0}
    assert set(first.io.values()) == {0.0}
    assert first.throttled == dict.fromkeys(NVIDIA_REASONS, 0.0)
    driver.plug(
        0, energy=1_825_000, reasons=0x4 | 0x20 | 0x1,
        **{"ecc.0.0": 5, "ecc.1.0": 1, f"field.138.{EVERY_LINK}": 1500, f"field.139.{EVERY_LINK}": 3001},
    )  # fmt: skip
    second = device.read(102.0)
    assert second.energy == 825.0  # 412.5 W over 2 s
    assert second.errors == {"corrected": 2.0, "uncorrected": 1.0}
    assert second.throttled == {**dict.fromkeys(NVIDIA_REASONS, 0.0), "sw_power_cap": 2.0, "sw_thermal_slowdown": 2.0}
    assert second.io == {
        ("nvlink", "transmit"): 500 * 1024, ("nvlink", "receive"): 1024,
        ("pcie", "transmit"): 1e9, ("pcie", "receive"): 4e9,  # 0.5 and 2 GB/s over 2 s
    }  # fmt: skip


def test_energy_goes_on_when_the_driver_is_loaded_anew(driver, nvml):
    driver.plug(0, energy=900_000_000)
    read(nvml, A, 100.0)
    driver.plug(0, energy=300_000)
    (said,) = read(nvml, A, 130.0)
    assert said.energy == 300.0


def test_energy_is_reckoned_from_the_power_where_it_is_not_counted(driver, nvml):
    driver.plug(0, energy=stub.NOT_SUPPORTED, power=200_000)
    nvml.open()
    device = nvml.device(A)
    assert device.read(100.0).energy == 0.0
    driver.plug(0, energy=stub.NOT_SUPPORTED, power=300_000)
    assert device.read(102.0).energy == 500.0  # a mean of 250 W over 2 s


def test_energy_is_not_reckoned_when_the_counter_is_silent_once(driver, nvml):
    driver.plug(0)
    nvml.open()
    device = nvml.device(A)
    device.read(100.0)
    driver.plug(0, energy=stub.TIMEOUT)
    assert device.read(101.0).energy is None
    driver.plug(0, energy=1_900_000)
    assert device.read(102.0).energy == 900.0


def test_what_is_not_supported_is_absent_and_told_once(driver, nvml, caplog):
    caplog.set_level(logging.INFO, "vllm.vitals")
    driver.plug(
        0, busy=None, power_limit=stub.NO_PERMISSION, rows=None, **{"field.82.0": None, "clock.1": stub.NOT_SUPPORTED}
    )
    nvml.open()
    device = nvml.device(A)
    for clock in (100.0, 101.0):
        said = device.read(clock)
        assert said.utilization is said.memory_activity is said.power_limit is None
        assert said.temperatures == {"gpu": 66}
        assert said.clocks == {"memory": 2.619e9}
        assert (said.state, said.power) == (OK, 412.5)
    (line,) = caplog.messages
    assert line == (
        f"vllm-vitals: NVIDIA H100 80GB HBM3 {A} does not tell: memory temperature (error 3); power limit (Insufficient "
        "Permissions); remapped rows, sm clock, utilization (Not Supported)"
    )


def test_what_is_absent_is_asked_for_again_when_the_library_is_opened_anew(driver, nvml):
    driver.plug(0, power=stub.NO_PERMISSION)
    nvml.open()
    device = nvml.device(A)
    assert device.read(100.0).power is None
    driver.plug(0)
    assert device.read(101.0).power is None
    (said,) = read(nvml, A, 102.0)
    assert said.power == 412.5


@pytest.mark.parametrize("error", [stub.TIMEOUT, stub.UNKNOWN, "!21", "!27"])
def test_what_fails_once_is_asked_for_again(driver, nvml, error):
    driver.plug(0, power=error, **{"clock.1": error})
    nvml.open()
    device = nvml.device(A)
    said = device.read(100.0)
    assert (said.power, said.clocks) == (None, {"memory": 2.619e9})
    driver.plug(0)
    assert device.read(101.0).power == 412.5


def test_driver_that_does_not_know_the_newer_structure_of_the_memory(driver, nvml):
    driver.plug(0, memory2=None, reserved=GIB)
    (said,) = read(nvml, A, 100.0)
    assert (said.memory_usage, said.memory_limit) == (61 * GIB, 80 * GIB)


@pytest.mark.parametrize(("rows", "state"), [("4 1 0 0", OK), ("0 1 1 0", DEGRADED), ("0 0 0 1", DEGRADED)])
def test_broken_rows_of_memory_degrade_the_device(driver, nvml, rows, state):
    driver.plug(0, rows=rows)
    (said,) = read(nvml, A, 100.0)
    assert said.state == state


PROCESSES = [
    ("{own}:100 {own}:20 1:7", 120),
    ("1:7 999999999:5", None),  # ours are out of sight
    ("{own}:100 {own}:-", None),
    (stub.NO_PERMISSION, None),
    (None, None),
]


@pytest.mark.parametrize(("listed", "expected"), PROCESSES)
def test_memory_of_our_processes(driver, nvml, listed, expected):
    driver.plug(0, processes=listed and listed.format(own=os.getpid()))
    (said,) = read(nvml, A, 100.0)
    assert said.process_memory == expected


def test_mig_devices_are_listed_under_both_of_their_names(driver, nvml):
    driver.plug(0, mig=3)
    driver.part(0, 0, uuid="MIG-1111", gi=7, ci=0)
    driver.part(0, 2, uuid="MIG-2222", gi=9, ci=1)
    driver.plug(1)
    assert nvml.open() == [Listed(A, (Part("MIG-1111", f"MIG-{A}/7/0"), Part("MIG-2222", f"MIG-{A}/9/1"))), Listed(B)]


def test_mig_device_tells_of_its_memory_and_its_gpu_of_the_rest(driver, nvml):
    driver.plug(0, mig=1, busy=stub.NOT_SUPPORTED, **{"pcie.0": stub.NOT_SUPPORTED, "pcie.1": stub.NOT_SUPPORTED})
    driver.part(
        0, 0, uuid="MIG-1111", name="NVIDIA H100 MIG 1g.10gb", memory2=0, total=10 * GIB, used=GIB, power=1,
        processes=f"{os.getpid()}:77",
    )  # fmt: skip
    (part,) = read(nvml, "MIG-1111", 100.0)
    assert part.gpu == Gpu("MIG-1111", "NVIDIA H100 MIG 1g.10gb", "NVIDIA", A, "0", "", "", "550.54.15", "")
    assert (part.memory_usage, part.memory_limit, part.process_memory) == (GIB, 10 * GIB, 77)
    assert part.utilization is part.power is part.energy is None
    assert (part.temperatures, part.clocks, part.io) == ({}, {}, {})
    whole = nvml.device(A).read(100.0)
    assert (whole.utilization, whole.power) == (None, 412.5)
    assert {link for link, _ in whole.io} == {"nvlink"}


def test_device_that_gives_nothing_but_trouble_is_lost(driver, nvml):
    driver.plug(0)
    nvml.open()
    device = nvml.device(A)
    driver.say({"0": stub.UNKNOWN})
    with pytest.raises(LostError, match="Unknown"):
        device.read(100.0)


@pytest.mark.parametrize("error", [stub.LOST, "!16", "!28"])
def test_device_that_is_gone_says_so(driver, nvml, error):
    driver.plug(0)
    nvml.open()
    device = nvml.device(A)
    driver.say({"0": error})
    with pytest.raises(LostError):
        device.read(100.0)


@pytest.mark.parametrize("place", ["clock.2", "ecc.1.0", "rows"])
def test_device_that_goes_in_the_middle_of_a_reading_loses_nothing_of_its_counters(driver, nvml, place):
    driver.plug(0, energy=1_000_000, **{f"field.138.{EVERY_LINK}": 1000})
    read(nvml, A, 100.0)
    driver.plug(0, energy=2_000_000, **{f"field.138.{EVERY_LINK}": 1500, place: stub.LOST})
    with pytest.raises(LostError):
        nvml.device(A).read(101.0)
    driver.plug(0, energy=3_000_000, **{f"field.138.{EVERY_LINK}": 1600})
    (said,) = read(nvml, A, 107.0)
    assert (said.energy, said.io["nvlink", "transmit"]) == (2000.0, 600 * 1024)


def test_field_that_says_the_device_is_gone_counts(driver, nvml):
    driver.plug(0, **{"field.82.0": stub.LOST})
    nvml.open()
    with pytest.raises(LostError):
        nvml.device(A).read(100.0)


def test_device_that_is_not_there_cannot_be_had(driver, nvml):
    driver.plug(0)
    nvml.open()
    with pytest.raises(LostError):
        nvml.device(B)


def test_device_that_does_not_say_who_it_is_keeps_its_place(driver, nvml):
    driver.plug(0, uuid=stub.NO_PERMISSION)
    driver.plug(1)
    assert nvml.open() == [Listed("", (), "Insufficient Permissions"), Listed(B)]


@pytest.mark.parametrize("error", ["!9", "!18", "!999", "!4"])
def test_library_that_does_not_open_is_down(driver, nvml, error):
    driver.say({"init": error})
    with pytest.raises(DownError):
        nvml.open()
    driver.say({"init": None})
    assert nvml.open() == []


def test_library_whose_devices_cannot_be_counted_is_down(driver, nvml):
    driver.say({"count": stub.UNKNOWN})
    with pytest.raises(DownError, match="listed"):
        nvml.open()


def test_driver_that_goes_away_is_down(driver, nvml):
    driver.plug(0)
    nvml.open()
    device = nvml.device(A)
    driver.say({"0": stub.DRIVER_NOT_LOADED})
    with pytest.raises(DownError):
        device.read(100.0)


def test_library_is_shut_down_as_often_as_it_is_opened(driver, nvml):
    nvml.open()
    nvml.open()
    assert driver.opened() == (2, 1)
    nvml.close()
    nvml.close()
    assert driver.opened() == (2, 2)


def test_checkpoints_come_between_calls(driver, nvml):
    driver.plug(0)
    nvml.open()
    rests = []
    with at_checkpoints(lambda: rests.append(1)):
        nvml.device(A).read(100.0)
    assert len(rests) > 15
