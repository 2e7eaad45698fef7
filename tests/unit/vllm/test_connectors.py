"""KV connectors: what each class reports, in the format of each release, under our metrics; by hand."""

import math
import re
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.builders import EPOCH, MODEL, Clock, Sight, collect, examples, facts, feed, step
from tests.unit.fake_vllm import make_config
from tests.unit.vllm.test_hostile_stats import scalars, values
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.aggregation.merge import Merger
from vllm_vitals.catalog import self_metrics
from vllm_vitals.catalog.connectors import CONNECTORS, FAILURES, IO, USAGE
from vllm_vitals.catalog.kv_reports import DESCRIBED, FAILED, LISTS, OPERATIONS
from vllm_vitals.config.settings import Settings
from vllm_vitals.deployment.runtime import Runtime
from vllm_vitals.ingest.step_queue import StepQueue
from vllm_vitals.records.step import OTHER, Record, Reported, Step
from vllm_vitals.store.series import HistogramCell
from vllm_vitals.transport.protocol import Batch, encode, from_client
from vllm_vitals.vllm.connectors import MOST_CONNECTORS, copied
from vllm_vitals.vllm.reader import Reader

Numbers = dict[str, Any]

NIXL: dict[str, list[Any]] = {
    "transfer_duration": [0.25, 0.5], "post_duration": [0.002, 0.001], "bytes_transferred": [4096, 1048576],
    "num_descriptors": [12, 48], "num_failed_transfers": [1, 1, 1], "num_failed_notifications": [1],
}  # fmt: skip
"""As of 0.11.1."""
NIXL_NEWEST = {
    **NIXL, "num_failed_handshakes": [1, 1], "num_kv_expired_reqs": [1, 1], "num_notifications_after_expiry": [1],
}  # fmt: skip
"""As of 0.32.0."""
SHOWN_OF_NIXL = {
    "vllm.kv_transfer.duration NixlConnector receive": (2, 0.75),
    "vllm.kv_transfer.operation_time NixlConnector receive": 0.75,
    "vllm.kv_transfer.post.duration NixlConnector": (2, 0.003),
    "vllm.kv_transfer.size NixlConnector receive": (2, 1052672),
    "vllm.kv_transfer.io NixlConnector receive": 1052672,
    "vllm.kv_transfer.descriptors NixlConnector": (2, 60),
    "vllm.kv_transfer.failures NixlConnector transfer": 3,
    "vllm.kv_transfer.failures NixlConnector notification": 1,
}
OFFLOADING = {
    "types": {"vllm:kv_offload_load_bytes": "counter", "vllm:kv_offload_load_size": "histogram"},  # and so on
    "data": {
        "vllm:kv_offload_load_bytes": {(): 3000},
        "vllm:kv_offload_load_time": {(): 0.5},
        "vllm:kv_offload_load_size": {(): [1000, 2000]},
        "vllm:kv_offload_store_bytes": {(): 500},
        "vllm:kv_offload_store_time": {(): 0.125},
        "vllm:kv_offload_store_size": {(): [500]},
        "vllm:kv_offload_cpu_cache_usage_perc": {(): 0.25},
        "vllm:kv_offload_cpu_cache_write_usage_perc": {(): 0.125},
        "vllm:kv_offload_lookup_sync_delay_seconds": {(): [0.0001, 0.0003]},
        "vllm:kv_offload_lookup_async_delay_seconds": {(): [0.5]},
        "vllm:kv_offload_allocation_failure": {(): 2},
        "vllm:kv_offload_stores_skipped": {(): 7},
    },
}
SHOWN_OF_OFFLOADING = {
    "vllm.kv_transfer.io OffloadingConnector load": 3000,
    "vllm.kv_transfer.operation_time OffloadingConnector load": 0.5,
    "vllm.kv_transfer.size OffloadingConnector load": (2, 3000),
    "vllm.kv_transfer.io OffloadingConnector store": 500,
    "vllm.kv_transfer.operation_time OffloadingConnector store": 0.125,
    "vllm.kv_transfer.size OffloadingConnector store": (1, 500),
    "vllm.kv_offload.usage OffloadingConnector": 0.25,
    "vllm.kv_offload.lookup.duration OffloadingConnector  sync": (2, 0.0004),
    "vllm.kv_offload.lookup.duration OffloadingConnector  async": (1, 0.5),
    "vllm.kv_transfer.failures OffloadingConnector allocation": 2,
    "vllm.kv_offload.blocks OffloadingConnector  reuse_threshold": 7,
}
FIRST, SECOND = ("0:primary",), ("1:fs",)
TIERS = {
    "types": {},
    "data": {
        "vllm:kv_offload_tiering_chunk_queries": {FIRST: 10, SECOND: 6},
        "vllm:kv_offload_tiering_chunk_hits": {FIRST: 4, SECOND: 3},
        "vllm:kv_offload_tiering_lookup_sync_delay_seconds": {FIRST: [0.001], SECOND: [0.25, 0.25]},
        "vllm:kv_offload_tiering_lookup_async_delay_seconds": {SECOND: [2.0]},
        "vllm:kv_offload_tiering_read_bytes": {SECOND: 4096},
        "vllm:kv_offload_tiering_read_time": {SECOND: 0.25},
        "vllm:kv_offload_tiering_write_bytes": {SECOND: 8192},
        "vllm:kv_offload_tiering_write_time": {SECOND: 0.75},
        "vllm:kv_offload_tiering_promotion_job_failures": {SECOND: 1},
        "vllm:kv_offload_tiering_cascade_job_failures": {SECOND: 2, ("2:obj",): 3},
        "vllm:kv_offload_tiering_promotion_allocation_failures": {(): 4},
        "vllm:kv_offload_tiering_backpressure_blocks_dropped": {SECOND: 5},
        "vllm:kv_offload_tiering_active_cascade_jobs": {SECOND: 1},
    },
}
SHOWN_OF_TIERS = {
    "vllm.kv_offload.queried_blocks OffloadingConnector 0:primary": 10,
    "vllm.kv_offload.queried_blocks OffloadingConnector 1:fs": 6,
    "vllm.kv_offload.hit_blocks OffloadingConnector 0:primary": 4,
    "vllm.kv_offload.hit_blocks OffloadingConnector 1:fs": 3,
    "vllm.kv_offload.lookup.duration OffloadingConnector 0:primary sync": (1, 0.001),
    "vllm.kv_offload.lookup.duration OffloadingConnector 1:fs sync": (2, 0.5),
    "vllm.kv_offload.lookup.duration OffloadingConnector 1:fs async": (1, 2.0),
    "vllm.kv_offload.tier.io OffloadingConnector 1:fs load": 4096,
    "vllm.kv_offload.tier.operation_time OffloadingConnector 1:fs load": 0.25,
    "vllm.kv_offload.tier.io OffloadingConnector 1:fs store": 8192,
    "vllm.kv_offload.tier.operation_time OffloadingConnector 1:fs store": 0.75,
    "vllm.kv_transfer.failures OffloadingConnector promotion": 1,
    "vllm.kv_transfer.failures OffloadingConnector cascade": 5,
    "vllm.kv_transfer.failures OffloadingConnector promotion_allocation": 4,
    "vllm.kv_offload.blocks OffloadingConnector 1:fs backpressure": 5,
}
CASES: list[tuple[str, str, Any, Numbers]] = [
    ("nixl-0.11.1", "NixlConnector", NIXL, SHOWN_OF_NIXL),
    ("nixl-0.32.0", "NixlConnector", NIXL_NEWEST, {
        **SHOWN_OF_NIXL, "vllm.kv_transfer.failures NixlConnector handshake": 2,
        "vllm.kv_transfer.expired NixlConnector": 2, "vllm.kv_transfer.late_notifications NixlConnector": 1,
    }),
    ("nixl-push", "NixlPushConnector", {"bytes_transferred": [5]}, {
        "vllm.kv_transfer.size NixlPushConnector send": (1, 5), "vllm.kv_transfer.io NixlPushConnector send": 5,
    }),
    ("somebody-elses", "OurConnector", {"bytes_transferred": [5]}, {
        "vllm.kv_transfer.size OurConnector ": (1, 5), "vllm.kv_transfer.io OurConnector ": 5,
    }),
    ("mooncake-0.21.0", "MooncakeConnector", {
        "transfer_duration": [0.5], "bytes_transferred": [2048], "num_descriptors": [3], "num_failed_transfers": [1],
        "num_failed_recvs": [1, 1], "num_kv_expired_reqs": [1],
    }, {
        "vllm.kv_transfer.duration MooncakeConnector send": (1, 0.5),
        "vllm.kv_transfer.operation_time MooncakeConnector send": 0.5,
        "vllm.kv_transfer.size MooncakeConnector send": (1, 2048), "vllm.kv_transfer.io MooncakeConnector send": 2048,
        "vllm.kv_transfer.descriptors MooncakeConnector": (1, 3),
        "vllm.kv_transfer.failures MooncakeConnector transfer": 1, "vllm.kv_transfer.failures MooncakeConnector receive": 2,
        "vllm.kv_transfer.expired MooncakeConnector": 1,
    }),
    ("hf3fs-0.20.0", "HF3FSKVConnector", {
        "save_duration": [0.25, 0.25], "load_duration": [1.5], "num_failed_save": 3, "num_failed_load": 0,
        "num_transfer_task": 6,
    }, {
        "vllm.kv_transfer.duration HF3FSKVConnector store": (2, 0.5),
        "vllm.kv_transfer.operation_time HF3FSKVConnector store": 0.5,
        "vllm.kv_transfer.duration HF3FSKVConnector load": (1, 1.5),
        "vllm.kv_transfer.operation_time HF3FSKVConnector load": 1.5,
        "vllm.kv_transfer.failures HF3FSKVConnector store": 3, "vllm.kv_transfer.failures HF3FSKVConnector load": 0,
    }),
    ("hisparse-0.32.0", "HiSparseConnector", {
        "cache_hits": [5, 6], "cache_misses": [1, 2], "host_to_device_bytes": [100, 200],
        "host_cache_usage_perc": [0.75, 0.5], "pending_page_transfers": [3],
    }, {
        "vllm.kv_offload.hit_blocks HiSparseConnector ": 11, "vllm.kv_offload.queried_blocks HiSparseConnector ": 14,
        "vllm.kv_transfer.io HiSparseConnector load": 300, "vllm.kv_offload.usage HiSparseConnector": 0.5,
    }),
    ("offloading-0.16.0", "OffloadingConnector", {
        "GPU_to_CPU": [{"op_size": 1000, "op_time": 0.5}, {"op_size": 3000, "op_time": 0.25}],
        "CPU_to_GPU": [{"op_size": 50, "op_time": 0.125}],
    }, {
        "vllm.kv_transfer.duration OffloadingConnector store": (2, 0.75),
        "vllm.kv_transfer.operation_time OffloadingConnector store": 0.75,
        "vllm.kv_transfer.size OffloadingConnector store": (2, 4000), "vllm.kv_transfer.io OffloadingConnector store": 4000,
        "vllm.kv_transfer.duration OffloadingConnector load": (1, 0.125),
        "vllm.kv_transfer.operation_time OffloadingConnector load": 0.125,
        "vllm.kv_transfer.size OffloadingConnector load": (1, 50), "vllm.kv_transfer.io OffloadingConnector load": 50,
    }),
    ("offloading-0.24.0", "OffloadingConnector", OFFLOADING, SHOWN_OF_OFFLOADING),
    ("offloading-0.33.0", "OffloadingConnector", {**OFFLOADING, "info": {"block_size": "16"}}, SHOWN_OF_OFFLOADING),
    ("tiers-0.31.0", "OffloadingConnector", TIERS, SHOWN_OF_TIERS),
    ("mooncake-store-0.22.0", "MooncakeStoreConnector", {
        "save_put": [
            {"duration_seconds": 0.5, "num_keys": 4, "num_bytes": 4096, "status": "ok", "num_failed_keys": 0},
            {"duration_seconds": 0.25, "num_keys": 4, "num_bytes": 4096, "status": "partial_failure", "num_failed_keys": 1},
        ],
        "load_get": [{"duration_seconds": 1.0, "num_keys": 2, "num_bytes": 2048, "status": "error", "num_failed_keys": 2}],
        "lookup_exists": [{"duration_seconds": 0.001, "num_keys": 9, "num_bytes": 0, "status": "ok", "num_failed_keys": 0}],
        "save_exists": [{"duration_seconds": 0.002, "num_keys": 9, "num_bytes": 0, "status": "error", "num_failed_keys": 9}],
    }, {
        "vllm.kv_transfer.duration MooncakeStoreConnector store": (2, 0.75),
        "vllm.kv_transfer.operation_time MooncakeStoreConnector store": 0.75,
        "vllm.kv_transfer.size MooncakeStoreConnector store": (2, 8192),
        "vllm.kv_transfer.io MooncakeStoreConnector store": 8192,
        "vllm.kv_transfer.duration MooncakeStoreConnector load": (1, 1.0),
        "vllm.kv_transfer.operation_time MooncakeStoreConnector load": 1.0,
        "vllm.kv_transfer.size MooncakeStoreConnector load": (1, 2048),
        "vllm.kv_transfer.io MooncakeStoreConnector load": 2048,
        "vllm.kv_offload.lookup.duration MooncakeStoreConnector  load": (1, 0.001),
        "vllm.kv_offload.lookup.duration MooncakeStoreConnector  store": (1, 0.002),
        "vllm.kv_transfer.failures MooncakeStoreConnector store": 1,
        "vllm.kv_transfer.failures MooncakeStoreConnector load": 1,
        "vllm.kv_transfer.failures MooncakeStoreConnector lookup": 1,
    }),
    ("simple-0.31.0", "SimpleCPUOffloadConnector", {"types": {}, "data": {
        "vllm:simple_kv_offload_save_outcomes_total": {("stored",): 5, ("dropped_cpu_full",): 2},
        "vllm:simple_kv_offload_load_blocks_total": {(): 3}, "vllm:simple_kv_offload_used_blocks": {(): 8},
        "vllm:simple_kv_offload_info": {("cpu", "true", "false", "64"): 1},
    }}, {
        "vllm.kv_offload.blocks SimpleCPUOffloadConnector  stored": 5,
        "vllm.kv_offload.blocks SimpleCPUOffloadConnector  dropped_cpu_full": 2,
        "vllm.kv_offload.blocks SimpleCPUOffloadConnector  loaded": 3,
    }),
    ("multi-0.29.0", "MultiConnector", {"NixlConnector": {"data": NIXL}, "OffloadingConnector": {"data": OFFLOADING}},
     {**SHOWN_OF_NIXL, **SHOWN_OF_OFFLOADING}),
    ("multi-0.30.0", "MultiConnector", {"NixlConnector": NIXL, "OffloadingConnector": OFFLOADING},
     {**SHOWN_OF_NIXL, **SHOWN_OF_OFFLOADING}),
    ("nothing-to-say", "OffloadingConnector", {"types": {}, "data": {}}, {}),
    ("known-but-not-shown", "OffloadingConnector", {"types": {}, "data": {"vllm:kv_offload_config_info": {("a",): 1}}}, {}),
]  # fmt: skip


