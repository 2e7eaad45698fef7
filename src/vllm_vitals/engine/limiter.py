"""What limits an engine: its time by what kept requests out of the batch.

vLLM's scheduler admits waiting requests until the batch has `max_num_seqs` of them, the step's tokens are given
away, or the KV cache has no room; what its stats call waiting is what was left over. They are taken at the end of the
step: what ended in it was in the batch and is not counted as running any more. The time from one step to the next
belongs to what the first of them said.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from vllm_vitals.engine.energy import activity
from vllm_vitals.records.step import Finished, Step

NEARLY_FULL = 0.95
"""Share of the KV cache in use from which it is what limits, before anything is known of prompts."""


class Ended(NamedTuple):
    """What ended in a step: it was in the batch while that was made, and its stats leave it out."""

    requests: int = 0
    tokens: int = 0
    """That they held of the KV cache, prompt tokens left out that were cached and may be held by others as well."""

    def more(self, finished: Iterable[Finished]) -> "Ended":
        """Return the same with finished requests added; one that was cut off before its first token was in no batch."""
        held = [
            max((each.input_tokens or 0) - (each.cached_tokens or 0), 0) + max(each.output_tokens or 0, 0)
            for each in finished
            if each.output_tokens or each.prefill is not None  # what pools has no token, but a prefill
        ]
        return Ended(self.requests + len(held), self.tokens + sum(held))


NOTHING = Ended()


def limiter(step: Step, most: int | None, free: float | None, need: float | None, ended: Ended = NOTHING) -> str:
    """Return what kept requests out of a step's batch.

    `most` is max_num_seqs, `free` the tokens that the KV cache has room for after the step, `need` those that the next
    request probably needs there; `None`: unknown. `ended`: what was there besides.
    """
    if not step.waiting:
        return "deferred" if step.deferred else "none" if step.running else "idle"
    if step.preempted:
        return "kv_cache"  # a step that had to push requests out admits none
    if most and (step.running or 0) + ended.requests >= most:
        return "max_num_seqs"
    if _is_full(step, None if free is None else free - ended.tokens, need):
        return "kv_cache"
    return "token_budget"  # there was room, so its tokens were given away


def _is_full(step: Step, free: float | None, need: float | None) -> bool:
    if free is not None and need is not None:
        return free < need
    return (step.kv_cache_usage or 0.0) >= NEARLY_FULL


class Limiter:
    """Adds an engine's time up by what limited it; every second since its start belongs to one state."""

    def __init__(self, clock: float) -> None:
        """`clock`: monotonic seconds of the engine's start."""
        self.state = "idle"
        self._does = activity(self.state)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.activity: defaultdict[str, float] = defaultdict(float)
        """The same seconds by what the engine did, for whoever takes them away at other times."""
        self._since = clock
        self._asleep = False
        self.turned = -math.inf
        """Monotonic seconds when the engine last fell asleep or woke up."""

    def step(self, clock: float, state: str) -> None:
        """Take note that from `clock` on, monotonic seconds, `state` limits."""
        if clock < self.turned:
            return  # told late, after the engine fell asleep or woke up
        self.settle(clock)
        self._turn(state)
        self._asleep = False

    def sleep(self, clock: float, *, asleep: bool) -> bool:
        """Take note that the engine fell asleep or woke up, and tell whether that is news.

        Awake it is idle until it makes a step.
        """
        if asleep == self._asleep:
            return False
        self.settle(clock)
        self._turn("asleep" if asleep else "idle")
        self._asleep = asleep
        self.turned = clock
        return True

    def settle(self, clock: float) -> None:
        """Add up until `clock`, monotonic seconds; what came before the latest time is passed over."""
        if clock > self._since:
            self.seconds[self.state] += clock - self._since
            self.activity[self._does] += clock - self._since
            self._since = clock

    def _turn(self, state: str) -> None:
        if state != self.state:
            self.state, self._does = state, activity(state)
