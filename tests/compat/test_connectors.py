"""What KV connectors report in each release, as its own classes record it, is what its own metrics make of it."""

import re
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tests.compat.configs import make_config
from tests.compat.frontend import scheduler
from tests.compat.oracle import Oracle
from tests.compat.releases import Release
from tests.compat.test_numbers import ours, page, shown_of
from tests.connectors import (
    FAILED_OF_ALL_KINDS,
    FAILED_OF_ONE_KIND,
    HF3FS,
    HISPARSE,
    MOONCAKE_STORE,
    NIXL,
    NOT_SHOWN,
    OFFLOADING,
    SIMPLE,
    Pair,
    check,
)
from tests.parity import Samples, value
from vllm_vitals.aggregation.aggregator import Aggregator
from vllm_vitals.config.settings import Settings
from vllm_vitals.vllm_page.parse import parse
from vllm_vitals.vllm_page.poller import NativeSource

V1 = "vllm.distributed.kv_transfer.kv_connector.v1"
ENGINE = {"model_name": "m", "engine": "0"}


class Connector:
    """A connector's own classes in a release: one records, the other shows."""

    def __init__(self, release: Release, stats: type, shows: type | None) -> None:
        self._release = release
        self._shows = shows
        self.stats: Any = stats()

    @property
    def told(self) -> Any:
        """What the scheduler tells of it: an object's dictionary, which from 0.30 on it makes itself."""
        return self.stats.to_dict() if hasattr(self.stats, "to_dict") else self.stats.data

    def page(self, told: Any) -> Samples:
        """Return what its own metrics make of that."""
        return page(self.show(told, CollectorRegistry()))

    def show(self, told: Any, registry: CollectorRegistry) -> CollectorRegistry:
        """Return a registry with what its own metrics make of that."""
        if self._shows is not None:
            kinds = {kind: partial(kind, registry=registry) for kind in (Gauge, Counter, Histogram)}
            config = make_config(self._release, kv_transfer_config={"kv_connector_extra_config": {}})
            with self._release.installed():
                self._shows(config, kinds, list(ENGINE), {0: list(ENGINE.values())}).observe(told, 0)
        return registry


def find(release: Release, name: str, shows: str, *modules: str) -> Connector:
    """Return a connector of a release from the first module that it has, skip where it has none."""
    for module in modules:
        try:
            home = release.load(module if module.startswith("vllm.") else f"{V1}.{module}")
        except ImportError:
            continue
        if name in vars(home):
            return Connector(release, vars(home)[name], vars(home).get(shows))
    pytest.skip(f"vLLM {release.version} has no {name}")


def nixl(release: Release) -> Connector:
    connector = find(release, "NixlKVConnectorStats", "NixlPromMetrics", "nixl.stats", "nixl_connector")
    for microseconds, size, pieces in ((2500, 4096, 12), (250_000, 3_000_000, 400), (9_000_000, 2**34, 9)):
        connector.stats.record_transfer(
            SimpleNamespace(
                xferDuration=microseconds, postDuration=microseconds // 10, totalBytes=size, descCount=pieces
            )
        )
    for count, name in enumerate(("transfer", "notification", "handshake"), start=1):
        for _ in range(count if hasattr(connector.stats, f"record_failed_{name}") else 0):
            getattr(connector.stats, f"record_failed_{name}")()
    for name in ("record_kv_expired_req", "record_notification_after_expiry"):
        getattr(connector.stats, name, lambda: None)()
    return connector


def hf3fs(release: Release) -> Connector:
    connector = find(release, "HF3FSKVConnectorStats", "HF3FSPromMetrics", "hf3fs.hf3fs_connector")
    for operation, seconds in (("Saved", 0.25), ("Saved", 0.003), ("Loaded", 0.75)):
        connector.stats.record_success_task_duration(operation, seconds)
    for operation in ("Saved", "Loaded", "Loaded"):
        connector.stats.record_failed_task_count(operation)
    return connector


def offloading(release: Release) -> Connector:
    connector = find(
        release, "OffloadingConnectorStats", "OffloadPromMetrics", "offloading.metrics", "offloading_connector"
    )
    stats = connector.stats
    transfers = {"store": ((5_000_000, 0.5), (20_000, 0.25)), "load": ((8_000_000, 0.125),)}
    for way, done in transfers.items():
        for size, seconds in done:
            if hasattr(stats, "record_transfer"):
                stats.record_transfer(size, seconds, ("GPU", "CPU") if way == "store" else ("CPU", "GPU"))
            else:
                stats.increase_counter(f"vllm:kv_offload_{way}_bytes", size)
                stats.increase_counter(f"vllm:kv_offload_{way}_time", seconds)
                stats.observe_histogram(f"vllm:kv_offload_{way}_size", size)
    if hasattr(stats, "set_gauge"):
        stats.set_gauge("vllm:kv_offload_cpu_cache_usage_perc", 0.375)
    if release.at_least("0.26.0"):
        stats.increase_counter("vllm:kv_offload_allocation_failure", 2)
        stats.observe_histogram("vllm:kv_offload_lookup_sync_delay_seconds", 0.0007)
        stats.observe_histogram("vllm:kv_offload_lookup_async_delay_seconds", 0.7)
    return connector


