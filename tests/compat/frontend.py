"""Runs engine outputs through a release's own bookkeeping, as its front end does at every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tests.compat.calls import Record
from tests.compat.releases import Release

#: Wall clock time at engine clock 0. All times in scenarios are exact in binary, so sums are too.
EPOCH = 1_700_000_000.0

#: What the front end needs to handle an output, in seconds.
LAG = 0.0625

#: An engine event and its engine clock time.
Event = tuple[str, float]


@dataclass(frozen=True)
class Output:
    """What one step yielded for one request."""

    request: SimpleNamespace
    tokens: int = 1
    events: Sequence[Event] = ()
    finish: str | None = None
    nans: int = 0


class Frontend:
    """The state of one engine's requests in the API server; `calls` is what stat loggers get."""

    def __init__(self, release: Release, engine: int = 0) -> None:
        self.calls: list[Record] = []
        self._release = release
        self._engine = engine
        self._processor = release.OutputProcessor()
        self._processor.lora_states = release.LoRARequestStates(log_stats=True)

    def request(
        self,
        name: str,
        prompt: int,
        arrival: float,
        *,
        local: int = 0,
        external: int = 0,
        max_tokens: int | None = None,
        lora: str | None = None,
        parent: Any = None,
    ) -> SimpleNamespace:
        """Make a request of `prompt` tokens, of which `local` and `external` are cached."""
        return SimpleNamespace(
            request_id=name,
            external_req_id=name,
            prompt_len=prompt,
            prompt_token_ids=[0] * prompt,
            prompt_embeds=None,
            local=local,
            external=external,
            num_cached_tokens=local + external,
            max_tokens_param=max_tokens,
            lora_name=lora,
            parent_req=parent,
            is_prefilling=True,
            stats=self._release.build("RequestStateStats", arrival_time=EPOCH + arrival),
        )

    def parent(self, *names: str) -> Any:
        """Make the parent of the requests called `names`, which sample the same prompt in parallel."""
        parent = self._release.ParentRequest()
        parent.sampling_params = SimpleNamespace(n=len(names))
        parent.child_requests = set(names)
        parent.max_num_generation_tokens = 0
        return parent

    def step(self, at: float, *outputs: Output, scheduler: Any = None, mm_cache: Any = None) -> None:
        """Receive one message of the engine at engine clock `at`, and add the `record()` that follows."""
        iteration = None
        with self._release.installed():
            if outputs:
                iteration = self._release.IterationStats()
                iteration.iteration_timestamp = EPOCH + at + LAG
            for output in outputs:
                self._process(output, at, iteration)
            self._processor.update_scheduler_stats(scheduler)
        self.calls.append(Record(scheduler, iteration, mm_cache, self._engine))

    def _process(self, output: Output, at: float, iteration: Any) -> None:
        """Do what OutputProcessor.process_outputs does with the stats of one output."""
        request = output.request
        self._processor._update_stats_from_output(request, self._engine_output(output), at, iteration)
        request.is_prefilling = False
        if output.finish is not None:
            if request.parent_req is not None:
                request.parent_req.child_requests.discard(request.request_id)
            reason = self._release.FinishReason[output.finish]
            self._processor._update_stats_from_finished(request, reason, iteration)

    def _engine_output(self, output: Output) -> Any:
        """Make the engine's message, with the prompt's origin where this release puts it."""
        request = output.request
        return self._release.build(
            "EngineCoreOutput",
            request_id=request.request_id,
            new_token_ids=[0] * output.tokens,
            finish_reason=self._release.FinishReason[output.finish] if output.finish else None,
            events=[self._event(*event) for event in output.events] or None,
            num_nans_in_logits=output.nans,
            num_cached_tokens=request.num_cached_tokens,
            num_external_computed_tokens=request.external,
            prefill_stats=self._prefill_stats(request) if request.is_prefilling and output.tokens else None,
        )

    def _event(self, kind: str, at: float) -> Any:
        return self._release.EngineCoreEvent.new_event(self._release.EngineCoreEventType[kind], at)

    def _prefill_stats(self, request: SimpleNamespace) -> Any:
        """Split the prompt's tokens by origin; None before 0.20.0, which had other fields for it."""
        if not self._release.has("PrefillStats"):
            return None
        stats = self._release.PrefillStats()
        stats.set(request.prompt_len, request.local, request.external)
        return stats


def scheduler(release: Release, running: int = 0, waiting: int = 0, usage: float = 0.0, **more: Any) -> Any:
    """Make the release's SchedulerStats from those of the fields that it has."""
    return release.build(
        "SchedulerStats", num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=usage, **more
    )


def lookups(release: Release, *hits: tuple[int, int], preempted: bool = False, tiers: Any = None) -> Any:
    """Make PrefixCacheStats of lookups, each of (tokens looked up, tokens hit)."""
    stats = release.PrefixCacheStats()
    for queried, hit in hits:
        stats.record(queried, hit, preempted, **({"hits_by_source": tiers} if tiers else {}))
    return stats
