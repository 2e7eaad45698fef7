"""What `make demo` prints where there is no terminal, of pages that need no vLLM."""

import asyncio
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.live import demo
from tests.live.load import LoadReport
from tests.live.server import VllmServer

PAGE = """
vllm_engine_requests_running{{engine="0"}} 8
vllm_engine_requests_waiting{{reason="capacity"}} 14
vllm_kv_cache_usage_ratio 0.43
vllm_tokens_prompt_total {prompt}
vllm_tokens_generation_total 1000
vllm_requests_finished_total{{finish_reason="stop"}} 31
vllm_requests_finished_total{{finish_reason="abort"}} 12
vllm_request_time_to_first_token_seconds_bucket{{le="0.1"}} 50
vllm_request_time_to_first_token_seconds_bucket{{le="+Inf"}} 100
vitals_steps_total 4211
"""


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> list[str]:
    """Give what a demo has printed in whose course 30 pages came, a second apart."""
    scrapes = [demo.Scrape(PAGE.format(prompt=500 * number), at=float(number)) for number in range(40)]
    left = iter([*[True] * 30, False])

    async def wait(*_: object) -> bool:
        return next(left)

    async def scrape(*_: object) -> demo.Scrape:
        return scrapes.pop(0)

    monkeypatch.setattr(demo.Demo, "_wait", wait)
    monkeypatch.setattr(demo.Demo, "_scrape", scrape)
    monkeypatch.setattr(demo, "EVERY", 1.0)
    report = LoadReport(sent=1234, ttft=[0.1, 0.2, 0.3])
    report.finished["stop"] = 31
    shown = demo.Demo(VllmServer(tmp_path), "http://localhost:9464/metrics", 30.0, report=report)

    async def run() -> None:
        first = await shown._scrape()
        await shown._print(first)
        assert shown._conclude(first, await shown._scrape()) == 0

    asyncio.run(run())
    return capsys.readouterr().out.splitlines()


def test_figures_stand_in_columns_below_a_head_that_is_repeated(printed: list[str]) -> None:
    assert max(map(len, printed)) <= 120
    heads = [number for number, line in enumerate(printed) if line.lstrip().startswith("time ")]
    assert [after - before for before, after in pairwise(heads)] == [demo.LINES + 3]  # units, and an empty line
    table = printed[heads[0] : heads[0] + 2 + demo.LINES]
    assert len({len(line) for line in table}) == 1
    figures = [re.split(" {2,}", line.strip()) for line in table[2:]]
    assert {len(each) for each in figures} == {1 + len(demo.COLUMNS)}
    assert figures[0][:7] == ["1", "1234", "43", "8", "14", "43", "500"]  # the last are prompt tokens a second


def test_in_the_end_the_client_is_beside_the_endpoint(printed: list[str]) -> None:
    (stopped,) = (line for line in printed if "ended by stop" in line)
    assert re.findall(r"\d+", stopped) == ["31", "31"]
    (first,) = (line for line in printed if "time to first token" in line and "p50 200.0 ms" in line)
    assert "p50 100.0 ms" in first
