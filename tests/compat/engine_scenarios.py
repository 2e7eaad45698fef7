"""Scenarios of the engine's own reports: caches, adapters, drafts, and what only some releases tell.

A function returns None for a release that does not report the thing.
"""

from typing import Any

from tests.compat.calls import Rejection, Scenario, Sleep, one_engine
from tests.compat.frontend import Frontend, Output, lookups, scheduler
from tests.compat.releases import Release
from tests.compat.totals import Totals


def external_cache(release: Release) -> Scenario:
    """Find a prompt partly in the local cache and partly in another instance's."""
    front = Frontend(release)
    tiers = release.at_least("0.32.0")
    source = {release.CacheHitSource.HOST: 32} if tiers else None
    found = {
        "prefix_cache_stats": lookups(release, (200, 96), (50, 0)),
        "connector_prefix_cache_stats": lookups(release, (104, 32), tiers=source),
    }
    front.step(80.25, scheduler=scheduler(release, 1, 0, 0.5, **found))
    a = front.request("a", 200, 80.0, local=96, external=32)
    front.step(80.5, Output(a, events=(("QUEUED", 80.0), ("SCHEDULED", 80.25))))
    split = release.at_least("0.16.0")
    totals = Totals(
        running=1,
        kv_usage=0.5,
        prompt_tokens=200,
        generation_tokens=1,
        prompt_by_source={"local_compute": 72, "local_cache_hit": 96, "external_kv_transfer": 32} if split else {},
        cached_by_tier={"device": 96, "host": 32, "p2p": 0, "disk": 0, "external_unspecified": 0} if tiers else {},
        prefix_queries=250,
        prefix_hits=96,
        external_queries=104,
        external_hits=32,
        time_to_first_token=[0.5625],
        step_tokens=[73 if release.at_least("0.23.0") else 201],
    )
    return one_engine(front.calls, totals)


def adapters(release: Release) -> Scenario:
    """Serve two LoRA adapters, and preempt the only request of one."""
    front = Frontend(release)
    events = (("QUEUED", 90.0), ("SCHEDULED", 90.25))
    fr, de = (front.request(name, 4, 90.0, lora=name) for name in ("fr", "de"))
    front.step(90.5, Output(fr, events=events), Output(de, events=events), scheduler=scheduler(release, 2))
    front.step(90.75, Output(fr), Output(de, events=(("PREEMPTED", 90.625),)), scheduler=scheduler(release, 1, 1))
    totals = Totals(
        running=1,
        waiting=1,
        lora_running={"fr": 1, "de": 0},
        lora_waiting={"fr": 0, "de": 1},
        prompt_tokens=8,
        generation_tokens=4,
        preemptions=1,
        time_to_first_token=[0.5625] * 2,
        inter_token_latency=[0.25] * 2,
        step_tokens=[10, 2],
    )
    return one_engine(front.calls, totals, lora_config={"max_loras": 2})


def speculation(release: Release) -> Scenario:
    """Verify three drafts of up to three tokens in two steps, after a step without any."""
    front = Frontend(release)
    a = front.request("a", 4, 100.0)
    front.step(100.5, Output(a), scheduler=scheduler(release, 1))
    for at, tokens, drafts in ((100.75, 4, ((3, 2), (3, 0))), (101.0, 3, ((2, 2),))):
        stats = release.SpecDecodingStats.new(3)
        for drafted, accepted in drafts:
            stats.observe_draft(drafted, accepted)
        front.step(at, Output(a, tokens=tokens), scheduler=scheduler(release, 1, spec_decoding_stats=stats))
    totals = Totals(
        running=1,
        prompt_tokens=4,
        generation_tokens=8,
        drafts=3,
        draft_tokens=8,
        accepted_tokens=4,
        accepted_by_position={"0": 2, "1": 2, "2": 0},
        time_to_first_token=[0.5625],
        inter_token_latency=[0.25, 0.25],
        step_tokens=[5, 4, 3],
    )
    return one_engine(front.calls, totals, speculative_config={"num_speculative_tokens": 3})


def multimodal_cache(release: Release) -> Scenario:
    """Look twice into the front end's cache of processed images."""
    front = Frontend(release)
    for queries, hits in ((3, 2), (2, 0)):
        found = release.MultiModalCacheStats(requests=1, queries=queries, hits=hits)
        front.step(110.0, scheduler=scheduler(release), mm_cache=found)
    return one_engine(front.calls, Totals(mm_queries=5, mm_hits=2))


def evictions(release: Release) -> Scenario | None:
    """Evict two blocks, one of them reused twice before."""
    if not release.has("KVCacheEvictionEvent"):
        return None
    front = Frontend(release)
    events = [
        release.KVCacheEvictionEvent(lifetime_seconds=8.0, idle_seconds=2.0, reuse_gaps_seconds=(0.5, 1.5)),
        release.KVCacheEvictionEvent(lifetime_seconds=4.0, idle_seconds=4.0, reuse_gaps_seconds=()),
    ]
    front.step(120.0, scheduler=scheduler(release, kv_cache_eviction_events=events))
    totals = Totals(block_lifetime=[8.0, 4.0], block_idle=[2.0, 4.0], block_reuse_gap=[0.5, 1.5])
    return one_engine(front.calls, totals, observability_config={"kv_cache_metrics": True})


