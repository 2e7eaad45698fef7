"""Scenarios of requests: from arrival to the last token, and everything that can happen between."""

import os
from typing import Any
from unittest import mock

from tests.compat.calls import Scenario, one_engine
from tests.compat.frontend import Frontend, Output, lookups, scheduler
from tests.compat.releases import Release
from tests.compat.totals import Totals


def _counts(release: Release, **values: list[float]) -> dict[str, Any]:
    """Return the per-request numbers, less those that the release does not tell."""
    first = {"cached": "0.13.0", "computed": "0.13.0", "preemptions": "0.30.0"}
    told = {name: value for name, value in values.items() if release.at_least(first.get(name, "0.11.1"))}
    return {f"request_{name}": value for name, value in told.items()}


def _single_tokens(release: Release, n: int) -> dict[str, Any]:
    """Return the totals of `n` requests of 8 tokens, queued at 20.0, run from 20.25, ended by the step of 20.5."""
    return {
        "prompt_tokens": 8 * n,
        "generation_tokens": n,
        "time_to_first_token": [0.5625] * n,
        "step_tokens": [9 * n],
        "duration": [0.5625] * n,
        "queue": [0.25] * n,
        "prefill": [0.25] * n,
        "decode": [0.0] * n,
        "inference": [0.25] * n,
        "time_per_output_token": [0.0] * n,
        "group_n": [1] * n,
        "group_max_generation": [1] * n,
        **_counts(release, prompt=[8] * n, generation=[1] * n, cached=[0] * n, computed=[8] * n, preemptions=[0] * n),
    }


def lifecycle(release: Release) -> Scenario:
    """Prefill in chunks after a cached prefix, decode three times, run out of tokens."""
    front = Frontend(release)
    a = front.request("a", 100, 10.0, local=64, max_tokens=4)
    front.step(10.25, scheduler=scheduler(release, 1, 0, 0.25, prefix_cache_stats=lookups(release, (100, 64))))
    queued = (("QUEUED", 10.0), ("SCHEDULED", 10.125))
    front.step(10.5, Output(a, events=queued), scheduler=scheduler(release, 1, 3, 0.25))
    front.step(10.75, Output(a), scheduler=scheduler(release, 1, 2, 0.375))
    front.step(11.25, Output(a), scheduler=scheduler(release, 1, 2, 0.375))
    front.step(11.5, Output(a, finish="LENGTH"), scheduler=scheduler(release, 0, 1, 0.125))
    split = release.at_least("0.16.0")
    totals = Totals(
        waiting=1,
        kv_usage=0.125,
        prompt_tokens=100,
        generation_tokens=4,
        prompt_by_source={"local_compute": 36, "local_cache_hit": 64, "external_kv_transfer": 0} if split else {},
        finished={"length": 1},
        prefix_queries=100,
        prefix_hits=64,
        time_to_first_token=[0.5625],
        inter_token_latency=[0.25, 0.5, 0.25],
        step_tokens=[37 if release.at_least("0.23.0") else 101, 1, 1, 1],
        duration=[1.5625],
        queue=[0.125],
        prefill=[0.375],
        decode=[1.0],
        inference=[1.375],
        time_per_output_token=[1 / 3],
        request_max_tokens=[4],
        group_n=[1],
        group_max_generation=[4],
        **_counts(release, prompt=[100], generation=[4], cached=[64], computed=[36], preemptions=[0]),
    )
    return one_engine(front.calls, totals)


def finish_reasons(release: Release) -> Scenario:
    """End one request for each reason this release knows, after a single token."""
    front = Frontend(release)
    outputs = [
        Output(front.request(reason, 8, 20.0), events=(("QUEUED", 20.0), ("SCHEDULED", 20.25)), finish=reason)
        for reason in release.FinishReason.__members__
    ]
    front.step(20.5, *outputs, scheduler=scheduler(release))
    labels = ["stop", "length", "abort"]
    labels += ["error"] if release.at_least("0.13.0") else []
    labels += ["repetition"] if release.at_least("0.17.0") else []
    totals = Totals(finished=dict.fromkeys(labels, 1), **_single_tokens(release, len(outputs)))
    return one_engine(front.calls, totals)


