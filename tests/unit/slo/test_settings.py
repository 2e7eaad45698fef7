"""SLOs in the settings: what they may say, and what is said of those that are wrong."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest

from vllm_vitals.catalog import CATALOG
from vllm_vitals.catalog.requests import FINISHED
from vllm_vitals.config.load import SettingsError, load
from vllm_vitals.config.settings import Slo
from vllm_vitals.config.types import FinishReason

PAGE = (Path(__file__).parents[3] / "docs" / "slo.md").read_text(encoding="utf-8")
CHAT = {"name": "chat", "target": 0.99, "ttft": 0.5}


def loaded(*slos: Any) -> list[Slo]:
    return load({"VITALS_SLOS": json.dumps(slos)}).settings.slos


def problem(*slos: Any) -> str:
    """Return the one line that says what is wrong."""
    with pytest.raises(SettingsError) as error:
        loaded(*slos)
    (line,) = str(error.value).splitlines()
    return line


def test_there_are_none_by_default() -> None:
    assert load({}).settings.slos == []


def test_an_slo_needs_a_name_a_target_and_one_limit() -> None:
    (slo,) = loaded(CHAT)
    assert (slo.name, slo.target, slo.ttft, slo.tpot, slo.e2e) == ("chat", 0.99, 0.5, None, None)
    assert (slo.prompt_tokens, slo.output_tokens, slo.finish_reasons) == (None, None, None)
    assert (slo.errors, slo.aborts) == ("bad", "ignore")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("700ms", 0.7), ("2s", 2.0), ("1.5m", 90.0), ("1h", 3600.0), ("0.25", 0.25), (" 3 s ", 3.0),
     (2, 2.0), (0.05, 0.05), ("0.5ms", 0.0005)],
)  # fmt: skip
def test_durations(text: Any, seconds: float) -> None:
    (slo,) = loaded({**CHAT, "e2e": text})
    assert slo.e2e == seconds


@pytest.mark.parametrize(
    ("text", "target"), [("99%", 0.99), ("99.9%", 0.999), ("0.95", 0.95), (0.5, 0.5), ("50 %", 0.5)]
)
def test_targets(text: Any, target: float) -> None:
    (slo,) = loaded({**CHAT, "target": text})
    assert slo.target == target


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"ttft": "fast"}, ["'fast'", "500ms", "slos.0.ttft"]),
    ({"ttft": "5 parsecs"}, ["'5 parsecs'", "500ms", "slos.0.ttft"]),
    ({"ttft": "-1s"}, ["'-1s'", "500ms", "slos.0.ttft"]),
    ({"ttft": "1e3"}, ["'1e3'", "500ms", "slos.0.ttft"]),
    ({"ttft": "\N{ARABIC-INDIC DIGIT FIVE}s"}, ["500ms", "slos.0.ttft"]),
    ({"ttft": "9" * 400}, ["500ms", "slos.0.ttft"]),
    ({"ttft": True}, ["True", "500ms", "slos.0.ttft"]),
    ({"ttft": 10**400}, ["number", "slos.0.ttft"]),
    ({"ttft": 0}, ["0", "greater than 0", "slos.0.ttft"]),
    ({"ttft": "25h"}, ["86400", "slos.0.ttft"]),
    ({"ttft": [1]}, ["[1]", "number", "slos.0.ttft"]),
    ({"ttft": None}, ["'chat'", "ttft, tpot, e2e", "slos.0"]),
    ({"target": "99"}, ["less than 1", "slos.0.target"]),
    ({"target": "100%"}, ["less than 1", "slos.0.target"]),
    ({"target": 0}, ["greater than 0", "slos.0.target"]),
    ({"target": "most"}, ["'most'", "99%", "slos.0.target"]),
    ({"target": None}, ["number", "slos.0.target"]),
    ({"name": "Chat"}, ["'Chat'", "[a-z0-9_-]{1,32}", "slos.0.name"]),
    ({"name": "x" * 33}, ["xxx", "[a-z0-9_-]{1,32}", "slos.0.name"]),
    ({"name": ""}, ["[a-z0-9_-]{1,32}", "slos.0.name"]),
    ({"prompt_tokens": [5, 1]}, ["[5, 1]", "[least, most]", "slos.0.prompt_tokens"]),
    ({"prompt_tokens": [1]}, ["slos.0.prompt_tokens"]),
    ({"output_tokens": [1, 2, 3]}, ["slos.0.output_tokens"]),
    ({"output_tokens": [-1, 2]}, ["-1", "greater than or equal to 0", "slos.0.output_tokens.0"]),
    ({"finish_reasons": ["halt"]}, ["'halt'", "'stop'", "'repetition'", "slos.0.finish_reasons"]),
    ({"finish_reasons": []}, ["at least 1", "slos.0.finish_reasons"]),
    ({"errors": "judge"}, ["'judge'", "'bad' or 'ignore'", "slos.0.errors"]),
    ({"aborts": "good"}, ["'good'", "'judge'", "slos.0.aborts"]),
    ({"ttfft": 1}, ["slos.0.ttfft", "did you mean 'ttft'"]),
    ({"user": "me"}, ["slos.0.user", "the settings are", "prompt_tokens", "finish_reasons"]),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_slo_gets_a_line_with_what_is_wrong_and_what_is_allowed(
    change: dict[str, Any], words: list[str]
) -> None:
    line = problem({**CHAT, **change})
    assert [word for word in ["VITALS_SLOS", *words] if word not in line] == []


@pytest.mark.parametrize("lacking", ["name", "target"])
def test_missing_keys_are_named(lacking: str) -> None:
    line = problem({key: value for key, value in CHAT.items() if key != lacking})
    assert "required" in line
    assert f"slos.0.{lacking}" in line


def test_32_are_taken_and_100_are_refused_in_one_short_line() -> None:
    many = [{**CHAT, "name": f"slo-{number}"} for number in range(100)]
    assert len(loaded(*many[:32])) == 32
    for number in (33, 100):
        line = problem(*many[:number])
        assert f"at most 32 SLOs, not {number}" in line
        assert line.startswith("VITALS_SLOS=")
        assert len(line) < 400


def test_two_of_one_name_are_refused() -> None:
    line = problem(CHAT, {**CHAT, "name": "other"}, {**CHAT, "ttft": 2})
    assert "'chat'" in line
    assert "other" not in line.rpartition(":")[2]


@pytest.mark.parametrize(
    ("text", "words"), [("chat", "valid list"), ("[", "JSON"), ("{}", "valid list"), ("[1]", "slos.0")]
)
def test_values_other_than_a_list_are_refused(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match="VITALS_SLOS") as error:
        load({"VITALS_SLOS": text})
    assert words in str(error.value)


def test_a_part_of_the_list_is_no_setting() -> None:
    with pytest.raises(SettingsError, match=r"VITALS_SLOS__0__NAME.*slos cannot have parts"):
        load({"VITALS_SLOS__0__NAME": "chat"})


def test_a_wrong_slo_in_a_file_is_named_by_file_and_place(tmp_path: Path) -> None:
    path = tmp_path / "vitals.yaml"
    path.write_text("slos:\n  - {name: a, target: 90%, e2e: 1s}\n  - {name: b, target: 90%, e2e: soon}\n")
    with pytest.raises(SettingsError) as error:
        load({"VITALS_CONFIG": str(path)})
    assert f"{path}: slos='soon'" in str(error.value)
    assert "slos.1.e2e" in str(error.value)


def test_toml_says_the_same_as_yaml(tmp_path: Path) -> None:
    yaml, toml = tmp_path / "vitals.yaml", tmp_path / "vitals.toml"
    yaml.write_text("slos:\n  - name: chat\n    target: 99%\n    ttft: 500ms\n    prompt_tokens: [1, 100]\n")
    toml.write_text('[[slos]]\nname = "chat"\ntarget = "99%"\nttft = "500ms"\nprompt_tokens = [1, 100]\n')
    one, other = (load({"VITALS_CONFIG": str(path)}).settings.slos for path in (yaml, toml))
    assert one == other == [Slo(name="chat", target=0.99, ttft=0.5, prompt_tokens=(1, 100))]


def test_the_reasons_that_can_be_asked_for_are_those_that_are_counted() -> None:
    assert get_args(FinishReason) == FINISHED.labels[0].values


# --- The page


def fenced(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found
    return found[1]


def test_the_examples_of_the_page_are_taken_and_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "vitals.yaml"
    file.write_text(fenced("yaml"))
    (word,) = shlex.split(fenced("sh"))[1:]
    name, _, value = word.partition("=")
    by_file, by_variable = load({"VITALS_CONFIG": str(file)}), load({name: value})
    assert by_file.settings == by_variable.settings
    assert [slo.name for slo in by_file.settings.slos] == ["chat", "documents"]


def test_the_page_has_every_key_and_names_metrics_that_there_are() -> None:
    keys = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert keys == list(Slo.model_fields)
    names = {metric.prometheus for metric in CATALOG if metric.name.startswith("vllm.slo.")}
    assert set(re.findall(r"\bvllm_slo_\w+", PAGE)) == names
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1