def mooncake(release: Release) -> Connector:
    connector = find(release, "MooncakeKVConnectorStats", "MooncakePromMetrics", "mooncake.stats")
    connector.stats.record_transfer(0.5, 4096, 3)
    connector.stats.record_transfer(0.25, 1024, 2)
    connector.stats.record_failed_transfer()
    for _ in range(2):
        connector.stats.record_failed_recv()
    connector.stats.record_kv_expired_req()
    return connector


def mooncake_store(release: Release) -> Connector:
    connector = find(release, "MooncakeStoreConnectorStats", "MooncakeStorePromMetrics", "mooncake.store.metrics")
    for operation, seconds, size, status in (
        ("save_put", 0.25, 4096, "ok"), ("save_put", 0.5, 1024, "partial_failure"), ("load_get", 0.125, 512, "ok"),
        ("lookup_exists", 0.002, 0, "ok"), ("save_exists", 0.004, 0, "error"),
    ):  # fmt: skip
        connector.stats.record_operation(operation, seconds, 4, num_bytes=size, status=status)
    return connector


def hisparse(release: Release) -> Connector:
    connector = find(release, "HiSparseKVConnectorStats", "HiSparsePromMetrics", "hisparse.stats")
    connector.stats.record_snapshot(10, 3, 4096)
    connector.stats.record_snapshot(5, 1, 1024)
    connector.stats.record_host_usage(0.5, 7)
    connector.stats.record_host_usage(0.25, 6)
    return connector


def simple(release: Release) -> Connector:
    module = "vllm.v1.simple_kv_offload.metrics"
    connector = find(release, "SimpleCPUOffloadStats", "SimpleCPUOffloadPromMetrics", module)
    for outcome, blocks in (("stored", 8), ("dropped_cpu_full", 3)):
        connector.stats.increase_counter("vllm:simple_kv_offload_save_outcomes_total", blocks, (outcome,))
    connector.stats.increase_counter("vllm:simple_kv_offload_load_blocks_total", 5)
    connector.stats.set_gauge("vllm:simple_kv_offload_used_blocks", 9)
    return connector


def carried(told: Any) -> Any:
    """Return what comes of it on the way from the engine, which is MessagePack."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(told))


def shown(release: Release, connector: str, told: Any) -> Samples:
    """Return what our own page shows of a step in which a connector reported."""
    config = make_config(release, kv_transfer_config={"kv_connector": connector})
    with ours(release, config, [0]) as mine:
        mine.logger.record(scheduler(release, 1, kv_connector_stats=told), None, mm_cache_stats=None, engine_idx=0)
        mine.host.drainer.drain()
        found = shown_of(mine.host.aggregator)
    assert value(found, "vitals_errors_total") == 0
    assert "vitals_connectors_unknown_total" not in found
    return found


def nixl_pairs(release: Release) -> tuple[Pair, ...]:
    return (*NIXL, FAILED_OF_ALL_KINDS if release.at_least("0.31.0") else FAILED_OF_ONE_KIND)


CASES: dict[str, tuple[Callable[[Release], Connector], Callable[[Release], tuple[Pair, ...]]]] = {
    "NixlConnector": (nixl, nixl_pairs),
    "HF3FSKVConnector": (hf3fs, lambda _: HF3FS),
    "OffloadingConnector": (offloading, lambda _: OFFLOADING),
    "MooncakeStoreConnector": (mooncake_store, lambda _: MOONCAKE_STORE),
    "HiSparseConnector": (hisparse, lambda _: HISPARSE),
    "SimpleCPUOffloadConnector": (simple, lambda _: SIMPLE),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_its_own_metrics_show(release: Release, name: str) -> None:
    make, pairs = CASES[name]
    connector = make(release)
    told = carried(connector.told)
    native = connector.page(told)
    compared = check(native, shown(release, name, told), name, pairs(release))
    families = {
        re.sub("(_total|_sum|_count|_bucket|_created)+$", "", sample.removeprefix("vllm:")) for sample in native
    }
    assert families
    assert families - compared <= NOT_SHOWN


def test_what_is_looked_up_is_hit_or_missed(release: Release) -> None:
    connector = hisparse(release)
    native = connector.page(carried(connector.told))
    found = shown(release, "HiSparseConnector", carried(connector.told))
    asked = value(native, "vllm:hisparse_cache_hits_total") + value(native, "vllm:hisparse_cache_misses_total")
    assert value(found, "vllm_kv_offload_queried_blocks_total") == asked == 19


def test_mooncake_which_has_no_metrics_of_its_own(release: Release) -> None:
    connector = mooncake(release)
    found = shown(release, "MooncakeConnector", carried(connector.told))
    summary = connector.stats.reduce()
    assert value(found, "vllm_kv_transfer_duration_seconds_count", direction="send") == 2
    assert summary["Num successful transfers"] == 2
    mean = value(found, "vllm_kv_transfer_operation_time_seconds_total") / 2
    assert mean * 1000 == pytest.approx(summary["Avg xfer time (ms)"])
    assert value(found, "vllm_kv_transfer_descriptors_sum") / 2 == summary["Avg number of descriptors"]
    for kind, said in (("transfer", "Num failed transfers"), ("receive", "Num failed recvs")):
        assert value(found, "vllm_kv_transfer_failures_total", kind=kind) == summary[said] > 0
    assert value(found, "vllm_kv_transfer_expired_total") == summary["Num KV expired reqs"] == 1


def test_a_multi_connector_has_those_of_each(release: Release) -> None:
    parts = {"NixlConnector": nixl(release)}
    if release.at_least("0.16.0"):
        parts["OffloadingConnector"] = offloading(release)
    multi = find(release, "MultiKVConnectorStats", "MultiKVConnectorPromMetrics", "multi_connector")
    for name, part in parts.items():
        multi.stats[name] = part.stats
    told = carried(multi.told)
    assert set(told) == set(parts)
    assert ("data" in told["NixlConnector"]) is not release.at_least("0.30.0")  # that is how it is told apart
    found = shown(release, "MultiConnector", told)
    for name, part in parts.items():
        compared = check(part.page(carried(part.told)), found, name, CASES[name][1](release))
        assert len(compared) >= 3


# The same by way of vLLM's page, where no plugin runs

KNOWN = {name: make for name, (make, _) in CASES.items()} | {"MooncakeConnector": mooncake}
ALL = ".*"
DURATION, SIZES = "vllm_kv_transfer_duration_seconds", "vllm_kv_transfer_size_bytes"


def untold(release: Release, name: str) -> str:
    """Return, as a pattern, which of our metrics of a connector a page of its release does not tell."""
    only_sums = {"MooncakeStoreConnector": SIZES}
    if not release.at_least("0.24.0"):
        only_sums["OffloadingConnector"] = DURATION
    several_classes = {"NixlConnector"} if release.at_least("0.20.0") else set()
    return ALL if name in {"MooncakeConnector", *several_classes} else only_sums.get(name, "none")


def whole(release: Release) -> CollectorRegistry:
    """Return all else that a vLLM shows."""
    return Oracle(release, make_config(release)).registry


def natively(registry: CollectorRegistry) -> Samples:
    """Return what a sidecar shows that fetches vLLM's page."""
    aggregator = Aggregator(Settings())
    NativeSource(aggregator.store).take(parse(generate_latest(registry), "text/plain"), time.time())
    return shown_of(aggregator)