def crowd(release: Release) -> Scenario:
    """Decode a hundred requests together, whose latencies are one number; once ten of them miss a step."""
    front = Frontend(release)
    n, late = 100, 10
    requests = [front.request(str(number), 8, 20.0) for number in range(n)]
    events = (("QUEUED", 20.0), ("SCHEDULED", 20.25))
    front.step(20.5, *(Output(each, events=events) for each in requests), scheduler=scheduler(release, n))
    front.step(20.75, *map(Output, requests), scheduler=scheduler(release, n))
    front.step(21.25, *map(Output, requests[late:]), scheduler=scheduler(release, n))
    front.step(21.5, *(Output(each, finish="LENGTH") for each in requests), scheduler=scheduler(release))
    lengths = [3] * late + [4] * (n - late)
    totals = Totals(
        prompt_tokens=8 * n,
        generation_tokens=sum(lengths),
        prompt_by_source={"local_compute": 8 * n} if release.at_least("0.16.0") else {},
        finished={"length": n},
        time_to_first_token=[0.5625] * n,
        inter_token_latency=[0.25] * n + [0.5] * (n - late) + [0.75] * late + [0.25] * (n - late),
        step_tokens=[9 * n, n, n - late, n],
        duration=[1.5625] * n,
        queue=[0.25] * n,
        prefill=[0.25] * n,
        decode=[1.0] * n,
        inference=[1.25] * n,
        time_per_output_token=[1.0 / (length - 1) for length in lengths],
        group_n=[1] * n,
        group_max_generation=lengths,
        **_counts(release, prompt=[8] * n, generation=lengths, cached=[0] * n, computed=[8] * n, preemptions=[0] * n),
    )
    return one_engine(front.calls, totals)


def chunked_prefill(release: Release) -> Scenario:
    """Prefill prompts in chunks, of 11 and 1 tokens and of 4, 4, 2 and 1, beside a request that decodes."""
    front = Frontend(release)
    events = (("QUEUED", 20.0), ("SCHEDULED", 20.25))
    a, b, c = (front.request(name, prompt, 20.0) for name, prompt in (("a", 12), ("b", 11), ("c", 4)))
    steps: list[tuple[tuple[int, ...], list[Output]]] = [
        ((4,), [Output(c, events=events)]),
        ((11, 4), [Output(c)]),
        ((1, 4), [Output(c), Output(a, events=events)]),
        ((2,), [Output(c), Output(a)]),
        ((1,), [Output(c), Output(a), Output(b, events=events)]),
    ]
    for number, (chunks, outputs) in enumerate(steps):
        details = (number, len(chunks), sum(chunks), 1, 1, 6.25)
        known = release.has("SchedulerIterationDetails")
        report = release.SchedulerIterationDetails(*details) if known else None
        front.step(20.5 + number / 4, *outputs, scheduler=scheduler(release, 3, iteration_details=report))
    totals = Totals(
        running=3,
        prompt_tokens=27,
        generation_tokens=9,
        prompt_by_source={"local_compute": 27} if release.at_least("0.16.0") else {},
        time_to_first_token=[0.5625, 1.0625, 1.5625],
        inter_token_latency=[0.25] * 6,
        step_tokens=[5, 1, 14, 2, 14],
    )
    return one_engine(front.calls, totals, observability_config={"enable_logging_iteration_details": True})


def preemption(release: Release) -> Scenario:
    """Preempt a request that decodes, recompute it, let it stop."""
    front = Frontend(release)
    a = front.request("a", 16, 30.0)
    front.step(
        30.5, Output(a, events=(("QUEUED", 30.0), ("SCHEDULED", 30.25))), scheduler=scheduler(release, 1, 0, 1.0)
    )
    again = lookups(release, (17, 16), preempted=True)
    front.step(30.75, scheduler=scheduler(release, 0, 1, 0.5))
    front.step(
        31.5,
        Output(a, events=(("PREEMPTED", 30.75), ("SCHEDULED", 31.0))),
        scheduler=scheduler(release, 1, 0, 0.75, prefix_cache_stats=again),
    )
    front.step(32.0, Output(a, finish="STOP"), scheduler=scheduler(release))
    totals = Totals(
        prompt_tokens=16,
        generation_tokens=3,
        preemptions=1,
        finished={"stop": 1},
        time_to_first_token=[0.5625],
        inter_token_latency=[1.0, 0.5],
        step_tokens=[17, 1, 1],
        duration=[2.0625],
        queue=[0.25],
        prefill=[0.25],
        decode=[1.5],
        inference=[1.75],
        time_per_output_token=[0.75],
        group_n=[1],
        group_max_generation=[3],
        **_counts(release, prompt=[16], generation=[3], cached=[0], computed=[16], preemptions=[1]),
    )
    return one_engine(front.calls, totals)


