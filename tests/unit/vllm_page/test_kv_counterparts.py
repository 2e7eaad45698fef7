"""What KV connectors show on pages of vLLM's, under our names; by hand."""

from typing import Any

import pytest

from tests.unit.native_vllm import TEXT, Vllm, text_page
from tests.unit.vllm_page.test_source import Sidecar
from vllm_vitals.catalog import connectors
from vllm_vitals.catalog.connectors import CONNECTORS
from vllm_vitals.catalog.kv_reports import DESCRIBED, FAILED, LISTS, OPERATIONS
from vllm_vitals.vllm_page.counterparts import LISTED, NIXL, OF_CONNECTORS, UNTOLD, why_missing
from vllm_vitals.vllm_page.mapping import mapped, relevant
from vllm_vitals.vllm_page.parse import parse

ONE_NIXL, TWO_NIXLS, NEWEST = (0, 19, 1), (0, 20, 2), (0, 33, 0)
BOUNDS = (1.0, 2.0, 5.0)
Shown = dict[str, Any]


def shown(vllm: Vllm) -> Shown:
    """Return what a page tells of connectors by our name and their labels; of a histogram its counts and its sum."""
    found = {}
    for (metric, key), each in mapped(relevant(parse(text_page(vllm.registry), TEXT))).items():
        if metric in CONNECTORS:
            assert key[:2] == ("m", "0")
            assert each.bounds == (BOUNDS if metric.kind == "histogram" else ())
            name = f"{metric.name.removeprefix('vllm.')} {','.join(key[2:])}"
            found[name] = (each.counts, each.value) if each.bounds else each.value
    return found


def nixl(*release: int) -> Vllm:
    vllm = Vllm(*release)
    vllm.observe("nixl_xfer_time_seconds", 0.5, 1.5, 1.75, 7.0)
    vllm.observe("nixl_post_time_seconds", 0.25)
    vllm.observe("nixl_bytes_transferred", 4.0, 4.0)
    vllm.observe("nixl_num_descriptors", 2.0, 9.0)
    vllm.count(nixl_num_failed_transfers=3, nixl_num_failed_notifications=2, nixl_num_kv_expired_reqs=5)
    return vllm


def test_nixl_while_it_had_one_class() -> None:
    assert shown(nixl(*ONE_NIXL)) == {
        "kv_transfer.duration NixlConnector,receive": ((1, 2, 0, 1), 10.75),
        "kv_transfer.operation_time NixlConnector,receive": 10.75,
        "kv_transfer.post.duration NixlConnector": ((1, 0, 0, 0), 0.25),
        "kv_transfer.size NixlConnector,receive": ((0, 0, 2, 0), 8.0),
        "kv_transfer.io NixlConnector,receive": 8.0,
        "kv_transfer.descriptors NixlConnector": ((0, 1, 0, 1), 11.0),
        "kv_transfer.failures NixlConnector,transfer": 3.0,
        "kv_transfer.failures NixlConnector,notification": 2.0,
        "kv_transfer.expired NixlConnector": 5.0,
    }


@pytest.mark.parametrize("release", [TWO_NIXLS, NEWEST])
def test_nixl_since_then(release: tuple[int, ...]) -> None:
    vllm = nixl(*release)
    for reason in ("capacity", "deferred"):  # every such vLLM shows both, from its start
        vllm.of("num_requests_waiting_by_reason", reason).set(0)
    assert shown(vllm) == {}


def test_mooncake() -> None:
    vllm = Vllm(*NEWEST)
    vllm.observe("mooncake_xfer_time_seconds", 0.5, 1.5)
    vllm.observe("mooncake_bytes_transferred", 4.0)
    vllm.observe("mooncake_num_descriptors", 3.0)
    vllm.count(mooncake_num_failed_transfers=1, mooncake_num_failed_recvs=2, mooncake_num_kv_expired_reqs=3)
    assert shown(vllm) == {
        "kv_transfer.duration MooncakeConnector,send": ((1, 1, 0, 0), 2.0),
        "kv_transfer.operation_time MooncakeConnector,send": 2.0,
        "kv_transfer.size MooncakeConnector,send": ((0, 0, 1, 0), 4.0),
        "kv_transfer.io MooncakeConnector,send": 4.0,
        "kv_transfer.descriptors MooncakeConnector": ((0, 0, 1, 0), 3.0),
        "kv_transfer.failures MooncakeConnector,transfer": 1.0,
        "kv_transfer.failures MooncakeConnector,receive": 2.0,
        "kv_transfer.expired MooncakeConnector": 3.0,
    }