def cuda_graphs(release: Release) -> Scenario | None:
    """Run two padded steps and an unpadded one."""
    if not release.has("CUDAGraphStat"):
        return None
    front = Frontend(release)
    for unpadded, padded, mode in ((13, 16, "FULL"), (30, 32, "PIECEWISE"), (700, 700, "NONE")):
        stat = release.CUDAGraphStat(unpadded, padded, padded - unpadded, mode)
        front.step(130.0, scheduler=scheduler(release, cudagraph_stats=stat))
    totals = Totals(graph_unpadded=743, graph_padded=748)
    return one_engine(front.calls, totals, observability_config={"cudagraph_metrics": True})


def performance(release: Release) -> Scenario | None:
    """Estimate arithmetic and memory traffic in two steps, not in the one between."""
    if not release.has("SchedulerStats.perf_stats"):
        return None
    front = Frontend(release)
    for stats in (release.PerfStats(10**12, 10**9, 10**6), None, release.PerfStats(2 * 10**12, 10**9, 10**6)):
        front.step(140.0, scheduler=scheduler(release, perf_stats=stats))
    totals = Totals(flops=3 * 10**12, read_bytes=2 * 10**9, write_bytes=2 * 10**6)
    return one_engine(front.calls, totals, observability_config={"enable_mfu_metrics": True})


def iteration_details(release: Release) -> Scenario | None:
    """Detail two steps; the dummy step between them counts for nothing."""
    if not release.has("SchedulerIterationDetails"):
        return None
    front = Frontend(release)
    for details in ((7, 1, 96, 3, 3, 12.5, 0, 0, False), (8, 0, 0, 0, 0, 1.0, 0, 0, True), (9, 0, 0, 4, 4, 6.25)):
        report = release.SchedulerIterationDetails(*details)
        front.step(150.0, scheduler=scheduler(release, 4, iteration_details=report))
    totals = Totals(running=4, step_seconds=[0.0125, 0.00625])
    return one_engine(front.calls, totals, observability_config={"enable_logging_iteration_details": True})


def waiting_kinds(release: Release) -> Scenario | None:
    """Let requests wait for capacity, and defer others."""
    if not release.has("SchedulerStats.num_skipped_waiting_reqs"):
        return None
    front = Frontend(release)
    front.step(160.0, scheduler=scheduler(release, 3, 5, 1.0, num_skipped_waiting_reqs=2))
    return one_engine(front.calls, Totals(running=3, waiting=5, deferred=2, kv_usage=1.0))


def encoder_cache(release: Release) -> Scenario | None:
    """Fill the encoder cache, which 0.16 to 0.19 report."""
    if not release.has("SchedulerStats.encoder_cache_usage"):
        return None
    front = Frontend(release)
    front.step(170.0, scheduler=scheduler(release, encoder_cache_usage=0.75))
    return one_engine(front.calls, Totals(encoder_usage=0.75))


def kv_fetches(release: Release) -> Scenario | None:
    """Have requests at each stage of loading their blocks from elsewhere."""
    if not release.has("SchedulerStats.num_kv_fetch_reqs_by_stage"):
        return None
    front = Frontend(release)
    stages = {"waiting_to_start": 3, "in_progress": 2, "completed_waiting": 1}
    front.step(180.0, scheduler=scheduler(release, 0, 6, num_kv_fetch_reqs_by_stage=stages))
    return one_engine(
        front.calls, Totals(waiting=6, kv_fetch=dict(stages)), kv_transfer_config={"is_kv_consumer": True}
    )


def connector_payloads(release: Release) -> Scenario:
    """Carry payloads of connectors, whose shape is theirs alone."""
    front = Frontend(release)
    payloads: dict[str, Any] = {
        "kv_connector_stats": {"transfer_duration": [0.25], "bytes_transferred": [4096]},
        "ec_connector_stats": {"anything": {"nested": None}},
    }
    front.step(190.0, scheduler=scheduler(release, 1, **payloads))
    return one_engine(front.calls, Totals(running=1))


def sleeping(release: Release) -> Scenario:  # noqa: ARG001 - called like the others
    """Sleep at level 1, wake, and sleep at level 2."""
    calls = [Sleep(1, 1), Sleep(0, 0), Sleep(1, 2)]
    return one_engine(calls, Totals(sleep={"awake": 0, "weights_offloaded": 0, "discard_all": 1}))


def rejections(release: Release) -> Scenario | None:
    """Turn three requests away in the front end."""
    if not hasattr(release.AggregateStatLoggerBase, "record_admission_rejection"):
        return None
    calls = [Rejection(f"max_num_queued_{what}") for what in ("reqs", "tokens", "reqs")]
    return one_engine(calls, Totals(rejections={"max_num_queued_reqs": 2, "max_num_queued_tokens": 1}))
