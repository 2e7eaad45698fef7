"""Fresh vLLM stats for every step, as an engine with a given number of running requests would send them."""

import random

from vllm.v1.engine import FinishReason
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

STEP_SECONDS = 0.01
"""Time between two steps of an engine: 100 steps a second."""

STEPS_PER_REQUEST = 200
"""Steps a request stays in the batch, so one in this many of the running requests ends in each step."""

Stats = tuple[SchedulerStats, IterationStats]


class StepMaker:
    """Makes the stats of one step per call; nothing in them is shared with another step."""

    def __init__(self, running: int, seed: int = 1) -> None:
        self.running = running
        self._random = random.Random(seed)
        self._now = 1000.0
        self._last_tokens = [self._now] * running
        self._ended = 0.0
        self._serial = 0

    def __call__(self) -> Stats:
        """Return the scheduler's and the iteration's stats of the next step."""
        self._ended += self.running / STEPS_PER_REQUEST
        ending, self._ended = int(self._ended), self._ended % 1.0
        iteration = self._iteration(ending)
        iteration.finished_requests = [self._finished() for _ in range(ending)]
        return self._scheduler(), iteration

    def _iteration(self, starting: int) -> IterationStats:
        """Describe one token of every running request, and the prefill of as many new requests as end."""
        stats = IterationStats()
        # As vLLM does: a number of its own for each request, though all that decode had a token in the step before.
        now = self._now + STEP_SECONDS * (0.9 + 0.2 * self._random.random())
        stats.inter_token_latencies_iter = [now - last for last in self._last_tokens]
        self._now, self._last_tokens = now, [now] * self.running
        stats.time_to_first_tokens_iter = [self._random.lognormvariate(-1.5, 0.8) for _ in range(starting)]
        stats.num_generation_tokens = self.running + starting
        stats.max_num_generation_tokens_iter = [256] * starting
        stats.n_params_iter = [1] * starting
        prompt = stats.prompt_token_stats
        prompt.computed, prompt.local_cache_hit, prompt.cached_tokens = 384 * starting, 128 * starting, 128 * starting
        prompt.total = 512 * starting
        return stats

    def _scheduler(self) -> SchedulerStats:
        """Describe a batch of `running` requests with a short queue and a warm prefix cache."""
        stats = SchedulerStats(
            num_running_reqs=self.running,
            num_waiting_reqs=self.running // 16,
            kv_cache_usage=0.5 + 0.4 * self._random.random(),
        )
        stats.prefix_cache_stats.requests = 1
        stats.prefix_cache_stats.queries = 512
        stats.prefix_cache_stats.hits = 128
        return stats

    def _finished(self) -> FinishedRequestStats:
        """Describe a request that ran its course, with phases that add up."""
        self._serial += 1
        queued, prefill, decode = self._random.random(), self._random.random(), 2.0 + self._random.random()
        return FinishedRequestStats(
            finish_reason=FinishReason.STOP if self._serial % 4 else FinishReason.LENGTH,
            request_id=f"chatcmpl-{self._serial:032x}",
            e2e_latency=queued + prefill + decode,
            num_prompt_tokens=512,
            num_generation_tokens=STEPS_PER_REQUEST,
            max_tokens_param=256,
            queued_time=queued,
            prefill_time=prefill,
            inference_time=prefill + decode,
            decode_time=decode,
            mean_time_per_output_token=decode / (STEPS_PER_REQUEST - 1),
            num_cached_tokens=128,
        )
