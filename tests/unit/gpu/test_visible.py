"""Which devices a process may use, and which engine each of them works for."""

import pytest

from vllm_vitals.gpu.visible import AMD, NVIDIA, Listed, Part, select, visible
from vllm_vitals.records.placement import Placement, place

A, B, C, D = "GPU-aaaa1111-x", "GPU-bbbb2222-x", "GPU-aabb3333-x", "GPU-dddd4444-x"
FOUR = [Listed(A), Listed(B), Listed(C), Listed(D)]

# By hand, from the CUDA Programming Guide (Environment Variables) and torch.cuda._parse_visible_devices.
CASES = [
    (None, [A, B, C, D]),
    ("", []),
    ("0,2", [A, C]),
    ("2,1", [C, B]),
    ("3", [D]),
    (" 1 , 0 ", [B, A]),
    ("-1", []),
    ("0,2,-1,1", [A, C]),
    ("0,4,1", [A]),
    ("4", []),
    ("0,,1", [A]),
    ("1,1", []),
    ("0,9,0", []),
    ("1gpu,2ampere", [B, C]),
    ("+1", [B]),
    ("99999999999999999999", []),
    ("NoDevFiles", []),
    ("all", []),
    ("none", []),
    (A, [A]),
    (f"{D},{B}", [D, B]),
    ("GPU-b", [B]),
    ("GPU-aaaa,GPU-d", [A, D]),
    ("GPU-aa", []),
    ("GPU-d,GPU-aa,GPU-b", [D]),
    ("GPU-ffff,GPU-b", []),
    ("GPU-b,GPU-bbbb", []),
    ("GPU-b,GPU-b", []),
    ("GPU-b,1", [B]),
    ("1,GPU-b", [B]),
    ("GPU-b,MIG-1", [B]),
    ("gpu-bbbb", []),
    ("MIG-1", []),
]


@pytest.mark.parametrize(("wanted", "expected"), CASES)
def test_list_of_devices(wanted, expected):
    assert select(wanted, FOUR) == expected


PARTED = [
    Listed(A, (Part("MIG-1", f"MIG-{A}/1/0"), Part("MIG-2", f"MIG-{A}/2/0"))),
    Listed(B),
    Listed(C, (Part("MIG-31"),)),
]
PARTS = [
    (None, ["MIG-1"]),  # CUDA uses one MIG device alone as soon as there is any
    ("0", ["MIG-1"]),
    ("1", [B]),
    ("2,1", ["MIG-31", B]),
    ("MIG-2", ["MIG-2"]),
    ("MIG-2,MIG-1", ["MIG-2", "MIG-1"]),
    ("MIG-3", ["MIG-31"]),
    ("MIG-", []),
    (f"MIG-{A}/2/0", ["MIG-2"]),
    (f"MIG-{A}/9/0", []),
    ("MIG-2,MIG-2", []),
    (f"MIG-2,MIG-{A}/2/0", []),
    (A, [A]),
]


@pytest.mark.parametrize(("wanted", "expected"), PARTS)
def test_list_of_mig_devices(wanted, expected):
    assert select(wanted, PARTED) == expected


def test_a_device_that_does_not_say_who_it_is_keeps_its_place():
    listed = [Listed(A), Listed(""), Listed(""), Listed(D)]
    assert select("3,1", listed) == [D, ""]
    assert select("1,2", listed) == ["", ""]
    assert select(None, listed) == [A, "", "", D]


def test_there_is_nothing():
    assert select(None, []) == select("0", []) == select("GPU-a", []) == []


VARIABLES = [
    (NVIDIA, {}, [A, B, C, D]),
    (NVIDIA, {"CUDA_VISIBLE_DEVICES": "1"}, [B]),
    (NVIDIA, {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"}, [A, B, C, D]),
    (AMD, {}, [A, B, C, D]),
    (AMD, {"HIP_VISIBLE_DEVICES": "2,3"}, [C, D]),
    (AMD, {"CUDA_VISIBLE_DEVICES": "2,3"}, [C, D]),
    (AMD, {"CUDA_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "3"}, [D]),
    (AMD, {"ROCR_VISIBLE_DEVICES": "3,1"}, [D, B]),
    (AMD, {"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1"}, [B]),
    (AMD, {"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "2"}, []),
    (AMD, {"ROCR_VISIBLE_DEVICES": "GPU-d", "CUDA_VISIBLE_DEVICES": "0"}, [D]),
    (AMD, {"ROCR_VISIBLE_DEVICES": ""}, []),
]


@pytest.mark.parametrize(("vendor", "environ", "expected"), VARIABLES)
def test_variables_of_a_vendor(vendor, environ, expected):
    assert visible(environ, vendor, FOUR) == expected


IDS = ["a", "b", "c", "d"]
PLACES = [
    ([], {"a": ("", ""), "b": ("", ""), "c": ("", ""), "d": ("", "")}),
    ([Placement("m", ("0",), 1)], {"a": ("m", "0")}),
    ([Placement("m", ("0",), 2)], {"a": ("m", "0"), "b": ("m", "0")}),
    ([Placement("m", ("0", "1"), 1)], {"a": ("m", "0"), "b": ("m", "1")}),
    ([Placement("m", ("4", "5"), 2)], {"a": ("m", "4"), "b": ("m", "4"), "c": ("m", "5"), "d": ("m", "5")}),
    ([Placement("m", ("3",), 1, 3)], {"d": ("m", "3")}),
    ([Placement("m", ("1",), 2, 1)], {"c": ("m", "1"), "d": ("m", "1")}),
    ([Placement("m", ("7",), 1, 7)], dict.fromkeys(IDS, ("m", "7"))),  # each rank was given devices of its own
    ([Placement("m", ("0",), 8)], dict.fromkeys(IDS, ("m", "0"))),  # over two hosts
    ([Placement("m", ("0", "1"), 4)], dict.fromkeys(IDS, ("m", ""))),
    ([Placement("m", ("0",), 1), Placement("n", ("0",), 1)], dict.fromkeys(IDS, ("", ""))),
]


@pytest.mark.parametrize(("placements", "expected"), PLACES)
def test_engines_take_the_next_devices_each(placements, expected):
    assert place(placements, IDS) == expected