def of_connector(found: Samples, name: str) -> Samples:
    """Return the samples of a connector, without those of its buckets, which vLLM's page has others of."""
    own = {
        sample: {labels: number for labels, number in values.items() if ("connector", name) in labels}
        for sample, values in found.items()
        if not sample.endswith(("_bucket", "_created"))
    }
    return {sample: values for sample, values in own.items() if values}


def bounds(samples: Samples, name: str, **labels: str) -> set[str]:
    """Return the bounds of a histogram."""
    return {dict(given)["le"] for given in samples.get(f"{name}_bucket", ()) if labels.items() <= set(given)}


@pytest.mark.parametrize("name", KNOWN)
def test_its_page_tells_what_it_reports(release: Release, name: str) -> None:
    connector = KNOWN[name](release)
    told = carried(connector.told)
    here = of_connector(shown(release, name, told), name)
    there = of_connector(natively(connector.show(told, whole(release))), name)
    lacking = untold(release, name)
    assert here
    assert not [sample for sample in there if re.match(lacking, sample)]
    places = {(sample, labels) for sample, values in here.items() for labels in values}
    for sample, labels in places | {(sample, labels) for sample, values in there.items() for labels in values}:
        if not re.match(lacking, sample):
            expected, got = here.get(sample, {}).get(labels, 0.0), there.get(sample, {}).get(labels, 0.0)
            assert got == pytest.approx(expected), (sample, labels)
    assert any(there.values()) is (lacking != ALL)


@pytest.mark.parametrize("name", CASES)
def test_its_page_tells_buckets_as_vllm_has_them(release: Release, name: str) -> None:
    make, pairs = CASES[name]
    connector = make(release)
    registry = connector.show(carried(connector.told), whole(release))
    if untold(release, name) == ALL:
        return
    native, there = page(registry), natively(registry)
    assert check(native, there, name, pairs(release))
    for pair in pairs(release):
        prefix = "vllm_" if pair.ours.startswith("kv_") else "vllm_kv_transfer_"
        expected = bounds(native, f"vllm:{pair.native}", **pair.where)
        assert bounds(there, prefix + pair.ours, connector=name, **pair.labels) >= expected


def test_a_page_of_several_connectors(release: Release) -> None:
    registry, parts = whole(release), {"NixlConnector": nixl(release)}
    if release.at_least("0.16.0"):
        parts["OffloadingConnector"] = offloading(release)
    for part in parts.values():
        part.show(carried(part.told), registry)
    there = natively(registry)
    for name, part in parts.items():
        alone = natively(part.show(carried(part.told), whole(release)))
        assert of_connector(there, name) == of_connector(alone, name)
        assert bool(of_connector(alone, name)) is (untold(release, name) != ALL)
