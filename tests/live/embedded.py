"""A program that has one `AsyncLLM` after another, ends each in another way, and lives on.

``python -m tests.live.embedded MODEL`` says what it does line by line, and goes on with each line of its standard input.
"""

import asyncio
import sys
from typing import Any

from tests.live.server import MODEL_NAME

TOKENS = 8


async def generate(llm: Any, name: str, tokens: int = TOKENS) -> None:
    """Have one request answered."""
    from vllm.sampling_params import SamplingParams

    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)
    async for _ in llm.generate({"prompt_token_ids": [5] * 20}, sampling, request_id=name):
        pass


def start(model: str) -> Any:
    """Return a new `AsyncLLM`; all have one name."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model, served_model_name=MODEL_NAME, dtype="float32", enforce_eager=True, max_model_len=1024
        )
    )


async def told() -> None:
    """Wait for a line."""
    await asyncio.to_thread(sys.stdin.readline)


async def run(model: str) -> None:
    """Shut one down and keep it, delete one in another thread, and shut one down while it works."""
    held = [start(model)]
    kept = held[0]
    await generate(kept, "first")
    print("first serves", flush=True)
    await told()
    held.clear()
    kept.shutdown()
    print("first is shut down", flush=True)
    await told()

    held = [start(model)]
    await generate(held[0], "second")
    print("second serves", flush=True)
    await told()
    await asyncio.to_thread(held.clear)
    print("second is deleted", flush=True)
    await told()

    third = start(model)
    working = asyncio.create_task(generate(third, "third", 900))
    await generate(third, "beside")
    print("third serves", flush=True)
    await told()
    third.shutdown()
    working.cancel()
    print("third is shut down", flush=True)
    await told()
    print(f"{kept!r:.20} lived on", flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
