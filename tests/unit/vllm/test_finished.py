"""Finished requests read many at once are those that are read one by one."""

from array import array
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.builders import examples
from vllm_vitals.records.step import Finished, Step
from vllm_vitals.vllm.fields import Fields
from vllm_vitals.vllm.finished import COUNTS, NUMBERS, FinishedReader


class Reason(IntEnum):
    STOP = 0
    LENGTH = 1


class Word(Enum):
    OTHER = "Other"


USUAL = {
    "e2e_latency": 3.0, "queued_time": 0.5, "prefill_time": 0.5, "decode_time": 2.0, "inference_time": 2.5,
    "mean_time_per_output_token": 0.2, "num_prompt_tokens": 10, "num_generation_tokens": 11, "num_cached_tokens": 4,
    "max_tokens_param": 16, "num_preemptions": 0, "finish_reason": Reason.STOP, "request_id": "r",
}  # fmt: skip
odd = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(NUMBERS, st.none() | st.sampled_from([0.0, 3.0, 9.0, float("nan"), -1.0])),
        **dict.fromkeys(COUNTS, st.none() | st.integers(-1, 3)),
        "finish_reason": st.sampled_from([Reason.LENGTH, Word.OTHER, "abort", 0, None]),
        "request_id": st.sampled_from([None, 7, "other"]),
    },
)


def of(complaints: list[str] | None = None) -> FinishedReader:
    return FinishedReader(Fields(lambda field, *_: (complaints or []).append(field)), pooling=False)


def ended(requests: list[list[dict[str, Any]]]) -> list[tuple[Step, list[Any]]]:
    return [
        (
            Step("m", "0", float(place), 0.0, 0.0, first_token_latencies=array("d", [3.0])),
            [SimpleNamespace(**(USUAL | each)) for each in of_step],
        )
        for place, of_step in enumerate(requests)
    ]


def read(reader: FinishedReader, requests: list[list[dict[str, Any]]]) -> list[tuple[str, Any]]:
    given_ = ended(requests)
    reader.read(given_)
    return [(repr(step.finished), step.first_token_latencies) for step, _ in given_]


@examples(300)
@example([[{}, {"finish_reason": "abort"}]])
@example([[{"inference_time": 9.0}, {"num_cached_tokens": -1}]])
@given(st.lists(st.lists(st.just({}) | odd, max_size=3), min_size=1, max_size=3))
def test_together_as_one_by_one(requests: list[list[dict[str, Any]]]) -> None:
    together = read(of(), requests)
    with patch.object(FinishedReader, "_usual", return_value=None):
        assert together == read(of(), requests)


def test_usual_ones_keep_to_their_steps() -> None:
    first, second, none = ended(
        [[{}, {"finish_reason": Reason.LENGTH, "request_id": "s"}], [{"num_prompt_tokens": 20}], []]
    )
    of().read([first, second, none])
    assert first[0].finished == (
        Finished("stop", 0.0, 3.0, 0.5, 0.5, 2.0, 2.5, 0.2, 10, 11, 4, 16, 0, "r"),
        Finished("length", 0.0, 3.0, 0.5, 0.5, 2.0, 2.5, 0.2, 10, 11, 4, 16, 0, "s"),
    )
    assert second[0].finished == (Finished("stop", 1.0, 3.0, 0.5, 0.5, 2.0, 2.5, 0.2, 20, 11, 4, 16, 0, "r"),)
    assert none[0].finished == ()


def test_one_that_was_cut_off_costs_the_others_nothing() -> None:
    ((step, requests),) = ended([[{}, {"num_generation_tokens": 0, "queued_time": -1.0}]])
    of().read([(step, requests)])
    usual, cut_off = step.finished
    assert (usual.prefill, usual.decode) == (0.5, 2.0)
    assert (cut_off.queue, cut_off.prefill, cut_off.decode, cut_off.time_per_output_token) == (None,) * 4
    assert step.first_token_latencies == array("d")


def test_the_columns_that_are_read_are_in_the_order_of_the_record() -> None:
    """Requests that ran their course are made of whole columns, by position."""
    names = {"e2e_latency": "duration", "queued_time": "queue", "prefill_time": "prefill", "decode_time": "decode",
             "inference_time": "inference", "mean_time_per_output_token": "time_per_output_token",
             "num_prompt_tokens": "input_tokens", "num_generation_tokens": "output_tokens",
             "num_cached_tokens": "cached_tokens", "max_tokens_param": "max_tokens", "num_preemptions": "preemptions"}  # fmt: skip
    columns = [names[name] for name in (*NUMBERS, *COUNTS)]
    assert Finished.__struct_fields__ == ("reason", "time", *columns, "request_id")