def test_hf3fs() -> None:
    vllm = Vllm(*NEWEST)
    vllm.observe("hf3fs_save_duration_seconds", 0.5, 0.25)
    vllm.observe("hf3fs_load_duration_seconds", 1.5)
    vllm.count(hf3fs_num_failed_save=2, hf3fs_num_failed_load=0)
    assert shown(vllm) == {
        "kv_transfer.duration HF3FSKVConnector,store": ((2, 0, 0, 0), 0.75),
        "kv_transfer.operation_time HF3FSKVConnector,store": 0.75,
        "kv_transfer.duration HF3FSKVConnector,load": ((0, 1, 0, 0), 1.5),
        "kv_transfer.operation_time HF3FSKVConnector,load": 1.5,
        "kv_transfer.failures HF3FSKVConnector,store": 2.0,
        "kv_transfer.failures HF3FSKVConnector,load": 0.0,
    }


def test_hisparse_looks_up_what_it_hits_and_what_it_misses() -> None:
    vllm = Vllm(*NEWEST)
    vllm.count(hisparse_cache_hits=11, hisparse_cache_misses=3, hisparse_host_to_device_bytes=300)
    vllm.of("hisparse_host_cache_usage_perc").set(0.5)
    vllm.of("hisparse_pending_page_transfers").set(3)
    assert shown(vllm) == {
        "kv_offload.hit_blocks HiSparseConnector,": 11.0,
        "kv_offload.queried_blocks HiSparseConnector,": 14.0,
        "kv_transfer.io HiSparseConnector,load": 300.0,
        "kv_offload.usage HiSparseConnector": 0.5,
    }


def offload_by_type(vllm: Vllm) -> Vllm:
    for way, size in (("CPU_to_GPU", 1.5), ("GPU_to_CPU", 4.0), ("GPU_to_DISK", 7.0)):
        vllm.of("kv_offload_size", way).observe(size)
        vllm.of("kv_offload_total_bytes", way).inc(size)
        vllm.of("kv_offload_total_time", way).inc(size / 4)
    return vllm


OFFLOADED = {
    "kv_transfer.size OffloadingConnector,load": ((0, 1, 0, 0), 1.5),
    "kv_transfer.io OffloadingConnector,load": 1.5,
    "kv_transfer.operation_time OffloadingConnector,load": 0.375,
    "kv_transfer.size OffloadingConnector,store": ((0, 0, 1, 0), 4.0),
    "kv_transfer.io OffloadingConnector,store": 4.0,
    "kv_transfer.operation_time OffloadingConnector,store": 1.0,
}


def test_offloading_before_it_had_a_metric_for_each_direction() -> None:
    assert shown(offload_by_type(Vllm(0, 23, 0))) == OFFLOADED


def test_offloading_that_shows_the_same_twice() -> None:
    vllm = offload_by_type(Vllm(*NEWEST))
    for way, size in (("load", 1.5), ("store", 4.0)):
        vllm.observe(f"kv_offload_{way}_size", size)
        vllm.of(f"kv_offload_{way}_bytes").inc(size)
        vllm.of(f"kv_offload_{way}_time").inc(size / 4)
    vllm.count(kv_offload_allocation_failure=2, kv_offload_stores_skipped=7)
    vllm.observe("kv_offload_lookup_sync_delay_seconds", 0.5)
    vllm.observe("kv_offload_lookup_async_delay_seconds", 7.0)
    for usage, value in (("", 0.375), ("_read", 0.25), ("_write", 0.125)):
        vllm.of(f"kv_offload_cpu_cache{usage}_usage_perc").set(value)
    assert shown(vllm) == {
        **OFFLOADED,
        "kv_transfer.failures OffloadingConnector,allocation": 2.0,
        "kv_offload.blocks OffloadingConnector,,reuse_threshold": 7.0,
        "kv_offload.lookup.duration OffloadingConnector,,sync": ((1, 0, 0, 0), 0.5),
        "kv_offload.lookup.duration OffloadingConnector,,async": ((0, 0, 0, 1), 7.0),
        "kv_offload.usage OffloadingConnector": 0.375,
    }


