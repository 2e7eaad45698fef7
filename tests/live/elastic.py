"""A vLLM that serves in this process and scales up as with ``--enable-elastic-ep``, but for the engines that Ray starts.

``python -m tests.live.elastic MODEL`` serves until its standard input ends; a line there lets it scale up.
"""

import asyncio
import itertools
import sys
from typing import Any

from tests.live.server import MODEL_NAME

TOKENS = 8


async def serve(llm: Any) -> None:
    """Answer one request after another."""
    from vllm.sampling_params import SamplingParams

    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.0)
    for number in itertools.count():
        async for _ in llm.generate({"prompt_token_ids": [5] * 20}, sampling, request_id=str(number)):
            pass
        await asyncio.sleep(0.1)


async def started_by_nobody(*_: Any) -> None:
    """Stand in for what asks Ray for engines, and waits for them."""


async def run(model: str) -> None:
    """Serve, and scale up when told to."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model, served_model_name=MODEL_NAME, dtype="float32", enforce_eager=True, max_model_len=1024
        )
    )
    llm.engine_core.prepare_elastic_ep = llm.engine_core.commit_elastic_ep = started_by_nobody
    serving = asyncio.create_task(serve(llm))
    while await asyncio.to_thread(sys.stdin.readline):
        before = llm.logger_manager
        await llm.scale_elastic_ep(2)
        print("scaled up, with", "the loggers of before" if llm.logger_manager is before else "new loggers", flush=True)
    serving.cancel()
    llm.shutdown()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
