"""A small model of an engine: admission as vLLM's scheduler does it, one step at a time."""

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.unit.builders import EPOCH, MODEL
from vllm_vitals.records.step import Facts, Step

STEP = 0.05
"""Seconds that every step takes."""


@dataclass
class Request:
    """One request, with what of its prompt is computed and what is generated so far."""

    prompt: int
    output: int
    computed: int = 0
    generated: int = 0

    @property
    def held(self) -> int:
        return self.computed + self.generated


@dataclass
class EngineModel:
    """An engine of `most` requests in a batch, `budget` tokens in a step and a KV cache of `cache` tokens."""

    most: int
    budget: int
    cache: int
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    clock: float = 0.0

    @property
    def facts(self) -> Facts:
        return Facts(MODEL, "0", max_num_seqs=self.most, max_num_batched_tokens=self.budget, kv_cache_tokens=self.cache)

    @property
    def used(self) -> int:
        return sum(request.held for request in self.running)

    def step(self) -> Step:
        """Schedule and run one step, and return what its stats would say."""
        budget = self.budget
        for request in self.running:
            budget -= self._advance(request, budget)
        while self.waiting and budget > 0 and len(self.running) < self.most:
            if self.used + self.waiting[0].prompt > self.cache:
                break
            self.running.append(self.waiting.popleft())
            budget -= self._advance(self.running[-1], budget)
        self.running = [request for request in self.running if request.generated < request.output]
        self.clock += STEP
        usage = min(self.used / self.cache, 1.0)
        return Step(
            MODEL, "0", EPOCH + self.clock, self.clock, self.clock, running=len(self.running), waiting=len(self.waiting),
            deferred=0, kv_cache_usage=usage,
        )  # fmt: skip

    @staticmethod
    def _advance(request: Request, budget: int) -> int:
        """Compute the next tokens of a request, and return how many."""
        left = request.prompt - request.computed
        if left:
            tokens = min(left, budget)
            request.computed += tokens
        else:
            tokens = min(1, budget)
        request.generated += int(tokens > 0 and request.computed == request.prompt)
        return tokens


def drive(
    engine: EngineModel, seconds: float, rate: float, prompt: int, output: int, *, burst: int = 1
) -> Iterator[Step]:
    """Yield the steps of an engine to which `rate` requests come in a second, at random, `burst` at a time."""
    chance = random.Random(1)
    due = chance.expovariate(rate / burst)
    while engine.clock < seconds:
        while due <= engine.clock:
            engine.waiting.extend(Request(prompt, output) for _ in range(burst))
            due += chance.expovariate(rate / burst)
        yield engine.step()