def call(stats: Any, clock: float = 100.0) -> Any:
    return (clock, SimpleNamespace(num_running_reqs=1, kv_connector_stats=stats), None, None, 0)


def at_once(connector: str, calls: list[Any], complain: Callable[..., None]) -> list[Record]:
    return list(Reader(MODEL, complain, connector=connector).read(calls, EPOCH))


def over_the_wire(connector: str, calls: list[Any], complain: Callable[..., None]) -> list[Record]:
    return sent(*at_once(connector, calls, complain))


def sent(*records: Record) -> list[Record]:
    batch = from_client(encode(Batch(1, 0.0, list(records))))
    assert isinstance(batch, Batch)
    return batch.records


def taken(
    connector: str, *stats: Any, way: Callable[..., list[Record]] = at_once, complaints: list[Any] | None = None
) -> Aggregator:
    """Return a collector to which a connector reported, one step after another."""
    given_ = [call(each, 100.0 + place) for place, each in enumerate(stats)]
    aggregator = Aggregator(Settings())
    heard: list[Any] = [] if complaints is None else complaints
    aggregator.add(way(connector, given_, lambda *said: heard.append(said)))
    return aggregator


def shown(aggregator: Aggregator) -> Numbers:
    """Return what is held of connectors: numbers, and of histograms how many and their sum."""
    found: Numbers = {}
    for metric in CONNECTORS:
        for key, cell in aggregator.store[metric].cells.items():
            assert key[:2] == (MODEL, "0")
            if isinstance(cell, HistogramCell):
                cell.settle()
            number = (sum(cell.counts), cell.total) if isinstance(cell, HistogramCell) else cell.value
            found[" ".join((metric.name, *key[2:]))] = number
    return found


