"""What the chart renders drives a real vLLM that was not built with the plugin, as it would in a pod.

Init container, sidecar and vLLM run one after the other with the rendered commands, variables, files and paths; a real
Prometheus scrapes them as the rendered PodMonitor says and evaluates the rendered rules. No cluster is involved.
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.render import Object, objects, ports, the, workload
from tests.live.bare import bare_vllm, package
from tests.live.bootstrap import prometheus_tools
from tests.live.load import run_load
from tests.live.pages import eventually
from tests.live.pod import Pod, running
from tests.live.prometheus import Prometheus
from tests.live.server import ENVIRONMENT, FLAGS, MODEL_NAME, fetch, free_port, numa_library_path

HERE = str(Path(sys.executable).parent)
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
CACHES = ("VLLM_CACHE_ROOT", "HF_HOME")
LABELS = {"namespace": "llm", "pod": "demo-vllm-vitals-5b9c8d7f6-x7k2p"}
"""What the Prometheus operator makes every target tell of its pod."""
GROUPS = "import importlib.metadata as m; print([e.name for e in m.entry_points(group='vllm.stat_logger_plugins')])"
WHENCE = "import vllm_vitals, pynvml, numpy, opentelemetry.sdk.metrics as sdk; print(vllm_vitals.__file__, pynvml.__file__, numpy.__file__, sdk.__file__)"


def values() -> dict[str, Any]:
    """Return values for this machine: what a CPU and a tiny model on a volume need, and ports that are free."""
    environment = {name: value for name, value in {**ENVIRONMENT, **numa_library_path()}.items() if name not in CACHES}
    return {
        "mode": "serve",
        "crds": {"prometheusOperator": "present", "keda": "present"},
        "autoscaling": {"burnRate": 2, "keda": {"enabled": True, "serverAddress": "http://prometheus"}},
        "image": {"repository": "registry.example.com/vllm-vitals"},
        "sidecar": {"enabled": True},
        "exporters": {"prometheus": {"port": free_port()}},
        "slos": [{"name": "any", "target": "50%", "e2e": "1h"}],
        "podMonitor": {"interval": "1s", "metricRelabelings": [{"targetLabel": "relabelled", "replacement": "yes"}]},
        "vllm": {
            "model": "/models/tiny",
            "port": free_port(),
            "args": ["--host=127.0.0.1", f"--served-model-name={MODEL_NAME}", *FLAGS],
            "env": [{"name": name, "value": value} for name, value in environment.items()],
            "extraVolumes": [{"name": "models", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "models", "mountPath": "/models"}],
        },
    }


def scrape_config(monitor: Object, named: dict[str, int]) -> dict[str, Any]:
    """Return a PodMonitor as a scrape configuration, with the pod's port found by its name."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    relabelings = [
        {"".join(f"_{char.lower()}" if char.isupper() else char for char in key): value for key, value in each.items()}
        for each in endpoint["metricRelabelings"]
    ]
    return {
        "job_name": f"podMonitor/{monitor['metadata']['namespace']}/{monitor['metadata']['name']}/0",
        "metrics_path": endpoint["path"],
        "scrape_interval": endpoint["interval"],
        "metric_relabel_configs": relabelings,
        "static_configs": [{"targets": [f"127.0.0.1:{named[endpoint['port']]}"], "labels": LABELS}],
    }