def test_the_tiers_behind_it() -> None:
    vllm = Vllm(*NEWEST)
    for number, tier in enumerate(("0:primary", "1:fs"), start=1):
        for name in (
            "chunk_queries", "chunk_hits", "read_bytes", "read_time", "write_bytes", "write_time", "promotion_job_failures",
            "cascade_job_failures", "backpressure_blocks_dropped", "backpressure_stores_dropped",
        ):  # fmt: skip
            vllm.of(f"kv_offload_tiering_{name}", tier).inc(number * len(name))
        vllm.of("kv_offload_tiering_lookup_sync_delay_seconds", tier).observe(number)
    vllm.count(kv_offload_tiering_promotion_allocation_failures=4)
    assert shown(vllm) == {
        "kv_offload.queried_blocks OffloadingConnector,0:primary": 13.0,
        "kv_offload.queried_blocks OffloadingConnector,1:fs": 26.0,
        "kv_offload.hit_blocks OffloadingConnector,0:primary": 10.0,
        "kv_offload.hit_blocks OffloadingConnector,1:fs": 20.0,
        "kv_offload.tier.io OffloadingConnector,0:primary,load": 10.0,
        "kv_offload.tier.io OffloadingConnector,1:fs,load": 20.0,
        "kv_offload.tier.operation_time OffloadingConnector,0:primary,load": 9.0,
        "kv_offload.tier.operation_time OffloadingConnector,1:fs,load": 18.0,
        "kv_offload.tier.io OffloadingConnector,0:primary,store": 11.0,
        "kv_offload.tier.io OffloadingConnector,1:fs,store": 22.0,
        "kv_offload.tier.operation_time OffloadingConnector,0:primary,store": 10.0,
        "kv_offload.tier.operation_time OffloadingConnector,1:fs,store": 20.0,
        "kv_transfer.failures OffloadingConnector,promotion": 22.0 + 44.0,
        "kv_transfer.failures OffloadingConnector,cascade": 20.0 + 40.0,
        "kv_transfer.failures OffloadingConnector,promotion_allocation": 4.0,
        "kv_offload.blocks OffloadingConnector,0:primary,backpressure": 27.0,
        "kv_offload.blocks OffloadingConnector,1:fs,backpressure": 54.0,
        "kv_offload.lookup.duration OffloadingConnector,0:primary,sync": ((1, 0, 0, 0), 1.0),
        "kv_offload.lookup.duration OffloadingConnector,1:fs,sync": ((0, 1, 0, 0), 2.0),
    }


def test_lookups_of_tiers_that_were_not_told_apart_yet() -> None:
    """As of 0.26 and 0.27."""
    for release in ((0, 26, 0), (0, 27, 1)):
        vllm = Vllm(*release)
        vllm.observe("kv_offload_tiering_lookup_sync_delay_seconds", 1.0, 2.5, 3.0)
        vllm.observe("kv_offload_tiering_lookup_async_delay_seconds", 2.0)
        assert shown(vllm) == {
            "kv_offload.lookup.duration OffloadingConnector,,sync": ((1, 0, 2, 0), 6.5),
            "kv_offload.lookup.duration OffloadingConnector,,async": ((0, 1, 0, 0), 2.0),
        }


def test_a_tier_that_tells_of_its_inside_is_shown_as_any_other() -> None:
    """As `kvcr` of 0.30 and later: what it has loaded is told of the tier too."""
    vllm = Vllm(*NEWEST)
    vllm.of("kv_offload_tiering_read_bytes", "1:kvcr").inc(308281344)
    vllm.of("kvcr_transfer_bytes", "remote_deliver").inc(308281344)
    vllm.of("kvcr_transfer_blocks", "remote_deliver").inc(42)
    vllm.of("kvcr_duration_seconds", "remote_deliver", "success").observe(0.5)
    vllm.of("kvcr_state", "in_flight_ops").set(1)
    assert shown(vllm) == {"kv_offload.tier.io OffloadingConnector,1:kvcr,load": 308281344.0}


