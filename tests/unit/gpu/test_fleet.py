"""Devices and drivers that disappear and return: each is told once, the others are read on."""

import logging
from collections.abc import Sequence

import pytest

from tests.unit.nvml import stub
from vllm_vitals.gpu.fleet import LONGEST_RETRY, Fleet
from vllm_vitals.gpu.nvml import Nvml
from vllm_vitals.gpu.processes import Family
from vllm_vitals.gpu.visible import visible
from vllm_vitals.records.gpu import FAILED, OK
from vllm_vitals.records.placement import Placement, place

A, B, C = (f"GPU-{letter * 8}-0000" for letter in "abc")
NAME = stub.H100["name"]


@pytest.fixture
def driver(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "vllm.vitals")
    return stub.driver(tmp_path, monkeypatch)


class Watched:
    """A fleet and the clock that it goes by."""

    def __init__(self, environ: dict[str, str], placements: Sequence[Placement] = ()) -> None:
        self.now = 1000.0
        self.fleet = Fleet(
            Nvml(Family()),
            lambda vendor, listed: visible(environ, vendor, listed),
            lambda ids: place(placements, ids),
            lambda: self.now,
        )

    def states(self, after: float = 1.0) -> dict[str, str]:
        """Return the state of each device some seconds later."""
        return {reading.gpu.id: reading.state for reading in self.read(after)}

    def read(self, after: float = 1.0) -> list:
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


def test_only_what_the_process_may_use_is_read(driver, watch):
    for index in range(3):
        driver.plug(index)
    assert watch().states() == {A: OK, B: OK, C: OK}
    assert watch({"CUDA_VISIBLE_DEVICES": "2,0"}).states() == {C: OK, A: OK}
    assert watch({"CUDA_VISIBLE_DEVICES": ""}).states() == {}


def test_engines_are_named_and_what_none_of_them_uses_is_not_read(driver, watch):
    for index in range(3):
        driver.plug(index)
    watched = watch({"CUDA_VISIBLE_DEVICES": "2,0,1"}, Placement("m", ("4", "5"), 1))
    assert {r.gpu.id: (r.model, r.engine) for r in watched.read()} == {C: ("m", "4"), A: ("m", "5")}


def test_gpu_of_a_mig_device_is_read_too_but_is_no_engines(driver, watch):
    driver.plug(0)
    driver.plug(1, mig=2)
    for place_ in range(2):
        driver.part(1, place_, uuid=f"MIG-{place_}", memory2=0, total=10, used=1)
    watched = watch({"CUDA_VISIBLE_DEVICES": "MIG-0,MIG-1"}, Placement("m", ("0", "1"), 1))
    found = {r.gpu.id: (r.gpu.parent, r.engine) for r in watched.read()}
    assert found == {"MIG-0": (B, "0"), "MIG-1": (B, "1"), B: ("", "")}


def test_device_that_falls_off_the_bus_is_marked_and_the_others_are_read_on(driver, watch, caplog):
    driver.plug(0)
    driver.plug(1)
    watched = watch()
    assert watched.states() == {A: OK, B: OK}
    driver.say({"0": stub.LOST})
    for _ in range(30):
        (lost, well) = watched.read()
        assert (lost.gpu.id, lost.gpu.name, lost.state, lost.power, lost.temperatures) == (A, NAME, FAILED, None, {})
        assert (well.state, well.power) == (OK, 412.5)
    assert said(caplog) == [f"{NAME} {A} is lost: GPU is lost. The others are read on"]


def test_device_that_returns_is_read_again_once_the_library_is_opened_anew(driver, watch, caplog):
    driver.plug(0, energy=1_000_000)
    watched = watch()
    watched.read()
    driver.say({"0": stub.LOST})
    watched.read()
    driver.say({"0": None, "0.energy": 9_000_000})
    assert watched.states() == {A: FAILED}  # NVML goes on saying so
    (back,) = watched.read(5.0)
    assert (back.state, back.energy) == (OK, 8000.0)
    assert said(caplog)[1:] == [f"{NAME} {A} answers again"]
    assert driver.opened() == (2, 1)
    watched.read(1000.0)
    assert driver.opened() == (2, 1)


def test_lost_device_is_not_taken_for_the_one_that_gets_its_index(driver, watch):
    for index in range(3):
        driver.plug(index)
    watched = watch({"CUDA_VISIBLE_DEVICES": "1"})
    assert watched.states() == {B: OK}
    driver.say({"1": stub.LOST})
    watched.read()
    driver.say({"1": None, "count": 2, "1.uuid": C})  # after it has gone the one behind it moves up
    assert watched.states(6.0) == {B: FAILED}
    driver.say({"count": 3, "1.uuid": B})
    assert watched.states(LONGEST_RETRY) == {B: OK}


