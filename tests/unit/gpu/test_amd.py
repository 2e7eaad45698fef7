"""What AMD's devices say, from a stub of ROCm's library through the real amdsmi."""

import ctypes
import logging
import os
from typing import Any

import pytest

from tests.unit.amd import stub
from tests.unit.amd.stub import GIB
from vllm_vitals.gpu import amd_messages as messages
from vllm_vitals.gpu.amd import Amd
from vllm_vitals.gpu.amd_process import answer
from vllm_vitals.gpu.amd_source import AmdSource
from vllm_vitals.gpu.processes import Family
from vllm_vitals.gpu.source import DownError, LostError
from vllm_vitals.gpu.visible import Listed
from vllm_vitals.records.gpu import DEGRADED, OK, Gpu, Reading

A, B = "aaaaaaaa-0000-1000-8000-aaaaaaaaaaaa", "bbbbbbbb-0000-1000-8000-bbbbbbbbbbbb"
HIP_A, HIP_B = "GPU-aaaaaaaaaaaaaaaa", "GPU-bbbbbbbbbbbbbbbb"
NAME = stub.MI300X["name"]


class Here:
    """Stands in for the process that asks AMD SMI: does its work in this one, through the same messages."""

    def __init__(self) -> None:
        self.amd = Amd()

    def ask(self, request: messages.Request) -> messages.Answer:
        asked = messages.requests.decode(messages.encode(request))
        return messages.answers.decode(messages.encode(answer(self.amd, asked)))

    def close(self) -> None:
        self.amd = Amd()


@pytest.fixture
def driver(tmp_path, monkeypatch):
    return stub.driver(tmp_path, monkeypatch)


@pytest.fixture
def amd(driver):  # noqa: ARG001 - the variables have to be there before
    source = AmdSource(Family(), Here)
    yield source
    source.close()


def read(amd: AmdSource, identity: str, *clocks: float) -> list[Reading]:
    """Return what a device says at some times, the source just opened."""
    amd.open()
    device = amd.device(identity)
    return [device.read(clock) for clock in clocks]


@pytest.mark.usefixtures("driver")
def test_structures_of_the_stub_are_those_of_amdsmi():
    import amdsmi

    size = stub.load().stub_size
    size.restype = ctypes.c_size_t
    sizes = {
        name: ctypes.sizeof(getattr(amdsmi.amdsmi_wrapper, f"amdsmi_{name}_t", None) or amdsmi.amdsmi_wrapper.struct_amdsmi_bdf_t)
        for name in stub.STRUCTURES
    }  # fmt: skip
    assert {name: size(name.encode()) for name in stub.STRUCTURES} == sizes


def test_devices_are_listed_and_described(driver, amd):
    driver.plug(0)
    driver.plug(1, name="", product="Radeon", serial=stub.NO_PERM, vbios=None)
    assert amd.open() == [Listed(A, alias=HIP_A), Listed(B, alias=HIP_B)]
    assert amd.device(A).gpu == Gpu(
        A, NAME, "AMD", "", "0", "0000:05:00.0", "692251001124", "6.14.14", "022.040.003.043.000001"
    )
    assert amd.device(B).gpu == Gpu(B, "", "AMD", "", "1", "0000:06:00.0", "", "6.14.14", "")


def test_devices_are_in_the_order_in_which_hip_counts(driver, amd):
    driver.plug(0, hip_id=1)
    driver.plug(1, hip_id=0)
    assert [gpu.id for gpu in amd.open()] == [B, A]
    assert amd.device(A).gpu.index == "0"
    driver.plug(0, hip_uuid=stub.NOT_SUPPORTED)  # by the bus, if that is not told of all
    assert [gpu.id for gpu in amd.open()] == [A, B]


def test_values_of_the_moment_come_in_the_units_of_the_conventions(driver, amd):
    driver.plug(0)
    (said,) = read(amd, A, 100.0)
    assert said.state == OK
    assert (said.utilization, said.memory_activity) == (0.87, 0.4)
    assert (said.memory_usage, said.memory_limit) == (150 * GIB, 192 * GIB)
    assert (said.power, said.power_limit) == (650, 750)
    assert said.temperatures == {"gpu": 66, "memory": 58}
    assert said.temperature_limits == {
        ("gpu", "throttled"): 100, ("gpu", "high.critical"): 105, ("memory", "throttled"): 95, ("memory", "high.critical"): 97,
    }  # fmt: skip
    assert said.clocks == {"sm": 2.104e9, "memory": 1.3e9}
    assert said.process_memory == 5000