@pytest.fixture(scope="module")
def found() -> list[Object]:
    return objects(values())


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_vllm(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def spec(found: list[Object]) -> Object:
    return dict(workload(found)["spec"]["template"]["spec"])


@pytest.fixture(scope="module")
def pod(
    found: list[Object], spec: Object, model: Path, python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pod]:
    with tempfile.TemporaryDirectory(prefix="pod-") as home, running(found, spec, Path(home)) as made:
        image = {"/opt/vllm-vitals/package": package(tmp_path_factory.mktemp("image"))}
        (made.volume("models") / "tiny").symlink_to(model)
        made.run("vitals-inject", SYSTEM, image)
        made.start("vitals", f"{HERE}:{SYSTEM}")
        named = ports(spec)
        assert eventually(lambda: answers(f"http://127.0.0.1:{named['vitals']}/readyz")), made.log("vitals")
        vllm = made.start("vllm", f"{python.parent}:{SYSTEM}")
        healthy = eventually(
            lambda: vllm.poll() is not None or answers(f"http://127.0.0.1:{named['http']}/health"), 600
        )
        assert healthy, made.log("vllm")[-20_000:]
        assert vllm.poll() is None, made.log("vllm")[-20_000:]
        yield made


def answers(url: str) -> bool:
    try:
        fetch(url)
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def prometheus(found: list[Object], spec: Object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    home = tmp_path_factory.mktemp("prometheus")
    rules = {"groups": the(found, "PrometheusRule")["spec"]["groups"]}
    (home / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(home / "rules.yaml")],
        "scrape_configs": [scrape_config(the(found, "PodMonitor"), ports(spec))],
    }
    made = Prometheus(home, 0, yaml.safe_dump(config).replace("{", "{{").replace("}", "}}"))
    try:
        yield made
    finally:
        made.process.terminate()
        made.process.wait(timeout=20)


def test_vllm_has_no_plugin_of_itself(python: Path) -> None:
    done = subprocess.run([python, "-c", "import vllm_vitals"], capture_output=True, text=True, check=False, env={})
    assert "No module named 'vllm_vitals'" in done.stderr
    assert subprocess.check_output([python, "-c", GROUPS], text=True, env={}) == "[]\n"
    done = subprocess.run([python, "-c", "import pynvml"], capture_output=True, text=True, check=False, env={})
    assert "No module named 'pynvml'" in done.stderr


def test_injected_it_is_found_and_stands_in_nobodys_way(pod: Pod, python: Path) -> None:
    environment = pod.environment("vllm", SYSTEM)
    assert (
        subprocess.check_output([python, "-c", GROUPS], text=True, env=environment)
        == "['vitals_otlp', 'vitals_prometheus']\n"
    )
    ours, spare, numpy, sdk = subprocess.check_output([python, "-c", WHENCE], text=True, env=environment).split()
    injected = environment["PYTHONPATH"]
    assert ours.startswith(injected)
    assert spare.startswith(f"{injected}/vllm_vitals_spare/"), "what vLLM lacks comes from beside the package"
    for own in (numpy, sdk):
        assert own.startswith(str(python.parents[1])), (
            "what vLLM has comes from where it has it, although we brought it too"
        )
    assert list(Path(injected, "vllm_vitals_spare").glob("*/opentelemetry/sdk/metrics"))


def test_a_real_prometheus_scrapes_what_the_client_saw(pod: Pod, spec: Object, prometheus: Prometheus) -> None:
    report = asyncio.run(run_load(f"http://127.0.0.1:{ports(spec)['http']}", count=12, seed=7, disconnects=False))
    assert not report.failures
    tokens = 'vllm_tokens_generation_total{relabelled="yes"}'
    assert eventually(lambda: prometheus.query(tokens) == report.completion_tokens), (
        prometheus.query(tokens), report.completion_tokens, pod.log("vitals")[-2000:],
    )  # fmt: skip
    assert prometheus.query("vllm_engine_up") == 1
    finished, judged = sum(report.finished.values()), 'sum(vllm_slo_requests_total{slo="any"})'
    assert eventually(lambda: prometheus.query(judged) == finished), "the SLO of the values is judged"


def test_the_rules_are_evaluated(prometheus: Prometheus) -> None:
    assert eventually(lambda: prometheus.query("model:vllm_engine_requests_running:sum") == 0)


def test_keda_gets_its_answers(found: list[Object], prometheus: Prometheus) -> None:
    saturation, burn = (each["metadata"]["query"] for each in the(found, "ScaledObject")["spec"]["triggers"])
    assert eventually(lambda: 0 <= prometheus.query(saturation) <= 1), prometheus.query(saturation)
    assert eventually(lambda: prometheus.query(burn) == 0), "no request missed its objective"
    assert prometheus.query(saturation.replace("demo", "other")) != prometheus.query(saturation)


def test_promtool_takes_the_rules(found: list[Object], tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": the(found, "PrometheusRule")["spec"]["groups"]}))
    _, promtool = prometheus_tools()
    subprocess.run([promtool, "check", "rules", file], check=True)


@pytest.mark.usefixtures("pod")
def test_the_helm_test_passes(found: list[Object], spec: Object) -> None:
    test = the(found, "Pod")["spec"]
    with tempfile.TemporaryDirectory(prefix="test-") as home, running(found, test, Path(home)) as check:
        (container,) = test["containers"]
        container["env"] = [each for each in container["env"] if each["name"] != "CHECK_URL"]
        container["env"].append({"name": "CHECK_URL", "value": f"http://127.0.0.1:{ports(spec)['vitals']}/metrics"})
        check.run("check", f"{HERE}:{SYSTEM}")
        assert "the settings are valid" in check.log("check")
        assert "1 engines" in check.log("check")


def test_the_sidecar_outlives_vllm(pod: Pod, prometheus: Prometheus) -> None:
    before = prometheus.query("vllm_tokens_generation_total")
    pod.stop("vllm")
    assert eventually(lambda: prometheus.query("vllm_engine_up") == 0), pod.log("vitals")[-2000:]
    assert prometheus.query("vllm_tokens_generation_total") == before
