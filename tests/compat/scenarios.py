"""Every scenario by name, and a long random one for comparing with the oracle."""

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from tests.compat import engine_scenarios, request_scenarios
from tests.compat.calls import Scenario
from tests.compat.frontend import Frontend, Output, lookups, scheduler
from tests.compat.releases import Release

#: Each yields the scenario for a release, or None if the release does not report the thing.
SCENARIOS: Mapping[str, Callable[[Release], Scenario | None]] = {
    name: function
    for module in (request_scenarios, engine_scenarios)
    for name, function in vars(module).items()
    if getattr(function, "__module__", None) == module.__name__ and not name.startswith("_")
}

#: Seconds between the steps of the random scenario.
STEP = 0.0625


def busy(release: Release, seed: int = 0, steps: int = 200, limit: int = 32) -> Scenario:
    """Make random traffic of up to `limit` requests at a time.

    It has no totals: what the oracle makes of it is the expectation.
    """
    chance = random.Random(seed)
    front = Frontend(release)
    live: list[SimpleNamespace] = []
    for number in range(steps):
        now = 10_000.0 + number * STEP
        arrivals = chance.randint(0, limit - len(live)) // 4
        fresh = [_arrival(front, chance, f"{number}-{n}", now) for n in range(arrivals)]
        outputs = [Output(request, events=(("QUEUED", now - 2 * STEP), ("SCHEDULED", now - STEP))) for request in fresh]
        outputs += [_progress(release, chance, request, now) for request in live]
        ended = {output.request.request_id for output in outputs if output.finish}
        live = [request for request in live + fresh if request.request_id not in ended]
        stats = scheduler(release, len(live), limit - len(live), len(live) / limit, **_reports(release, chance, fresh))
        # Several API servers share the scheduler stats; some messages have none.
        front.step(now, *outputs, scheduler=stats if chance.random() < 0.8 else None)
    return Scenario(list(front.calls), {}, {"speculative_config": {"num_speculative_tokens": 3}})


def _arrival(front: Frontend, chance: random.Random, name: str, now: float) -> SimpleNamespace:
    prompt = chance.randint(1, 2000)
    cached = chance.choice((0, prompt // 2))
    return front.request(name, prompt, now - 3 * STEP, local=cached, max_tokens=chance.choice((None, 256)))


def _progress(release: Release, chance: random.Random, request: SimpleNamespace, now: float) -> Output:
    """Decode one request, at times preempted before or ended by it."""
    preempted = chance.random() < 0.02
    events = (("PREEMPTED", now - STEP), ("SCHEDULED", now - STEP / 2)) if preempted else ()
    reasons = sorted(release.FinishReason.__members__)
    finish = chance.choice(reasons) if chance.random() < 0.1 else None
    return Output(request, tokens=chance.randint(1, 4), events=events, finish=finish)


def _reports(release: Release, chance: random.Random, fresh: list[SimpleNamespace]) -> dict[str, Any]:
    """Make what the scheduler says besides its queues."""
    drafts = release.SpecDecodingStats.new(3)
    for _ in range(chance.randint(0, 5)):
        drafts.observe_draft(3, chance.randint(0, 3))
    looked_up = ((request.prompt_len, request.local) for request in fresh)
    return {
        "prefix_cache_stats": lookups(release, *looked_up),
        "spec_decoding_stats": drafts if drafts.num_drafts else None,
    }