def test_counters_tell_what_came_since_the_reading_before(driver, amd):
    driver.plug(0)
    amd.open()
    device = amd.device(A)
    first = device.read(100.0)
    assert first.energy == 0.0
    assert first.errors == {"corrected": 0.0, "uncorrected": 0.0, "deferred": 0.0}
    assert first.io == {("xgmi", "receive"): 0.0, ("xgmi", "transmit"): 0.0}
    reasons = ("sw_power_cap", "prochot", "socket_thermal", "vr_thermal", "hbm_thermal")
    assert first.throttled == dict.fromkeys(reasons, 0.0)
    driver.plug(
        0, energy=1_400_000, ecc="5 1 1", metrics__accumulation_counter=140_000, metrics__ppt_residency_acc=10_700,
        metrics__hbm_thm_residency_acc=40_000, metrics__xgmi_read_data_acc__0=1100, metrics__xgmi_read_data_acc__1=2400,
        metrics__xgmi_write_data_acc__0=5003,
    )  # fmt: skip
    second = device.read(110.0)
    assert second.energy == pytest.approx(6.1)  # 400 000 counts of 15.25 uJ
    assert second.errors == {"corrected": 2.0, "uncorrected": 1.0, "deferred": 0.0}
    assert second.io == {("xgmi", "receive"): 500 * 1024, ("xgmi", "transmit"): 3 * 1024}
    # Of 40 000 cycles in 10 s the power cap held for 10 000, and the memory was too hot all the time.
    assert second.throttled == {**dict.fromkeys(reasons, 0.0), "sw_power_cap": 2.5, "hbm_thermal": 10.0}


def test_energy_goes_on_when_the_driver_is_loaded_anew(driver, amd):
    driver.plug(0, energy=900_000_000)
    read(amd, A, 100.0)
    driver.plug(0, energy=2_000_000)
    (said,) = read(amd, A, 130.0)
    assert said.energy == pytest.approx(30.5)


@pytest.mark.parametrize("silence", [stub.NOT_SUPPORTED, stub.UNEXPECTED_DATA, 0, 2**64 - 1])
def test_energy_is_reckoned_from_the_power_where_it_is_not_counted(driver, amd, silence):
    driver.plug(0, energy=silence, metrics__current_socket_power=200)
    amd.open()
    device = amd.device(A)
    assert device.read(100.0).energy == 0.0
    driver.plug(0, energy=silence, metrics__current_socket_power=300)
    assert device.read(102.0).energy == 500.0  # a mean of 250 W over 2 s


def test_energy_is_not_reckoned_when_the_counter_is_silent_once(driver, amd):
    driver.plug(0)
    amd.open()
    device = amd.device(A)
    device.read(100.0)
    driver.plug(0, energy=stub.BUSY)
    assert device.read(101.0).energy is None
    driver.plug(0, energy=41_000_000)
    assert device.read(102.0).energy == pytest.approx(610.0)


OLDER: dict[str, Any] = {
    "metrics__current_socket_power": None, "metrics__average_socket_power": 250, "metrics__temperature_hotspot": None,
    "metrics__temperature_edge": 51, "metrics__accumulation_counter": None, "metrics__indep_throttle_status": 4,
}  # fmt: skip
"""What MI200 and the Radeons of its time say in another way."""


def test_older_devices(driver, amd):
    driver.plug(0, **OLDER)
    amd.open()
    device = amd.device(A)
    device.read(100.0)
    said = device.read(102.0)
    assert said.power == 250
    assert said.temperatures == {"gpu": 51, "memory": 58}
    assert said.throttled == {"unspecified": 2.0}  # amdsmi tells no more of the bits
    driver.plug(0, **{**OLDER, "metrics__indep_throttle_status": 0})
    assert device.read(103.0).throttled == {"unspecified": 0.0}


def test_device_without_metrics_is_asked_for_its_values_one_by_one(driver, amd):
    driver.plug(
        0, metrics=None, gfx_activity=31, umc_activity=12, socket_power=180,
        **{f"temperature.{stub.HOTSPOT}.0": 70, f"temperature.{stub.VRAM}.0": 61},
    )  # fmt: skip
    (said,) = read(amd, A, 100.0)
    assert (said.utilization, said.memory_activity, said.power) == (0.31, 0.12, 180)
    assert said.temperatures == {"gpu": 70, "memory": 61}
    assert (said.io, said.throttled) == ({}, {})