def missing_halves(release: Release) -> Scenario:
    """Report steps without scheduler stats, without iteration stats, and without either."""
    front = Frontend(release)
    a = front.request("a", 4, 40.0)
    front.step(40.5, Output(a, events=(("QUEUED", 40.0), ("SCHEDULED", 40.25))))
    front.step(40.75)
    front.step(41.0, scheduler=scheduler(release, 2, 1, 0.5))
    front.step(41.25, Output(a))
    totals = Totals(
        running=2,
        waiting=1,
        kv_usage=0.5,
        prompt_tokens=4,
        generation_tokens=2,
        time_to_first_token=[0.5625],
        inter_token_latency=[0.75],
        step_tokens=[5, 1],
    )
    return one_engine(front.calls, totals)


def parallel_sampling(release: Release) -> Scenario:
    """Sample one prompt twice; the group counts once, when the second one ends."""
    front = Frontend(release)
    parent = front.parent("a", "b")
    a, b = (front.request(name, 8, 50.0, parent=parent) for name in ("a", "b"))
    events = (("QUEUED", 50.0), ("SCHEDULED", 50.25))
    front.step(50.5, Output(a, events=events, finish="STOP"), Output(b, events=events))
    front.step(51.0, Output(b, finish="STOP"))
    totals = Totals(
        prompt_tokens=16,
        generation_tokens=3,
        finished={"stop": 2},
        time_to_first_token=[0.5625] * 2,
        inter_token_latency=[0.5],
        step_tokens=[18, 1],
        duration=[0.5625, 1.0625],
        queue=[0.25] * 2,
        prefill=[0.25] * 2,
        decode=[0.0, 0.5],
        inference=[0.25, 0.75],
        time_per_output_token=[0.0, 0.5],
        group_n=[2],
        group_max_generation=[2],
        **_counts(release, prompt=[8, 8], generation=[1, 2], cached=[0, 0], computed=[8, 8], preemptions=[0, 0]),
    )
    return one_engine(front.calls, totals)


def whole_prompt_cached(release: Release) -> Scenario:
    """Find all but the last token cached; 0.16 to 0.19 call that token a hit that is recomputed."""
    front = Frontend(release)
    a = front.request("a", 65, 60.0, local=64)
    cached = scheduler(release, 1, 0, 0.25, prefix_cache_stats=lookups(release, (65, 64)))
    front.step(60.5, Output(a, events=(("QUEUED", 60.0), ("SCHEDULED", 60.25))), scheduler=cached)
    split, recomputes = release.at_least("0.16.0"), not release.at_least("0.20.0")
    hits = 65 if recomputes else 64
    totals = Totals(
        running=1,
        kv_usage=0.25,
        prompt_tokens=65,
        generation_tokens=1,
        recomputed=1 if split and recomputes else 0,
        prompt_by_source={"local_compute": 1, "local_cache_hit": hits} if split else {},
        prefix_queries=65,
        prefix_hits=64,
        time_to_first_token=[0.5625],
        step_tokens=[2 if release.at_least("0.23.0") else 66],
    )
    return one_engine(front.calls, totals)