@pytest.mark.parametrize("lost", ["0", "0.memory2"], ids=["gone", "there but silent"])
def test_library_is_opened_ever_more_seldom(driver, watch, lost):
    driver.plug(0)
    watched = watch()
    watched.read()
    driver.say({lost: stub.LOST})
    for _ in range(3600):
        watched.read()
    opened, _ = driver.opened()
    assert opened == 1 + 16  # after 5, 10, 20, 40, 80, 160 and then each 300 s


def test_back_off_begins_anew_after_a_device_has_returned(driver, watch):
    driver.plug(0)
    watched = watch()
    watched.read()
    for _ in range(3):
        driver.say({"0": stub.LOST})
        assert watched.states() == {A: FAILED}
        driver.say({"0": None})
        assert watched.states(5.0) == {A: OK}


def test_back_off_begins_anew_after_a_driver_has_returned(driver, watch):
    driver.plug(0)
    watched = watch()
    for _ in range(3):
        driver.say({"init": None, "0": None})
        assert watched.states(5.0) == {A: OK}
        driver.say({"init": stub.DRIVER_NOT_LOADED, "0": stub.DRIVER_NOT_LOADED})
        assert watched.states() == {A: FAILED}


def test_mig_devices_and_their_gpu_return(driver, watch, caplog):
    driver.plug(0, mig=1)
    driver.part(0, 0, uuid="MIG-0", memory2=0, total=10, used=1)
    watched = watch()
    assert watched.states() == {"MIG-0": OK, A: OK}
    driver.say({"0": stub.LOST})
    for _ in range(60):
        assert watched.states() == {"MIG-0": FAILED, A: FAILED}
    driver.say({"0": None})
    assert watched.states(100.0) == {"MIG-0": OK, A: OK}
    assert [line.split(": ")[0].split(" ")[-3:] for line in said(caplog)] == [
        ["MIG-0", "is", "lost"], [A, "is", "lost"], ["MIG-0", "answers", "again"], [A, "answers", "again"],
    ]  # fmt: skip


def test_driver_that_is_not_loaded_yet(driver, watch, caplog):
    driver.say({"init": stub.DRIVER_NOT_LOADED})
    watched = watch()
    for _ in range(3):
        assert watched.states() == {}
    driver.say({"init": None})
    driver.plug(0)
    assert watched.states(5.0) == {A: OK}
    assert said(caplog) == [
        "The NVIDIA GPUs cannot be read, trying again from time to time: Driver Not Loaded",
        "The NVIDIA GPUs can be read now",
    ]
    assert [record.levelname for record in caplog.records][:1] == ["INFO"]


def test_driver_that_goes_and_returns(driver, watch, caplog):
    driver.plug(0)
    driver.plug(1)
    watched = watch()
    watched.read()
    driver.say({"0": stub.DRIVER_NOT_LOADED, "1": stub.DRIVER_NOT_LOADED, "init": stub.DRIVER_NOT_LOADED})
    for _ in range(10):
        assert watched.states() == {A: FAILED, B: FAILED}
    driver.say({"0": None, "1": None, "init": None})
    assert watched.states(100.0) == {A: OK, B: OK}
    assert said(caplog) == [
        "The NVIDIA GPUs cannot be read, trying again from time to time: Driver Not Loaded",
        "The NVIDIA GPUs can be read now",
    ]


def test_devices_that_appear_late(driver, watch):
    watched = watch()
    assert watched.states() == {}
    driver.plug(0)
    assert watched.states(5.0) == {A: OK}


def test_device_that_says_late_who_it_is(driver, watch, caplog):
    driver.plug(0, uuid=stub.NO_PERMISSION)
    driver.plug(1)
    watched = watch({"CUDA_VISIBLE_DEVICES": "0,1"}, Placement("m", ("0", "1"), 1))
    for _ in range(2):
        assert [(r.gpu.id, r.engine) for r in watched.read(20.0)] == [(B, "1")]
    assert said(caplog) == ["GPUs that vLLM may use do not say who they are, asking again: Insufficient Permissions"]
    driver.plug(0)
    assert {r.gpu.id: r.engine for r in watched.read(20.0)} == {A: "0", B: "1"}