def test_what_is_not_supported_is_absent_and_told_once(driver, amd, caplog):
    caplog.set_level(logging.INFO, "vllm.vitals")
    driver.plug(
        0, power_cap=stub.NO_PERM, ecc=None, pages=stub.NO_PERM, metrics__average_umc_activity=None,
        metrics__temperature_mem=None, **{f"clock.{stub.GFX}": stub.NOT_SUPPORTED},
    )  # fmt: skip
    amd.open()
    device = amd.device(A)
    for clock in (100.0, 101.0, 120.0):
        said = device.read(clock)
        assert said.power_limit is said.memory_activity is None
        assert (said.errors, said.clocks, said.temperatures) == ({}, {"memory": 1.3e9}, {"gpu": 66})
        assert (said.state, said.power) == (OK, 650)
    (line,) = caplog.messages
    assert line == (
        f"vllm-vitals: {NAME} {A} does not tell: bad pages, power limit (AMDSMI_STATUS_NO_PERM); "
        "errors, sm clock, vram temperature current (AMDSMI_STATUS_NOT_SUPPORTED); memory activity (no value)"
    )


def test_what_is_absent_is_asked_for_again_when_the_library_is_opened_anew(driver, amd):
    driver.plug(0, energy=stub.NO_PERM, metrics=None)
    amd.open()
    device = amd.device(A)
    assert device.read(100.0).power is None
    driver.plug(0)
    assert device.read(101.0).power is None
    (said,) = read(amd, A, 102.0)
    assert said.power == 650


@pytest.mark.parametrize("error", [stub.TIMEOUT, stub.BUSY, stub.UNEXPECTED_DATA, stub.NOT_FOUND])
def test_what_fails_once_is_asked_for_again(driver, amd, error):
    driver.plug(0, metrics=error, **{f"clock.{stub.GFX}": error})
    amd.open()
    device = amd.device(A)
    said = device.read(100.0)
    assert (said.power, said.clocks) == (None, {"memory": 1.3e9})
    driver.plug(0)
    assert device.read(101.0).power == 650


def test_what_costs_more_is_asked_for_each_ten_seconds(driver, amd):
    driver.plug(0)
    amd.open()
    device = amd.device(A)
    device.read(100.0)
    driver.plug(0, ecc="9 0 0", power_cap=500_000_000, processes=f"{os.getpid()}:1", used=GIB)
    soon, later = device.read(109.0), device.read(110.0)
    assert (soon.errors["corrected"], soon.power_limit, soon.process_memory, soon.memory_usage) == (0, 750, 5000, GIB)
    assert (later.errors["corrected"], later.power_limit, later.process_memory) == (6, 500, 1)


PAGES = [("none", OK), ("0", OK), ("0 1", DEGRADED), ("2", DEGRADED), (stub.NOT_SUPPORTED, OK)]


@pytest.mark.parametrize(("pages", "state"), PAGES)
def test_bad_pages_that_are_still_in_use_degrade_the_device(driver, amd, pages, state):
    driver.plug(0, pages=pages)
    (said,) = read(amd, A, 100.0)
    assert said.state == state


PROCESSES = [("{own}:100 1:7", 100), ("1:7 999999999:5", None), (stub.NO_PERM, None), (None, None)]


@pytest.mark.parametrize(("listed", "expected"), PROCESSES)
def test_memory_of_our_processes(driver, amd, listed, expected):
    driver.plug(0, processes=listed and listed.format(own=os.getpid()))
    (said,) = read(amd, A, 100.0)
    assert said.process_memory == expected


def partitioned(driver: stub.Driver, **second: Any) -> None:
    """Put in a GPU in two partitions, and behind it one that is whole."""
    driver.plug(
        0, mode="DPX", metrics__gfx_busy_inst__0__0=40, metrics__gfx_busy_inst__0__1=60, metrics__gfx_busy_inst__1__0=10
    )
    driver.say({
        "1.uuid": A, "1.bus": "0000:05:00.1", "1.partition": 1, "1.hip_id": 1, "1.hip_uuid": HIP_A, "1.name": NAME,
        "1.total": 1, "1.metrics": 1, "1.driver": "6.14.14", **second,
    })  # fmt: skip
    driver.plug(2, hip_id=2)


SECOND = [{}, {"1.uuid": "abababab-0000-1000-8000-aaaaaaaaaaaa"}, {"0.partition": None, "1.partition": None}]