def near(expected: Numbers) -> Numbers:
    return {
        name: (number[0], pytest.approx(number[1])) if isinstance(number, tuple) else pytest.approx(number)
        for name, number in expected.items()
    }


def unknown(aggregator: Aggregator) -> dict[str, float]:
    cells = aggregator.store[self_metrics.UNKNOWN_CONNECTORS].cells
    return {key[2]: getattr(cell, "value", math.nan) for key, cell in cells.items()}


@pytest.mark.parametrize("way", [at_once, over_the_wire])
@pytest.mark.parametrize(
    ("connector", "stats", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_each_class_reports(
    connector: str, stats: Any, expected: Numbers, way: Callable[..., list[Record]]
) -> None:
    complaints: list[Any] = []
    aggregator = taken(connector, stats, way=way, complaints=complaints)
    assert shown(aggregator) == near(expected)
    assert (unknown(aggregator), complaints) == ({}, [])


def test_every_rule_is_tried_above() -> None:
    tried = str([stats for _, _, stats, _ in CASES])
    assert [name for name in (*LISTS, *OPERATIONS, *DESCRIBED) if repr(name) not in tried] == []
    reached = {name.split()[0] for *_, expected in CASES for name in expected}
    assert {metric.name for metric in CONNECTORS} == reached


def test_counters_add_up_and_histograms_go_on() -> None:
    aggregator = taken("NixlConnector", NIXL, NIXL, {**NIXL, "bytes_transferred": [8]})
    found = shown(aggregator)
    assert found["vllm.kv_transfer.io NixlConnector receive"] == 2 * 1052672 + 8
    assert found["vllm.kv_transfer.size NixlConnector receive"] == (5, 2 * 1052672 + 8)
    assert found["vllm.kv_transfer.failures NixlConnector transfer"] == 9


def test_values_fall_into_the_buckets_of_their_size() -> None:
    sight = Sight(
        taken("NixlConnector", {"bytes_transferred": [2048, 2049, 40000, 2**34], "transfer_duration": [0.02]})
    )
    labels = {"connector": "NixlConnector", "direction": "receive"}
    below = {
        le: sight.of_engine("vllm_kv_transfer_size_bytes_bucket", le=le, **labels)
        for le in ("2048.0", "8192.0", "32768.0", "131072.0", "+Inf")
    }
    assert list(below.values()) == [1, 2, 2, 3, 4]
    assert sight.of_engine("vllm_kv_transfer_duration_seconds_bucket", le="0.01", **labels) == 0
    assert sight.of_engine("vllm_kv_transfer_duration_seconds_bucket", le="0.025", **labels) == 1


def test_many_values_are_taken_as_they_are() -> None:
    sizes = [float(number) for number in range(10_000)]
    found = shown(taken("NixlConnector", {"bytes_transferred": sizes, "transfer_duration": list(range(100))}))
    assert found["vllm.kv_transfer.size NixlConnector receive"] == (10_000, 49_995_000)
    assert found["vllm.kv_transfer.operation_time NixlConnector receive"] == 4950


def test_what_has_not_failed_yet_begins_at_zero() -> None:
    empty: dict[str, list[Any]] = {name: [] for name in NIXL_NEWEST}
    found = shown(taken("NixlConnector", {**empty, "transfer_duration": [0.5]}))
    for kind in ("transfer", "handshake", "notification"):
        assert found[f"vllm.kv_transfer.failures NixlConnector {kind}"] == 0
    assert found["vllm.kv_transfer.expired NixlConnector"] == 0
    assert found["vllm.kv_transfer.size NixlConnector receive"] == (0, 0)


def test_there_are_no_series_before_a_connector_reports() -> None:
    aggregator = collect(facts("0", "kv_connector", "kv_consumer"), step(running=1))
    assert shown(aggregator) == {}


# Classes of which nothing is known


@pytest.mark.parametrize("way", [at_once, over_the_wire])
@pytest.mark.parametrize(
    ("stats", "names"),
    [
        ({"retrieve_hit_rate": 0.5, "num_hit_tokens": [1, 2]}, {"LMCacheConnectorV1"}),
        ({"data": {"anything": 1}}, {"LMCacheConnectorV1"}),
        ({"types": {"x": "counter"}, "data": {"other:thing": {(): 1}}}, {"LMCacheConnectorV1"}),
        ({"AConnector": {"x": 1}, "FlexKVConnectorV1": {"data": {"y": 1}}}, {"AConnector", "FlexKVConnectorV1"}),
        ({"AConnector": {}, "BConnector": {"data": {}}, "CConnector": None}, set()),
        ([1, 2], {"LMCacheConnectorV1"}),
        ("text", {"LMCacheConnectorV1"}),
        ({}, set()),
        (None, set()),
    ],
)
def test_an_unknown_class_is_passed_over_and_counted_once(
    stats: Any, names: set[str], way: Callable[..., list[Record]]
) -> None:
    aggregator = taken("LMCacheConnectorV1", stats, stats, stats, way=way)
    assert unknown(aggregator) == dict.fromkeys(names, 1)
    assert shown(aggregator) == {}


def test_an_unknown_class_counts_once_however_many_processes_and_starts_report_it() -> None:
    aggregator = Aggregator(Settings())
    merger = Merger(aggregator)
    for process in ("0", "1"):
        for _ in range(2):  # as often as it connects
            read = at_once("LMCacheConnectorV1", [call({"x": 1}), call({"x": 1})], lambda *_: None)
            merger.take(process, read, 200.0)
    aggregator.add([facts()])
    merger.take("0", [step(clock=300.0, unknown_connectors=("LMCacheConnectorV1", "Other"))], 300.0)
    merger.finish()
    assert unknown(aggregator) == {"LMCacheConnectorV1": 1, "Other": 1}


def test_one_that_is_known_is_shown_beside_one_that_is_not() -> None:
    aggregator = taken("MultiConnector", {"NixlConnector": NIXL, "LMCacheConnectorV1": {"x": [1]}})
    assert shown(aggregator) == near(SHOWN_OF_NIXL)
    assert unknown(aggregator) == {"LMCacheConnectorV1": 1}


def test_a_class_is_unknown_where_vllms_configuration_does_not_name_it() -> None:
    assert unknown(taken("", {"x": 1})) == {"unknown": 1}


def test_classes_without_end_are_bounded() -> None:
    steps = [{f"Connector{100 * first + place}": {"x": 1} for place in range(100)} for first in range(20)]
    assert len(unknown(taken("MultiConnector", *steps))) == MOST_CONNECTORS
    known = [
        {f"Connector{100 * first + place}": {"bytes_transferred": [2]} for place in range(100)} for first in range(20)
    ]
    aggregator = taken("MultiConnector", *known)
    cells = aggregator.store[IO].cells
    assert len(cells) == IO.labels[0].cap + 1
    # Sixteen of each step are read, two bytes of each; those past the cap add up.
    assert sum(getattr(cell, "value", 0) for cell in cells.values()) == 20 * MOST_CONNECTORS * 2
    assert getattr(cells[MODEL, "0", OTHER, ""], "value", None) == 19 * MOST_CONNECTORS * 2


def test_tiers_without_end_are_bounded() -> None:
    tiers = {(f"{number}:x",): 1 for number in range(500)}
    aggregator = taken("OffloadingConnector", {"types": {}, "data": {"vllm:kv_offload_tiering_chunk_queries": tiers}})
    found = shown(aggregator)
    assert len(found) == 17
    assert found[f"vllm.kv_offload.queried_blocks OffloadingConnector {OTHER}"] == 484


# Gauges


def reported(clock: float, connector: str, usage: float) -> Step:
    return step(clock, running=1, connectors=(Reported(USAGE.name, (connector,), array("d", [usage])),))


def test_a_gauge_stays_until_its_connector_says_otherwise(clock: Clock) -> None:
    sight = Sight(aggregator := collect(reported(100, "A", 0.5), reported(101, "B", 0.25), step(102, running=1)))
    clock.now = 102
    assert [sight.of_engine("vllm_kv_offload_usage_ratio", connector=name) for name in "AB"] == [0.5, 0.25]
    feed(aggregator, reported(103, "A", 0.75))
    assert [sight.of_engine("vllm_kv_offload_usage_ratio", connector=name) for name in "AB"] == [0.75, 0.25]


def test_a_step_that_comes_late_adds_up_but_sets_no_gauge_back() -> None:
    late = reported(100.5, "A", 0.125)
    late.connectors += (Reported(IO.name, ("A", "load"), array("d", [7.0])),)
    aggregator = collect(reported(100, "A", 0.5), reported(101, "A", 0.25), late)
    assert shown(aggregator) == {"vllm.kv_offload.usage A": 0.25, "vllm.kv_transfer.io A load": 7}


def test_a_gauge_of_an_engine_that_fell_silent_goes_away(clock: Clock) -> None:
    aggregator = collect(reported(100, "A", 0.5), stale_after=10)
    sight = Sight(aggregator)
    assert sight.of_engine("vllm_kv_offload_usage_ratio", connector="A") == 0.5
    clock.now = 111
    assert sight.of_engine("vllm_kv_offload_usage_ratio", connector="A") is None


# What vLLM does with a report after it told it


def growing(report: dict[str, Any]) -> None:
    """Add another report to one, as vLLM's log line does."""
    for numbers in report.values():
        numbers.extend(numbers)


def test_a_report_is_read_as_it_was_at_the_call() -> None:
    queue = StepQueue(10, copied)
    first, second = ({name: list(numbers) for name, numbers in NIXL.items()} for _ in range(2))
    for report in (first, None, second):
        queue.record(SimpleNamespace(num_running_reqs=3, kv_connector_stats=report), None, None, 0)
    growing(first)
    records = at_once("NixlConnector", list(queue.calls), lambda *_: None)
    aggregator = Aggregator(Settings())
    aggregator.add(records)
    assert [record.running for record in records if isinstance(record, Step)] == [3, 3, 3]
    assert shown(aggregator)["vllm.kv_transfer.io NixlConnector receive"] == 2 * 1052672
    assert shown(aggregator)["vllm.kv_transfer.failures NixlConnector transfer"] == 2 * 3


def test_a_step_without_a_report_is_kept_as_it_is() -> None:
    for scheduler in (
        None,
        SimpleNamespace(),
        SimpleNamespace(kv_connector_stats=None),
        SimpleNamespace(kv_connector_stats={}),
    ):
        kept = (1.0, scheduler, None, None, 0)
        assert copied(kept) is kept


def test_a_report_that_cannot_be_kept_is_read_as_it_is() -> None:
    queue = StepQueue(10, copied)
    told = SimpleNamespace(num_running_reqs=1, kv_connector_stats={"bytes_transferred": object()})
    queue.record(told, None, None, 0)
    ((_, kept, *_),) = queue.calls
    assert (kept, queue.failed) == (told, 0)


@pytest.mark.parametrize("connector", ["NixlConnector", ""])
def test_only_an_engine_with_a_connector_pays_for_that(connector: str, make_runtime: Callable[..., Runtime]) -> None:
    config = make_config(MODEL)
    config.kv_transfer_config = SimpleNamespace(kv_connector=connector) if connector else None
    queue = make_runtime().attach(config, [0], object, "0.32.0")
    stats = SimpleNamespace(kv_connector_stats=NIXL)
    queue.record(stats, None, None, 0)
    ((_, kept, *_),) = queue.calls
    assert (kept is stats) is not bool(connector)


# What is no report


@pytest.mark.parametrize(
    ("values", "refused"), [([-1.0, 2.0], "negative"), ([math.nan, 2.0], "not_finite"), ([math.inf, 2.0], "not_finite")]
)
def test_numbers_that_cannot_be_true_are_refused_and_counted(values: list[float], refused: str) -> None:
    aggregator = taken("NixlConnector", {"bytes_transferred": values, "num_failed_transfers": values})
    found = shown(aggregator)
    assert found["vllm.kv_transfer.size NixlConnector receive"] == (1, 2)
    assert found["vllm.kv_transfer.io NixlConnector receive"] == 2
    assert found["vllm.kv_transfer.failures NixlConnector transfer"] == 2
    for name in ("vllm.kv_transfer.size", "vllm.kv_transfer.io", "vllm.kv_transfer.failures"):
        assert aggregator.store.rejects[name, refused] == 1


@pytest.mark.parametrize("value", ["many", b"x", {"a": 1}, [1, "two", 3], None, [[1]], object()])
def test_what_is_no_number_is_left_out_and_complained_of(value: Any) -> None:
    complaints: list[Any] = []
    aggregator = taken(
        "NixlConnector", {"bytes_transferred": value, "num_failed_transfers": [1]}, complaints=complaints
    )
    found = shown(aggregator)
    assert found["vllm.kv_transfer.failures NixlConnector transfer"] == 1
    assert found["vllm.kv_transfer.io NixlConnector receive"] == (4 if value == [1, "two", 3] else 0)
    assert {said[0] for said in complaints} == {"kv_connector_stats of NixlConnector: bytes_transferred"}


class Sulking(dict[str, Any]):
    """A mapping that does not let itself be looked at."""

    def items(self) -> Any:
        raise SystemExit(1)


def test_a_report_that_raises_costs_only_itself() -> None:
    complaints: list[Any] = []
    aggregator = taken("NixlConnector", Sulking(x=1), NIXL, complaints=complaints)
    assert shown(aggregator) == near(SHOWN_OF_NIXL)
    assert [said[0] for said in complaints] == ["SchedulerStats.kv_connector_stats"]


names = st.one_of(
    st.sampled_from([*LISTS, *OPERATIONS, *DESCRIBED, "data", "types", "NixlConnector", "AConnector"]),
    st.text(max_size=3),
)
labels = st.one_of(st.lists(st.text(max_size=3), max_size=3).map(tuple), st.text(max_size=3), st.none())
operations = st.lists(
    st.one_of(scalars, st.dictionaries(st.sampled_from(["op_size", "op_time", "num_bytes", "status"]), scalars)),
    max_size=3,
)
contents = st.dictionaries(
    names, st.one_of(values, operations, st.dictionaries(labels, values, max_size=3)), max_size=5
)
reports = st.dictionaries(names, st.one_of(contents, values, operations), max_size=4)


@examples(200)
@given(st.lists(reports, max_size=3))
def test_no_report_raises_or_shows_a_number_that_cannot_be_true(stats: list[Any]) -> None:
    aggregator = taken("NixlConnector", *stats, NIXL)
    for number in shown(aggregator).values():
        assert all(math.isfinite(each) and each >= 0 for each in (number if isinstance(number, tuple) else (number,)))
    assert shown(aggregator)["vllm.kv_transfer.failures NixlConnector notification"] >= 1
    aggregator.refresh()


@pytest.mark.parametrize(
    "odd", [("vllm.of_tomorrow", ("A",)), (FAILURES.name, ("A",)), (FAILURES.name, ("A", "b", "c"))]
)
def test_what_another_release_of_ours_sends_is_passed_over(odd: tuple[str, tuple[str, ...]]) -> None:
    ones = array("d", [1.0])
    told = (Reported(*odd, ones), Reported(FAILURES.name, ("A", "load"), ones))
    aggregator = collect(step(running=1, connectors=told))
    assert shown(aggregator) == {"vllm.kv_transfer.failures A load": 1}
    assert aggregator.store[self_metrics.ERRORS].number((), ("0", "collect")).value == 0


# The page

PAGE = (Path(__file__).parents[3] / "docs" / "connectors.md").read_text(encoding="utf-8")


def test_the_page_names_metrics_kinds_and_classes_that_there_are() -> None:
    assert set(re.findall(r"`(vllm\.kv_\w+\.[\w.]+)`", PAGE)) <= {metric.name for metric in CONNECTORS}
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]
    assert len({line.count("|") for line in rows}) == 1
    told = {name for row in rows for name in re.findall(r"`(\w+Connector)`", row.split("|")[1])}
    assert {connector for _, connector, *_ in CASES} - {"OurConnector"} <= told
    kinds = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[4])}
    rules = (rule for table in (LISTS, DESCRIBED, FAILED) for each in table.values() for rule in each)
    assert {rule.labels[0] for rule in rules if rule.metric is FAILURES} == kinds - {"ok"}