def engine_without_stats(release: Release) -> Scenario:
    """Run the engine without stats: no events, so vLLM's phases begin at engine clock 0."""
    front = Frontend(release)
    a = front.request("a", 4, 1000.0)
    front.step(1000.5, Output(a))
    front.step(1000.75, Output(a, finish="STOP"))
    totals = Totals(
        prompt_tokens=4,
        generation_tokens=2,
        finished={"stop": 1},
        time_to_first_token=[0.5625],
        inter_token_latency=[0.25],
        step_tokens=[5, 1],
        duration=[0.8125],
        queue=[0.0],
        prefill=[1000.5],
        decode=[0.25],
        inference=[1000.75],
        time_per_output_token=[0.25],
        group_n=[1],
        group_max_generation=[2],
        **_counts(release, prompt=[4], generation=[2], cached=[0], computed=[4], preemptions=[0]),
    )
    return one_engine(front.calls, totals)


def cut_off(release: Release) -> Scenario:
    """Abort a request the engine never ran: a bare output, which vLLM takes for a first token."""
    front = Frontend(release)
    front.step(20.5, Output(front.request("a", 8, 20.0), tokens=0, finish="ABORT"), scheduler=scheduler(release))
    counted = 0 if release.at_least("0.20.0") else 8
    totals = Totals(
        prompt_tokens=counted,
        prompt_by_source={"local_compute": counted} if release.at_least("0.16.0") else {},
        finished={"abort": 1},
        time_to_first_token=[0.5625],
        step_tokens=[counted],
        duration=[0.5625],
        queue=[0.0],
        prefill=[20.5],
        decode=[0.0],
        inference=[20.5],
        time_per_output_token=[0.0],
        group_n=[1],
        group_max_generation=[0],
        **_counts(release, prompt=[8], generation=[0], cached=[0], computed=[8], preemptions=[0]),
    )
    return one_engine(front.calls, totals)


def corrupted(release: Release) -> Scenario:
    """Find NaNs in the logits of one of two requests."""
    switch = {"VLLM_COMPUTE_NANS_IN_LOGITS": "1"}
    front = Frontend(release)
    a, b = (front.request(name, 8, 20.0) for name in ("a", "b"))
    events = (("QUEUED", 20.0), ("SCHEDULED", 20.25))
    with mock.patch.dict(os.environ, switch):
        front.step(20.5, Output(a, events=events, finish="STOP", nans=5), Output(b, events=events, finish="STOP"))
    totals = Totals(finished={"stop": 2}, corrupted=1, **_single_tokens(release, 2))
    return Scenario(list(front.calls), {0: totals}, environment=switch)


def watermarks(release: Release) -> Scenario | None:
    """Watermark one of three requests; one could not be and one did not ask to be."""
    if not release.has("IterationStats.num_watermarked_reqs"):
        return None
    front = Frontend(release)
    a, b, c = (front.request(name, 8, 20.0) for name in ("a", "b", "c"))
    a.stats.is_watermarked = b.stats.is_watermark_skipped = True
    events = (("QUEUED", 20.0), ("SCHEDULED", 20.25))
    front.step(20.5, *(Output(request, events=events, finish="STOP") for request in (a, b, c)))
    marks = {"watermarked": 1, "skipped": 1, "not_watermarked": 1}
    totals = Totals(finished={"stop": 3}, watermark=marks, **_single_tokens(release, 3))
    return one_engine(front.calls, totals, watermark_config={})


def two_engines(release: Release) -> Scenario:
    """Interleave the steps of two data parallel engines of one front end."""
    fronts = [Frontend(release, engine) for engine in (0, 1)]
    events = (("QUEUED", 20.0), ("SCHEDULED", 20.25))
    for engine, front in enumerate(fronts):
        requests = [front.request(str(n), 8, 20.0) for n in range(engine + 1)]
        outputs = [Output(request, events=events, finish="STOP") for request in requests]
        front.step(20.5, *outputs, scheduler=scheduler(release, engine + 5, 0, 0.5))
        front.step(20.75, scheduler=scheduler(release, engine + 1, 0, 0.25))
    totals = {
        engine: Totals(running=engine + 1, kv_usage=0.25, finished={"stop": n}, **_single_tokens(release, n))
        for engine, n in ((0, 1), (1, 2))
    }
    calls = [call for pair in zip(*(front.calls for front in fronts), strict=True) for call in pair]
    return Scenario(calls, totals)