def test_operations_of_the_mooncake_store() -> None:
    vllm = Vllm(*NEWEST)
    for operation, status, seconds, size in (
        ("save_put", "ok", 0.5, 1000), ("save_put", "ok", 1.5, 1000), ("save_put", "partial_failure", 1.5, 24),
        ("save_put", "error", 7.0, 0), ("load_get", "ok", 0.25, 512), ("save_exists", "error", 0.5, 0),
        ("lookup_exists", "ok", 0.125, 0), ("lookup_exists", "of_tomorrow", 0.125, 0), ("of_tomorrow", "error", 1.0, 9),
    ):  # fmt: skip
        vllm.of("mooncake_store_operation_time_seconds", operation, status).observe(seconds)
        vllm.of("mooncake_store_operation_total", operation, status).inc()
        vllm.of("mooncake_store_operation_bytes_total", operation, status).inc(size)
        vllm.of("mooncake_store_operation_keys_total", operation, status).inc(4)
    assert shown(vllm) == {
        "kv_transfer.duration MooncakeStoreConnector,store": ((1, 2, 0, 1), 10.5),
        "kv_transfer.operation_time MooncakeStoreConnector,store": 10.5,
        "kv_transfer.io MooncakeStoreConnector,store": 2024.0,
        "kv_transfer.failures MooncakeStoreConnector,store": 2.0,
        "kv_transfer.duration MooncakeStoreConnector,load": ((1, 0, 0, 0), 0.25),
        "kv_transfer.operation_time MooncakeStoreConnector,load": 0.25,
        "kv_transfer.io MooncakeStoreConnector,load": 512.0,
        "kv_transfer.failures MooncakeStoreConnector,load": 0.0,
        "kv_offload.lookup.duration MooncakeStoreConnector,,store": ((1, 0, 0, 0), 0.5),
        "kv_offload.lookup.duration MooncakeStoreConnector,,load": ((2, 0, 0, 0), 0.25),
        "kv_transfer.failures MooncakeStoreConnector,lookup": 2.0,
    }


def test_blocks_of_simple_offloading_by_outcome() -> None:
    vllm = Vllm(*NEWEST)
    for outcome, blocks in (("stored", 8), ("dropped_cpu_full", 3)):
        vllm.of("simple_kv_offload_save_outcomes_total", outcome).inc(blocks)
    vllm.count(simple_kv_offload_load_blocks_total=5)
    vllm.of("simple_kv_offload_used_blocks").set(9)
    assert shown(vllm) == {
        "kv_offload.blocks SimpleCPUOffloadConnector,,stored": 8.0,
        "kv_offload.blocks SimpleCPUOffloadConnector,,dropped_cpu_full": 3.0,
        "kv_offload.blocks SimpleCPUOffloadConnector,,loaded": 5.0,
    }


def test_it_goes_on_where_vllm_began_anew() -> None:
    sidecar = Sidecar().take(nixl(*ONE_NIXL)).take(nixl(*ONE_NIXL))
    labels = {"connector": "NixlConnector", "direction": "receive"}
    assert sidecar.see("vllm_kv_transfer_operation_time_seconds_total", **labels) == 21.5
    assert sidecar.see("vllm_kv_transfer_duration_seconds_sum", **labels) == 21.5
    assert sidecar.see("vllm_kv_transfer_duration_seconds_bucket", le="2.0", **labels) == 6.0
    assert sidecar.see("vllm_kv_transfer_io_bytes_total", **labels) == 16.0


def test_all_that_is_read_of_reports_is_looked_for_on_pages() -> None:
    """Except for two lists of NIXL's, which came when there were several classes of it."""
    listed = {reported for lists in LISTED.values() for reported in lists.values()}
    assert listed == LISTS.keys() - {"num_failed_handshakes", "num_notifications_after_expiry"}
    names = {native.name.removesuffix("_total") for native in OF_CONNECTORS}
    assert {name.removesuffix("_total") for name in DESCRIBED} <= names
    kinds = {kind for native in OF_CONNECTORS for kind in native.where.values()}
    assert kinds == OPERATIONS.keys() >= FAILED.keys()


def test_what_is_missing_is_said() -> None:
    whole = {
        connectors.LOOKUP_DURATION, connectors.QUERIED, connectors.HITS, connectors.BLOCKS, connectors.USAGE,
        connectors.TIER_IO, connectors.TIER_OPERATION_TIME,
    }  # fmt: skip
    assert {metric for metric in CONNECTORS if not why_missing(metric)} == whole
    assert all(NIXL in why_missing(metric) for metric in set(CONNECTORS) - whole)
    nowhere = set(CONNECTORS) - {native.ours for native in OF_CONNECTORS}
    assert nowhere == {connectors.LATE_NOTIFICATIONS} < UNTOLD.keys()
    assert "MooncakeStoreConnector" in why_missing(connectors.SIZE)
    assert "OffloadingConnector" in why_missing(connectors.DURATION)
