"""What a real vLLM's own page shows of its KV connectors, ours shows too; and the role that an engine has among others."""

import pytest

from tests.connectors import FAILED_OF_ALL_KINDS, NIXL, OFFLOADING, check
from tests.live.layouts import Shared
from tests.live.load import put_load
from tests.live.pages import faults, settled
from tests.parity import Samples, differences, value


@pytest.fixture(scope="module")
def pages(narrow: Shared) -> tuple[Samples, Samples]:
    put_load(narrow.server, count=30, disconnects=False)
    return settled(narrow.server)


def test_every_number_is_that_of_vllms_page(pages: tuple[Samples, Samples]) -> None:
    native, ours = pages
    assert list(differences(native, ours)) == []
    assert len(check(native, ours, "NixlConnector", (*NIXL, FAILED_OF_ALL_KINDS))) == 8
    assert len(check(native, ours, "OffloadingConnector", OFFLOADING)) == 13


def test_every_report_came(pages: tuple[Samples, Samples]) -> None:
    _, ours = pages
    nixl = {"connector": "NixlConnector", "direction": "receive"}
    assert value(ours, "vllm_kv_transfer_duration_seconds_count", **nixl) == 40
    assert value(ours, "vllm_kv_transfer_io_bytes_total", **nixl) == 4099 * sum(n**3 for n in range(1, 41))
    failures = {
        kind: value(ours, "vllm_kv_transfer_failures_total", kind=kind)
        for kind in ("transfer", "handshake", "allocation")
    }
    assert failures == {"transfer": 8, "handshake": 8, "allocation": 7}
    assert value(ours, "vllm_kv_transfer_expired_total") == 5
    stored = {"connector": "OffloadingConnector", "direction": "store"}
    assert value(ours, "vllm_kv_transfer_io_bytes_total", **stored) == sum(
        1000 * n + 7_000_000 for n in range(3, 31, 3)
    )
    assert value(ours, "vllm_kv_offload_usage_ratio") == 30 / 40
    assert faults(ours) == 0
    assert "vitals_connectors_unknown_total" not in ours


def test_the_role_of_an_engine_is_a_fact(pages: tuple[Samples, Samples]) -> None:
    _, ours = pages
    (labels,) = ours["vllm_engine_info"]
    assert {"kv_connector": "MultiConnector", "kv_role": "kv_producer"}.items() <= dict(labels).items()