@pytest.mark.parametrize("second", SECOND, ids=["one UUID", "two UUIDs", "no numbers"])
def test_partitions_tell_their_load_and_their_gpu_the_rest(driver, amd, second):
    partitioned(driver, **second)
    other = "cccccccc-0000-1000-8000-cccccccccccc"
    assert [gpu.id for gpu in amd.open()] == [f"{A}/0", f"{A}/1", other]
    assert amd.device(f"{A}/1").gpu == Gpu(f"{A}/1", f"{NAME} DPX", "AMD", A, "1", driver="6.14.14")
    said = {name: amd.device(name).read(100.0) for name in (f"{A}/0", f"{A}/1", A, other)}
    assert [reading.utilization for reading in said.values()] == [0.5, 0.1, 0.87, 0.87]
    assert [reading.power for reading in said.values()] == [None, None, 650, 650]
    assert [reading.memory_limit for reading in said.values()] == [None, None, 192 * GIB, 192 * GIB]
    assert [reading.energy for reading in said.values()] == [None, None, 0.0, 0.0]


def test_gpus_in_one_slot_of_a_virtual_machine_are_no_partitions(driver, amd):
    driver.plug(0)
    driver.plug(1, bus="0000:05:00.1")
    assert [gpu.id for gpu in amd.open()] == [A, B]


@pytest.mark.parametrize("error", [stub.NOT_SUPPORTED, stub.NOT_FOUND, stub.IO, stub.NO_PERM])
def test_device_that_tells_nothing_any_more_is_lost(driver, amd, error):
    driver.plug(0)
    amd.open()
    device = amd.device(A)
    device.read(100.0)
    driver.say({"0": error})
    with pytest.raises(LostError, match="AMDSMI_STATUS"):
        device.read(101.0)


def test_device_of_which_its_driver_alone_still_tells_is_lost(driver, amd):
    driver.plug(0)
    amd.open()
    device = amd.device(A)
    device.read(100.0)
    gone = {name: stub.IO for name in stub.MI300X if name.startswith(("metrics", "clock", "temperature", "energy"))}
    driver.say({f"0.{name}": error for name, error in gone.items()})
    with pytest.raises(LostError, match="sensors answers: AMDSMI_STATUS_IO"):
        device.read(101.0)
    with pytest.raises(
        LostError, match="sensors answers: AMDSMI_STATUS_IO"
    ):  # and stays so, however often the library is opened
        read(amd, A, 106.0)
    driver.plug(0, energy=41_000_000)
    (said,) = read(amd, A, 120.0)
    assert said.energy == pytest.approx(610.0)


def test_device_whose_sensors_have_never_answered_tells_what_it_can(driver, amd):
    """As in a virtual machine."""
    silent = [name for name in stub.MI300X if name.startswith(("metrics", "clock", "temperature", "energy"))]
    driver.plug(0)
    driver.say({f"0.{name}": None for name in silent})
    for said in read(amd, A, 100.0, 101.0):
        assert (said.state, said.memory_usage, said.process_memory, said.power) == (OK, 150 * GIB, 5000, None)


def test_reading_that_is_given_up_loses_nothing_of_the_counters(driver, amd):
    driver.plug(0, energy=1_000_000)
    amd.open()
    device = amd.device(A)
    device.read(100.0)
    driver.plug(0, energy=2_000_000)
    driver.say({"0": stub.BUSY})
    with pytest.raises(LostError):
        device.read(101.0)
    driver.say({"0": None, "0.energy": 3_000_000})
    assert device.read(102.0).energy == pytest.approx(30.5)


def test_device_that_is_not_there_cannot_be_had(driver, amd):
    driver.plug(0)
    amd.open()
    with pytest.raises(LostError):
        amd.device(B)


def test_device_that_does_not_say_who_it_is_keeps_its_place(driver, amd):
    driver.plug(0, uuid=stub.NO_PERM)
    driver.plug(1)
    assert amd.open() == [Listed("", (), "AMDSMI_STATUS_NO_PERM", HIP_A), Listed(B, alias=HIP_B)]


@pytest.mark.parametrize("error", [stub.DRIVER_NOT_LOADED, "!18", stub.NO_PERM, "!4294967295"])
def test_library_that_does_not_open_is_down(driver, amd, error):
    driver.say({"init": error})
    with pytest.raises(DownError, match="AMDSMI_STATUS"):
        amd.open()
    driver.say({"init": None})
    assert amd.open() == []


def test_library_whose_devices_cannot_be_listed_is_down(driver, amd):
    driver.say({"count": stub.NO_PERM})
    with pytest.raises(DownError, match="listed: AMDSMI_STATUS_NO_PERM"):
        amd.open()


def test_driver_that_goes_away_is_down(driver, amd):
    driver.plug(0)
    amd.open()
    device = amd.device(A)
    driver.say({"0": stub.DRIVER_NOT_LOADED})
    with pytest.raises(DownError, match="DRIVER_NOT_LOADED"):
        device.read(100.0)
