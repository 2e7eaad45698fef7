"""Doctor: what a planned `vllm serve` means."""

import shlex

import pytest

from vllm_vitals.catalog.self_metrics import DETACHED
from vllm_vitals.cli.doctor import CHECKS
from vllm_vitals.cli.doctor.finding import Status
from vllm_vitals.cli.doctor.launch import CommandError, Launch, parse

SIDECAR = {"VITALS_WIRE__SIDECAR": "/run/vitals/s.sock"}


def look(check, words="", environ=None):
    return list(CHECKS[check](Launch(environ or {}, shlex.split(words))))


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("vllm serve m", 1),
        ("vllm serve m --api-server-count 3", 3),
        ("vllm serve m --api-server-count=3", 3),
        ("vllm serve m --api_server_count 3", 3),
        ("vllm serve m -asc 3", 3),
        ("vllm serve m -dp 4", 4),
        ("vllm serve m --data_parallel_size=4", 4),
        ("vllm serve m -dp 4 -asc 2", 2),
        ("vllm serve m -dp 4 -asc 1", 1),
        ("vllm serve m -dp 4 --data-parallel-rank 1", 1),
        ("vllm serve m -dp 4 -dpn 0", 1),
        ("vllm serve m -dp 4 --data-parallel-external-lb", 1),
        ("vllm serve m -dp 4 --data-parallel-multi-port-external-lb -dpl 2", 1),
        ("vllm serve m -dp 4 --data-parallel-hybrid-lb --data-parallel-size-local 2", 2),
        ("vllm serve m -dp 4 --no-data-parallel-hybrid-lb -dpl 2", 4),
        ("vllm serve m -dp 4 --data-parallel-start-rank 2 -dpl 2", 2),
        ("vllm serve m -dp 4 --enable-elastic-ep", 1),
        ("vllm serve m --headless -dp 4", 0),
        ("serve m --port 80 --max-model-len 100 -tp 2 -dpa 10.0.0.1 --served-model-name a b", 1),
    ],
)
def test_how_many_api_servers(words, count):
    assert parse(shlex.split(words)).api_servers((0, 33, 0)) == count


def test_ranks_did_not_count_before_0_15():
    assert parse(["-dp", "4"]).api_servers((0, 14, 1)) == 1
    assert parse(["-dp", "4"]).api_servers((0, 15, 0)) == 4
    assert parse(["-dp", "4"]).api_servers(None) == 4


def test_vllms_own_file(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("model: m\napi-server-count: 3\ndisable_log_stats: true\nheadless: false\nlora-modules: [a, b]\n")
    told = parse(["serve", "--config", str(file)])
    assert (told.api_server_count, told.disable_log_stats, told.headless) == (3, True, False)
    assert parse(["serve", "--config", str(file), "-asc", "2"]).api_server_count == 2


@pytest.mark.parametrize("words", [["-asc", "two"], ["--port"], ["--config", "/no/such/file.yaml"]])
def test_a_command_line_that_cannot_be_read(words):
    with pytest.raises(CommandError):
        parse(words)
    (finding,) = CHECKS["serve"](Launch({}, words))
    assert finding.status is Status.FAIL
    assert words[0].lstrip("-") in finding.found


def test_no_command_line_tells_what_to_expect():
    (finding,) = look("serve")
    assert finding.status is Status.SKIP
    for word in ("offline LLM", "--headless", "Of several API servers, one collects", "doctor -- vllm serve"):
        assert word in finding.advice


def test_one_server():
    assert [finding.status for finding in look("serve", "vllm serve m")] == [Status.OK]


def test_one_rank_of_several():
    (finding,) = look("serve", "vllm serve m -dp 2 -dpn 1")
    assert (finding.status, "its own prometheus.port" in finding.advice) == (Status.OK, True)


def test_headless():
    (finding,) = look("serve", "vllm serve m --headless")
    assert (finding.status, "head node" in finding.advice) == (Status.OK, True)
    assert "vllm-vitals sidecar --native-url" in finding.advice
    assert look("serve", "vllm serve m --headless --disable-log-stats")[1].status is Status.WARN
    for check in ("port", "reach"):
        assert look(check, "vllm serve m --headless")[0].status is Status.SKIP


def test_several_servers():
    (finding,) = look("serve", "vllm serve m -asc 3")
    assert (finding.status, finding.advice) == (Status.OK, "")
    assert finding.found == "3 API servers: one of them collects for all, so there is one scrape endpoint and one push"
    (finding,) = look("serve", "vllm serve m -asc 3", SIDECAR)
    assert (finding.status, finding.found) == (Status.OK, "3 API servers: they send to the sidecar")


def test_disabled_log_stats():
    several = look("serve", "vllm serve m -asc 2 --disable-log-stats")[1]
    assert (several.status, "Remove --disable-log-stats" in several.advice) == (Status.WARN, True)
    assert look("serve", "vllm serve m --disable-log-stats")[1].status is Status.OK


def test_elastic_experts():
    finding = look("serve", "vllm serve m --enable-elastic-ep")[1]
    assert finding.status is Status.WARN
    assert f"{DETACHED.prometheus} == 1" in finding.advice


def test_one_supervisor_many_servers_one_port():
    words = "vllm serve m -dp 2 -dpl 2 --data-parallel-multi-port-external-lb"
    (finding,) = look("serve", words)
    assert finding.status is Status.FAIL
    for word in ("VITALS_PROMETHEUS__PORT=0", "VITALS_WIRE__SIDECAR"):
        assert word in finding.advice
    for environ in ({"VITALS_PROMETHEUS__PORT": "0"}, SIDECAR):
        assert look("serve", words, environ)[0].status is Status.OK
