"""The records that cross from vLLM's world to ours: one engine step, and the rarer events beside it.

Durations are seconds, times are Unix seconds, counts are plain numbers. `None` (or an empty container)
means that this vLLM, or this step, did not say. Nothing here knows vLLM or any exporter.
"""

from array import array
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta, Struct, field

if TYPE_CHECKING:
    Floats: TypeAlias = array[float]
else:
    Floats = array  # what a decoder asks for by name

OTHER = "_other"
"""The label value that stands for all that are too many or make no sense."""
CLOCK_SLACK = 1.0
"""Seconds by which a phase may outlast its request: the two are measured on different clocks."""
LONGEST_NAME = 512
"""Characters of what becomes a label of every series of an engine."""

Clock: TypeAlias = Annotated[float, Meta(ge=0, le=1e10)]
"""Seconds of a clock, finite: nanoseconds since 1970 have to fit into 64 bits."""
Span: TypeAlias = Annotated[float, Meta(ge=-1e10, le=1e10)]
"""Seconds between times of two clocks, finite."""
Name: TypeAlias = Annotated[str, Meta(max_length=LONGEST_NAME)]
"""Of a model, an engine or a process."""


def floats() -> Floats:
    """Make an empty array of float64."""
    return array("d")


class CacheUse(Struct, frozen=True, gc=False, omit_defaults=True):
    """Lookups of one cache within a step, in its own unit (tokens or items)."""

    queries: int = 0
    hits: int = 0
    again: int = 0
    """What requests that were preempted before had to have computed once more."""


class Speculation(Struct, frozen=True, gc=False, omit_defaults=True):
    """Speculative decoding within a step."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_by_position: tuple[int, ...] = ()


class Evictions(Struct, frozen=True, gc=False, omit_defaults=True):
    """KV-cache blocks evicted in a step (vLLM samples them), seconds."""

    lifetimes: Floats = field(default_factory=floats)
    idle_times: Floats = field(default_factory=floats)
    reuse_gaps: Floats = field(default_factory=floats)


class Reported(Struct, frozen=True, gc=False):
    """What a KV connector reported of one metric in a step, under the labels that it has beside the engine's.

    Of a counter `values` are to be added, of a gauge the last one counts. There may be none yet.
    """

    metric: str
    labels: tuple[str, ...]
    values: Floats


class Finished(Struct, gc=False, omit_defaults=True):
    """One finished request. With `n > 1` each of the n sequences finishes on its own."""

    reason: str
    time: Clock = 0.0
    duration: float | None = None
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    inference: float | None = None
    time_per_output_token: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    max_tokens: int | None = None
    preemptions: int | None = None
    request_id: str | None = None


class Step(Struct, gc=False, tag=True, omit_defaults=True):
    """One engine step as one serving process saw it.

    `time` is Unix seconds, `clock` a monotonic clock's seconds, `age` the seconds that the serving process
    has lived: no latency measured in it can be longer. What is empty is `None`: many wait at a time, and each
    container makes Python's garbage collector run sooner.
    """

    model: Name
    engine: Name
    time: Clock
    clock: Clock
    age: Span

    # What the scheduler reported: `None` all through when this message brought no scheduler stats.
    running: int | None = None
    waiting: int | None = None
    deferred: int | None = None
    kv_cache_usage: float | None = None
    prefix_cache: CacheUse | None = None
    external_prefix_cache: CacheUse | None = None
    cached_by_source: dict[str, int] | None = None
    kv_fetch: dict[str, int] | None = None
    lora_running: dict[str, int] | None = None
    lora_waiting: dict[str, int] | None = None
    speculation: Speculation | None = None
    evictions: Evictions | None = None
    graph_tokens: dict[str, int] | None = None
    flops: int | None = None
    memory_traffic: dict[str, int] | None = None
    duration: float | None = None
    scheduled_tokens: dict[str, int] | None = None
    connectors: tuple[Reported, ...] = ()
    unknown_connectors: tuple[str, ...] = ()

    # What the outputs of this step brought.
    iterated: bool = False
    processing: float | None = None
    prompt_tokens: dict[str, int] | None = None
    computed_tokens: int = 0
    generation_tokens: int = 0
    preempted: int = 0
    corrupted: int = 0
    watermarks: dict[str, int] | None = None
    first_token_latencies: Floats | None = None
    inter_token_latencies: Floats | None = None
    inter_token_repeats: Annotated[int, Meta(ge=1, lt=2**32)] = 1
    """How many times each of `inter_token_latencies` counts."""
    finished: tuple[Finished, ...] = ()
    sequences_asked: Floats | None = None
    longest_outputs: Floats | None = None

    multimodal_cache: CacheUse | None = None

    clamped: tuple[str, ...] = ()
    """The metrics of which a value could not be true and was set to what it can be at most."""

    # Filled in by the aggregator, which knows the previous step and the facts of the engine.
    interval: float | None = None
    kv_cache_free: float | None = None

    @property
    def scheduled(self) -> bool:
        """Tell whether scheduler stats came with this step."""
        return self.running is not None

    @property
    def counts(self) -> bool:
        """Tell whether this is an engine step: scheduler stats came or tokens moved."""
        return self.scheduled or bool(self.generation_tokens or self.prompt_tokens)


class Facts(Struct, tag=True, omit_defaults=True):
    """What is fixed once an engine has started."""

    model: Name
    engine: Name
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    kv_cache_tokens: int | None = None
    startup: float | None = None
    buckets: dict[str, list[float]] = {}
    info: dict[str, str] = {}
    features: frozenset[str] = frozenset()
    gpus: int | None = None
    """GPUs, or workers, that the engine works on."""
    precisions: tuple[str, ...] = ()
    """Of the numbers that it multiplies, of `gpu.peaks.PRECISIONS`: the first that its GPUs have counts."""
    draft_tokens: int | None = None
    """Tokens of a draft, where there is a speculator."""


class Sleep(Struct, frozen=True, tag=True, omit_defaults=True):
    """An engine fell asleep or woke up: `state` is one of `vllm.engine.sleep`.

    `clock` is monotonic seconds; 0 when nobody said so and it is only what an engine starts with.
    """

    model: Name
    engine: Name
    state: str
    clock: Clock = 0.0


class Rejection(Struct, frozen=True, tag=True, omit_defaults=True):
    """Requests were turned away before they reached an engine."""

    model: Name
    reason: str
    count: int = 1


class Gone(Struct, frozen=True, tag=True, omit_defaults=True):
    """An engine of this process is no more."""

    model: Name
    engine: Name


class Gap(Struct, frozen=True, tag=True):
    """Steps of a process are missing before what follows: it will tell how many, as `Health.dropped`."""


class Health(Struct, tag=True, omit_defaults=True):
    """What the feed of one serving process, named by its number, has been through since it last said so."""

    dropped: int = 0
    hook_time: float = 0.0
    errors: dict[str, int] = {}
    process: Name = "0"
    detached: bool | None = None
    """Whether vLLM goes on without calling us; `None`: nothing new."""


Record = Step | Facts | Sleep | Rejection | Gone | Gap | Health
